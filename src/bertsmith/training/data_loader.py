"""Batches in order, from any (epoch, instance) on, built beside the step by as many workers as one likes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, runtime_checkable


class Batch(Protocol):
    """What the loop needs to know of a batch; the rest is between the stream and the objective."""

    @property
    def tokens(self) -> int:
        """Tokens in the batch."""
        ...

    @property
    def epoch(self) -> int:
        """The epoch its instances are of."""
        ...

    @property
    def place(self) -> str:
        """Which instances these are, for messages."""
        ...

    def to(self, device: Any) -> Any:
        """The same on another device."""
        ...


@dataclass(frozen=True)
class EmptyRankBatch:
    """A batch of which this rank has no part: an instance of another rank, with a loss and counts of zero."""

    batch: Batch

    @property
    def tokens(self) -> int:
        """None."""
        return 0

    @property
    def epoch(self) -> int:
        """The epoch its instances are of."""
        return self.batch.epoch

    @property
    def place(self) -> str:
        """Which instances these are, for messages."""
        return self.batch.place

    def to(self, device: Any) -> EmptyRankBatch:
        """The same on another device."""
        return EmptyRankBatch(self.batch.to(device))


class Stream(Protocol):
    """Instances by epoch and number; `batch` is a pure function, so any worker may build any batch."""

    def size(self, epoch: int) -> int:
        """Instances in the epoch."""
        ...

    def batch(self, epoch: int, start: int, stop: int) -> Batch:
        """Instances [start, stop)."""
        ...


@runtime_checkable
class CutStream(Stream, Protocol):
    """A stream that says itself where its batches end: they need not have the same number of instances."""

    def stop(self, epoch: int, start: int, size: int) -> int:
        """Behind which instance the batch ends that begins with `start`, where `size` instances are asked for."""
        ...


@dataclass(frozen=True)
class Position:
    """Where a run stands in its stream: the next instance to be used."""

    epoch: int = 0
    instance: int = 0


@dataclass(frozen=True)
class Phase:
    """A stretch of a run: its instances, its share of the run's progress (from 0 to 1), its batch size."""

    stream: Stream
    share: float
    batch_size: int


def batches(stream: Stream, size: int, position: Position, workers: int) -> Generator[tuple[Batch, Position]]:
    """Endless batches of `size` instances (a `CutStream`'s: as it cuts them) from `position` on, each with the
    position behind it.

    The last batch of an epoch may be smaller. workers: threads that build ahead; 0 builds when asked. The
    batches are the same for any number. Close the iterator to stop the workers.
    """
    if workers == 0:
        for epoch, start, stop, behind in _spans(stream, size, position):
            yield stream.batch(epoch, start, stop), behind
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="batches")
    ahead: deque[tuple[Future[Batch], Position]] = deque()
    try:
        with closing(_spans(stream, size, position)) as spans:
            while True:
                while len(ahead) < 2 * workers:
                    epoch, start, stop, behind = next(spans)
                    ahead.append((pool.submit(stream.batch, epoch, start, stop), behind))
                future, behind = ahead.popleft()
                yield future.result(), behind
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class Update:
    """What one update is made of. counts: what each part of the loss is a mean over, of all its batches; tokens:
    of all; epoch: of the last. batches: to be gone through once. behind: where the run stands after it."""

    counts: Mapping[str, int]
    tokens: int
    epoch: int
    batches: Iterable[Batch]
    behind: Position


def updates(
    stream: Stream,
    size: int,
    accumulate: int,
    position: Position,
    workers: int,
    counts: Callable[[Any], Mapping[str, int]],
) -> Generator[Update]:
    """Endless updates of `accumulate` batches each, from `position` on; the rest is as `batches` has it.

    The loss is divided by the counts of all batches together, so these are needed before the first is used. Each
    batch is therefore built, counted and dropped, and built again when its turn comes: that costs a thousandth
    of a step, and memory does not grow with `accumulate`.
    """
    if accumulate == 1:
        with closing(batches(stream, size, position, workers)) as once:
            for batch, behind in once:
                yield Update(counts(batch), batch.tokens, batch.epoch, (batch,), behind)
    with (
        closing(batches(stream, size, position, workers)) as counted,
        closing(batches(stream, size, position, workers)) as used,
    ):
        while True:
            totals: dict[str, int] = {}
            tokens = 0
            for batch, behind in islice(counted, accumulate):
                position = behind
                tokens += batch.tokens
                for part, count in counts(batch).items():
                    totals[part] = totals.get(part, 0) + count
            micro = (batch for batch, _ in islice(used, accumulate))
            yield Update(totals, tokens, batch.epoch, micro, position)


def _spans(stream: Stream, size: int, position: Position) -> Generator[tuple[int, int, int, Position]]:
    epoch, start = position.epoch, position.instance
    while True:
        instances = stream.size(epoch)
        if not instances:
            raise ValueError(f"epoch {epoch} has no instances")
        if start >= instances:
            epoch, start = epoch + 1, 0
            continue
        cut = stream.stop(epoch, start, size) if isinstance(stream, CutStream) else start + size
        stop = min(cut, instances)
        behind = Position(epoch, stop) if stop < instances else Position(epoch + 1, 0)
        yield epoch, start, stop, behind
        start = stop
