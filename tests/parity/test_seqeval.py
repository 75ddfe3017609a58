"""Entities and their scores against seqeval, the library that the field's Python scripts count with."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.metrics.sufficient_statistics import Counts, sum_counts
from bertsmith.metrics.tagging import count_entities, extract_entities, find_violations

metrics = pytest.importorskip("seqeval.metrics", reason="seqeval is not installed: pip install -e '.[dev]'")
scheme = pytest.importorskip("seqeval.scheme")

IOB = ["O", *(f"{prefix}-{kind}" for prefix in "BI" for kind in ("PER", "A-B"))]
IOBES = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "A-B"))]
BILOU = ["O", *(f"{prefix}-{kind}" for prefix in "BILU" for kind in ("PER", "A-B"))]


def pairs_of(tags: list[str]) -> st.SearchStrategy[list[list[tuple[str, str]]]]:
    pair = st.tuples(st.sampled_from(tags), st.sampled_from(tags))
    return st.lists(st.lists(pair, min_size=1, max_size=9), min_size=1, max_size=4)


def halves(pairs: list[list[tuple[str, str]]]) -> tuple[list[list[str]], list[list[str]]]:
    return [[a for a, _ in row] for row in pairs], [[b for _, b in row] for row in pairs]


def theirs(truth: list[list[str]], guess: list[list[str]], **mode: object) -> tuple[float, ...]:
    functions = (metrics.precision_score, metrics.recall_score, metrics.f1_score)
    return tuple(score(truth, guess, zero_division=0, **mode) for score in functions)


def ours_of(found: Counts) -> tuple[float, ...]:
    return found.precision, found.recall, found.f1


@settings(deadline=None)
@given(st.one_of(pairs_of(IOB), pairs_of(IOBES)))
def test_its_default_mode_counts_as_conlleval_does(pairs: list[list[tuple[str, str]]]) -> None:
    """For any tags, broken ones among them."""
    truth, guess = halves(pairs)
    found = sum_counts(count_entities(truth, guess))
    assert ours_of(found) == pytest.approx(theirs(truth, guess))
    for row in (*truth, *guess):
        wanted = metrics.sequence_labeling.get_entities(row)
        assert [(e.type, e.start, e.end - 1) for e in extract_entities(row)] == wanted


@pytest.mark.parametrize(
    ("name", "tags", "ours"), [("IOB2", IOB, "iob2"), ("IOBES", IOBES, "iobes"), ("BILOU", BILOU, "iobes")]
)
def test_its_strict_mode_counts_the_same_whole_entities(name: str, tags: list[str], ours: str) -> None:
    @settings(deadline=None)
    @given(pairs_of(tags))
    def same(pairs: list[list[tuple[str, str]]]) -> None:
        truth, guess = halves(pairs)
        for row in (*truth, *guess):
            wanted = scheme.Tokens(row, getattr(scheme, name)).entities
            assert [tuple(e) for e in extract_entities(row, ours)] == [
                (e.tag, e.start, e.end) for e in wanted
            ]
        found = sum_counts(count_entities(truth, guess, ours))
        score = (
            theirs(truth, guess, mode="strict", scheme=getattr(scheme, name))
            if found.num_references
            else ours_of(found)
        )
        assert ours_of(found) == pytest.approx(score)

    same()


@settings(deadline=None)
@given(st.lists(st.sampled_from(IOB), min_size=1, max_size=9))
def test_in_iob1_the_strict_modes_agree_on_legal_rows(row: list[str]) -> None:
    if not find_violations(row, "iob1"):
        wanted = scheme.Tokens(row, scheme.IOB1).entities
        assert [tuple(e) for e in extract_entities(row, "iob1")] == [(e.tag, e.start, e.end) for e in wanted]


def test_in_iob1_they_differ_where_b_follows_nothing() -> None:
    row = ["O", "B-PER", "I-PER"]
    assert extract_entities(row, "iob1") == []
    assert [(e.start, e.end) for e in scheme.Tokens(row, scheme.IOB1).entities] == [(2, 3)]
