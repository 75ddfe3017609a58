"""What comes next is made while the last is used: the next texts are encoded while a model reads the last ones."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")

_FEW = 512  # of what comes first, so that not all of it is waited for


def ahead(parts: Iterable[Given], make: Callable[[Given], Made]) -> Generator[tuple[Given, Made]]:
    """Each part with what `make` makes of it, on a thread of its own, while the part before it is used. Parts are
    asked for here, one ahead. An error in making one, or in asking for it, is raised in its turn. Close the
    iterator if it is not gone through."""
    with ThreadPoolExecutor(1, "ahead") as thread:
        coming: tuple[Given, Future[Made]] | None = None
        failure: Exception | None = None
        waiting = iter(parts)
        while True:
            try:
                part = next(waiting)
            except StopIteration:
                break
            except Exception as error:
                failure = error
                break
            last, coming = coming, (part, thread.submit(make, part))
            if last is not None:
                yield last[0], last[1].result()
        if coming is not None:
            yield coming[0], coming[1].result()
        if failure is not None:
            raise failure


def in_parts(things: Iterable[Given], most: int) -> Iterator[list[Given]]:
    """The things in their order, few at first, then at most so many together."""
    waiting, number = iter(things), min(_FEW, most)
    while some := list(islice(waiting, number)):
        yield some
        number = min(2 * number, most)
