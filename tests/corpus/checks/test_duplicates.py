"""Exact and near-duplicates are counted and located, for any grouping into windows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.corpus.checks import duplicates
from bertsmith.corpus.checks.duplicates import DuplicateCheck
from bertsmith.corpus.near_duplicates import word_spans
from bertsmith.io.documents import Document

WORDS = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "nrstlm"]
TEXTS = st.lists(st.text(alphabet="ab ñ你。\n", max_size=12), max_size=8)


def random_words(count: int, seed: int) -> list[str]:
    """Return words drawn at random."""
    return random.Random(seed).choices(WORDS, k=count)


def replace_words(words: list[str], count: int, seed: int) -> list[str]:
    """Return the words with `count` of them replaced."""
    rng = random.Random(seed)
    new = list(words)
    for i in rng.sample(range(len(words)), count):
        new[i] = "zzz" + rng.choice(WORDS)
    return new


def summary_of(texts: Sequence[str], cuts: Sequence[int] = (), threshold: float = 0.8) -> dict[str, Any]:
    """Return the summary of texts at a:1, a:2, …, given to the check in groups that end at `cuts`."""
    check = DuplicateCheck(threshold, 20)
    documents = [Document(text, f"a:{i}") for i, text in enumerate(texts, start=1)]
    for start, end in pairwise(sorted({0, len(texts), *(min(cut, len(texts)) for cut in cuts)})):
        check.update([document for document in documents[start:end] if len(word_spans(document.text)[0])])
    return check.summary(sum(map(len, texts)))


def repeats(summary: dict[str, Any]) -> dict[str, list[str]]:
    return {cluster["first"]: cluster["places"] for cluster in summary["clusters"]}


def test_exact_duplicates_have_the_location_of_the_first() -> None:
    summary = summary_of(["one two", "three", "one two", " one two\n", "One two", "three"])
    assert repeats(summary["exact"]) == {"a:1": ["a:3", "a:4"], "a:2": ["a:6"]}
    assert summary["exact"]["number"] == 3


def test_near_duplicates_are_counted_and_others_are_not() -> None:
    """Similarities differ from the threshold by more than three standard deviations of the estimate."""
    texts = []
    for i in range(60):
        words = random_words(400, i)
        like, unlike = replace_words(words, 3, 1000 + i), replace_words(words, 32, 2000 + i)
        texts += [" ".join(words), " ".join(like), " ".join(unlike)]
    expected = {f"a:{3 * i + 1}": [f"a:{3 * i + 2}"] for i in range(60)}
    summary = summary_of(texts)["near"]
    assert summary["number"] == 60
    assert repeats(summary).items() <= expected.items()


def test_case_and_punctuation_are_ignored() -> None:
    texts = ["The cat sat on the mat; it purred.", "the CAT sat, on the mat - it purred!"]
    assert repeats(summary_of([*texts, "The dog lay on a rug and it barked."])["near"]) == {"a:1": ["a:2"]}


def test_chinese_is_compared_by_characters() -> None:
    rng = random.Random(1)
    text = "".join(chr(rng.randrange(0x4E00, 0x9F00)) for _ in range(300))
    texts = [text, text[:150] + "人" + text[151:], text[:100] + text[200:] + text[100:200][::-1]]
    assert repeats(summary_of(texts)["near"]) == {"a:1": ["a:2"]}


@given(texts=TEXTS, cuts=st.lists(st.integers(0, 8), max_size=3))
def test_grouping_into_calls_does_not_change_results(texts: list[str], cuts: list[int]) -> None:
    assert summary_of(texts, cuts) == summary_of(texts)


@given(texts=TEXTS)
def test_exact_duplicates_equal_those_of_a_dictionary(texts: list[str]) -> None:
    locations: dict[str, str] = {}
    expected: dict[str, list[str]] = {}
    for i, text in enumerate(texts, start=1):
        if any(character in "abñ你" for character in text):
            first = locations.setdefault(text.strip(), f"a:{i}")
            expected.setdefault(first, []).extend([f"a:{i}"] if first != f"a:{i}" else [])
    assert repeats(summary_of(texts)["exact"]) == {k: v for k, v in expected.items() if v}


def test_documents_beyond_the_capacity_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "MAX_NEAR_DOCUMENTS", 2)
    texts = [" ".join(random_words(50, i)) for i in range(4)]
    summary = summary_of([*texts, texts[1], texts[3]], cuts=[1, 3])
    assert repeats(summary["exact"]) == {"a:2": ["a:5"], "a:4": ["a:6"]}
    assert summary["near"]["not_compared"] == 2
