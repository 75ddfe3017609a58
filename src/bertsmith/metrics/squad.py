"""Exact match and F1 of answers, as the evaluation scripts of SQuAD 1.1 and 2.0 compute them.

torchmetrics has the same rules, but returns only means over a whole file, and is a large dependency.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_TOLERANCE = 1e-9  # sums of scores that differ by less are equal up to rounding


def normalize_answer(answer: str) -> str:
    """Return an answer in lower case, without ASCII punctuation and English articles, with single spaces.

    Other punctuation („“, 。, –) stays, as in the script.
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, references: Iterable[str]) -> bool:
    """Return True if the normalized answer equals a normalized reference."""
    return normalize_answer(answer) in {normalize_answer(text) for text in references}


def f1(answer: str, references: Iterable[str]) -> float:
    """Return the highest F1 of shared words over the references, 0 to 1; 0 if no word is shared.

    Raises:
        ValueError: There is no reference.
    """
    words = Counter(normalize_answer(answer).split())
    return max(_word_f1(words, Counter(normalize_answer(text).split())) for text in references)


def f1_v2(answer: str, references: Sequence[str]) -> float:
    """Return F1 by the rules of SQuAD 2.0, where a question may have no answer.

    An answer that is empty once normalized scores 1 if no reference has a word, and else 0.
    """
    non_empty = [text for text in references if normalize_answer(text)]
    if not non_empty or not normalize_answer(answer):
        return float(not non_empty and not normalize_answer(answer))
    return f1(answer, non_empty)


def exact_match_v2(answer: str, references: Sequence[str]) -> bool:
    """Return the exact match by the rules of SQuAD 2.0."""
    return exact_match(answer, [text for text in references if normalize_answer(text)] or [""])


def _word_f1(answer: Counter[str], reference: Counter[str]) -> float:
    shared = (answer & reference).total()
    if not shared:
        return 0.0
    precision, recall = shared / answer.total(), shared / reference.total()
    return 2 * precision * recall / (precision + recall)


class QuestionScores(NamedTuple):
    """Scores of one question of SQuAD 2.0.

    Attributes:
        null_score_diff: The model's score of "no answer" minus that of its best answer, on any scale.
        answer_score: The F1 or exact match of the model's best answer, 0 to 1.
        no_answer_score: The F1 or exact match of "no answer".
    """

    null_score_diff: float
    answer_score: float
    no_answer_score: float


def find_best_threshold(questions: Iterable[QuestionScores]) -> tuple[float, float]:
    """Return the highest mean score over all thresholds of `null_score_diff`, and the threshold that reaches it.

    A question whose `null_score_diff` is above the threshold gets no answer. The score equals that of SQuAD 2.0's
    script (function `find_best_thresh`). The script returns the largest value that is answered; the threshold here
    is the midpoint between that value and the next one, or 1 beyond the smallest or largest value. Of equally good
    thresholds it is the lowest. Questions of equal values are on the same side of it.
    """
    ordered = sorted(questions, key=lambda question: question.null_score_diff)
    total = best = math.fsum(question.no_answer_score for question in ordered)
    # Outer values at a distance of 2, so that the midpoints are 1 beyond the smallest and the largest value.
    values, best_index = [ordered[0].null_score_diff - 2], 0
    for value, group in groupby(ordered, key=lambda question: question.null_score_diff):
        values.append(value)
        total += math.fsum(question.answer_score - question.no_answer_score for question in group)
        if total > best + _TOLERANCE:
            best, best_index = total, len(values) - 1
    values.append(values[-1] + 2)
    return best / len(ordered), (values[best_index] + values[best_index + 1]) / 2
