"""Exact match and F1 of Chinese answers, as the evaluation script of CMRC 2018 computes them (Cui et al. 2019).

Each ideograph counts as a word, and punctuation is ignored. F1 counts the words of the longest common substring.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

from bertsmith.metrics.squad import f1_of_counts

# The script's list. The script also lists "……", which has no effect, since it compares single characters.
_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_IDEOGRAPH = "\u4e00-\u9fa5"
# An ideograph; a word or number (it's, 3.5), which the script splits with NLTK; or any other character.
_SEGMENT = re.compile(rf"[{_IDEOGRAPH}]|[^\W{_IDEOGRAPH}]+(?:(?:['.]|,(?=\d))[^\W{_IDEOGRAPH}]+)*|[^\w\s]")


def segments(answer: str) -> list[str]:
    """Split an answer into lower-case ideographs and words without punctuation."""
    return _SEGMENT.findall(_normalize(answer))


def exact_match(answer: str, references: Iterable[str]) -> bool:
    """Return True if the answer equals a reference, ignoring case and punctuation."""
    return _normalize(answer) in {_normalize(text) for text in references}


def f1(answer: str, references: Sequence[str]) -> float:
    """Return the highest F1 over the references, 0 to 1, by the longest common run of words.

    An empty answer scores 1 if a reference is empty (an unanswerable question).

    Raises:
        ValueError: There is no reference.
    """
    if not answer:
        return float("" in references)
    return max(_substring_f1(segments(answer), segments(text)) for text in references)


def _normalize(answer: str) -> str:
    return answer.strip().lower().translate(_PUNCTUATION)


def _substring_f1(answer: Sequence[str], reference: Sequence[str]) -> float:
    match = SequenceMatcher(None, answer, reference, autojunk=False).find_longest_match()
    return f1_of_counts(match.size, len(answer), len(reference))
