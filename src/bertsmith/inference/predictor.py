"""The loop of inference: preprocess, forward, decode.

`TokenPredictor` predicts tokens by a head over the vocabulary; those of a long text each in a window around them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, option
from bertsmith.formatting import shorten
from bertsmith.io.prefetch import growing_batches, prefetch
from bertsmith.models.encoder import Encoder
from bertsmith.models.pretraining_heads import MaskedLMHead
from bertsmith.tasks.batching import Answers, Item, Outputs, TaskBatch, TokenSequence, pack, run_batched
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer

_MAX_EXCERPT = 60  # characters of a text in an error
_MAX_OUTPUT = 1e17  # the squares of larger outputs, summed over a vector, may not be finite

PredictorT = TypeVar("PredictorT", bound="Predictor")
PrecisionCheck = Callable[[Sequence[Any]], None]
"""Compares the first answers with fp32 and raises InputError if they differ too much."""


@dataclass(frozen=True)
class Predictor(ABC):
    """Answers requests in order. An answer does not depend on the requests that are answered with it.

    Subclasses are dataclasses that hold a model and define the three steps; `Predictor` runs them.

    Attributes:
        chunk_size: The maximum number of requests that are preprocessed together; it bounds the memory.
        encoder: The encoder, in evaluation mode.
        tokenizer: Its tokenizer.
        context: The device.
        check: Receives requests before they are answered.
        path: The path of the model, for errors; None for several models.
    """

    chunk_size: ClassVar[int] = 1024
    encoder: Encoder
    tokenizer: Tokenizer
    context: ComputeContext
    check: PrecisionCheck | None = field(default=None, kw_only=True, repr=False, compare=False)
    path: Path | None = field(default=None, kw_only=True, repr=False, compare=False)

    @abstractmethod
    def preprocess(self, requests: Sequence[Any]) -> Any:
        """Return the model's inputs; runs in a background thread while other requests are answered."""

    @abstractmethod
    def forward(self, prepared: Any) -> Any:
        """Return the model's outputs, computed in batches of similar lengths within a budget of tokens."""

    def items(self, prepared: Any) -> Any:
        """Return the items that the outputs belong to; by default the model's inputs."""
        return prepared

    @abstractmethod
    def decode(self, outputs: Any, items: Any, requests: Sequence[Any]) -> list[Any]:
        """Return one answer per request."""

    def sizes(self, prepared: Any) -> list[int]:
        """Return the number of tokens that `forward` reads for each of the model's inputs."""
        return [item.size for item in prepared]

    def shares_forward(self, other: Predictor) -> bool:
        """Return True if one call of `forward` may compute the inputs of both predictors."""
        return self == other

    def answers(self, requests: Iterable[Any]) -> Iterator[Answers]:
        """Yield the answers to chunks of requests, with what they were decoded from; first chunks are small.

        Raises:
            InputError: An output is not finite.
        """
        with closing(prefetch(growing_batches(requests, self.chunk_size), self.preprocess)) as chunks:
            for chunk, prepared in chunks:
                if self.check is not None:
                    self.check(chunk)
                outputs, items = self.forward(prepared), self.items(prepared)
                self.check_finite(outputs, items, chunk)
                yield Answers(outputs, items, chunk, self.decode(outputs, items, chunk))

    def check_finite(self, outputs: Any, items: Any, requests: Sequence[Any]) -> None:
        """Raise InputError for the first request with an output that is NaN, infinite, or absurdly large."""
        for i, values in enumerate(outputs.per_item if isinstance(outputs, Outputs) else outputs):
            if not torch.as_tensor(values).abs().le(_MAX_OUTPUT).all():
                raise not_finite_error(self.path, requests[getattr(items[i], "example", i)])

    def predict_stream(self, requests: Iterable[Any]) -> Iterator[Any]:
        """Yield an answer per request, in order; requests may be any number."""
        for answers in self.answers(requests):
            yield from answers.predictions

    def predict(self, requests: Iterable[Any]) -> list[Any]:
        """Return an answer per request, in order."""
        return list(self.predict_stream(requests))


def with_class(predictor: Predictor, predictor_class: type[PredictorT]) -> PredictorT:
    """Return a predictor of another class with the same fields."""
    return predictor_class(**{field.name: getattr(predictor, field.name) for field in fields(predictor)})


def not_finite_error(path: Path | None, request: Any, *, has_precision: bool = True) -> InputError:
    """Return the error for outputs of a model that are NaN or infinite.

    Args:
        path: The path of the model; None for several models.
        request: The request.
        has_precision: The user can choose the precision.
    """
    location = getattr(request, "location", None) or f"text {shorten(repr(request), _MAX_EXCERPT)}"
    message = f"the outputs of {path or 'one of the models'} are not finite"
    hint = "its weights are damaged or too large: use another model"
    hint += f", or {option('precision', 'fp32')}" if has_precision else ""
    return InputError("outputs_not_finite", message, location=location, hint=hint)


def with_batch_size(context: ComputeContext, batch_size: int | None) -> ComputeContext:
    """Return the context with a maximum number of sequences per forward pass.

    Raises:
        InputError: The number is less than 1.
    """
    if batch_size is not None and batch_size < 1:
        message, hint = f"{batch_size} is less than 1", "use the number of texts per forward pass, or omit it"
        raise InputError("batch_size_too_small", message, argument="batch_size", hint=hint)
    return context if batch_size is None else replace(context, batch_size=batch_size)


@dataclass(frozen=True)
class PredictedTokens(Item):
    """A sequence in which tokens are predicted.

    Attributes:
        rows: The indices of these tokens in the sequence.
        mask_end: The mask token replaces the tokens from the first of `rows` to this index; 0: none.
    """

    rows: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    mask_end: int = 0


class WindowedText:
    """A tokenized text and the windows in which the model reads it.

    Attributes:
        encoding: The tokens of the whole text.
        start: The row of the first token that is not special.
        end: The end of these rows.
        size: The number of these tokens in a window.
    """

    def __init__(self, encoding: Encoding, max_length: int) -> None:
        """Describe the windows of at most `max_length` tokens, special tokens included."""
        self.encoding = encoding
        rows = [row for row, source in enumerate(encoding.sequence_ids) if source is not None]
        self.start, self.end = (rows[0], rows[-1] + 1) if rows else (0, 0)
        self.size = min(len(rows), max_length - (len(encoding.ids) - len(rows)))
        self._sequence = TokenSequence.from_encoding(encoding)

    @property
    def num_tokens(self) -> int:
        """The number of tokens, special tokens excluded."""
        return self.end - self.start

    @property
    def is_complete(self) -> bool:
        """True if a window holds the whole text."""
        return self.size == self.num_tokens

    def window(self, first: int, stop: int) -> TokenSequence:
        """Return the rows [first, stop) between the special tokens."""
        sequence = self._sequence
        if stop - first == self.num_tokens:
            return sequence
        rows = np.r_[: self.start, first:stop, self.end : len(sequence.ids)]
        return TokenSequence(sequence.ids[rows], sequence.segments[rows], self.num_tokens, stop - first)

    def around(self, index: int, row: int, mask_end: int = 0) -> PredictedTokens:
        """Return the window around a row, which is predicted in it.

        Args:
            index: The index of the text.
            row: The row.
            mask_end: The end of the rows that are masked with it.
        """
        first = min(max(row - self.size // 2, self.start), self.end - self.size)
        stop, shift = first + self.size, self.start - first
        return PredictedTokens(
            index,
            (self.window(first, stop),),
            rows=np.array([row + shift]),
            mask_end=min(mask_end, stop) + shift if mask_end else 0,
        )


@dataclass(frozen=True)
class TokenPredictor(Predictor):
    """Computes outputs for tokens of texts.

    Attributes:
        head: The head with a logit for each token of the vocabulary.
    """

    head: MaskedLMHead

    def outputs_of(
        self, items: Sequence[PredictedTokens], compute: Callable[[Tensor, Tensor], Tensor], offset: int = 0
    ) -> list[Tensor]:
        """Return the outputs for the tokens of each item, a tensor [n, …] per item.

        Args:
            items: The items.
            compute: Returns [M, …] for the hidden states [M, H] and the ids [M] of M predicted tokens.
            offset: The distance from a token to the row whose hidden state predicts it.
        """
        encoder = self.context.autocast_encoder(self.encoder)

        def collate(batch: Sequence[PredictedTokens]) -> TaskBatch:
            packed = pack(batch)
            starts = np.cumsum(packed.lengths) - packed.lengths
            rows = np.concatenate([start + item.rows for start, item in zip(starts, batch, strict=True)])
            labels = packed.tokens[rows]
            for start, item in zip(starts.tolist(), batch, strict=True):
                if item.mask_end:
                    masked = slice(start + item.rows[0], start + item.mask_end)
                    packed.tokens[masked] = self.tokenizer.mask_token_id
            tensors = {"rows": torch.from_numpy(rows + offset), "labels": labels}
            return TaskBatch(packed, tuple(len(item.rows) for item in batch), tensors, {})

        def forward(batch: TaskBatch) -> Sequence[Tensor]:
            hidden = encoder(batch.packed, rows=batch.tensors["rows"])
            return torch.split(compute(hidden, batch.tensors["labels"]), list(batch.sizes))

        return run_batched(items, collate, forward, self.context)
