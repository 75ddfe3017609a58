"""Exact match and F1 of answers, as the evaluation script of SQuAD 1.1 computes them.

torchmetrics has the same rules, but only as means over a whole file, and brings a framework along.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

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


def _overlap(answer: Counter[str], gold: Counter[str]) -> float:
    shared = (answer & gold).total()
    if not shared:
        return 0.0
    precision, recall = shared / answer.total(), shared / gold.total()
    return 2 * precision * recall / (precision + recall)
