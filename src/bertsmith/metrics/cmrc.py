"""Exact match and F1 of Chinese answers, as the evaluation script of CMRC 2018 computes them (Cui et al. 2019).

Ideographs count one by one, other words whole, punctuation not at all. F1 is of the longest run that both have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

# The script's own list. It means to have …… as well, but compares single characters; " and % are not on it.
_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_IDEOGRAPH = "\u4e00-\u9fa5"
# An ideograph; a word or a number (it's, 3.5), which the script has another tool cut out; any other character.
_SEGMENT = re.compile(rf"[{_IDEOGRAPH}]|[^\W{_IDEOGRAPH}]+(?:(?:['.]|,(?=\d))[^\W{_IDEOGRAPH}]+)*|[^\w\s]")


def segments(answer: str) -> list[str]:
    """Ideographs and words in order, in lower case, without punctuation."""
    return _SEGMENT.findall(answer.strip().lower().translate(_PUNCTUATION))


def exact_match(answer: str, gold: Iterable[str]) -> bool:
    """Whether the answer equals one of the gold answers but for case and punctuation."""
    return _plain(answer) in {_plain(text) for text in gold}


def f1(answer: str, gold: Sequence[str]) -> float:
    """The highest F1 of the longest run of segments shared with a gold answer, 0 to 1; an empty answer is
    right where an empty one is gold (of an unanswerable question). ValueError where there is no gold answer."""
    if not answer:
        return float("" in gold)
    return max(_overlap(segments(answer), segments(text)) for text in gold)


def _plain(answer: str) -> str:
    return answer.strip().lower().translate(_PUNCTUATION)


def _overlap(answer: Sequence[str], gold: Sequence[str]) -> float:
    match = SequenceMatcher(None, answer, gold, autojunk=False).find_longest_match()
    if not match.size:
        return 0.0
    precision, recall = match.size / len(answer), match.size / len(gold)
    return 2 * precision * recall / (precision + recall)
