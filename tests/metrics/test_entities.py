"""Test entity counts on small cases and against an independent counter that runs as conlleval does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.metrics.sufficient_statistics import Counts, sum_counts
from bertsmith.metrics.tagging import Entity, count_entities, extract_entities, infer_scheme

# The script's tables: a chunk ends, or starts, between a tag and the next.
ENDS = {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O"), ("E", "E"), ("E", "I"), ("E", "O")}
STARTS = {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I"), ("E", "E"), ("E", "I"), ("O", "E")}


def conlleval_counts(references: list[list[str]], predictions: list[list[str]]) -> tuple[int, int, int]:
    """Count references, predictions, and correct predictions in one pass over both rows, as the script does.

    `still_correct` tracks if the open chunk has matched so far.
    """
    num_references = num_predictions = num_correct = 0
    still_correct = False
    previous = ("O", ""), ("O", "")
    for reference, prediction in zip(references, predictions, strict=True):
        for pair in [*zip(reference, prediction, strict=True), ("O", "O")]:
            current = tuple((tag[:1], tag[2:]) for tag in pair)
            ends, starts = [], []
            for (old, old_type), (new, new_type) in zip(previous, current, strict=True):
                changed = old_type != new_type
                ends.append((old, new) in ENDS or (old != "O" and changed))
                starts.append((old, new) in STARTS or (new != "O" and changed))
            if still_correct and all(ends) and previous[0][1] == previous[1][1]:
                still_correct, num_correct = False, num_correct + 1
            elif still_correct and (ends[0] != ends[1] or current[0][1] != current[1][1]):
                still_correct = False
            if all(starts) and current[0][1] == current[1][1]:
                still_correct = True
            num_references, num_predictions = num_references + starts[0], num_predictions + starts[1]
            previous = current
    return num_references, num_predictions, num_correct


def rows_of(*tags: str) -> st.SearchStrategy[list[list[str]]]:
    # Both rows of a pair have the same length: they are drawn as pairs of tags.
    return st.lists(st.lists(st.tuples(st.sampled_from(tags), st.sampled_from(tags)), max_size=9), max_size=4)


IOB = ["O", *(f"{prefix}-{kind}" for prefix in "BI" for kind in ("PER", "LOC"))]


@given(rows_of(*IOB))
def test_counts_equal_conlleval_for_valid_and_invalid_iob(pairs: list) -> None:
    references = [[a for a, _ in row] for row in pairs]
    predictions = [[b for _, b in row] for row in pairs]
    counts = sum_counts(count_entities(references, predictions))
    assert (counts.num_references, counts.num_predictions, counts.num_correct) == conlleval_counts(
        references, predictions
    )


@pytest.mark.parametrize(
    ("tags", "expected"),
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
def test_entities(tags: str, expected: list[str]) -> None:
    result = extract_entities(tags.split())
    assert [f"{e.type} {e.start} {e.end}" for e in result] == expected
    assert all(isinstance(e, Entity) for e in result)


def test_an_entity_ends_with_its_sentence() -> None:
    assert count_entities([["I-PER"], ["I-PER"]], [["I-PER"], ["I-PER"]]) == {"PER": Counts(2, 2, 2)}


def test_correct_entities_have_the_same_type_start_and_end() -> None:
    references = [["B-PER", "I-PER", "O", "B-LOC", "B-LOC"]]
    predictions = [["B-PER", "O", "O", "B-ORG", "B-LOC"]]
    types = count_entities(references, predictions)
    assert types == {"LOC": Counts(2, 1, 1), "ORG": Counts(0, 1, 0), "PER": Counts(1, 1, 0)}
    counts = sum_counts(types)
    assert (counts.precision, counts.recall, counts.f1) == (1 / 3, 1 / 3, 1 / 3)
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
def test_scheme_is_inferred_from_tags(rows: list[str], scheme: str | None) -> None:
    assert infer_scheme(row.split() for row in rows) == scheme
