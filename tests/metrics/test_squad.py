"""Exact match and F1: cases by hand, and the script's rules written down a second time."""

from __future__ import annotations

import re
import string
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.metrics.squad import (
    Asking,
    best_threshold,
    exact_match,
    exact_or_none,
    f1,
    f1_or_none,
    normalised,
)


@pytest.mark.parametrize(
    ("answer", "plain"),
    [
        ("The Denver Broncos!", "denver broncos"),
        ("an  apple\ta day", "apple day"),
        ("theatre and a", "theatre and"),
        ("the-end", "theend"),  # punctuation goes first, so this article is none
        ("U.S.", "us"),
        ("„the“ – Ärger", "„ “ – ärger"),
        ("37 摄氏度。", "37 摄氏度。"),
        ("a\u00a0b", "b"),  # a no-break space parts words
        ("The", ""),
    ],
)
def test_normalised(answer: str, plain: str) -> None:
    assert normalised(answer) == plain


def test_hand_cases() -> None:
    assert exact_match("The cat.", ["dog", "CAT"])
    assert not exact_match("cats", ["cat"])
    assert exact_match("the", ["an"])
    assert f1("the", ["an"]) == 0.0  # equal and empty: the script counts no shared word
    assert f1("in New York City", ["New York", "the Big Apple"]) == pytest.approx(2 * 0.5 / 1.5)
    assert f1("red red blue", ["red blue blue"]) == pytest.approx(2 / 3)
    assert f1("nothing", ["something else"]) == 0.0


def test_without_gold_there_is_no_score() -> None:
    with pytest.raises(ValueError, match="empty"):
        f1("cat", [])


def by_the_rules(answer: str, gold: list[str]) -> tuple[bool, float]:
    """Rajpurkar et al. 2016, evaluate-v1.1.py, in its own order and data types."""

    def plain(text: str) -> str:
        text = "".join(c for c in text.lower() if c not in set(string.punctuation))
        return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())

    def of_one(other: str) -> float:
        ours, theirs = plain(answer).split(), plain(other).split()
        same = sum((Counter(ours) & Counter(theirs)).values())
        if same == 0:
            return 0
        precision, recall = 1.0 * same / len(ours), 1.0 * same / len(theirs)
        return (2 * precision * recall) / (precision + recall)

    return max(plain(answer) == plain(other) for other in gold), max(of_one(other) for other in gold)


TEXTS = st.lists(
    st.sampled_from(
        [*"ab.,'-", "the", "The", "an", "cat", "CAT", "naïve", "İ", "ß", "摄氏", "\u3000", " ", "\n"]
    ),
    max_size=8,
).map("".join) | st.text(max_size=12)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=4))
def test_equal_to_the_rules_written_a_second_time(answer: str, gold: list[str]) -> None:
    exact, score = by_the_rules(answer, gold)
    assert exact_match(answer, gold) == exact
    assert f1(answer, gold) == score


def by_the_rules_of_two(answer: str, gold: list[str]) -> tuple[bool, float]:
    """Rajpurkar et al. 2018, evaluate-v2.0.py: an answer of no word is right where the other has none, too."""

    def plain(text: str) -> str:
        text = "".join(c for c in text.lower() if c not in set(string.punctuation))
        return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())

    def of_one(other: str) -> float:
        ours, theirs = plain(answer).split(), plain(other).split()
        same = sum((Counter(ours) & Counter(theirs)).values())
        if not ours or not theirs:
            return int(ours == theirs)
        if same == 0:
            return 0
        precision, recall = 1.0 * same / len(ours), 1.0 * same / len(theirs)
        return (2 * precision * recall) / (precision + recall)

    golds = [text for text in gold if plain(text)] or [""]
    return max(plain(answer) == plain(other) for other in golds), max(map(of_one, golds))


@given(TEXTS | st.just(""), st.lists(TEXTS, min_size=1, max_size=4) | st.just([""]))
def test_equal_to_the_rules_of_squad_two_written_a_second_time(answer: str, gold: list[str]) -> None:
    exact, score = by_the_rules_of_two(answer, gold)
    assert exact_or_none(answer, gold) == exact
    assert f1_or_none(answer, gold) == pytest.approx(score)


QUESTIONS = st.lists(
    st.tuples(st.integers(-20, 20), st.booleans(), st.sampled_from([0.0, 0.25, 0.5, 1.0])),
    min_size=1,
    max_size=12,
    unique_by=lambda question: question[0],
)


@given(QUESTIONS)
def test_the_best_threshold_is_the_scripts(questions: list[tuple[int, bool, float]]) -> None:
    """Its loop, where every question was answered, and no two values are equal."""
    total = sum(not answerable for _, answerable, _ in questions)
    best = total
    for _, answerable, score in sorted(questions):
        total += score if answerable else -1
        best = max(best, total)
    asked = [Asking(value, score if has else 0.0, float(not has)) for value, has, score in questions]
    found, threshold = best_threshold(asked)
    assert found == pytest.approx(best / len(questions))
    chosen = [one.unanswered if one.for_none > threshold else one.answered for one in asked]
    assert sum(chosen) / len(chosen) == pytest.approx(found)


def test_questions_of_one_value_stay_on_one_side_of_the_threshold() -> None:
    asked = [Asking(1.0, 1.0, 0.0), Asking(1.0, 0.0, 1.0), Asking(3.0, 0.0, 1.0)]
    assert best_threshold(asked) == (pytest.approx(2 / 3), 0.0)  # always none, and 1 below the lowest
    assert best_threshold([Asking(1.0, 1.0, 0.0), Asking(3.0, 0.0, 1.0)]) == (1.0, 2.0)
    assert best_threshold([Asking(1.0, 1.0, 0.0), Asking(3.0, 1.0, 0.0)]) == (1.0, 4.0)
