"""The sequences that are compared: which of a query's passages an epoch takes, and which others are right too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.tasks.batching import Item, TaskBatch, TokenSequence, pack


@dataclass(frozen=True)
class EmbedItem(Item):
    """A query's sequence, those of its positives, and those of its negatives. target: a score or a label as a
    number; of a query with passages 1. positives: how many; gold: the keys of their texts."""

    positives: int = 0
    gold: frozenset[bytes] = frozenset()

    def of_epoch(self, epoch: int) -> EmbedItem:
        """With one of its positives and one of its negatives, where it has any: the epoch's."""
        query, *others = self.sequences
        positives, negatives = others[: self.positives], others[self.positives :]
        chosen = [some[epoch % len(some)] for some in (positives, negatives) if some]
        return replace(self, sequences=(query, *chosen), positives=min(1, self.positives))


def key_of(sequence: TokenSequence) -> bytes:
    """Return a key of a sequence; equal sequences have equal vectors."""
    return sequence.ids.tobytes()


def alone(items: Sequence[Item]) -> TaskBatch:
    """Single sequences, packed."""
    return TaskBatch(pack(items), (1,) * len(items), {}, {})


def compared(items: Sequence[Item]) -> dict[str, Tensor]:
    """Which sequences of a batch are compared; each item has a query, a positive, and perhaps a negative.

    `queries` [B] and `others` [C]: long, the positives before the negatives. `wanted`: float [B], a score, or 1 of
    the same."""
    starts = np.cumsum([0, *(len(item.sequences) for item in items)])[:-1].tolist()
    negatives = [start + 2 for start, item in zip(starts, items, strict=True) if len(item.sequences) > 2]
    return {
        "queries": torch.tensor(starts),
        "others": torch.tensor([*(start + 1 for start in starts), *negatives]),
        "wanted": torch.tensor([float(item.target or 0) for item in items]),
    }


def also_right(items: Sequence[Item]) -> NDArray[np.bool_]:
    """bool [B, C]: for each query the columns, besides its own, that hold one of its passages, or one of an equal
    query's. Columns as in `compared`."""
    positives = [key_of(item.sequences[1]) for item in items]
    columns = [*positives, *(key_of(item.sequences[2]) for item in items if len(item.sequences) > 2)]
    gold: dict[bytes, set[bytes]] = {}
    for item in items:
        gold.setdefault(key_of(item.sequences[0]), set()).update(_gold(item))
    excluded = np.zeros((len(items), len(columns)), dtype=np.bool_)
    at: dict[bytes, list[int]] = {}
    for column, key in enumerate(columns):
        at.setdefault(key, []).append(column)
    for row, item in enumerate(items):
        for key in gold[key_of(item.sequences[0])]:
            excluded[row, at.get(key, [])] = True
        excluded[row, row] = False
    return excluded


def _gold(item: Item) -> frozenset[bytes]:
    return item.gold if isinstance(item, EmbedItem) else frozenset()
