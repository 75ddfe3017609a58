"""Prefetching on a background thread: the next batch is prepared while the current one is used."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Output = TypeVar("Output")

_FIRST_BATCH_SIZE = 512  # small, so that the first results arrive early


def prefetch(items: Iterable[Item], function: Callable[[Item], Output]) -> Generator[tuple[Item, Output]]:
    """Yield each item with the function's result, which a background thread computes one item ahead.

    The iterable is advanced on the caller's thread. An error of the function or of the iterable is raised when its
    turn comes. Close the generator if it is not exhausted.
    """
    with ThreadPoolExecutor(1, "ahead") as thread:
        futures = ((item, thread.submit(function, item)) for item in items)
        pending = next(futures, None)
        while pending is not None:
            failure: Exception | None = None
            try:
                following = next(futures, None)
            except Exception as error:
                following, failure = None, error
            item, future = pending
            yield item, future.result()
            if failure is not None:
                raise failure
            pending = following


def growing_batches(items: Iterable[Item], max_size: int) -> Iterator[list[Item]]:
    """Yield the items in order in batches whose size doubles up to `max_size`."""
    iterator, size = iter(items), min(_FIRST_BATCH_SIZE, max_size)
    while batch := list(islice(iterator, size)):
        yield batch
        size = min(2 * size, max_size)
