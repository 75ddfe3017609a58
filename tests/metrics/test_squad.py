"""Test answers on small cases and against independent versions of the rules of SQuAD's and CMRC 2018's scripts."""

from __future__ import annotations

import re
import string
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.metrics.squad import (
    QuestionScores,
    cmrc_exact_match,
    cmrc_f1,
    cmrc_segments,
    exact_match,
    exact_match_v2,
    f1,
    f1_v2,
    find_best_threshold,
    normalize_answer,
)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The Denver Broncos!", "denver broncos"),
        ("an  apple\ta day", "apple day"),
        ("theatre and a", "theatre and"),
        ("the-end", "theend"),  # punctuation is deleted first, so this is no article
        ("U.S.", "us"),
        ("„the“ – Ärger", "„ “ – ärger"),
        ("37 摄氏度。", "37 摄氏度。"),
        ("a\u00a0b", "b"),  # a no-break space separates words
        ("The", ""),
    ],
)
def test_normalize(answer: str, expected: str) -> None:
    assert normalize_answer(answer) == expected


def test_small_cases() -> None:
    assert exact_match("The cat.", ["dog", "CAT"])
    assert not exact_match("cats", ["cat"])
    assert exact_match("the", ["an"])
    assert f1("the", ["an"]) == 0.0  # equal and empty: the script counts no shared word
    assert f1("in New York City", ["New York", "the Big Apple"]) == pytest.approx(2 * 0.5 / 1.5)
    assert f1("red red blue", ["red blue blue"]) == pytest.approx(2 / 3)
    assert f1("nothing", ["something else"]) == 0.0


def test_f1_needs_a_reference() -> None:
    with pytest.raises(ValueError, match="empty"):
        f1("cat", [])


def reference_scores(answer: str, references: list[str]) -> tuple[bool, float]:
    """Score as evaluate-v1.1.py does (Rajpurkar et al. 2016), with the same order and data types."""

    def normalize(text: str) -> str:
        text = "".join(c for c in text.lower() if c not in set(string.punctuation))
        return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())

    def f1_of(reference: str) -> float:
        words, reference_words = normalize(answer).split(), normalize(reference).split()
        same = sum((Counter(words) & Counter(reference_words)).values())
        if same == 0:
            return 0
        precision, recall = 1.0 * same / len(words), 1.0 * same / len(reference_words)
        return (2 * precision * recall) / (precision + recall)

    exact = max(normalize(answer) == normalize(reference) for reference in references)
    return exact, max(map(f1_of, references))


TEXTS = st.lists(
    st.sampled_from(
        [*"ab.,'-", "the", "The", "an", "cat", "CAT", "naïve", "İ", "ß", "摄氏", "\u3000", " ", "\n"]
    ),
    max_size=8,
).map("".join) | st.text(max_size=12)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=4))
def test_scores_equal_the_reference(answer: str, references: list[str]) -> None:
    exact, score = reference_scores(answer, references)
    assert exact_match(answer, references) == exact
    assert f1(answer, references) == score


def reference_scores_v2(answer: str, references: list[str]) -> tuple[bool, float]:
    """Score as evaluate-v2.0.py does (Rajpurkar et al. 2018): an empty answer matches an empty reference."""

    def normalize(text: str) -> str:
        text = "".join(c for c in text.lower() if c not in set(string.punctuation))
        return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())

    def f1_of(reference: str) -> float:
        words, reference_words = normalize(answer).split(), normalize(reference).split()
        same = sum((Counter(words) & Counter(reference_words)).values())
        if not words or not reference_words:
            return int(words == reference_words)
        if same == 0:
            return 0
        precision, recall = 1.0 * same / len(words), 1.0 * same / len(reference_words)
        return (2 * precision * recall) / (precision + recall)

    non_empty = [text for text in references if normalize(text)] or [""]
    exact = max(normalize(answer) == normalize(reference) for reference in non_empty)
    return exact, max(map(f1_of, non_empty))


@given(TEXTS | st.just(""), st.lists(TEXTS, min_size=1, max_size=4) | st.just([""]))
def test_scores_equal_the_reference_v2(answer: str, references: list[str]) -> None:
    exact, score = reference_scores_v2(answer, references)
    assert exact_match_v2(answer, references) == exact
    assert f1_v2(answer, references) == pytest.approx(score)


QUESTIONS = st.lists(
    st.tuples(st.integers(-20, 20), st.booleans(), st.sampled_from([0.0, 0.25, 0.5, 1.0])),
    min_size=1,
    max_size=12,
    unique_by=lambda question: question[0],
)


@given(QUESTIONS)
def test_best_threshold_equals_the_scripts(questions: list[tuple[int, bool, float]]) -> None:
    """Repeat the script's loop for questions that are all answered and have distinct values."""
    total = sum(not answerable for _, answerable, _ in questions)
    best = total
    for _, answerable, score in sorted(questions):
        total += score if answerable else -1
        best = max(best, total)
    scores = [QuestionScores(value, score if has else 0.0, float(not has)) for value, has, score in questions]
    best_score, threshold = find_best_threshold(scores)
    assert best_score == pytest.approx(best / len(questions))
    achieved = [s.no_answer_score if s.null_score_diff > threshold else s.answer_score for s in scores]
    assert sum(achieved) / len(achieved) == pytest.approx(best_score)


def test_questions_of_equal_value_are_on_the_same_side_of_the_threshold() -> None:
    scores = [QuestionScores(1.0, 1.0, 0.0), QuestionScores(1.0, 0.0, 1.0), QuestionScores(3.0, 0.0, 1.0)]
    assert find_best_threshold(scores) == (pytest.approx(2 / 3), 0.0)  # never answer: 1 below the lowest
    assert find_best_threshold([QuestionScores(1.0, 1.0, 0.0), QuestionScores(3.0, 0.0, 1.0)]) == (1.0, 2.0)
    assert find_best_threshold([QuestionScores(1.0, 1.0, 0.0), QuestionScores(3.0, 1.0, 0.0)]) == (1.0, 4.0)


def test_segments_are_single_ideographs_and_words() -> None:
    assert cmrc_segments(" 光荣和ω-Force 3.5%！") == ["光", "荣", "和", "ωforce", "3.5", "%"]
    assert cmrc_segments("It's 1,000 年…") == ["it's", "1,000", "年", "…"]
    assert cmrc_segments("。") == []


def test_small_chinese_cases() -> None:
    assert cmrc_exact_match("《光荣》", ["光荣。", "别的"])
    assert not cmrc_exact_match("光荣", ["光"])
    # The longest common run is 光荣, of 3 and of 5.
    assert cmrc_f1("光荣和", ["与光荣公司"]) == pytest.approx(2 * (2 / 3) * (2 / 5) / (2 / 3 + 2 / 5))
    assert cmrc_f1("荣光", ["光荣"]) == 0.5  # a run, not a bag of characters
    assert cmrc_f1("二", ["三"]) == 0.0
    assert cmrc_f1("", [""]) == 1.0
    assert cmrc_f1("", ["光"]) == cmrc_f1("光", [""]) == 0.0
    with pytest.raises(ValueError, match="empty"):
        cmrc_f1("光", [])


CMRC_PUNCTUATION = "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』"


def cmrc_reference_scores(answer: str, references: list[str]) -> tuple[bool, float]:
    """Score as cmrc2018_evaluate.py (Cui et al. 2019) does for words that its tokenizer does not split."""

    def split_text(text: str) -> list[str]:
        result, word = [], ""
        for c in text.lower().strip():
            if c in CMRC_PUNCTUATION:
                continue
            if re.search("[\u4e00-\u9fa5]", c):
                result += [*word.split(), c]
                word = ""
            else:
                word += c
        return [*result, *word.split()]

    def longest_common_run(a: list[str], b: list[str]) -> int:
        table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
        length = 0
        for i in range(len(a)):
            for j in range(len(b)):
                if a[i] == b[j]:
                    table[i + 1][j + 1] = table[i][j] + 1
                    length = max(length, table[i + 1][j + 1])
        return length

    def f1_of(reference: str) -> float:
        words, reference_words = split_text(answer), split_text(reference)
        same = longest_common_run(words, reference_words)
        if same == 0:
            return 0
        precision, recall = same / len(words), same / len(reference_words)
        return 2 * precision * recall / (precision + recall)

    def normalize(text: str) -> str:
        return "".join(c for c in text.lower().strip() if c not in CMRC_PUNCTUATION)

    exact = any(normalize(answer) == normalize(reference) for reference in references)
    return exact, max(map(f1_of, references))


CHINESE_TEXTS = st.lists(st.sampled_from([*"光荣和公司一二三aB3，。-《》 "]), min_size=1, max_size=10).map(
    "".join
)


@given(CHINESE_TEXTS, st.lists(CHINESE_TEXTS, min_size=1, max_size=3))
def test_cmrc_scores_equal_the_reference(answer: str, references: list[str]) -> None:
    exact, score = cmrc_reference_scores(answer, references)
    assert cmrc_exact_match(answer, references) == exact
    assert cmrc_f1(answer, references) == pytest.approx(score)
