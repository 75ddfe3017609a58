"""Attention over packed sequences: a plain way to read, and a fast way that is held equal to it.

Both take qkv [N, 3H]: for each token its query, key and value side by side, each split into A heads of
d = H / A columns (Vaswani et al. 2017, section 3.2.2; scores are divided by sqrt(d)). The fast way groups
sequences of similar length into buckets and pads inside a bucket only; the grouping is computed once for a
batch and shared by all its layers. Compiled kernels know another one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.kernels.reference import TORCH, Drops, Kernels, softmax_in_float
from bertsmith.models.attention_layout import Layout, other_side
from bertsmith.models.config import Sees
from bertsmith.packed import Packed, sent

Mask = Callable[[Tensor], Tensor]
"""Makes what attention weights are multiplied by in dropout: a tensor of their shape and dtype."""

# Multiplications: torch computes products with no more of them in another way, so that a sequence alone would have
# other last bits than in company. Where nothing is trained, zeros make up for what is missing.
_FEW_PRODUCTS = 2**12


def attention_by_sequence(
    qkv: Tensor, packed: Packed, heads: int, mask: Mask | None = None, *, sees: Sees = "all"
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
        found.append((_dropped(weights, mask) @ v).transpose(0, 1).flatten(1))
    return torch.cat(found)


def attention_maps(qkv: Tensor, packed: Packed, heads: int, *, sees: Sees = "all") -> list[Tensor]:
    """The weights of each sequence's heads, [A, t, t] each: how much of each token's value (column) goes to each
    token (row). Rows sum to 1; what a token does not see has exactly 0."""
    found = []
    for rows in _sequences(qkv, packed):
        q, k, _ = _by_head(rows, heads)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if sees != "all":
            scores = scores.masked_fill(
                sent(torch.from_numpy(other_side(len(rows), sees)), qkv.device), -torch.inf
            )
        found.append(softmax_in_float(scores))
    return found


def _sequences(qkv: Tensor, packed: Packed) -> list[Tensor]:
    """The rows of each sequence."""
    return [qkv[start:end] for start, end in pairwise(packed.starts.tolist())]


def _by_head(rows: Tensor, heads: int) -> Tensor:
    """[t, 3H] → queries, keys and values, [3, A, t, d]."""
    return rows.view(len(rows), 3, heads, rows.shape[1] // 3 // heads).permute(1, 2, 0, 3)


def attention(
    qkv: Tensor, layout: Layout, heads: int, dropout: Drops | None = None, kernels: Kernels = TORCH
) -> Tensor:
    """The same by the quickest way that there is here, and zeros of the rows behind all tokens. dropout: of the
    weights, where it is active. kernels: may know another way than buckets."""
    found = kernels.attention(qkv, layout.bounds, heads, dropout)
    if found is not None:
        return found
    mixed = attention_by_bucket(qkv[: len(qkv) - layout.spare], layout, heads, dropout, kernels)
    return F.pad(mixed, (0, 0, 0, layout.spare)) if layout.spare else mixed


def attention_by_bucket(
    qkv: Tensor, layout: Layout, heads: int, dropout: Drops | None = None, kernels: Kernels = TORCH
) -> Tensor:
    """The same by buckets of sequences of similar length."""
    if not layout.buckets:
        return qkv[:, : qkv.shape[1] // 3]  # no token, so nothing but the shape
    if torch.is_grad_enabled() and qkv.requires_grad:
        trained: Any = _Trained.apply  # torch says nothing of its types
        mixed: Tensor = trained(qkv, layout, heads, dropout, kernels)
        return mixed
    mask = None if dropout is None else dropout.mask
    # torch's kernel, where it is up to twice as fast: without dropout, and not in bf16 on a processor, where
    # products are up to twice as fast as it
    whole = mask is None and (qkv.is_cuda or qkv.dtype == torch.float32)
    rows = qkv if layout.cells is None else qkv.index_select(0, layout.cells)
    found = []
    for bucket, part in zip(layout.buckets, torch.split(rows, layout.sizes), strict=True):
        b, t = bucket.sequences, bucket.length
        alone = bucket.bias is None or len(bucket.bias) == 1  # nothing in it is of one sequence
        if not whole and mask is None and alone and not torch.is_grad_enabled():
            b = max(b, _FEW_PRODUCTS // (t * t * part.shape[1] // 3) + 1)
            part = F.pad(part, (0, 0, 0, b * t - len(part)))
        q, k, v = _in_bucket(part, b, t, heads)
        if whole:
            bias = None if bucket.bias is None else bucket.bias.to(q.dtype)
            mixed = F.scaled_dot_product_attention(q, k, v, bias)
        else:
            # torch copies those of several sequences but not of one, whose sums then have other last bits
            q, k, v = (side.contiguous() for side in (q, k, v))
            mixed = _dropped(_weights(q * q.shape[-1] ** -0.5, k, bucket.bias), mask) @ v
        found.append(mixed.transpose(1, 2).reshape(b * t, -1)[: bucket.sequences * t])
    cells = torch.cat(found)
    return cells if layout.order is None else cells.index_select(0, layout.order)


def _in_bucket(part: Tensor, sequences: int, length: int, heads: int) -> Tensor:
    """The rows of a bucket → queries, keys and values, [3, b, A, T, d]."""
    return part.view(sequences, length, 3, heads, -1).permute(2, 0, 3, 1, 4)


def _weights(scaled: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
    """Softmax of the scores, [b, A, T, T]. scaled: queries over sqrt(d)."""
    return TORCH.weights(scaled @ k.transpose(-2, -1), bias, None)[0]


def _dropped(weights: Tensor, mask: Mask | None) -> Tensor:
    return weights if mask is None else weights * mask(weights)


class _Trained(torch.autograd.Function):
    """`attention_by_bucket` with a way back of its own, which keeps no more of the scores than the weights and
    their mask: with those of torch's functions, one after the other, they would be kept four times, and in fp32.
    """

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, layout: Layout, heads: int, dropout: Drops | None, kernels: Kernels
    ) -> Tensor:
        rows = qkv if layout.cells is None else qkv.index_select(0, layout.cells)
        cells = rows.new_empty(len(rows), rows.shape[1] // 3)
        kept: list[Tensor | None] = []
        ctx.drawn = []
        for bucket, part, out in zip(
            layout.buckets, *(torch.split(x, layout.sizes) for x in (rows, cells)), strict=True
        ):
            b, t = bucket.sequences, bucket.length
            # a copy, laid out as the products want it, here and on the way back
            q, k, v = _in_bucket(part, b, t, heads).clone(memory_format=torch.contiguous_format)
            q *= q.shape[-1] ** -0.5
            after, weights, drawn = kernels.weights(q @ k.transpose(-2, -1), bucket.bias, dropout)
            out.view(b, t, heads, -1).copy_((after @ v).transpose(1, 2))
            mask = drawn if isinstance(drawn, Tensor) else None
            kept += [q, k, v, weights, mask]
            ctx.drawn.append(drawn if mask is None else None)
        ctx.layout, ctx.heads, ctx.kernels = layout, heads, kernels
        ctx.save_for_backward(*kept)
        return cells if layout.order is None else cells.index_select(0, layout.order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        layout, heads = ctx.layout, ctx.heads
        if layout.order is None:
            cells = grad.contiguous()
        else:  # nothing comes from padding
            cells = grad.new_zeros(len(layout.cells), grad.shape[1]).index_copy_(0, layout.order, grad)
        slopes = cells.new_empty(len(cells), 3 * cells.shape[1])
        kept = iter(ctx.saved_tensors)
        for bucket, drawn, part, slope in zip(
            layout.buckets, ctx.drawn, *(torch.split(x, layout.sizes) for x in (cells, slopes)), strict=True
        ):
            b, t = bucket.sequences, bucket.length
            q, k, v, weights, mask = (next(kept) for _ in range(5))
            mixed = part.view(b, t, heads, -1).transpose(1, 2).contiguous()
            of_q, of_k, of_v = _in_bucket(slope, b, t, heads)
            of_after = mixed @ v.transpose(-2, -1)
            after, of_scores = ctx.kernels.weights_back(weights, drawn if mask is None else mask, of_after)
            of_v.copy_(after.transpose(-2, -1) @ mixed)
            of_q.copy_((of_scores @ k).mul_(q.shape[-1] ** -0.5))
            of_k.copy_(of_scores.transpose(-2, -1) @ q)
        found = slopes if layout.order is None else slopes.index_select(0, layout.order)
        return found, None, None, None, None
