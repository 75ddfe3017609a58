"""The loader: batches in order from anywhere, the same for any number of workers."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.training.data_loader import START, DataPosition, iterate_batches


@dataclass(frozen=True)
class Numbers:
    """A batch that only knows which instances it holds."""

    epoch: int
    start: int
    stop: int
    counts: dict[str, int]
    tokens: int = 0
    place: str = ""


class Epochs:
    """Epochs of given sizes, the last one for ever; every other batch takes longer: some could overtake."""

    def __init__(self, sizes: list[int], slow: bool = False) -> None:
        self.sizes, self.slow = sizes, slow

    def size(self, epoch: int) -> int:
        return self.sizes[min(epoch, len(self.sizes) - 1)]

    def batch(self, epoch: int, start: int, stop: int) -> Numbers:
        if self.slow:
            time.sleep(0.004 if start % 4 == 0 else 0.0)
        return Numbers(epoch, start, stop, {})


def spans(
    stream: Epochs, size: int, position: DataPosition, workers: int, n: int
) -> list[tuple[Numbers, DataPosition]]:
    with closing(iterate_batches(stream, size, position, workers)) as found:
        return list(islice(found, n))


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    size=st.integers(1, 12),
    workers=st.integers(0, 4),
    n=st.integers(1, 12),
)
def test_each_instance_once_an_epoch_in_order_and_from_any_position(
    sizes: list[int], size: int, workers: int, n: int
) -> None:
    stream = Epochs(sizes)
    straight = spans(stream, size, START, 0, n)
    read = [(b.epoch, i) for b, _ in straight for i in range(b.start, b.stop)]
    expected = [(epoch, i) for epoch in range(n + 1) for i in range(stream.size(epoch))]
    assert read == expected[: len(read)]
    assert spans(stream, size, START, workers, n) == straight
    for cut in range(n):  # the position behind a batch leads to the next one
        behind = straight[cut][1]
        assert spans(stream, size, behind, workers, n - cut - 1) == straight[cut + 1 :]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_slow_batches_are_not_overtaken(workers: int) -> None:
    stream = Epochs([13, 7], slow=True)
    assert spans(stream, 2, START, workers, 30) == spans(stream, 2, START, 0, 30)


def test_workers_end_with_the_iterator() -> None:
    before = threading.active_count()
    spans(Epochs([100]), 3, START, 4, 5)
    assert threading.active_count() == before


@pytest.mark.parametrize("workers", [0, 2])
def test_a_workers_error_is_the_loops_error(workers: int) -> None:
    class Torn(Epochs):
        def batch(self, epoch: int, start: int, stop: int) -> Numbers:
            if start == 4:
                raise OSError("torn")
            return super().batch(epoch, start, stop)

    found = iterate_batches(Torn([10]), 2, START, workers)
    assert [next(found)[0].start, next(found)[0].start] == [0, 2]
    with pytest.raises(OSError, match="torn"):
        next(found)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_without_instances_is_an_error_and_no_endless_search(workers: int) -> None:
    with pytest.raises(ValueError, match="no instances"):
        next(iterate_batches(Epochs([0]), 2, START, workers))
