"""The batches of a training run, in order from any position, built in advance by threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Protocol, runtime_checkable

from pydantic import Field

Count = Annotated[int, Field(ge=0, lt=2**63)]


class Batch(Protocol):
    """A batch as the trainer sees it; the rest is between the stream and the objective."""

    @property
    def tokens(self) -> int:
        """Number of tokens."""

    @property
    def epoch(self) -> int:
        """The epoch of the instances."""

    @property
    def place(self) -> str:
        """The location of the instances in the data, for messages."""

    def to(self, device: Any) -> Any:
        """Copy to a device."""


@dataclass(frozen=True)
class EmptyRankBatch:
    """A batch without an instance for this rank; it holds an instance of another rank, whose loss counts as 0."""

    batch: Batch
    tokens: int = 0

    @property
    def epoch(self) -> int:
        """The epoch of the instance."""
        return self.batch.epoch

    @property
    def place(self) -> str:
        """The location of the instance in the data."""
        return self.batch.place

    def to(self, device: Any) -> EmptyRankBatch:
        """Copy to a device."""
        return EmptyRankBatch(self.batch.to(device))


class Stream(Protocol):
    """Instances by epoch and index. `batch` is a pure function, so that any thread may build any batch."""

    def size(self, epoch: int) -> int:
        """Return the number of instances in an epoch."""

    def batch(self, epoch: int, start: int, stop: int) -> Batch:
        """Return the batch of instances start to stop - 1."""


@runtime_checkable
class VariableSizeStream(Stream, Protocol):
    """A stream whose batches have different numbers of instances, such as batches by a number of tokens."""

    def stop(self, epoch: int, start: int, size: int) -> int:
        """Return the end of the batch that starts at an instance.

        Args:
            epoch: The epoch.
            start: The first instance.
            size: The batch size from the settings.
        """


@dataclass(frozen=True)
class DataPosition:
    """The next instance of a stream."""

    epoch: Count
    instance: Count


START = DataPosition(0, 0)


@dataclass(frozen=True)
class Phase:
    """A part of a run with its own stream and batch size.

    Attributes:
        stream: The instances.
        share: The fraction of all updates.
        batch_size: Sequences per batch.
    """

    stream: Stream
    share: float
    batch_size: int


@dataclass(frozen=True)
class Update:
    """The batches of one optimizer update.

    Attributes:
        counts: The number of predictions in all batches, by part of the loss, over which losses are averaged.
        tokens: Number of tokens in all batches.
        epoch: The epoch of the last batch.
        batches: The batches, which can be iterated once.
        next_position: The position after the last batch.
    """

    counts: Mapping[str, int]
    tokens: int
    epoch: int
    batches: Iterable[Batch]
    next_position: DataPosition


def iterate_batches(
    stream: Stream, size: int, position: DataPosition, num_workers: int
) -> Generator[tuple[Batch, DataPosition]]:
    """Yield batches without end, each with the position after it. The last batch of an epoch may be smaller.

    Args:
        stream: The instances.
        size: Instances per batch; a `VariableSizeStream` decides itself.
        position: The first instance.
        num_workers: Threads that build batches in advance, until the generator is closed; 0: none. It does not
            change the batches.
    """
    if num_workers == 0:
        for epoch, start, stop, next_position in _batch_ranges(stream, size, position):
            yield stream.batch(epoch, start, stop), next_position
        return
    pool = ThreadPoolExecutor(num_workers, thread_name_prefix="batches")
    pending: deque[tuple[Future[Batch], DataPosition]] = deque()
    try:
        with closing(_batch_ranges(stream, size, position)) as ranges:
            while True:
                while len(pending) < 2 * num_workers:
                    epoch, start, stop, next_position = next(ranges)
                    pending.append((pool.submit(stream.batch, epoch, start, stop), next_position))
                future, next_position = pending.popleft()
                yield future.result(), next_position
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def iterate_updates(
    stream: Stream,
    size: int,
    accumulation_steps: int,
    position: DataPosition,
    num_workers: int,
    counts: Callable[[Any], Mapping[str, int]],
) -> Generator[Update]:
    """Yield updates without end.

    The loss is divided by the counts of all batches of the update, which are needed before the first batch is
    used. With more than one batch per update, each is therefore built, counted, dropped, and built again when it
    is used, so that memory does not grow with the number of batches.

    Args:
        stream: The instances.
        size: Instances per batch.
        accumulation_steps: Batches per update.
        position: The first instance.
        num_workers: As for `iterate_batches`.
        counts: Returns the counts of a batch by part of the loss.
    """
    if accumulation_steps == 1:  # the batches never end
        with closing(iterate_batches(stream, size, position, num_workers)) as batches:
            for batch, next_position in batches:
                yield Update(counts(batch), batch.tokens, batch.epoch, (batch,), next_position)
    with (
        closing(iterate_batches(stream, size, position, num_workers)) as counted,
        closing(iterate_batches(stream, size, position, num_workers)) as used,
    ):
        while True:
            totals: dict[str, int] = {}
            tokens = 0
            for batch, next_position in islice(counted, accumulation_steps):
                position = next_position
                tokens += batch.tokens
                for part, count in counts(batch).items():
                    totals[part] = totals.get(part, 0) + count
            batches_to_use = (batch for batch, _ in islice(used, accumulation_steps))
            yield Update(totals, tokens, batch.epoch, batches_to_use, position)


def batch_end(stream: Stream, epoch: int, start: int, size: int) -> int:
    """Return the end of the batch that starts at an instance; it may exceed the epoch."""
    return stream.stop(epoch, start, size) if isinstance(stream, VariableSizeStream) else start + size


def _batch_ranges(
    stream: Stream, size: int, position: DataPosition
) -> Generator[tuple[int, int, int, DataPosition]]:
    """Yield epoch, start, and stop of each batch, and the position after it."""
    epoch, start = position.epoch, position.instance
    while True:
        num_instances = stream.size(epoch)
        if not num_instances:
            raise ValueError(f"epoch {epoch} has no instances")
        if start >= num_instances:
            epoch, start = epoch + 1, 0
            continue
        stop = min(batch_end(stream, epoch, start, size), num_instances)
        yield epoch, start, stop, DataPosition(*(epoch, stop) if stop < num_instances else (epoch + 1, 0))
        start = stop
