"""Probabilities and perplexities of sentences and corpora."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SentenceScore:
    """The probability of a sentence by word.

    Attributes:
        words: The words, `<unk>` for unknown ones, and `</s>`.
        log_probabilities: The logarithm of each word's probability in nats.
        orders: The length of the longest n-gram of the model that ends with each word.
    """

    words: list[str]
    log_probabilities: list[float]
    orders: list[int]

    @property
    def log_probability(self) -> float:
        """The sum in nats."""
        return sum(self.log_probabilities)

    @property
    def perplexity(self) -> float | None:
        """The perplexity of the words and `</s>`; None without any."""
        return _perplexity(self.log_probability, len(self.words))

    def to_dict(self) -> dict[str, Any]:
        """Return the words, their probabilities, and their sum."""
        return {
            "log_probability": _finite(self.log_probability),
            "perplexity": _finite(self.perplexity),
            "words": self.words,
            "log_probabilities": [_finite(value) for value in self.log_probabilities],
            "orders": self.orders,
        }


@dataclass(frozen=True)
class CorpusPerplexity:
    """The probability of a corpus.

    Attributes:
        log_probability: The sum over all tokens in nats; -inf if a token has the probability 0.
        tokens: The number of words, with `</s>` once per sentence if the model has it.
        sentences: The number of sentences.
        unknown_tokens: The number of words outside of the vocabulary.
        known_log_probability: The sum over all others.
        impossible_tokens: The number of tokens with the probability 0.
        first_impossible: The location and the words of the first one; None without any.
    """

    log_probability: float
    tokens: int
    sentences: int
    unknown_tokens: int
    known_log_probability: float
    impossible_tokens: int
    first_impossible: str | None

    @property
    def perplexity(self) -> float:
        """exp(-log_probability / tokens); infinite if a token has the probability 0."""
        return _perplexity(self.log_probability, self.tokens) or math.nan

    @property
    def known_perplexity(self) -> float | None:
        """The perplexity of the known tokens alone; None without any."""
        return _perplexity(self.known_log_probability, self.tokens - self.unknown_tokens)

    def to_dict(self) -> dict[str, Any]:
        """Return all figures; None for an infinite one."""
        figures = {"perplexity": self.perplexity, "known_perplexity": self.known_perplexity, **vars(self)}
        return {
            name: _finite(value) if isinstance(value, float) else value for name, value in figures.items()
        }


def _perplexity(log_probability: float, tokens: int) -> float | None:
    if not tokens:
        return None
    try:
        return math.exp(-log_probability / tokens)
    except OverflowError:
        return math.inf


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
