"""Entities: what conlleval counts, from hand-made rows and from a second counter that runs as the script does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.metrics.entities import Entity, count, entities, total
from bertsmith.metrics.precision_recall import Counts
from bertsmith.metrics.tagging_schemes import scheme_of

# The script's own tables: a chunk ends, or starts, between a tag and the next.
ENDS = {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O"), ("E", "E"), ("E", "I"), ("E", "O")}
STARTS = {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I"), ("E", "E"), ("E", "I"), ("O", "E")}


def running_counts(truth: list[list[str]], guess: list[list[str]]) -> tuple[int, int, int]:
    """Chunks in the data, chunks found, chunks right, as the script counts: in one walk over both rows, by whether
    the chunk that is open was right so far."""
    gold = found = right = 0
    still_right = False
    last = ("O", ""), ("O", "")
    for row, other in zip(truth, guess, strict=True):
        for pair in [*zip(row, other, strict=True), ("O", "O")]:
            now = tuple((tag[:1], tag[2:]) for tag in pair)
            ends, starts = [], []
            for (old, old_kind), (new, kind) in zip(last, now, strict=True):
                changed = old_kind != kind
                ends.append((old, new) in ENDS or (old != "O" and changed))
                starts.append((old, new) in STARTS or (new != "O" and changed))
            if still_right and all(ends) and last[0][1] == last[1][1]:
                still_right, right = False, right + 1
            elif still_right and (ends[0] != ends[1] or now[0][1] != now[1][1]):
                still_right = False
            if all(starts) and now[0][1] == now[1][1]:
                still_right = True
            gold, found, last = gold + starts[0], found + starts[1], now
    return gold, found, right


def rows_of(*tags: str) -> st.SearchStrategy[list[list[str]]]:
    # Both rows of a pair have one length: drawn as pairs, taken apart below.
    return st.lists(st.lists(st.tuples(st.sampled_from(tags), st.sampled_from(tags)), max_size=9), max_size=4)


IOB = ["O", *(f"{prefix}-{kind}" for prefix in "BI" for kind in ("PER", "LOC"))]


@given(rows_of(*IOB))
def test_any_rows_of_iob_however_broken_count_as_the_script_counts(pairs: list) -> None:
    truth = [[a for a, _ in row] for row in pairs]
    guess = [[b for _, b in row] for row in pairs]
    found = total(count(truth, guess))
    assert (found.gold, found.found, found.right) == running_counts(truth, guess)


@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        ("O O", []),
        ("I-PER I-PER O I-LOC", ["PER 0 2", "LOC 3 4"]),
        ("I-PER B-PER I-PER", ["PER 0 1", "PER 1 3"]),
        ("B-PER I-PER B-PER", ["PER 0 2", "PER 2 3"]),
        ("B-PER I-LOC I-LOC", ["PER 0 1", "LOC 1 3"]),
        ("S-PER S-PER B-LOC E-LOC", ["PER 0 1", "PER 1 2", "LOC 2 4"]),
        ("B-LOC E-LOC B-LOC I-LOC E-LOC", ["LOC 0 2", "LOC 2 5"]),
        ("B-LOC I-LOC S-LOC", ["LOC 0 2", "LOC 2 3"]),
        ("E-LOC E-LOC I-LOC", ["LOC 0 1", "LOC 1 2", "LOC 2 3"]),
        ("U-PER B-LOC I-LOC L-LOC U-LOC", ["PER 0 1", "LOC 1 4", "LOC 4 5"]),
        ("B-ARG-MOD I-ARG-MOD O", ["ARG-MOD 0 2"]),
        ("B I O I", [" 0 2", " 3 4"]),
    ],
)
def test_entities_of_hand_made_rows(tags: str, wanted: list[str]) -> None:
    found = entities(tags.split())
    assert [f"{e.type} {e.start} {e.end}" for e in found] == wanted
    assert all(isinstance(e, Entity) for e in found)


def test_an_entity_ends_with_its_sentence() -> None:
    assert count([["I-PER"], ["I-PER"]], [["I-PER"], ["I-PER"]]) == {"PER": Counts(2, 2, 2)}


def test_type_start_and_end_must_all_be_right() -> None:
    truth = [["B-PER", "I-PER", "O", "B-LOC", "B-LOC"]]
    guess = [["B-PER", "O", "O", "B-ORG", "B-LOC"]]
    types = count(truth, guess)
    assert types == {"LOC": Counts(2, 1, 1), "ORG": Counts(0, 1, 0), "PER": Counts(1, 1, 0)}
    whole = total(types)
    assert (whole.precision, whole.recall, whole.f1) == (1 / 3, 1 / 3, 1 / 3)
    assert (types["ORG"].recall, types["PER"].f1) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("rows", "scheme"),
    [
        (["I-PER I-PER O", "I-LOC B-LOC"], "iob1"),
        (["B-PER I-PER O", "B-LOC"], "iob2"),
        (["B-PER I-LOC"], "iob1"),
        (["B-PER E-PER O", "S-LOC"], "iobes"),
        (["B-PER L-PER O U-LOC"], "iobes"),
        (["B M E S"], "iobes"),
        (["NOUN VERB O"], None),
        (["O O"], None),
        (["B-PER NOUN"], None),
    ],
)
def test_the_scheme_is_seen_in_the_tags(rows: list[str], scheme: str | None) -> None:
    assert scheme_of(row.split() for row in rows) == scheme
