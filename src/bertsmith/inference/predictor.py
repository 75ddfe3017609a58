"""The loop of inference: preprocess, forward, decode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.io.prefetch import growing_batches, prefetch

PrecisionCheck = Callable[[Sequence[Any]], None]
"""Compares the first answers with fp32 and raises InputError if they differ too much."""


class PredictedBatch(NamedTuple):
    """Requests that were answered together, with each step's results."""

    requests: Sequence[Any]
    prepared: Any
    outputs: Any
    answers: Sequence[Any]


@dataclass(frozen=True)
class Predictor(ABC):
    """Answers requests in order. An answer does not depend on the requests that are answered with it.

    Subclasses are dataclasses that hold a model and define the three steps; `Predictor` runs them.

    Attributes:
        chunk_size: The maximum number of requests that are preprocessed together; it bounds the memory.
        check: Receives requests before they are answered.
    """

    chunk_size: ClassVar[int] = 1024
    check: PrecisionCheck | None = field(default=None, kw_only=True, repr=False, compare=False)

    @abstractmethod
    def preprocess(self, requests: Sequence[Any]) -> Any:
        """Return the model's inputs; runs in a background thread while other requests are answered."""

    @abstractmethod
    def forward(self, prepared: Any) -> Any:
        """Return the model's outputs, computed in batches of similar lengths within a budget of tokens."""

    @abstractmethod
    def decode(self, outputs: Any, prepared: Any, requests: Sequence[Any]) -> Sequence[Any]:
        """Return one answer per request."""

    def batches(self, requests: Iterable[Any]) -> Iterator[PredictedBatch]:
        """Yield answers with the results of each step. The first batches are small, to answer early."""
        with closing(prefetch(growing_batches(requests, self.chunk_size), self.preprocess)) as chunks:
            for chunk, prepared in chunks:
                if self.check is not None:
                    self.check(chunk)
                outputs = self.forward(prepared)
                yield PredictedBatch(chunk, prepared, outputs, self.decode(outputs, prepared, chunk))

    def predict_stream(self, requests: Iterable[Any]) -> Iterator[Any]:
        """Yield an answer per request, in order; requests may be any number."""
        for batch in self.batches(requests):
            yield from batch.answers

    def predict(self, requests: Iterable[Any]) -> list[Any]:
        """Return an answer per request, in order."""
        return list(self.predict_stream(requests))


def with_batch_size(context: ComputeContext, batch_size: int | None) -> ComputeContext:
    """Return the context with a maximum number of sequences per forward pass.

    Raises:
        InputError: The number is less than 1.
    """
    if batch_size is None:
        return context
    if batch_size < 1:
        raise InputError(
            "batch_size_too_small",
            f"{batch_size} is less than 1",
            argument="batch_size",
            hint="use the number of texts per forward pass, or omit it",
        )
    return replace(context, batch_size=batch_size)
