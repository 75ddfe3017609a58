"""Exact match and F1 of answers, as the evaluation scripts of SQuAD 1.1 and 2.0 compute them.

torchmetrics has the same rules, but only as means over a whole file, and brings a framework along.
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


def normalised(answer: str) -> str:
    """Lower case, without ASCII punctuation and English articles, one blank between words.

    Other punctuation („“, 。, –) stays, as in the script.
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, gold: Iterable[str]) -> bool:
    """Whether the answer equals one of the gold answers once all are normalised."""
    return normalised(answer) in {normalised(text) for text in gold}


def f1(answer: str, gold: Iterable[str]) -> float:
    """The highest F1 of words shared with a gold answer, 0 to 1 (0 where no word is shared, even if neither side
    has any). ValueError where there is no gold answer."""
    words = Counter(normalised(answer).split())
    return max(_overlap(words, Counter(normalised(text).split())) for text in gold)


def f1_or_none(answer: str, gold: Sequence[str]) -> float:
    """F1 by the rules of SQuAD 2.0, where a question may have no answer: an answer that is empty once normalised
    is right, and only right, where no gold answer has a word."""
    worded = [text for text in gold if normalised(text)]
    if not worded or not normalised(answer):
        return float(not worded and not normalised(answer))
    return f1(answer, worded)


def exact_or_none(answer: str, gold: Sequence[str]) -> bool:
    """Exact match by the rules of SQuAD 2.0."""
    return exact_match(answer, [text for text in gold if normalised(text)] or [""])


def _overlap(answer: Counter[str], gold: Counter[str]) -> float:
    shared = (answer & gold).total()
    if not shared:
        return 0.0
    precision, recall = shared / answer.total(), shared / gold.total()
    return 2 * precision * recall / (precision + recall)


class Asking(NamedTuple):
    """One question of SQuAD 2.0: how much more a model is for no answer than for one (any scale); what its answer
    scores, 0 to 1; and what no answer scores."""

    for_none: float
    answered: float
    unanswered: float


def best_threshold(asked: Iterable[Asking]) -> tuple[float, float]:
    """The highest mean score over thresholds of `for_none`, and the threshold; above it the answer is "none".

    The score is that of SQuAD 2.0's script (`find_best_thresh`), which names the last value that is answered; here
    the threshold is in the middle between that and the next, or 1 beyond the outermost. Of equally good ones it is
    the lowest. Questions of equal values are on the same side of it.
    """
    ordered = sorted(asked, key=lambda one: one.for_none)
    total = best = math.fsum(one.unanswered for one in ordered)
    values, kept = [ordered[0].for_none - 2], 0
    for value, some in groupby(ordered, key=lambda one: one.for_none):
        values.append(value)
        total += math.fsum(one.answered - one.unanswered for one in some)
        if total > best + 1e-9:  # sums of shares are rounded
            best, kept = total, len(values) - 1
    values.append(values[-1] + 2)
    return best / len(ordered), (values[kept] + values[kept + 1]) / 2
