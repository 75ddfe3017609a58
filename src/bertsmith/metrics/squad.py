"""Exact match and F1 of answers, as the evaluation scripts of SQuAD 1.1, SQuAD 2.0, and CMRC 2018 compute them.

torchmetrics covers SQuAD 1.1 only, returns only means, and is a large dependency. For Chinese answers, by the
rules of CMRC 2018 (Cui et al. 2019), each ideograph counts as a word, punctuation is ignored, and F1 counts the
words of the longest common substring.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from itertools import groupby
from typing import NamedTuple

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)
# The list of CMRC's script. The script also lists "……", which has no effect, since it compares single characters.
_CMRC_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_IDEOGRAPH = "\u4e00-\u9fa5"
# An ideograph; a word or number (it's, 3.5), which the script splits with NLTK; or any other character.
_SEGMENT = re.compile(rf"[{_IDEOGRAPH}]|[^\W{_IDEOGRAPH}]+(?:(?:['.]|,(?=\d))[^\W{_IDEOGRAPH}]+)*|[^\w\s]")
_TOLERANCE = 1e-9  # sums of scores that differ by less are equal up to rounding


def normalize_answer(answer: str) -> str:
    """Return an answer in lower case, without ASCII punctuation and English articles, with single spaces.

    Other punctuation („“, 。, –) stays, as in the script.
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_DELETE_PUNCTUATION)).split())


def exact_match(answer: str, references: Iterable[str]) -> bool:
    """Return True if the normalized answer equals a normalized reference."""
    return normalize_answer(answer) in {normalize_answer(text) for text in references}


def f1(answer: str, references: Iterable[str]) -> float:
    """Return the highest F1 of shared words over the references, 0 to 1; 0 if no word is shared.

    Raises:
        ValueError: There is no reference.
    """
    words = Counter(normalize_answer(answer).split())
    others = (Counter(normalize_answer(text).split()) for text in references)
    return max(f1_of_counts((words & other).total(), words.total(), other.total()) for other in others)


def f1_v2(answer: str, references: Sequence[str]) -> float:
    """Return F1 by the rules of SQuAD 2.0, where a question may have no answer.

    If the answer or all references are empty after normalization, the score is 1 if both are, else 0.
    """
    non_empty = [text for text in references if normalize_answer(text)]
    is_answered, is_answerable = bool(normalize_answer(answer)), bool(non_empty)
    if not (is_answered and is_answerable):
        return float(is_answered == is_answerable)
    return f1(answer, non_empty)


def exact_match_v2(answer: str, references: Sequence[str]) -> bool:
    """Return the exact match by the rules of SQuAD 2.0."""
    return exact_match(answer, [text for text in references if normalize_answer(text)] or [""])


def f1_of_counts(num_shared: int, num_answer: int, num_reference: int) -> float:
    """Return F1 from the number of words that an answer and a reference share, and from their lengths."""
    if not num_shared:
        return 0.0
    precision, recall = num_shared / num_answer, num_shared / num_reference
    return 2 * precision * recall / (precision + recall)


def cmrc_segments(answer: str) -> list[str]:
    """Split an answer into lower-case ideographs and words without punctuation."""
    return _SEGMENT.findall(_normalize_chinese(answer))


def cmrc_exact_match(answer: str, references: Iterable[str]) -> bool:
    """Return True if the answer equals a reference, ignoring case and punctuation."""
    return _normalize_chinese(answer) in {_normalize_chinese(text) for text in references}


def cmrc_f1(answer: str, references: Sequence[str]) -> float:
    """Return the highest F1 over the references, 0 to 1, by the longest common run of words.

    An empty answer scores 1 if a reference is empty (an unanswerable question).

    Raises:
        ValueError: There is no reference.
    """
    if not answer:
        return float("" in references)
    return max(_substring_f1(cmrc_segments(answer), cmrc_segments(text)) for text in references)


def _normalize_chinese(answer: str) -> str:
    return answer.strip().lower().translate(_CMRC_PUNCTUATION)


def _substring_f1(answer: Sequence[str], reference: Sequence[str]) -> float:
    match = SequenceMatcher(None, answer, reference, autojunk=False).find_longest_match()
    return f1_of_counts(match.size, len(answer), len(reference))


class QuestionScores(NamedTuple):
    """Scores of one question of SQuAD 2.0.

    Attributes:
        null_score_diff: The model's score of "no answer" minus that of its best answer.
        answer_score: The F1 or exact match of the model's best answer, 0 to 1.
        no_answer_score: The F1 or exact match of "no answer".
    """

    null_score_diff: float
    answer_score: float
    no_answer_score: float


def find_best_threshold(questions: Iterable[QuestionScores]) -> tuple[float, float]:
    """Return the highest mean score over all thresholds of `null_score_diff`, and the threshold that reaches it.

    A question whose `null_score_diff` is above the threshold gets no answer. The threshold is the midpoint between
    two adjacent values, or 1 beyond the smallest or largest one; the lowest of the best thresholds.

    The score equals that of SQuAD 2.0's script (function `find_best_thresh`) as a fraction, unless questions have
    equal values: the script may answer only some of these, which no threshold can. The script's threshold is the
    largest value that is answered.
    """
    ordered = sorted(questions, key=lambda question: question.null_score_diff)
    running_score = best = math.fsum(question.no_answer_score for question in ordered)
    # The first and the last boundary are 2 beyond the values, so that midpoints are 1 beyond them.
    boundaries, best_index = [ordered[0].null_score_diff - 2], 0
    for value, group in groupby(ordered, key=lambda question: question.null_score_diff):
        boundaries.append(value)
        running_score += math.fsum(question.answer_score - question.no_answer_score for question in group)
        if running_score > best + _TOLERANCE:
            best, best_index = running_score, len(boundaries) - 1
    boundaries.append(boundaries[-1] + 2)
    return best / len(ordered), (boundaries[best_index] + boundaries[best_index + 1]) / 2
