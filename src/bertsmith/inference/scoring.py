"""Pseudo-log-likelihood: the probability of a text by a masked model that predicts each token in turn.

The score of a text is the sum over its tokens of log p(token | the others) (Salazar et al. 2020,
arXiv:1910.14659). The later tokens of a word reveal an earlier one, which makes rare words look probable; so they
are masked with it (Kauf and Ivanova 2023, arXiv:2305.10588, "within_word_l2r"). A causal model scores a text by
its log-likelihood: the sum of log p(token | those before it), or those after it if it reads from right to left. An
ELMo scores by the mean of the log-likelihoods of its two directions, half of its joint one.
"""

from __future__ import annotations

import logging
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.inference.predictor import PredictedTokens, TokenPredictor, WindowedText
from bertsmith.inference.text_input import log_empty
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import predicts_from_both_sides
from bertsmith.models.matmul import linear
from bertsmith.tasks.windows import NO_LIMIT
from bertsmith.tokenizer.text_check import TextCheck
from bertsmith.tokenizer.tokenizer import validate_texts

Variant = Literal["within_word", "token", "left_to_right", "both_directions"]
"""The tokens that are masked together: a token and the later ones of its word, or the token alone; none for a
causal model (`left_to_right`) and for an ELMo (`both_directions`)."""

_LOGIT_ROWS = 64  # rows of logits that exist at a time: 8 MB for a vocabulary of 30,522
_MAX_LOG = 700.0  # whose exponential is still a float

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextScore:
    """The score of a text of T tokens, special tokens excluded.

    Attributes:
        score: The sum of log p in nats; None if the text has no tokens.
        tokens: T.
        words: The number of words; None if the vocabulary does not mark words.
        unknown: The number of unknown tokens.
        is_complete: True if each token was predicted from the whole text, not from a window around it.
    """

    score: float | None
    tokens: int
    words: int | None
    unknown: int
    is_complete: bool = True

    @property
    def pseudo_perplexity(self) -> float | None:
        """exp(-score / T); None if the text has no tokens."""
        return pseudo_perplexity([self])

    def to_dict(self) -> dict[str, Any]:
        """Return the score, the counts, and the pseudo-perplexity."""
        return {
            "score": self.score,
            "tokens": self.tokens,
            "words": self.words,
            "unknown": self.unknown,
            "pseudo_perplexity": self.pseudo_perplexity,
        }


def pseudo_perplexity(scores: Sequence[TextScore]) -> float | None:
    """Return the pseudo-perplexity of several texts as one; None if they have no tokens."""
    tokens = sum(score.tokens for score in scores)
    return math.exp(min(-sum(score.score or 0.0 for score in scores) / tokens, _MAX_LOG)) if tokens else None


def default_variant(config: ModelConfig) -> Variant:
    """Return the variant for a model."""
    return _variants(config)[0]


def _variants(config: ModelConfig) -> tuple[Variant, ...]:
    """Return the variants for a model, the default first."""
    if config.causal:
        return ("left_to_right",)
    return ("within_word", "token") if predicts_from_both_sides(config) else ("both_directions",)


@dataclass(frozen=True)
class Scorer(TokenPredictor):
    """Scores texts by a masked or causal model.

    A masked model reads a copy of the text for each token, a causal model the text once. Of a text that is longer
    than the model's maximum length, a causal model predicts each token from at least half of that.

    Attributes:
        variant: The tokens that are masked together.

    Raises:
        InputError: The variant does not fit the model, or the vocabulary lacks the mask or start token.
    """

    chunk_size: ClassVar[int] = 128  # texts, each of which is many copies
    variant: Variant = "within_word"

    def __post_init__(self) -> None:
        variants = _variants(self.encoder.config)
        if self.variant not in variants:
            message = f"this model has no variant {self.variant!r}"
            hint = f"use one of {', '.join(variants)}"
            raise InputError("unknown_variant", message, argument="variant", hint=hint)
        if self.variant == "within_word" and not self.marks_words:
            raise InputError(
                "continuation_prefix_missing",
                "this WordPiece vocabulary does not mark the pieces that continue a word, so word boundaries are "
                "unknown",
                hint=f"mask single tokens: {option('variant', 'token')}",
            )
        if not self.encoder.config.tie_directions:
            message = "the directions of this model have their own outputs, which have no common score"
            hint = f"use a model that was pre-trained with {option('model.tie_directions', True)}"
            raise InputError("directions_not_tied", message, location=self.path, hint=hint)
        if not self._directions:
            _ = self.tokenizer.mask_token_id
        elif not self.tokenizer.encode("").ids:
            message = "this vocabulary has no start token, from which the first token of a text is predicted"
            raise InputError("special_token_undefined", message, hint="use a tokenizer with an end token")
        if self.max_tokens < 1:
            limit = pluralize(self.encoder.config.max_length, "token")
            message = f"the model reads {limit}, too few for the special tokens and a text"
            raise InputError("model_too_short", message, hint="use a model that reads longer texts")

    @property
    def marks_words(self) -> bool:
        """True if the vocabulary marks where words begin."""
        return self.tokenizer.kind != "wordpiece" or bool(self.tokenizer.continuation_prefix)

    @property
    def perplexity_name(self) -> str:
        """The name of exp(-score / tokens): only a causal model has a perplexity."""
        return "perplexity" if self.encoder.config.causal else "pseudo-perplexity"

    @property
    def _directions(self) -> tuple[bool, ...]:
        """The directions in which the model predicts, True from right to left; none for a masked model."""
        config = self.encoder.config
        return (False, True) if self.variant == "both_directions" else (config.backwards,) * config.causal

    @property
    def max_tokens(self) -> int:
        """The number of tokens of a text that the model reads at a time, special tokens excluded."""
        return self.encoder.config.max_length - len(self.tokenizer.encode("").ids)

    def scores(
        self, texts: Iterable[str], progress: Callable[[int], None] = lambda done: None
    ) -> list[TextScore]:
        """Return a score per text.

        Texts of the same tokens are scored once: the last bits of their sums would differ between forward passes,
        and so would their ranks.

        Args:
            texts: The texts.
            progress: Receives the number of texts that are done.
        """
        texts, check = list(validate_texts(texts)), TextCheck()
        check.add(texts)
        check.log(self.tokenizer)
        keys = [array("q", ids).tobytes() for ids in self.tokenizer.encode_ids(texts)]
        counts, distinct = Counter(keys), dict(zip(keys, texts, strict=True))
        scores, done = {}, 0
        for key, score in zip(distinct, self.predict_stream(distinct.values()), strict=True):
            scores[key] = score
            done += counts[key]
            progress(done)
        return [scores[key] for key in keys]

    def cost(self, texts: Sequence[str]) -> int:
        """Return the number of tokens that the model reads to score texts."""
        return sum(
            item.size
            for text in self.preprocess(texts)
            for direction in self._directions or (None,)
            for item in self._items(0, text, direction)
        )

    def preprocess(self, requests: Sequence[str]) -> list[WindowedText]:
        """Tokenize texts."""
        max_length = self.encoder.config.max_length
        encodings = self.tokenizer.encode_batch(requests, max_length=NO_LIMIT)
        return [WindowedText(encoding, max_length) for encoding in encodings]

    def sizes(self, prepared: Sequence[WindowedText]) -> list[int]:
        """Return an upper bound of the number of tokens of the copies or windows of each text."""
        directions, num_special = len(self._directions), self.encoder.config.max_length - self.max_tokens
        strides = [max(1, text.size // 2) if directions else 1 for text in prepared]
        return [
            max(1, directions) * -(-text.num_tokens // stride) * (text.size + num_special)
            for text, stride in zip(prepared, strides, strict=True)
        ]

    def forward(self, prepared: Sequence[WindowedText]) -> list[float]:
        """Return the sum of log p of each text, added up in float64."""
        sums = [0.0] * len(prepared)
        for direction in self._directions or (None,):
            items = [item for i, text in enumerate(prepared) for item in self._items(i, text, direction)]
            offset = 0 if direction is None else 1 if direction else -1
            compute = partial(self._log_probabilities_in, direction)
            for item, values in zip(items, self.outputs_of(items, compute, offset), strict=True):
                sums[item.example] += float(values.double().sum()) / max(1, len(self._directions))
        return sums

    def decode(
        self, outputs: Sequence[float], items: Sequence[WindowedText], requests: Sequence[str]
    ) -> list[TextScore]:
        """Return the scores with the counts of each text."""
        return [self._score(total, text) for total, text in zip(outputs, items, strict=True)]

    def _score(self, total: float, text: WindowedText) -> TextScore:
        ids = np.array(text.encoding.ids[text.start : text.end], dtype=np.int64)
        words = int(self.tokenizer.word_starts(ids).sum()) if self.marks_words else None
        # The only special token in a text is the unknown one.
        unknown = sum(token in self.tokenizer.all_special_ids for token in ids.tolist())
        return TextScore(total if len(ids) else None, len(ids), words, unknown, text.is_complete)

    def _items(self, index: int, text: WindowedText, direction: bool | None) -> Iterator[PredictedTokens]:
        """Yield the sequences in which the tokens of a text are predicted, in a direction (`_directions`)."""
        if direction is not None:
            yield from self._causal_windows(index, text, backwards=direction)
            return
        rows = np.arange(text.start, text.end)
        mask_ends = rows + 1
        if self.variant == "within_word" and len(rows):
            starts = self.tokenizer.word_starts(np.array(text.encoding.ids, dtype=np.int64)[rows])
            words = np.cumsum(starts)
            mask_ends = text.start + np.searchsorted(words, words, side="right")
        for row, mask_end in zip(rows.tolist(), mask_ends.tolist(), strict=True):
            yield text.around(index, row, mask_end)

    def _causal_windows(
        self, index: int, text: WindowedText, *, backwards: bool
    ) -> Iterator[PredictedTokens]:
        """Yield overlapping windows, from the end of the text if the model reads from right to left."""
        done, stride, num_tokens = 0, max(1, text.size // 2), text.num_tokens
        for start in range(0, num_tokens, stride):
            stop = min(start + text.size, num_tokens)
            if backwards:
                first, rows = text.end - stop, np.arange(stop - done)
            else:
                first, rows = text.start + start, np.arange(done, stop) - start
            window = text.window(first, first + stop - start)
            yield PredictedTokens(index, (window,), rows=text.start + rows)
            done = stop
            if done == num_tokens:
                return

    def _log_probabilities_in(self, direction: bool | None, hidden: Tensor, labels: Tensor) -> Tensor:
        """Return log p of labels [M] at hidden rows [M, H], or at the half of them for a direction."""
        halves = hidden.chunk(len(self._directions) or 1, 1)
        return self._log_probabilities(halves[-1] if direction else halves[0], labels)

    def _log_probabilities(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Return log p of labels [M] at hidden rows [M, H], with the logits of a few rows at a time."""
        rows = self.head.decoder_inputs(hidden)
        weight = self.head.decoder_weight(self.encoder.embeddings.token.weight)
        log_probabilities = []
        for chunk, chunk_labels in zip(
            torch.split(rows, _LOGIT_ROWS), torch.split(labels, _LOGIT_ROWS), strict=True
        ):
            logits = linear(chunk, weight, self.head.bias, self.head.kernels)
            log_probabilities.append(logits.gather(1, chunk_labels[:, None])[:, 0] - logits.logsumexp(1))
        return torch.cat(log_probabilities)


def score_and_rank(
    located: Sequence[tuple[str, str]], scorer: Scorer, progress: Callable[[int], None] = lambda done: None
) -> list[dict[str, Any]]:
    """Return a row for each text that is not empty: its line, the text, its rank from 1, and its score.

    Args:
        located: Locations and texts.
        scorer: Scores texts.
        progress: Receives the number of texts that are done.
    """
    locations, texts = [location for location, _ in located], [text for _, text in located]
    scores = scorer.scores(texts, progress)
    log_scores(scores, locations)
    sums = sorted((score.score for score in scores if score.score is not None), reverse=True)
    ranks = {value: rank for rank, value in reversed([*enumerate(sums, start=1)])}
    if (perplexity := pseudo_perplexity(scores)) is not None and len(sums) > 1:
        tokens = pluralize(sum(score.tokens for score in scores), "token")
        values = f"{len(sums):,}", scorer.perplexity_name, f"{perplexity:,.2f}", tokens
        logger.info("all %s texts: %s %s over %s", *values)
    return [
        {**_line_of(location), "text": text, "rank": ranks[score.score], **score.to_dict()}
        for location, text, score in zip(locations, texts, scores, strict=True)
        if score.score is not None
    ]


def log_scores(scores: Sequence[TextScore], locations: Sequence[str]) -> None:
    """Log texts without a score, unknown tokens, and texts longer than the model's maximum length."""
    log_empty([at for at, score in zip(locations, scores, strict=True) if not score.tokens], "not scored")
    for message in score_messages(scores):
        logger.info("%s", message)


def score_messages(scores: Sequence[TextScore]) -> Iterator[str]:
    """Yield messages on unknown tokens, and on texts longer than the model's maximum length."""
    tokens, unknown = sum(score.tokens for score in scores), sum(score.unknown for score in scores)
    if unknown:
        yield (
            f"{unknown:,} of {pluralize(tokens, 'token')} {'is' if unknown == 1 else 'are'} not in the vocabulary "
            "and scored as the unknown token"
        )
    if windowed := sum(not score.is_complete for score in scores):
        yield (
            f"{pluralize(windowed, 'text is', 'texts are')} longer than the model's maximum length: each token is "
            "predicted from the text around it"
        )


def _line_of(location: str) -> dict[str, int]:
    line = location.rpartition(":")[2]
    return {"line": int(line)} if line.isdecimal() else {}
