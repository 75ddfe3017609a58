"""Pseudo-log-likelihood: how likely a masked model finds a text, with each of its tokens masked in turn.

The score of a text is the sum over its tokens of log p(token | the others) (Salazar et al. 2020,
arXiv:1910.14659). A piece of a word is easily guessed from the pieces behind it, which makes rare words look
likely; so the later pieces of its word are masked with it (Kauf and Ivanova 2023, arXiv:2305.10588,
"within_word_l2r").
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.inference.mask_windows import window_starts
from bertsmith.io.prefetch import growing_batches, prefetch
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import MaskedLMHead
from bertsmith.models.layers import linear
from bertsmith.packed import Packed
from bertsmith.tasks.windows import NO_LIMIT
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer, validate_texts

Variant = Literal["within_word", "token", "left_to_right"]
"""What is masked together: a token and the later ones of its word, or the token alone; or nothing, for a model
that reads from left to right (`left_to_right`)."""

_CHUNK = 1024  # texts that are encoded and scored at a time, so that memory does not grow with their number
_BATCH_TOKENS = 4096  # of masked copies in one forward pass: they fill the products, and caches hold them
_LOGIT_ROWS = 64  # rows of logits that exist at a time: 8 MB of a vocabulary of 30,522
_LARGEST_LOG = 700.0  # whose exponential is a float yet


@dataclass(frozen=True)
class PseudoLikelihood:
    """What a model says of a text, over its T ordinary tokens; special ones are read and not scored.

    score: the sum of log p in nats; 0 where there is no token. tokens: T. words: that they form, None where the
    vocabulary does not mark them. unknown: of the tokens, those that stand for what the vocabulary does not have.
    whole: whether each token was guessed from the whole text, not from a window around it.
    """

    score: float
    tokens: int
    words: int | None
    unknown: int
    whole: bool = True

    @property
    def perplexity(self) -> float | None:
        """exp(-score / T): 1 where the model knows each token for sure; None where there is none."""
        return pseudo_perplexity([self])


def pseudo_perplexity(found: Sequence[PseudoLikelihood]) -> float | None:
    """Of several texts together: the exponential of what a token costs on average. None where there is none."""
    tokens = sum(one.tokens for one in found)
    return math.exp(min(-sum(one.score for one in found) / tokens, _LARGEST_LOG)) if tokens else None


@dataclass(frozen=True)
class Scorer:
    """A masked model that scores texts. Its modules are in evaluation, on the place's device; nothing is drawn.
    check: sees texts before they are scored.

    InputError for an unknown variant, a vocabulary without a mask token, or one that does not mark words.
    """

    encoder: Encoder
    head: MaskedLMHead
    tokenizer: Tokenizer
    place: ComputeContext
    variant: Variant = "within_word"
    check: Callable[[Sequence[str]], None] | None = None

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
            raise InputError(
                "variant_mismatch",
                f"{self.variant!r} does not fit this model, which reads {reads}",
                argument="variant",
                hint=f"omit {option('variant')}",
            )
        if self.variant == "within_word" and not self.marks_words:
            raise InputError(
                "continuation_prefix_missing",
                "this WordPiece vocabulary does not mark the pieces that continue a word, so word boundaries are "
                "unknown",
                hint=f"mask single tokens: {option('variant', 'token')}",
            )
        _ = self.tokenizer.mask_token_id
        if self.room < 1:
            raise InputError(
                "model_too_short",
                f"the model reads {pluralize(self.encoder.config.max_length, 'token')}, "
                "too few for the special tokens "
                "and a text",
                hint="use a model that reads longer texts",
            )

    @cached_property
    def marks_words(self) -> bool:
        """Whether the vocabulary marks where words begin."""
        return self.tokenizer.kind != "wordpiece" or bool(self.tokenizer.continuation_prefix)

    @cached_property
    def room(self) -> int:
        """Ordinary tokens of a text that fit the model."""
        return self.encoder.config.max_length - len(self.tokenizer.encode("").ids)

    def scores(
        self, texts: Sequence[str], progress: Callable[[int], None] = lambda done: None
    ) -> list[PseudoLikelihood]:
        """One for each text, in order. progress: receives how many texts are done.

        Copies of like length share a pass, 4,096 tokens of them; only the predicted rows go through the head. Of a
        text longer than the model, each token is guessed from a window of the model's length around it. Texts that
        are the same tokens are scored once: in two passes the last bits of their sums would differ, and so their
        ranks.
        """
        known: dict[bytes, PseudoLikelihood] = {}
        found: list[PseudoLikelihood] = []

        def read(some: Sequence[str]) -> list[Encoding]:
            return self.tokenizer.encode_batch(some, max_length=NO_LIMIT)

        with closing(prefetch(growing_batches(validate_texts(texts), _CHUNK), read)) as parts:
            for some, encodings in parts:
                if self.check is not None:
                    self.check(some)
                keys = [_key(encoding.ids) for encoding in encodings]
                new = {key: one for key, one in zip(keys, encodings, strict=True) if key not in known}
                times = Counter(keys)
                done = len(found) + sum(number for key, number in times.items() if key in known)
                scored = self._scored(list(new.values()), [times[key] for key in new], progress, done)
                known |= dict(zip(new, scored, strict=True))
                found += [known[key] for key in keys]
        return found

    def cost(self, texts: Sequence[str]) -> int:
        """Tokens that the model reads to score these texts: each different one as often as it has tokens."""
        specials = self.encoder.config.max_length - self.room
        return sum(size * (min(size, self.room) + specials) for size in self._sizes(texts))

    def _sizes(self, texts: Sequence[str]) -> list[int]:
        """The tokens of each different text."""
        return list({_key(ids): len(ids) for ids in self.tokenizer.encode_ids(texts)}.values())

    def _copies(self, encoding: Encoding) -> _Copies:
        ids = np.array(encoding.ids, dtype=np.int64)
        own = [row for row, source in enumerate(encoding.sequence_ids) if source is not None]
        begin, end = (own[0], own[-1] + 1) if own else (0, 0)
        words = np.full(len(ids), -1)
        if self.marks_words:
            words[begin:end] = np.cumsum(self.tokenizer.word_starts(ids[begin:end]))
        special = self.tokenizer.all_special_ids  # in a text, what stands for the unknown is the only one
        return _Copies(
            ids,
            np.array(encoding.type_ids, dtype=np.int64),
            begin,
            end,
            words,
            min(end - begin, self.room),
            sum(token in special for token in encoding.ids[begin:end]),
            self.marks_words,
        )

    def _scored(
        self,
        encodings: Sequence[Encoding],
        times: Sequence[int],
        progress: Callable[[int], None],
        before: int,
    ) -> list[PseudoLikelihood]:
        """What the model says of each different text; sums are in float64 on the host. times: how many texts are
        this one. before: texts that were done earlier."""
        copies = [self._copies(encoding) for encoding in encodings]
        sums = np.zeros(len(copies))
        done = sum(number for one, number in zip(copies, times, strict=True) if not len(one))

        def logs(batch: Sequence[tuple[int, int, int]]) -> NDArray[np.float64]:
            made = [copies[i].made(first, last, self._mask, self.variant) for i, first, last in batch]
            return self._logs(made, np.repeat([copies[i].length for i, _, _ in batch], _sizes_of(batch)))

        batches = list(_batches(copies))
        for batch, found in zip(batches, self.place.parallel_map(logs, batches), strict=True):
            np.add.at(sums, np.repeat([i for i, _, _ in batch], _sizes_of(batch)), found)
            done += sum(times[i] for i, _, last in batch if last == len(copies[i]))
            progress(before + done)
        progress(before + done)  # also where nothing was left to score
        return [one.told(float(score)) for one, score in zip(copies, sums, strict=True)]

    @property
    def _mask(self) -> int:
        return self.tokenizer.mask_token_id

    def _logs(self, made: Sequence[_Made], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """log p of the predicted token of each copy, [copies]."""
        tokens = np.concatenate([one.tokens.ravel() for one in made])
        segments = np.concatenate([one.segments.ravel() for one in made])
        columns = np.concatenate([one.columns for one in made])
        labels = torch.from_numpy(np.concatenate([one.labels for one in made])).to(self.place.device)
        rows = torch.from_numpy(np.cumsum(lengths) - lengths + columns).to(self.place.device)
        packed = self.place.to_device(Packed.from_arrays(tokens, segments, lengths))
        with torch.inference_mode():
            hidden = self.place.autocast_encoder(self.encoder)(packed, rows=rows)
            return self._log_shares(hidden, labels).double().cpu().numpy()

    def _log_shares(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """log p of labels long [M] at hidden rows [M, H], fp32 [M], with the logits of a few rows at a time."""
        rows, table = (
            self.head.decoder_inputs(hidden),
            self.head.decoder_weight(self.encoder.embeddings.token.weight),
        )
        found = []
        for some, wanted in zip(
            torch.split(rows, _LOGIT_ROWS), torch.split(labels, _LOGIT_ROWS), strict=True
        ):
            logits = linear(some, table, self.head.bias, self.head.kernels)
            found.append(logits.gather(1, wanted[:, None])[:, 0] - logits.logsumexp(1))
        return torch.cat(found)


@dataclass(frozen=True)
class _Made:
    """Some masked copies of a text: tokens and segments [n, L]; the predicted column and its token, [n] each."""

    tokens: NDArray[np.int64]
    segments: NDArray[np.int64]
    columns: NDArray[np.int64]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class _Copies:
    """The masked copies of one encoded text, as many as it has tokens of its own: rows [begin, end) of it.

    words: of each row the number of its word, -1 of special ones. room: own tokens that a copy holds. unknown: how
    many of the tokens are.
    """

    ids: NDArray[np.int64]
    segments: NDArray[np.int64]
    begin: int
    end: int
    words: NDArray[np.int64]
    room: int
    unknown: int
    marks_words: bool

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def length(self) -> int:
        """Tokens of a copy, special ones included."""
        return len(self.ids) - len(self) + self.room

    def made(self, first: int, last: int, mask_id: int, variant: Variant) -> _Made:
        """The copies in which own tokens [first, last) are predicted, each in the window around it."""
        rows = np.arange(self.begin + first, self.begin + last)
        starts = window_starts(rows, self.begin, self.end, self.room)
        before, behind = np.arange(self.begin), np.arange(self.end, len(self.ids))
        taken = np.concatenate(
            [
                np.broadcast_to(before, (len(rows), len(before))),
                starts[:, None] + np.arange(self.room),
                np.broadcast_to(behind, (len(rows), len(behind))),
            ],
            axis=1,
        )
        hidden = taken == rows[:, None]
        if variant == "within_word":
            hidden |= (taken > rows[:, None]) & (self.words[taken] == self.words[rows][:, None])
        return _Made(
            np.where(hidden, mask_id, self.ids[taken]),
            self.segments[taken],
            rows - starts + self.begin,
            self.ids[rows],
        )

    def told(self, score: float) -> PseudoLikelihood:
        """What there is to say of the text."""
        words = int(self.words.max(initial=0)) if self.marks_words else None
        return PseudoLikelihood(score, len(self), words, self.unknown, len(self) == self.room)


def _sizes_of(batch: Sequence[tuple[int, int, int]]) -> NDArray[np.int64]:
    """How many copies there are of each text of a batch."""
    return np.array([last - first for _, first, last in batch])


def _key(ids: Sequence[int]) -> bytes:
    """What texts of the same tokens share, in little memory."""
    return array("q", ids).tobytes()


def _batches(copies: Sequence[_Copies]) -> Iterator[list[tuple[int, int, int]]]:
    """Copies [first, last) of texts, as (text, first, last), shorter texts first, a budget of tokens at a time."""
    some: list[tuple[int, int, int]] = []
    left = _BATCH_TOKENS
    for text in sorted(range(len(copies)), key=lambda i: copies[i].length):
        first, length = 0, copies[text].length
        while first < len(copies[text]):
            if some and left < length:
                yield some
                some, left = [], _BATCH_TOKENS
            last = min(len(copies[text]), first + max(1, left // length))
            some.append((text, first, last))
            left -= (last - first) * length
            first = last
    if some:
        yield some
