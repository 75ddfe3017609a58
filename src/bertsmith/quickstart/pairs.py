"""The quickstart's minimal pairs: a sentence as it was written, and the same with one small word exchanged."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from bertsmith import rng
from bertsmith.inference.model import Model
from bertsmith.io.files import Document

_EXCHANGED = {
    "a or an": {"a": "an", "an": "a"},
    "is or are": {"is": "are", "are": "is", "was": "were", "were": "was", "has": "have", "have": "has"},
    "this or these": {"this": "these", "these": "this"},
}
_OF_EACH, _FEWEST = 100, 10  # pairs
_WORD = re.compile(r"\w+|[^\w\s]")
_BY_THE_WORD_BEFORE = 0.9  # of a word's probability; the rest by its frequency alone

Pair = dict[str, str]


def make_pairs(sentences: Sequence[str], seed: int) -> list[Pair]:
    """Pairs with `good`, `bad` and `phenomenon` from sentences that are not in the pre-training text.

    A sentence makes one pair at most. Of each phenomenon up to a hundred, drawn by the seed; one with fewer than
    ten is left out.
    """
    found: dict[str, list[Pair]] = {phenomenon: [] for phenomenon in _EXCHANGED}
    for i in rng.permutation(seed, "quickstart pairs", len(sentences)):
        for phenomenon in sorted(found, key=lambda name: len(found[name])):
            if (bad := _exchanged(sentences[i], _EXCHANGED[phenomenon])) is not None:
                found[phenomenon].append({"good": sentences[i], "bad": bad, "phenomenon": phenomenon})
                break
    return [pair for pairs in found.values() if len(pairs) >= _FEWEST for pair in pairs[:_OF_EACH]]


def _exchanged(sentence: str, words: dict[str, str]) -> str | None:
    """The sentence with the first of these words exchanged for its partner; None where it has none."""
    match = re.search(rf"(?<![\w.'-])({'|'.join(words)})(?= \w)", sentence)
    return None if match is None else sentence[: match.start()] + words[match[1]] + sentence[match.end() :]


def by_bigrams(pairs: Sequence[Pair], corpus: Iterable[Document]) -> dict[str, Any]:
    """The accuracy of a model of two words in a row, learnt from the pre-training text, smoothed by single words
    (Jelinek and Mercer 1980)."""
    single: Counter[str] = Counter()
    double: Counter[tuple[str, str]] = Counter()
    for document in corpus:
        words = _WORD.findall(document.text.lower())
        single.update(words)
        double.update(pairwise(words))
    total = sum(single.values()) + len(single) + 1

    def score(sentence: str) -> float:
        words = _WORD.findall(sentence.lower())
        return sum(
            math.log(
                _BY_THE_WORD_BEFORE * double[before, word] / max(1, single[before])
                + (1 - _BY_THE_WORD_BEFORE) * (single[word] + 1) / total
            )
            for before, word in pairwise(words)
        )

    right: dict[str, list[bool]] = {}
    for pair in pairs:
        right.setdefault(pair["phenomenon"], []).append(score(pair["good"]) > score(pair["bad"]))
    return {
        "accuracy": sum(map(sum, right.values())) / len(pairs),
        "by_phenomenon": {name: sum(some) / len(some) for name, some in right.items()},
    }


def by_model(model: Model, pairs: Sequence[Pair]) -> dict[str, Any]:
    """The same of a BERT, by pseudo-log-likelihood; nothing is fine-tuned."""
    found = model.score_pairs(list(pairs), group_columns=["phenomenon"], tell=lambda text: None)
    return {
        "accuracy": found["accuracy"],
        "by_phenomenon": {name: of["accuracy"] for name, of in found["by_phenomenon"].items()},
    }
