"""Pseudo-log-likelihood: the probability of a text by a masked model that predicts each token in turn.

The score of a text is the sum over its tokens of log p(token | the others) (Salazar et al. 2020,
arXiv:1910.14659). The later tokens of a word reveal an earlier one, which makes rare words look probable; so they
are masked with it (Kauf and Ivanova 2023, arXiv:2305.10588, "within_word_l2r").
"""

from __future__ import annotations

import logging
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names, pluralize
from bertsmith.inference.fill_mask import window_starts
from bertsmith.inference.predictor import PredictedBatch, Predictor
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import MaskedLMHead
from bertsmith.models.layers import linear
from bertsmith.packed import Packed
from bertsmith.tasks.windows import NO_LIMIT
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer, validate_texts

Variant = Literal["within_word", "token", "left_to_right"]
"""The tokens that are masked together: a token and the later ones of its word, or the token alone; none for a
causal model (`left_to_right`)."""

_MAX_BATCH_TOKENS = 4096  # of masked copies in a forward pass, which fit the caches
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


@dataclass
class _Progress:
    """The state of one call: the scores of texts so far by their tokens, and how many texts are done."""

    report: Callable[[int], None]
    scores: dict[bytes, TextScore] = field(default_factory=dict)
    done: int = 0

    def add(self, count: int) -> None:
        """Report more texts."""
        if count:
            self.done += count
            self.report(self.done)


@dataclass(frozen=True)
class Scorer(Predictor):
    """Scores texts by a masked model.

    Attributes:
        encoder: The encoder, in evaluation mode.
        head: The masked-LM head.
        tokenizer: The tokenizer.
        context: The device.
        variant: The tokens that are masked together.
        progress: The state of a call.

    Raises:
        InputError: The variant does not fit the model, or the vocabulary lacks a mask token.
    """

    encoder: Encoder
    head: MaskedLMHead
    tokenizer: Tokenizer
    context: ComputeContext
    variant: Variant = "within_word"
    progress: _Progress = field(
        default_factory=lambda: _Progress(lambda done: None), repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.variant not in get_args(Variant):
            raise InputError(
                "unknown_variant",
                f"there is no variant {self.variant!r}",
                argument="variant",
                hint=f"use one of {', '.join(get_args(Variant))}",
            )
        if (self.variant == "left_to_right") != self.encoder.config.causal:
            reads = "in one direction" if self.encoder.config.causal else "both sides of a token"
            message = f"{self.variant!r} does not fit this model, which reads {reads}"
            raise InputError(
                "variant_mismatch", message, argument="variant", hint=f"omit {option('variant')}"
            )
        if self.variant == "within_word" and not self.marks_words:
            raise InputError(
                "continuation_prefix_missing",
                "this WordPiece vocabulary does not mark the pieces that continue a word, so word boundaries are "
                "unknown",
                hint=f"mask single tokens: {option('variant', 'token')}",
            )
        _ = self.tokenizer.mask_token_id
        if self.max_tokens < 1:
            limit = pluralize(self.encoder.config.max_length, "token")
            message = f"the model reads {limit}, too few for the special tokens and a text"
            raise InputError("model_too_short", message, hint="use a model that reads longer texts")

    @cached_property
    def marks_words(self) -> bool:
        """True if the vocabulary marks where words begin."""
        return self.tokenizer.kind != "wordpiece" or bool(self.tokenizer.continuation_prefix)

    @cached_property
    def max_tokens(self) -> int:
        """The number of tokens of a text that the model reads at a time, special tokens excluded."""
        return self.encoder.config.max_length - len(self.tokenizer.encode("").ids)

    def scores(
        self, texts: Iterable[str], progress: Callable[[int], None] = lambda done: None
    ) -> list[TextScore]:
        """Return a score per text.

        Equal texts are scored once: the last bits of their sums would differ between forward passes, and so would
        their ranks.

        Args:
            texts: The texts.
            progress: Receives the number of texts that are done.
        """
        return replace(self, progress=_Progress(progress)).predict(texts)

    def batches(self, requests: Iterable[Any]) -> Iterator[PredictedBatch]:
        """Yield the scores of some texts at a time."""
        return super().batches(validate_texts(requests))

    def cost(self, texts: Sequence[str]) -> int:
        """Return the number of tokens that the model reads to score texts."""
        specials = self.encoder.config.max_length - self.max_tokens
        return sum(size * (min(size, self.max_tokens) + specials) for size in self._sizes(texts))

    def _sizes(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each distinct text."""
        return list({_key(ids): len(ids) for ids in self.tokenizer.encode_ids(texts)}.values())

    def preprocess(self, requests: Sequence[str]) -> list[Encoding]:
        """Tokenize texts."""
        return self.tokenizer.encode_batch(requests, max_length=NO_LIMIT)

    def forward(self, prepared: Sequence[Encoding]) -> list[TextScore]:
        """Return the scores."""
        scores, keys = self.progress.scores, [_key(encoding.ids) for encoding in prepared]
        new = {key: encoding for key, encoding in zip(keys, prepared, strict=True) if key not in scores}
        counts = Counter(keys)
        self.progress.add(sum(count for key, count in counts.items() if key in scores))
        texts = [self._text(encoding) for encoding in new.values()]
        sums = self._sums(texts, [counts[key] for key in new])
        scores |= {key: text.score(float(total)) for key, text, total in zip(new, texts, sums, strict=True)}
        return [scores[key] for key in keys]

    def decode(
        self, outputs: list[TextScore], prepared: Sequence[Encoding], requests: Sequence[str]
    ) -> list[TextScore]:
        """Return the scores."""
        return outputs

    def _text(self, encoding: Encoding) -> _Text:
        ids = np.array(encoding.ids, dtype=np.int64)
        rows = [row for row, source in enumerate(encoding.sequence_ids) if source is not None]
        start, end = (rows[0], rows[-1] + 1) if rows else (0, 0)
        words = np.full(len(ids), -1)
        if self.marks_words:
            words[start:end] = np.cumsum(self.tokenizer.word_starts(ids[start:end]))
        return _Text(
            ids,
            np.array(encoding.type_ids, dtype=np.int64),
            start,
            end,
            words,
            min(end - start, self.max_tokens),
            # The only special token in a text is the unknown one.
            sum(token in self.tokenizer.all_special_ids for token in encoding.ids[start:end]),
            self.marks_words,
        )

    def _sums(self, texts: Sequence[_Text], counts: Sequence[int]) -> NDArray[np.float64]:
        """Return the sum of log p for each distinct text, in float64, and report progress.

        Args:
            texts: The distinct texts.
            counts: How often each text occurs.
        """
        sums = np.zeros(len(texts))
        self.progress.add(sum(n for text, n in zip(texts, counts, strict=True) if not text.num_tokens))

        def log_probabilities(batch: Sequence[_Range]) -> NDArray[np.float64]:
            copies = [
                texts[r.text].masked_copies(r.start, r.stop, self.tokenizer.mask_token_id, self.variant)
                for r in batch
            ]
            return self._log_probabilities(copies, _repeat([texts[r.text].length for r in batch], batch))

        batches = list(_copy_batches(texts, self.context.batch_size))
        results = self.context.parallel_map(log_probabilities, batches)
        for batch, values in zip(batches, results, strict=True):
            np.add.at(sums, _repeat([r.text for r in batch], batch), values)
            self.progress.add(sum(counts[r.text] for r in batch if r.stop == texts[r.text].num_tokens))
        return sums

    def _log_probabilities(
        self, copies: Sequence[_MaskedCopies], lengths: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return log p of the predicted token of each copy, [copies]."""
        tokens, segments, columns, labels = (
            np.concatenate([values.ravel() for values in arrays]) for arrays in zip(*copies, strict=True)
        )
        device = self.context.device
        rows = torch.from_numpy(np.cumsum(lengths) - lengths + columns).to(device)
        packed = self.context.to_device(Packed.from_arrays(tokens, segments, lengths))
        with torch.inference_mode():
            hidden = self.context.autocast_encoder(self.encoder)(packed, rows=rows)
            return self._label_log_probabilities(hidden, torch.from_numpy(labels).to(device))

    def _label_log_probabilities(self, hidden: Tensor, labels: Tensor) -> NDArray[np.float64]:
        """Return log p of labels long [M] at hidden rows [M, H], with the logits of a few rows at a time."""
        rows = self.head.decoder_inputs(hidden)
        weight = self.head.decoder_weight(self.encoder.embeddings.token.weight)
        log_probabilities = []
        for chunk, chunk_labels in zip(
            torch.split(rows, _LOGIT_ROWS), torch.split(labels, _LOGIT_ROWS), strict=True
        ):
            logits = linear(chunk, weight, self.head.bias, self.head.kernels)
            log_probabilities.append(logits.gather(1, chunk_labels[:, None])[:, 0] - logits.logsumexp(1))
        values: NDArray[np.float64] = torch.cat(log_probabilities).double().cpu().numpy()
        return values


class _MaskedCopies(NamedTuple):
    """Masked copies of a text: tokens and segments [n, L]; the predicted column and its token, [n] each."""

    tokens: NDArray[np.int64]
    segments: NDArray[np.int64]
    columns: NDArray[np.int64]
    labels: NDArray[np.int64]


class _Range(NamedTuple):
    """The tokens [start, stop) of a text, each of which is predicted in a copy of its own."""

    text: int
    start: int
    stop: int


@dataclass(frozen=True)
class _Text:
    """A tokenized text whose rows [start, end) are not special tokens.

    Attributes:
        ids: Token ids.
        segments: Segment ids.
        start: The first row of the text.
        end: The end of its rows.
        words: The index of each row's word; -1 for special tokens.
        window_size: Tokens of a copy, special tokens excluded.
        unknown: The number of unknown tokens.
        marks_words: True if `words` is meaningful.
    """

    ids: NDArray[np.int64]
    segments: NDArray[np.int64]
    start: int
    end: int
    words: NDArray[np.int64]
    window_size: int
    unknown: int
    marks_words: bool

    @property
    def num_tokens(self) -> int:
        """The number of tokens, special tokens excluded."""
        return self.end - self.start

    @property
    def length(self) -> int:
        """Tokens of a copy, special tokens included."""
        return len(self.ids) - self.num_tokens + self.window_size

    def masked_copies(self, start: int, stop: int, mask_id: int, variant: Variant) -> _MaskedCopies:
        """Return the copies in which the tokens [start, stop) are predicted, each in the window around it."""
        rows = np.arange(self.start + start, self.start + stop)
        starts = window_starts(rows, self.start, self.end, self.window_size)
        before, after = np.arange(self.start), np.arange(self.end, len(self.ids))
        source_rows = np.concatenate(
            [
                np.broadcast_to(before, (len(rows), len(before))),
                starts[:, None] + np.arange(self.window_size),
                np.broadcast_to(after, (len(rows), len(after))),
            ],
            axis=1,
        )
        is_masked = source_rows == rows[:, None]
        if variant == "within_word":
            same_word = self.words[source_rows] == self.words[rows][:, None]
            is_masked |= (source_rows > rows[:, None]) & same_word
        tokens = np.where(is_masked, mask_id, self.ids[source_rows])
        return _MaskedCopies(tokens, self.segments[source_rows], rows - starts + self.start, self.ids[rows])

    def score(self, total: float) -> TextScore:
        """Return the score with the counts of the text."""
        words = int(self.words.max(initial=0)) if self.marks_words else None
        is_complete = self.num_tokens == self.window_size
        return TextScore(
            total if self.num_tokens else None, self.num_tokens, words, self.unknown, is_complete
        )


def _repeat(values: Sequence[int], batch: Sequence[_Range]) -> NDArray[np.int64]:
    """Repeat the value of each text of a batch for each of its copies."""
    return np.repeat(values, [r.stop - r.start for r in batch])


def _key(ids: Sequence[int]) -> bytes:
    """Return the key of texts with the same tokens, in little memory."""
    return array("q", ids).tobytes()


def _copy_batches(texts: Sequence[_Text], max_copies: int | None) -> Iterator[list[_Range]]:
    """Yield copies of texts, shorter texts first, within a budget of tokens or a number of copies."""
    batch: list[_Range] = []
    tokens, copies = _MAX_BATCH_TOKENS, max_copies or _MAX_BATCH_TOKENS
    for i in sorted(range(len(texts)), key=lambda i: texts[i].length):
        start, length = 0, texts[i].length
        while start < texts[i].num_tokens:
            if batch and (tokens < length or copies < 1):
                yield batch
                batch, tokens, copies = [], _MAX_BATCH_TOKENS, max_copies or _MAX_BATCH_TOKENS
            stop = min(texts[i].num_tokens, start + max(1, min(tokens // length, copies)))
            batch.append(_Range(i, start, stop))
            tokens, copies = tokens - (stop - start) * length, copies - (stop - start)
            start = stop
    if batch:
        yield batch


def score_and_rank(
    located: Sequence[tuple[str, str]],
    scorer: Scorer,
    progress: Callable[[int], None] = lambda done: None,
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
        logger.info(
            "all %s texts: pseudo-perplexity %s over %s", f"{len(sums):,}", f"{perplexity:,.2f}", tokens
        )
    return [
        {**_line_of(location), "text": text, "rank": ranks[score.score], **score.to_dict()}
        for location, text, score in zip(locations, texts, scores, strict=True)
        if score.score is not None
    ]


def log_scores(scores: Sequence[TextScore], locations: Sequence[str]) -> None:
    """Log texts without a score, unknown tokens, and texts longer than the model's maximum length."""
    if empty := [at for at, score in zip(locations, scores, strict=True) if not score.tokens]:
        texts = pluralize(len(empty), "text is", "texts are")
        logger.warning("%s empty and not scored: %s", texts, join_names(empty))
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
