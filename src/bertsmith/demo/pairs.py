"""The quickstart's minimal pairs: a sentence, and the same with one word replaced, which is ungrammatical."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from bertsmith import rng
from bertsmith.inference.model import Model
from bertsmith.io.documents import Document

_REPLACEMENTS = {  # by phenomenon
    "a or an": {"a": "an", "an": "a"},
    "is or are": {"is": "are", "are": "is", "was": "were", "were": "was", "has": "have", "have": "has"},
    "this or these": {"this": "these", "these": "this"},
}
_MAX_PAIRS, _MIN_PAIRS = 100, 10  # per phenomenon
_WORD = re.compile(r"\w+|[^\w\s]")
_BIGRAM_WEIGHT = 0.9  # the unigram probability has the rest of the weight

Pair = dict[str, str]


def make_pairs(sentences: Sequence[str], seed: int) -> list[Pair]:
    """Make minimal pairs from sentences that are not in the pre-training text.

    A sentence makes at most one pair. Each phenomenon (a kind of replacement, such as "a or an") has up to 100
    pairs, drawn by the seed; a phenomenon with fewer than 10 is omitted.

    Returns:
        Pairs with the keys `good` (the sentence), `bad` (with the word replaced), and `phenomenon`.
    """
    pairs: dict[str, list[Pair]] = {phenomenon: [] for phenomenon in _REPLACEMENTS}
    for i in rng.permutation(seed, "quickstart pairs", len(sentences)):
        for phenomenon in sorted(pairs, key=lambda name: len(pairs[name])):
            if (bad := _replace_word(sentences[i], _REPLACEMENTS[phenomenon])) is not None:
                pairs[phenomenon].append({"good": sentences[i], "bad": bad, "phenomenon": phenomenon})
                break
    return [pair for group in pairs.values() if len(group) >= _MIN_PAIRS for pair in group[:_MAX_PAIRS]]


def _replace_word(sentence: str, replacements: dict[str, str]) -> str | None:
    """Replace the first word of the sentence that has a replacement; None if there is none."""
    match = re.search(rf"(?<![\w.'-])({'|'.join(replacements)})(?= \w)", sentence)
    if match is None:
        return None
    return sentence[: match.start()] + replacements[match[1]] + sentence[match.end() :]


def score_bigram_model(pairs: Sequence[Pair], corpus: Iterable[Document]) -> dict[str, Any]:
    """Return the accuracy of a bigram model of the pre-training text, interpolated with unigrams.

    A pair counts as correct if its good sentence has the higher likelihood. Source: Jelinek and Mercer 1980,
    "Interpolated estimation of Markov source parameters from sparse data".
    """
    unigrams: Counter[str] = Counter()
    bigrams: Counter[tuple[str, str]] = Counter()
    for document in corpus:
        words = _WORD.findall(document.text.lower())
        unigrams.update(words)
        bigrams.update(pairwise(words))
    total = sum(unigrams.values()) + len(unigrams) + 1  # add-one smoothing; one more for unknown words

    def log_likelihood(sentence: str) -> float:
        words = _WORD.findall(sentence.lower())
        return sum(
            math.log(
                _BIGRAM_WEIGHT * bigrams[previous, word] / max(1, unigrams[previous])
                + (1 - _BIGRAM_WEIGHT) * (unigrams[word] + 1) / total
            )
            for previous, word in pairwise(words)
        )

    correct: dict[str, list[bool]] = {}
    for pair in pairs:
        is_correct = log_likelihood(pair["good"]) > log_likelihood(pair["bad"])
        correct.setdefault(pair["phenomenon"], []).append(is_correct)
    return {
        "accuracy": sum(map(sum, correct.values())) / len(pairs),
        "by_phenomenon": {name: sum(values) / len(values) for name, values in correct.items()},
    }


def score_model(model: Model, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return the accuracy of a BERT by pseudo-log-likelihood, without fine-tuning."""
    scores = model.score_pairs(list(pairs), group_columns=["phenomenon"])
    return {
        "accuracy": scores["accuracy"],
        "by_phenomenon": {name: group["accuracy"] for name, group in scores["by_phenomenon"].items()},
    }
