"""What a task is, and what all tasks share: rows of ids, batches of them, running a model over many.

A task is one file. It answers `read` (file → examples), `encode` (examples → rows), `loss`, `decode`
(outputs → predictions) and `score` (predictions, examples → numbers), and owns the head that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bertsmith import draws
from bertsmith.packed import Packed

_BATCH_TOKENS = (
    4096  # in one forward pass when nothing is trained: enough to fill the products, small enough for caches
)


@dataclass(frozen=True)
class EncodedRow:
    """One example for the model: ids and segments with special tokens, and how much of the text they hold.

    target: what the task's loss takes (a class id; -1 where unknown). tokens: of the whole text; kept: of those
    that the row holds (special tokens not counted).
    """

    ids: list[int]
    segments: list[int]
    target: int
    tokens: int
    kept: int


@dataclass(frozen=True)
class RowBatch:
    """Rows packed for the model, and their targets, long [B]."""

    packed: Packed
    targets: Tensor
    epoch: int = 0
    first: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """What each part of the loss is a mean over."""
        return {"task": len(self.targets)}

    @property
    def tokens(self) -> int:
        """Tokens in the batch, special ones included."""
        return len(self.packed.tokens)

    @property
    def place(self) -> str:
        """Which examples these are, for messages."""
        return (
            f"epoch {self.epoch}, examples {self.first} to {self.first + len(self.targets) - 1} of its order"
        )


def pack(rows: Sequence[EncodedRow], epoch: int = 0, first: int = 0) -> RowBatch:
    """Rows laid end to end."""
    packed = Packed.of_lists([row.ids for row in rows], [row.segments for row in rows])
    return RowBatch(packed, torch.tensor([row.target for row in rows], dtype=torch.long), epoch, first)


class RowStream:
    """Training rows in an order of their own in every epoch, a pure function of (seed, epoch, index)."""

    def __init__(self, rows: Sequence[EncodedRow], seed: int) -> None:
        self._rows, self._seed = rows, seed

    def size(self, epoch: int) -> int:
        """Rows in an epoch."""
        return len(self._rows)

    def batch(self, epoch: int, start: int, stop: int) -> RowBatch:
        """Rows [start, stop) of the epoch's order."""
        order = draws.permutation(self._seed, "examples", len(self._rows), epoch)[start:stop]
        return pack([self._rows[i] for i in order], epoch, start)


def run_over(rows: Sequence[EncodedRow], forward: Callable[[RowBatch], Tensor]) -> Tensor:
    """`forward` of all rows, [len(rows), …], in their order; rows of like length share a pass."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].ids))
    with torch.inference_mode():
        found = [forward(pack([rows[i] for i in some])).float() for some in _within_budget(order, rows)]
    joined = torch.cat(found)
    back = torch.empty(len(order), dtype=torch.long)
    back[torch.tensor(order)] = torch.arange(len(order))
    return joined[back]


def _within_budget(order: Sequence[int], rows: Sequence[EncodedRow]) -> Iterator[list[int]]:
    some: list[int] = []
    tokens = 0
    for i in order:
        if some and tokens + len(rows[i].ids) > _BATCH_TOKENS:
            yield some
            some, tokens = [], 0
        some.append(i)
        tokens += len(rows[i].ids)
    if some:
        yield some
