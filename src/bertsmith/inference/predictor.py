"""The loop of inference: preprocess, forward, decode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.io.prefetch import growing_batches, prefetch
from bertsmith.models.encoder import Encoder
from bertsmith.tasks.batching import Answers
from bertsmith.tokenizer.tokenizer import Tokenizer

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
    """

    chunk_size: ClassVar[int] = 1024
    encoder: Encoder
    tokenizer: Tokenizer
    context: ComputeContext
    check: PrecisionCheck | None = field(default=None, kw_only=True, repr=False, compare=False)

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

    def answers(self, requests: Iterable[Any]) -> Iterator[Answers]:
        """Yield the answers to some requests at a time with what they were decoded from; first to few requests."""
        with closing(prefetch(growing_batches(requests, self.chunk_size), self.preprocess)) as chunks:
            for chunk, prepared in chunks:
                if self.check is not None:
                    self.check(chunk)
                outputs, items = self.forward(prepared), self.items(prepared)
                yield Answers(outputs, items, chunk, self.decode(outputs, items, chunk))

    def predict_stream(self, requests: Iterable[Any]) -> Iterator[Any]:
        """Yield an answer per request, in order; requests may be any number."""
        for answers in self.answers(requests):
            yield from answers.predictions

    def predict(self, requests: Iterable[Any]) -> list[Any]:
        """Return an answer per request, in order."""
        return list(self.predict_stream(requests))


def with_batch_size(context: ComputeContext, batch_size: int | None) -> ComputeContext:
    """Return the context with a maximum number of sequences per forward pass.

    Raises:
        InputError: The number is less than 1.
    """
    if batch_size is not None and batch_size < 1:
        message, hint = f"{batch_size} is less than 1", "use the number of texts per forward pass, or omit it"
        raise InputError("batch_size_too_small", message, argument="batch_size", hint=hint)
    return context if batch_size is None else replace(context, batch_size=batch_size)
