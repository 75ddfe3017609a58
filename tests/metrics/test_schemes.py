"""Test tagging schemes: allowed transitions, violations, and conversion between tags and entities."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.metrics.tagging import (
    Entity,
    Scheme,
    SchemeViolation,
    entities_to_tags,
    extract_entities,
    find_violations,
    infer_letters,
    infer_scheme,
    is_allowed_transition,
    scheme_of_labels,
)

SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
LETTERS = {"BILOU": {"E": "L", "S": "U"}, "BMES": {"I": "M"}, "IOBES": {}}


@st.composite
def sentences(draw: st.DrawFn) -> tuple[list[Entity], int]:
    """Draw entities that may touch, and the number of words of their sentence."""
    spans, position = [], 0
    types = st.sampled_from(["PER", "LOC", "A-B", ""])
    for size, gap, type_ in draw(
        st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2), types), max_size=5)
    ):
        spans.append(Entity(type_, position + gap, position + gap + size))
        position += gap + size
    return spans, position + draw(st.integers(0, 2))


@pytest.mark.parametrize("scheme", SCHEMES)
@given(sentences())
def test_entities_survive_conversion_to_tags(scheme: Scheme, sentence: tuple[list[Entity], int]) -> None:
    spans, size = sentence
    for letters in LETTERS.values() if scheme == "iobes" else ({},):
        tags = entities_to_tags(spans, size, scheme, letters)
        assert len(tags) == size
        assert find_violations(tags, scheme) == []
        assert extract_entities(tags) == extract_entities(tags, scheme) == spans


@pytest.mark.parametrize("scheme", SCHEMES)
@given(st.lists(st.sampled_from(["O", *(f"{p}-{k}" for p in "BIES" for k in "XY")]), max_size=8))
def test_tags_are_valid_if_and_only_if_conversion_reproduces_them(scheme: Scheme, tags: list[str]) -> None:
    """The function that checks transitions and the one that writes tags agree."""
    valid = not find_violations(tags, scheme)
    assert valid == (entities_to_tags(extract_entities(tags), len(tags), scheme) == tags)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_strict_entities_are_a_subset(scheme: Scheme) -> None:
    for tags in product(["O", "B-X", "I-X", "E-X", "S-X", "I-Y"], repeat=4):
        assert set(extract_entities(tags, scheme)) <= set(extract_entities(tags))


@pytest.mark.parametrize(
    ("scheme", "tags", "violations"),
    [
        ("iob2", "O I-X", [SchemeViolation(1, "O", "I-X")]),
        ("iob2", "B-X I-Y", [SchemeViolation(1, "B-X", "I-Y")]),
        ("iob2", "B-X B-X I-X", []),
        ("iob1", "I-X B-X", []),
        ("iob1", "O B-X", [SchemeViolation(1, "O", "B-X")]),
        ("iobes", "B-X", [SchemeViolation(1, "B-X", None)]),
        ("iobes", "E-X", [SchemeViolation(0, None, "E-X")]),
        (
            "iobes",
            "B-X O S-X I-X",
            [
                SchemeViolation(1, "B-X", "O"),
                SchemeViolation(3, "S-X", "I-X"),
                SchemeViolation(4, "I-X", None),
            ],
        ),
        ("iobes", "U-X B-X L-X", []),
    ],
)
def test_violations(scheme: Scheme, tags: str, violations: list[SchemeViolation]) -> None:
    assert find_violations(tags.split(), scheme) == violations


def test_a_few_invalid_tags_do_not_change_the_inferred_scheme() -> None:
    rows = [["B-X", "I-X", "O", "B-Y"]] * 20 + [["O", "I-X"]]
    assert infer_scheme(rows) == "iob2"
    assert infer_scheme([["I-X", "I-X", "O", "I-Y"]] * 20 + [["O", "B-X"]]) == "iob1"
    assert infer_scheme([["B-X", "E-X", "O", "S-Y"]] * 20 + [["B-X", "O"], ["I-X"]]) == "iobes"


def test_letters_of_a_file() -> None:
    assert infer_letters(["O", "B-X", "I-X", "L-X", "U-X"]) == {"E": "L", "S": "U"}
    assert infer_letters(["B", "M", "E", "S"]) == {"I": "M"}
    assert infer_letters(["O", "B-X", "I-X"]) == {}
    assert is_allowed_transition("B", "M", "iobes")
    assert not is_allowed_transition("B", "S", "iobes")


@pytest.mark.parametrize(
    ("labels", "scheme"),
    [
        (["O", "B-PER", "I-PER"], "iob2"),
        (["O", "I-PER", "I-LOC"], "iob1"),
        (["O", "B-X", "I-X", "E-X", "S-X"], "iobes"),
        (["O", "B-X", "I-X", "L-X", "U-X"], "iobes"),
        (["NOUN", "VERB"], None),
    ],
)
def test_the_scheme_of_a_models_labels(labels: list[str], scheme: str | None) -> None:
    assert scheme_of_labels(labels) == scheme
