"""Items: what is shuffled, batched and answered whole, and how they get to the model and back.

An item is one sequence, or several that belong together (the choices of a question, a query and its passages);
an example has one item, or several (the windows of a long text).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith import rng
from bertsmith.device import ComputeContext
from bertsmith.packed import Packed, copy_to_device
from bertsmith.tokenizer.tokenizer import Encoding

# In one forward pass when nothing is trained: on a processor a thread makes a pass, and what stands between two
# products is to stay in the cache that threads share.
_BATCH_TOKENS, _ELSEWHERE = 1024, 4096
_SHORT = 8  # texts of which so many fit in a pass can be shared out evenly


@dataclass(frozen=True)
class Encoded:
    """One sequence of T tokens for the model, special tokens included.

    ids: int32 [T]; segments: uint8 [T]. tokens: of the whole text, special ones not counted; kept: of those
    that this sequence holds. offsets: int32 [T, 2], each token's slice of its own text, and sources: int8 [T],
    which text it is of (-1 for a special one): None where the task does not point into the text.
    """

    ids: NDArray[np.int32]
    segments: NDArray[np.uint8]
    tokens: int
    kept: int
    offsets: NDArray[np.int32] | None = None
    sources: NDArray[np.int8] | None = None

    @classmethod
    def of(cls, encoding: Encoding, *, located: bool = False) -> Encoded:
        """From what a tokenizer made. located: keep offsets and sources."""
        kept = len(encoding.ids) - encoding.sequence_ids.count(None)
        return cls(
            np.array(encoding.ids, dtype=np.int32),
            np.array(encoding.type_ids, dtype=np.uint8),
            kept + encoding.num_truncated,
            kept,
            np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2) if located else None,
            np.array([-1 if s is None else s for s in encoding.sequence_ids], np.int8) if located else None,
        )


@dataclass(frozen=True)
class Item:
    """example: the number of the example that it belongs to, among those encoded together. sequences: one or
    several. target: the task's own (a class, a number, tags, a span); None where it is not known. first: of a
    window, the number of the text's token that it begins with."""

    example: int
    sequences: tuple[Encoded, ...]
    target: Any = None
    first: int = 0

    @property
    def size(self) -> int:
        """Tokens of all its sequences."""
        return sum(len(sequence.ids) for sequence in self.sequences)


@dataclass(frozen=True)
class TaskBatch:
    """Items packed for the model.

    packed: the sequences of all items, in order. sizes: how many sequences each item has. tensors: what the task
    wants to know besides, by name (targets, rows to look at). counts: what each part of the loss is a mean over.
    """

    packed: Packed
    sizes: tuple[int, ...]
    tensors: Mapping[str, Tensor]
    counts: Mapping[str, int]
    epoch: int = 0
    first: int = 0

    @property
    def tokens(self) -> int:
        """Tokens in the batch, special ones included."""
        return len(self.packed.tokens)

    @property
    def place(self) -> str:
        """Which items these are, for messages."""
        return f"epoch {self.epoch}, examples {self.first} to {self.first + len(self.sizes) - 1} of its order"

    def to(self, device: torch.device | str) -> TaskBatch:
        """The same on another device; the host does not wait for the copy."""
        if self.packed.tokens.device == torch.device(device):
            return self
        there = {name: copy_to_device(tensor, device) for name, tensor in self.tensors.items()}
        return TaskBatch(self.packed.to(device), self.sizes, there, self.counts, self.epoch, self.first)


class Collates(Protocol):
    """What turns items into a batch: a task."""

    def collate(self, items: Sequence[Item], epoch: int = 0, first: int = 0) -> TaskBatch:
        """Items packed, with what the task wants to know besides."""
        ...


def pack(items: Sequence[Item]) -> Packed:
    """The sequences of all items laid end to end."""
    sequences = [sequence for item in items for sequence in item.sequences]
    return Packed.from_arrays(
        np.concatenate([s.ids for s in sequences]).astype(np.int64),
        np.concatenate([s.segments for s in sequences]).astype(np.int64),
        np.fromiter((len(s.ids) for s in sequences), dtype=np.int64, count=len(sequences)),
    )


class ItemStream:
    """Training items in an order of their own in every epoch, a pure function of (seed, epoch, index)."""

    def __init__(self, task: Collates, items: Sequence[Item], seed: int) -> None:
        self._task, self._items, self._seed = task, items, seed
        self._order = lru_cache(2)(self._order_of)  # a worker may stand in the next epoch already

    def size(self, epoch: int) -> int:
        """Items in an epoch."""
        return len(self._items)

    def batch(self, epoch: int, start: int, stop: int) -> TaskBatch:
        """Items [start, stop) of the epoch's order."""
        return self._task.collate([self._items[i] for i in self._order(epoch)[start:stop]], epoch, start)

    def _order_of(self, epoch: int) -> NDArray[np.int64]:
        return rng.permutation(self._seed, "examples", len(self._items), epoch)


def log_of(shares: Tensor) -> Tensor:
    """Logits whose softmax are these probabilities; those of 0 are as low as numbers go."""
    return shares.clamp_min(torch.finfo(shares.dtype).tiny).log()


def run_over(
    items: Sequence[Item],
    collate: Callable[[Sequence[Item]], TaskBatch],
    forward: Callable[[TaskBatch], Sequence[Tensor]],
    place: ComputeContext,
) -> list[Tensor]:
    """`forward` of all items: one tensor [r, …] an item, in their order, on the host in fp32.

    r may differ from item to item (a row a token, a row a choice). Items of like length share a pass, several of
    which are made at a time where the place has threads; the host waits once a pass. ValueError where `forward`
    does not answer one tensor an item.
    """

    def answered(some: Sequence[int]) -> tuple[Tensor, ...]:
        with torch.inference_mode():
            answers = forward(place.to_device(collate([items[i] for i in some])))
            if len(answers) != len(some):
                raise ValueError(f"{len(answers)} outputs for {len(some)} items")
            rows = torch.cat(list(answers)).float().cpu()
            return torch.split(rows, [len(answer) for answer in answers])

    order = sorted(range(len(items)), key=lambda i: items[i].size)
    passes = list(within_budget(order, [item.size for item in items], place))
    found = {
        i: part
        for some, parts in zip(passes, place.parallel_map(answered, passes), strict=True)
        for i, part in zip(some, parts, strict=True)
    }
    return [found[i] for i in range(len(items))]


def within_budget(order: Sequence[int], sizes: Sequence[int], place: ComputeContext) -> Iterator[list[int]]:
    """The numbers of `order`, as many together as fit in one forward pass there. Of short texts there are about as
    many tokens in each pass, and as many passes as no thread waits for at the end. sizes: tokens of each."""
    most = _BATCH_TOKENS if place.is_cpu else _ELSEWHERE
    total, longest = sum(sizes[i] for i in order), max((sizes[i] for i in order), default=0)
    share = math.inf
    if total > most >= _SHORT * longest:
        passes = -(-total // (most - longest))  # so that those which end up larger than others fit as well
        share = total / (-(-passes // place.num_parallel_passes) * place.num_parallel_passes)
    some: list[int] = []
    made, tokens, before = 1, 0, 0
    for i in order:
        is_full = tokens + sizes[i] > most or before + tokens + sizes[i] / 2 > made * share
        if some and is_full:
            yield some
            made, before = made + 1, before + tokens
            some, tokens = [], 0
        some.append(i)
        tokens += sizes[i]
    if some:
        yield some
