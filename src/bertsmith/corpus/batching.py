"""Group items of an iterable into batches of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")


def batches(items: Iterable[_Item], size_of: Callable[[_Item], int], size: int) -> Iterator[list[_Item]]:
    """Yield consecutive items in batches; a batch ends with the item with which it reaches `size`."""
    batch: list[_Item] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size_of(item)
        if total >= size:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch
