"""What a task is, and what all tasks share: rows of ids, batches of them, running a model over many.

A task is one file and one line in `TASKS`. It answers `read` (file → examples), `encode` (examples → rows),
`loss`, `decode` (rows → predictions) and `score` (predictions, rows → numbers), and owns the heads it needs.
The verbs know tasks only by this.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith import draws
from bertsmith.errors import InputError
from bertsmith.loss import Loss
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.packed import Packed
from bertsmith.settings import Settings
from bertsmith.tokenizer.tokenizer import Tokenizer

TASKS = {"classify": "bertsmith.tasks.classify:Classify"}
"""Each task's name with its home, imported when asked for."""

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


class Example(Protocol):
    """What all tasks' examples have: a label to keep in proportion, None if unknown, and a place in a file."""

    @property
    def label(self) -> str | None:
        """The label as the file has it."""
        ...

    @property
    def place(self) -> str:
        """file:line."""
        ...


class Task(nn.Module):
    """The heads on the encoder, their loss, and what their outputs mean.

    name: as `finetune` takes it. architecture: the field's class that its folder is written as. decides: the
    score by which the best epoch is kept. summary: the scores to log. settings_type: where its examples stand.
    """

    name: ClassVar[str]
    architecture: ClassVar[str]
    decides: ClassVar[str]
    summary: ClassVar[tuple[str, ...]]
    settings_type: ClassVar[type[Settings]]

    def __init__(
        self,
        config: ModelConfig,
        generator: torch.Generator,
        labels: Sequence[str],
        settings: Any,
        *,
        numbered: bool = False,
    ) -> None:
        """labels: by id. settings: of `settings_type`. numbered: data may give ids in place of labels."""
        super().__init__()
        self.labels, self.settings, self.numbered = list(labels), settings, numbered

    @classmethod
    def read(cls, file: str | Path, settings: Any, *, labelled: bool = True) -> list[Any]:
        """The examples of a file, in its order. InputError with file and line for what is amiss."""
        raise NotImplementedError

    @classmethod
    def of_texts(
        cls, texts: Sequence[str], seconds: Sequence[str] | None, places: Sequence[str]
    ) -> list[Any]:
        """Examples without labels, from texts that stand in no table."""
        raise NotImplementedError

    @classmethod
    def labels_of(cls, examples: Sequence[Any], names: Sequence[str] | None) -> list[str]:
        """The labels by id: the given names, or what the data holds, in an order that only depends on it."""
        raise NotImplementedError

    @classmethod
    def as_row(cls, example: Any, settings: Any) -> dict[str, Any]:
        """An example as `read` reads it from a jsonl file."""
        raise NotImplementedError

    @property
    def heads(self) -> Mapping[str, nn.Module]:
        """The heads by the prefix that their weights have in a folder."""
        raise NotImplementedError

    @property
    def pairs(self) -> bool:
        """Whether the task is on pairs of texts."""
        raise NotImplementedError

    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer, longest: int) -> list[EncodedRow]:
        """Rows of at most `longest` tokens. InputError for a label that is none of the model's."""
        raise NotImplementedError

    def loss(self, encoder: Encoder, batch: RowBatch) -> Loss:
        """Sums and counts of a batch."""
        raise NotImplementedError

    def decode(self, encoder: Encoder, rows: Sequence[EncodedRow]) -> list[dict[str, Any]]:
        """One prediction a row. There is no other way from outputs to answers."""
        raise NotImplementedError

    def score(self, predictions: Sequence[dict[str, Any]], rows: Sequence[EncodedRow]) -> dict[str, Any]:
        """The task's scores, as the field's scripts have them."""
        raise NotImplementedError

    def baseline(self, training: Sequence[EncodedRow], dev: Sequence[EncodedRow]) -> dict[str, float]:
        """What an answer that never looks at the text would score on dev."""
        raise NotImplementedError


def task_type(name: str) -> type[Task]:
    """The task of this name; InputError if there is none."""
    if name not in TASKS:
        raise InputError(f"{name}: there is no such task", f"known tasks: {', '.join(TASKS)}")
    module, _, kind = TASKS[name].partition(":")
    found: type[Task] = getattr(importlib.import_module(module), kind)
    return found


def pack(rows: Sequence[EncodedRow], epoch: int = 0, first: int = 0) -> RowBatch:
    """Rows laid end to end."""
    packed = Packed.of_lists([row.ids for row in rows], [row.segments for row in rows])
    return RowBatch(packed, torch.tensor([row.target for row in rows], dtype=torch.long), epoch, first)


class RowStream:
    """Training rows in an order of their own in every epoch, a pure function of (seed, epoch, index)."""

    def __init__(self, rows: Sequence[EncodedRow], seed: int) -> None:
        self._rows, self._seed = rows, seed
        self._order = lru_cache(2)(self._order_of)  # a worker may stand in the next epoch already

    def size(self, epoch: int) -> int:
        """Rows in an epoch."""
        return len(self._rows)

    def batch(self, epoch: int, start: int, stop: int) -> RowBatch:
        """Rows [start, stop) of the epoch's order."""
        return pack([self._rows[i] for i in self._order(epoch)[start:stop]], epoch, start)

    def _order_of(self, epoch: int) -> NDArray[np.int64]:
        return draws.permutation(self._seed, "examples", len(self._rows), epoch)


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
