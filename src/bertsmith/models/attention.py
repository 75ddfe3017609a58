"""Attention over packed sequences: a plain way to read, and a fast way that is held equal to it.

Both take qkv [N, 3H]: for each token its query, key and value side by side, each split into A heads of
d = H / A columns (Vaswani et al. 2017, section 3.2.2; scores are divided by sqrt(d)). The fast way groups
sequences of similar length into buckets and pads inside a bucket only; the grouping is computed once for a
batch and shared by all its layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.models.config import Sees
from bertsmith.packed import Packed

Drop = Callable[[Tensor], Tensor]
"""Dropout on attention weights; identity in evaluation."""

# Sequences whose lengths round up to the same multiple of this share a bucket: wider wastes more padding,
# narrower makes more and smaller products.
_WIDTH = 16
# Scores a head (sequences x length squared) that one bucket holds at most, so that they stay in the cache
# between the products, the softmax and the dropout.
_SCORES = 2**16
# Multiplications: torch computes products with no more of them in another way, so that a sequence alone would have
# other last bits than in company. Where nothing is trained, zeros make up for what is missing.
_FEW_PRODUCTS = 2**12


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

    cells: long [C], the packed row in each cell, bucket by bucket; padding cells hold row 0, and nothing ever
    depends on them. order: long [N], the cell of each packed row. Both are None where they change nothing.
    """

    buckets: tuple[Bucket, ...]
    cells: Tensor | None
    order: Tensor | None

    @property
    def sizes(self) -> list[int]:
        """Cells of each bucket."""
        return [bucket.sequences * bucket.length for bucket in self.buckets]

    @classmethod
    def of(cls, packed: Packed, *, sees: Sees = "all", alike: bool = False) -> Layout:
        """Group a batch's sequences by length; empty sequences take part in nothing. sees: which tokens a token
        sees besides itself. alike: only sequences of one length share a bucket, so that none is padded.

        All of it is reckoned on the host, which knows the lengths, and sent to where the tokens are.
        """
        lengths, device = packed.lengths, packed.tokens.device
        begins = np.cumsum(lengths) - lengths
        buckets, cells, spare = [], [np.empty(0, dtype=np.int64)], len(packed.tokens)
        order = np.empty(spare + 1, dtype=np.int64)
        place = 0
        for group in _groups(lengths, 1 if alike else _WIDTH):
            length = int(lengths[group].max())
            columns = np.arange(length)
            real = columns < lengths[group, None]
            rows = begins[group, None] + columns
            order[np.where(real, rows, spare).ravel()] = np.arange(place, place + real.size)
            cells.append(np.where(real, rows, 0).ravel())
            bias = _bias(real, device) if sees == "all" else _one_side(real, sees, device)
            buckets.append(Bucket(len(group), length, bias))
            place += real.size
        if len(buckets) == 1 and len(order) == place + 1:  # sequences of one length, which lie in order
            return cls(tuple(buckets), None, None)
        return cls(tuple(buckets), _sent(np.concatenate(cells), device), _sent(order[:-1], device))


def _groups(lengths: NDArray[np.int64], width: int) -> Iterator[NDArray[np.int64]]:
    """The sequences of each bucket: of lengths that round up alike, and no more than the scores allow."""
    filled = np.flatnonzero(lengths)
    keys = (lengths[filled] + width - 1) // width
    for key in np.unique(keys):
        most = max(1, _SCORES // (int(key) * width) ** 2)
        members = filled[keys == key]
        yield from (members[i : i + most] for i in range(0, len(members), most))


def _bias(real: NDArray[np.bool_], device: torch.device) -> Tensor | None:
    if real.all():
        return None
    bias = np.where(real, np.float32(0), np.finfo(np.float32).min)
    return _sent(bias[:, None, None, :], device)


def _one_side(real: NDArray[np.bool_], sees: Sees, device: torch.device) -> Tensor | None:
    """Padding lies behind all tokens: it must be hidden only where these see what is behind them."""
    length = real.shape[1]
    if length < 2:
        return None
    hidden = _other_side(length, sees)[None]
    if sees == "behind" and not real.all():
        hidden = hidden | ~real[:, None, :]
    return _sent(np.where(hidden, np.finfo(np.float32).min, np.float32(0))[:, None], device)


def _other_side(length: int, sees: Sees) -> NDArray[np.bool_]:
    """[T, T]: what each token (row) does not see."""
    every = np.ones((length, length), dtype=np.bool_)
    return np.triu(every, 1) if sees == "before" else np.tril(every, -1)


def _sent(array: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)


class _Lay(torch.autograd.Function):
    """Packed rows → cells. No gradient comes from padding, so the way back is a gather too, not a sum."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, cells: Tensor, order: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        return rows.index_select(0, cells)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (order,) = ctx.saved_tensors
        return grad.index_select(0, order), None, None


class _Return(torch.autograd.Function):
    """Cells → packed rows; each row stands in one cell, so the way back is a copy."""

    @staticmethod
    def forward(ctx: Any, cells: Tensor, order: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        ctx.cells = len(cells)
        return cells.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (order,) = ctx.saved_tensors
        return grad.new_zeros(ctx.cells, grad.shape[1]).index_copy_(0, order, grad), None


def attention_by_sequence(
    qkv: Tensor, packed: Packed, heads: int, drop: Drop | None = None, *, sees: Sees = "all"
) -> Tensor:
    """Attention read straight off its definition: one sequence after the other. [N, 3H] → [N, H]. sees: which
    tokens a token sees besides itself."""
    found = [qkv[:0, : qkv.shape[1] // 3]]
    for rows, weights in zip(
        _sequences(qkv, packed), attention_maps(qkv, packed, heads, sees=sees), strict=True
    ):
        if not len(rows):
            continue
        _, _, v = _by_head(rows, heads)
        found.append(((weights if drop is None else drop(weights)) @ v).transpose(0, 1).flatten(1))
    return torch.cat(found)


def attention_maps(qkv: Tensor, packed: Packed, heads: int, *, sees: Sees = "all") -> list[Tensor]:
    """The weights of each sequence's heads, [A, t, t] each: how much of each token's value (column) goes to each
    token (row). Rows sum to 1; what a token does not see has exactly 0."""
    found = []
    for rows in _sequences(qkv, packed):
        q, k, _ = _by_head(rows, heads)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if sees != "all":
            scores = scores.masked_fill(_sent(_other_side(len(rows), sees), qkv.device), -torch.inf)
        found.append(softmax_in_float(scores))
    return found


def _sequences(qkv: Tensor, packed: Packed) -> list[Tensor]:
    """The rows of each sequence."""
    return [qkv[start:end] for start, end in pairwise(packed.starts.tolist())]


def _by_head(rows: Tensor, heads: int) -> Tensor:
    """[t, 3H] → queries, keys and values, [3, A, t, d]."""
    return rows.view(len(rows), 3, heads, rows.shape[1] // 3 // heads).permute(1, 2, 0, 3)


def attention_by_bucket(qkv: Tensor, layout: Layout, heads: int, drop: Drop | None = None) -> Tensor:
    """The same by buckets of sequences of similar length. [N, 3H] → [N, H]."""
    if not layout.buckets:
        return qkv[:, : qkv.shape[1] // 3]  # no token, so nothing but the shape
    cells: Tensor = qkv if layout.cells is None else _Lay.apply(qkv, layout.cells, layout.order)  # type: ignore
    trained = torch.is_grad_enabled() and qkv.requires_grad
    # torch's kernel, where it is up to twice as fast: forward only (with dropout it is slower than products), and
    # not in bf16 on a processor, where products are up to twice as fast as it
    whole = drop is None and not trained and (qkv.is_cuda or qkv.dtype == torch.float32)
    found = []
    # split, not slices: a slice's gradient is a whole qkv of zeros, once for each bucket
    for bucket, part in zip(layout.buckets, torch.split(cells, layout.sizes), strict=True):
        b, t = bucket.sequences, bucket.length
        alone = bucket.bias is None or len(bucket.bias) == 1  # nothing in it is of one sequence
        if not whole and drop is None and alone and not torch.is_grad_enabled():
            b = max(b, _FEW_PRODUCTS // (t * t * part.shape[1] // 3) + 1)
            part = F.pad(part, (0, 0, 0, b * t - len(part)))
        q, k, v = part.view(b, t, 3, heads, -1).permute(2, 0, 3, 1, 4)  # each [b, A, t, d]
        if whole:
            mask = None if bucket.bias is None else bucket.bias.to(q.dtype)
            mixed = F.scaled_dot_product_attention(q, k, v, mask)
        else:
            scores = q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)
            weights = softmax_in_float(scores if bucket.bias is None else scores + bucket.bias, qkv.dtype)
            mixed = (weights if drop is None else drop(weights)) @ v
        found.append(mixed.transpose(1, 2).reshape(b * t, -1)[: bucket.sequences * t])
    rows = torch.cat(found)
    return rows if layout.order is None else _Return.apply(rows, layout.order)  # type: ignore


def softmax_in_float(scores: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax over the last axis, in fp32 even where the products are bf16; the result in `dtype`."""
    return scores.softmax(-1, dtype=torch.float32).to(dtype or scores.dtype)
