"""Prefetching computes one item ahead, in order, on a background thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from bertsmith.io.prefetch import growing_batches, prefetch


def test_items_keep_their_order() -> None:
    assert list(prefetch(range(20), lambda n: n * n)) == [(n, n * n) for n in range(20)]
    assert list(prefetch([], str)) == []


def test_exactly_one_item_is_computed_ahead() -> None:
    computed = [threading.Event() for _ in range(3)]

    def compute(index: int) -> int:
        assert threading.current_thread() is not threading.main_thread()
        computed[index].set()
        return index

    with closing(prefetch(range(3), compute)) as results:
        assert next(results) == (0, 0)
        assert computed[1].wait(10)
        assert not computed[2].is_set()
        assert next(results) == (1, 1)
        assert computed[2].wait(10)


def test_the_iterable_is_advanced_on_the_main_thread_one_ahead() -> None:
    yielded: list[int] = []

    def items() -> Iterator[int]:
        for index in range(9):
            assert threading.current_thread() is threading.main_thread()
            yielded.append(index)
            yield index

    with closing(prefetch(items(), str)) as results:
        assert next(results) == (0, "0")
        assert yielded == [0, 1]
    assert yielded == [0, 1]
    assert threading.active_count() < 20


def test_an_error_of_the_function_is_raised_in_its_turn() -> None:
    with closing(prefetch([2, 1, 0, 5], lambda n: 1 / n)) as results:
        assert [next(results), next(results)] == [(2, 0.5), (1, 1.0)]
        with pytest.raises(ZeroDivisionError):
            next(results)


def test_an_error_of_the_iterable_is_raised_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield from (1, 2)
        raise ValueError("line 3")

    with closing(prefetch(items(), str)) as results:
        assert [next(results), next(results)] == [(1, "1"), (2, "2")]
        with pytest.raises(ValueError, match="line 3"):
            next(results)


def test_batch_sizes_double_up_to_the_maximum() -> None:
    assert [len(batch) for batch in growing_batches(range(5000), 2048)] == [512, 1024, 2048, 1416]
    assert [len(batch) for batch in growing_batches(range(25), 10)] == [10, 10, 5]
    assert [item for batch in growing_batches(range(5000), 2048) for item in batch] == list(range(5000))
    assert list(growing_batches([], 7)) == []
