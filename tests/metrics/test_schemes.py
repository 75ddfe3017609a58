"""Schemes of tags: what may follow what, what breaks one, and that entities survive from one to another."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.metrics.entities import Entity, entities, written
from bertsmith.metrics.tagging_schemes import Break, Scheme, allowed, breaks_of, letters_of, scheme_of

SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
LETTERS = {"BILOU": {"E": "L", "S": "U"}, "BMES": {"I": "M"}, "IOBES": {}}


@st.composite
def sentences(draw: st.DrawFn) -> tuple[list[Entity], int]:
    """Entities that may touch, and the words of their sentence."""
    found, at = [], 0
    kinds = st.sampled_from(["PER", "LOC", "A-B", ""])
    for size, gap, kind in draw(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2), kinds), max_size=5)):
        found.append(Entity(kind, at + gap, at + gap + size))
        at += gap + size
    return found, at + draw(st.integers(0, 2))


@pytest.mark.parametrize("scheme", SCHEMES)
@given(sentences())
def test_entities_written_in_a_scheme_are_legal_whole_and_read_again(
    scheme: Scheme, some: tuple[list[Entity], int]
) -> None:
    found, size = some
    for letters in LETTERS.values() if scheme == "iobes" else ({},):
        tags = written(found, size, scheme, letters)
        assert len(tags) == size
        assert breaks_of(tags, scheme) == []
        assert entities(tags) == entities(tags, scheme) == found


@pytest.mark.parametrize("scheme", SCHEMES)
@given(st.lists(st.sampled_from(["O", *(f"{p}-{k}" for p in "BIES" for k in "XY")]), max_size=8))
def test_tags_are_legal_exactly_if_they_are_what_their_entities_are_written_as(
    scheme: Scheme, tags: list[str]
) -> None:
    """So `allowed`, which forbids paths, and `written`, which makes them, are one definition."""
    legal = not breaks_of(tags, scheme)
    assert legal == (written(entities(tags), len(tags), scheme) == tags)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_strict_entities_are_some_of_those_that_conlleval_reads(scheme: Scheme) -> None:
    for tags in product(["O", "B-X", "I-X", "E-X", "S-X", "I-Y"], repeat=4):
        assert set(entities(tags, scheme)) <= set(entities(tags))


@pytest.mark.parametrize(
    ("scheme", "tags", "found"),
    [
        ("iob2", "O I-X", [Break(1, "O", "I-X")]),
        ("iob2", "B-X I-Y", [Break(1, "B-X", "I-Y")]),
        ("iob2", "B-X B-X I-X", []),
        ("iob1", "I-X B-X", []),
        ("iob1", "O B-X", [Break(1, "O", "B-X")]),
        ("iobes", "B-X", [Break(1, "B-X", None)]),
        ("iobes", "E-X", [Break(0, None, "E-X")]),
        ("iobes", "B-X O S-X I-X", [Break(1, "B-X", "O"), Break(3, "S-X", "I-X"), Break(4, "I-X", None)]),
        ("iobes", "U-X B-X L-X", []),
    ],
)
def test_what_breaks_a_scheme(scheme: Scheme, tags: str, found: list[Break]) -> None:
    assert breaks_of(tags.split(), scheme) == found


def test_a_few_broken_tags_do_not_make_another_scheme_of_a_file() -> None:
    rows = [["B-X", "I-X", "O", "B-Y"]] * 20 + [["O", "I-X"]]
    assert scheme_of(rows) == "iob2"
    assert scheme_of([["I-X", "I-X", "O", "I-Y"]] * 20 + [["O", "B-X"]]) == "iob1"
    assert scheme_of([["B-X", "E-X", "O", "S-Y"]] * 20 + [["B-X", "O"], ["I-X"]]) == "iobes"


def test_the_letters_of_a_file() -> None:
    assert letters_of(["O", "B-X", "I-X", "L-X", "U-X"]) == {"E": "L", "S": "U"}
    assert letters_of(["B", "M", "E", "S"]) == {"I": "M"}
    assert letters_of(["O", "B-X", "I-X"]) == {}
    assert allowed("B", "M", "iobes")
    assert not allowed("B", "S", "iobes")
