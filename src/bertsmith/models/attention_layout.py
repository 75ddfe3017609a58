"""How a batch's sequences are laid out for attention: by length in buckets, padded inside a bucket only.

Computed once for a batch, on the host, and shared by all its layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.kernels.reference import Bounds
from bertsmith.models.config import Sees
from bertsmith.packed import Packed, sent

# Sequences whose lengths round up to the same multiple of this share a bucket: wider wastes more padding,
# narrower makes more and smaller products.
_WIDTH = 16
# Scores a head (sequences x length squared) that one bucket holds at most, so that they stay in the cache
# between the products, the softmax and the dropout.
_SCORES = 2**16
_SCORES_ELSEWHERE = 2**22  # on a GPU: what it is asked to do must be enough to keep it busy

# Rows of a product are a multiple of this where oneDNN makes it on a processor. Preparing a shape takes it as long
# as computing some 400 rows, and it remembers a thousand.
_ROWS = 32


@dataclass(frozen=True)
class Bucket:
    """`sequences` sequences of similar length, each padded to `length` cells, the longest of them.

    bias: float [b, 1, 1, T], 0 on tokens and the lowest number on padding; None where nothing is padded. Where a
    token sees one side only, the lowest number also on the other: [b, 1, T, T], or [1, 1, T, T] where that keeps
    padding from tokens as well.
    """

    sequences: int
    length: int
    bias: Tensor | None


@dataclass(frozen=True)
class Layout:
    """How a batch's sequences are laid out for attention: made once, used by each layer.

    sees: which tokens a token sees besides itself. alike: only sequences of one length share a bucket, so that
    none is padded. prepares: whether each shape of a product is prepared when it is first met. Buckets are made
    when they are first asked for: not every way of computing needs them.
    """

    packed: Packed
    sees: Sees = "all"
    alike: bool = False
    prepares: bool = False

    @property
    def spare(self) -> int:
        """How many rows of no token products are made with, so that batches of nearly as many tokens have products
        of one shape, where shapes are prepared."""
        return -len(self.packed.tokens) % _ROWS if self.prepares else 0

    def filled(self, rows: Tensor) -> Tensor:
        """Chosen rows, long [M], and for the same reason the first row again behind them, to such a multiple."""
        return F.pad(rows, (0, -len(rows) % _ROWS)) if self.prepares else rows

    def in_order(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """The same in ascending order, so that each sequence's are together, and where there each of `rows` is;
        None where it is where it was, as on a GPU, whose kernels do not ask for an order."""
        filled = self.filled(rows)
        if not rows.is_cpu:
            return filled, None
        numbers = filled.numpy()
        if (numbers[1:] >= numbers[:-1]).all():
            return filled, None
        order = np.argsort(numbers, kind="stable")
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return torch.from_numpy(numbers[order]), torch.from_numpy(back[: len(rows)])

    @cached_property
    def bounds(self) -> Bounds:
        """What attention keeps within, as kernels read it."""
        return Bounds(self.packed.starts.long(), self.sees, self.packed.longest, len(self.packed.tokens))

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Sequences of similar length; empty ones take part in nothing."""
        return self._laid[0]

    @property
    def cells(self) -> Tensor | None:
        """The packed row in each cell, long [C], bucket by bucket; padding cells hold row 0, and nothing ever
        depends on them. None where they change nothing."""
        return self._laid[1]

    @property
    def order(self) -> Tensor | None:
        """The cell of each packed row, long [N]. None where the cells are."""
        return self._laid[2]

    @property
    def sizes(self) -> list[int]:
        """Cells of each bucket."""
        return [bucket.sequences * bucket.length for bucket in self.buckets]

    @cached_property
    def _laid(self) -> tuple[tuple[Bucket, ...], Tensor | None, Tensor | None]:
        """All of it is reckoned on the host, which knows the lengths, and sent to where the tokens are."""
        lengths, device = self.packed.lengths, self.packed.tokens.device
        begins = np.cumsum(lengths) - lengths
        buckets, cells, nowhere = [], [np.empty(0, dtype=np.int64)], len(self.packed.tokens)
        order = np.empty(nowhere + 1, dtype=np.int64)
        place = 0
        scores = _SCORES if self.packed.tokens.is_cpu else _SCORES_ELSEWHERE
        for group in _groups(lengths, 1 if self.alike else _WIDTH, scores):
            length = int(lengths[group].max())
            columns = np.arange(length)
            real = columns < lengths[group, None]
            rows = begins[group, None] + columns
            order[np.where(real, rows, nowhere).ravel()] = np.arange(place, place + real.size)
            cells.append(np.where(real, rows, 0).ravel())
            bias = _bias(real, device) if self.sees == "all" else _one_side(real, self.sees, device)
            buckets.append(Bucket(len(group), length, bias))
            place += real.size
        if len(buckets) == 1 and len(order) == place + 1:  # sequences of one length, which lie in order
            return tuple(buckets), None, None
        every = torch.from_numpy(np.concatenate(cells))
        return tuple(buckets), sent(every, device), sent(torch.from_numpy(order[:-1]), device)


def _groups(lengths: NDArray[np.int64], width: int, scores: int) -> Iterator[NDArray[np.int64]]:
    """The sequences of each bucket: of lengths that round up alike, and as many as have so many scores a head."""
    filled = np.flatnonzero(lengths)
    keys = (lengths[filled] + width - 1) // width
    for key in np.unique(keys):
        most = max(1, scores // (int(key) * width) ** 2)
        members = filled[keys == key]
        yield from (members[i : i + most] for i in range(0, len(members), most))


def _bias(real: NDArray[np.bool_], device: torch.device) -> Tensor | None:
    if real.all():
        return None
    bias = np.where(real, np.float32(0), np.finfo(np.float32).min)
    return sent(torch.from_numpy(bias[:, None, None, :]), device)


def _one_side(real: NDArray[np.bool_], sees: Sees, device: torch.device) -> Tensor | None:
    """Padding lies behind all tokens: it must be hidden only where these see what is behind them."""
    length = real.shape[1]
    if length < 2:
        return None
    hidden = other_side(length, sees)[None]
    if sees == "behind" and not real.all():
        hidden = hidden | ~real[:, None, :]
    bias = np.where(hidden, np.finfo(np.float32).min, np.float32(0))
    return sent(torch.from_numpy(bias[:, None]), device)


def other_side(length: int, sees: Sees) -> NDArray[np.bool_]:
    """[T, T]: what each token (row) does not see."""
    every = np.ones((length, length), dtype=np.bool_)
    return np.triu(every, 1) if sees == "before" else np.tril(every, -1)
