"""Attention over packed sequences: a reference, and a faster implementation that tests hold equal to it.

Both take qkv [N, 3H]: the concatenated query, key, and value of each token, each split into A heads of d = H / A
columns (Vaswani et al. 2017, section 3.2.2; scores are divided by sqrt(d)). The faster one groups sequences of
similar length into buckets and pads inside a bucket only; the grouping is computed once per batch and shared by
all layers. Compiled kernels have their own implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.kernels.reference import REFERENCE, DropoutLike, KernelBackend, softmax_fp32
from bertsmith.models.attention_layout import AttentionLayout, causal_mask
from bertsmith.models.config import AttentionDirection
from bertsmith.packed import Packed, copy_to_device

MaskFunction = Callable[[Tensor], Tensor]
"""Returns the dropout mask of attention weights: a tensor of their shape and dtype."""

# Multiplications: torch computes smaller products by another algorithm, so that a single sequence would differ in
# the last bits from one in a batch. Without gradients, products are padded with zeros to this size.
_MIN_MULTIPLICATIONS = 2**12


def reference_attention(
    qkv: Tensor,
    packed: Packed,
    heads: int,
    mask: MaskFunction | None = None,
    *,
    direction: AttentionDirection = "all",
) -> Tensor:
    """Compute attention by its definition, one sequence after the other: [N, 3H] → [N, H].

    `sees` are the tokens that a token attends to besides itself.
    """
    outputs = [qkv[:0, : qkv.shape[1] // 3]]
    for rows, weights in zip(
        _sequences(qkv, packed), attention_maps(qkv, packed, heads, direction=direction), strict=True
    ):
        if not len(rows):
            continue
        _, _, v = _by_head(rows, heads)
        outputs.append((_dropped_out(weights, mask) @ v).transpose(0, 1).flatten(1))
    return torch.cat(outputs)


def attention_maps(
    qkv: Tensor, packed: Packed, heads: int, *, direction: AttentionDirection = "all"
) -> list[Tensor]:
    """Return the attention weights of each sequence, [A, t, t] each, from tokens (rows) to tokens (columns).

    Rows sum to 1; tokens that are not attended to have exactly 0.
    """
    maps = []
    for rows in _sequences(qkv, packed):
        q, k, _ = _by_head(rows, heads)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if direction != "all":
            scores = scores.masked_fill(
                copy_to_device(torch.from_numpy(causal_mask(len(rows), direction)), qkv.device), -torch.inf
            )
        maps.append(softmax_fp32(scores))
    return maps


def _sequences(qkv: Tensor, packed: Packed) -> list[Tensor]:
    """Split rows by sequence."""
    return [qkv[start:end] for start, end in pairwise(packed.cu_seqlens.tolist())]


def _by_head(rows: Tensor, heads: int) -> Tensor:
    """Split rows [t, 3H] into queries, keys, and values, [3, A, t, d]."""
    return rows.view(len(rows), 3, heads, rows.shape[1] // 3 // heads).permute(1, 2, 0, 3)


def attention(
    qkv: Tensor,
    layout: AttentionLayout,
    heads: int,
    dropout: DropoutLike | None = None,
    kernels: KernelBackend = REFERENCE,
) -> Tensor:
    """Compute attention by the kernels, or else by buckets: [N, 3H] → [N, H], zeros on padding rows.

    `dropout` applies to the attention weights; None if it is inactive.
    """
    output = kernels.attention(qkv, layout.ranges, heads, dropout)
    if output is not None:
        return output
    mixed = bucket_attention(qkv[: len(qkv) - layout.num_padding_rows], layout, heads, dropout, kernels)
    return F.pad(mixed, (0, 0, 0, layout.num_padding_rows)) if layout.num_padding_rows else mixed


def bucket_attention(
    qkv: Tensor,
    layout: AttentionLayout,
    heads: int,
    dropout: DropoutLike | None = None,
    kernels: KernelBackend = REFERENCE,
) -> Tensor:
    """Compute attention by buckets of sequences of similar length: [N, 3H] → [N, H]."""
    if not layout.buckets:
        return qkv[:, : qkv.shape[1] // 3]  # no tokens: an empty tensor of the right shape
    if torch.is_grad_enabled() and qkv.requires_grad:
        apply: Any = _BucketAttention.apply  # which torch does not annotate
        mixed: Tensor = apply(qkv, layout, heads, dropout, kernels)
        return mixed
    mask = None if dropout is None else dropout.draw_mask
    # Without dropout torch's kernel is up to twice as fast, except in bf16 on a CPU, where separate products are
    # up to twice as fast.
    fused = mask is None and (qkv.is_cuda or qkv.dtype == torch.float32)
    rows = qkv if layout.row_of_cell is None else qkv.index_select(0, layout.row_of_cell)
    outputs = []
    for bucket, part in zip(layout.buckets, torch.split(rows, layout.bucket_sizes), strict=True):
        b, t = bucket.sequences, bucket.length
        shares_bias = bucket.bias is None or len(bucket.bias) == 1  # all sequences have the same bias
        if not fused and mask is None and shares_bias and not torch.is_grad_enabled():
            b = max(b, _MIN_MULTIPLICATIONS // (t * t * part.shape[1] // 3) + 1)
            part = F.pad(part, (0, 0, 0, b * t - len(part)))
        q, k, v = _in_bucket(part, b, t, heads)
        if fused:
            bias = None if bucket.bias is None else bucket.bias.to(q.dtype)
            mixed = F.scaled_dot_product_attention(q, k, v, bias)
        else:
            # torch copies strided inputs of several sequences but not of one, whose last bits would then differ
            q, k, v = (tensor.contiguous() for tensor in (q, k, v))
            mixed = _dropped_out(_weights(q * q.shape[-1] ** -0.5, k, bucket.bias), mask) @ v
        outputs.append(mixed.transpose(1, 2).reshape(b * t, -1)[: bucket.sequences * t])
    cells = torch.cat(outputs)
    return cells if layout.cell_of_row is None else cells.index_select(0, layout.cell_of_row)


def _in_bucket(part: Tensor, sequences: int, length: int, heads: int) -> Tensor:
    """Split the rows of a bucket into queries, keys, and values, [3, b, A, T, d]."""
    return part.view(sequences, length, 3, heads, -1).permute(2, 0, 3, 1, 4)


def _weights(scaled_queries: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
    """Return the attention weights [b, A, T, T] of queries divided by sqrt(d)."""
    return REFERENCE.attention_softmax(scaled_queries @ k.transpose(-2, -1), bias, None)[0]


def _dropped_out(weights: Tensor, mask: MaskFunction | None) -> Tensor:
    return weights if mask is None else weights * mask(weights)


class _BucketAttention(torch.autograd.Function):
    """`attention_by_bucket` with a backward pass that saves only the attention weights and their mask.

    Autograd through torch's functions would save four tensors of that size, in fp32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        layout: AttentionLayout,
        heads: int,
        dropout: DropoutLike | None,
        kernels: KernelBackend,
    ) -> Tensor:
        rows = qkv if layout.row_of_cell is None else qkv.index_select(0, layout.row_of_cell)
        cells = rows.new_empty(len(rows), rows.shape[1] // 3)
        saved: list[Tensor | None] = []
        ctx.drawn = []
        for bucket, part, out in zip(
            layout.buckets, *(torch.split(x, layout.bucket_sizes) for x in (rows, cells)), strict=True
        ):
            b, t = bucket.sequences, bucket.length
            # a copy in the layout that is fast in both passes' products
            q, k, v = _in_bucket(part, b, t, heads).clone(memory_format=torch.contiguous_format)
            q *= q.shape[-1] ** -0.5
            after, weights, drawn = kernels.attention_softmax(q @ k.transpose(-2, -1), bucket.bias, dropout)
            out.view(b, t, heads, -1).copy_((after @ v).transpose(1, 2))
            mask = drawn if isinstance(drawn, Tensor) else None
            saved += [q, k, v, weights, mask]
            ctx.drawn.append(drawn if mask is None else None)
        ctx.layout, ctx.heads, ctx.kernels = layout, heads, kernels
        ctx.save_for_backward(*saved)
        return cells if layout.cell_of_row is None else cells.index_select(0, layout.cell_of_row)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        layout, heads = ctx.layout, ctx.heads
        if layout.cell_of_row is None:
            cells = grad.contiguous()
        else:  # padding has no gradient
            cells = grad.new_zeros(len(layout.row_of_cell), grad.shape[1]).index_copy_(
                0, layout.cell_of_row, grad
            )
        cell_grads = cells.new_empty(len(cells), 3 * cells.shape[1])
        saved = iter(ctx.saved_tensors)
        for bucket, drawn, part, part_grad in zip(
            layout.buckets,
            ctx.drawn,
            *(torch.split(x, layout.bucket_sizes) for x in (cells, cell_grads)),
            strict=True,
        ):
            b, t = bucket.sequences, bucket.length
            q, k, v, weights, mask = (next(saved) for _ in range(5))
            output_grad = part.view(b, t, heads, -1).transpose(1, 2).contiguous()
            q_grad, k_grad, v_grad = _in_bucket(part_grad, b, t, heads)
            after_grad = output_grad @ v.transpose(-2, -1)
            after, scores_grad = ctx.kernels.softmax_backward(
                weights, drawn if mask is None else mask, after_grad
            )
            v_grad.copy_(after.transpose(-2, -1) @ output_grad)
            q_grad.copy_((scores_grad @ k).mul_(q.shape[-1] ** -0.5))
            k_grad.copy_(scores_grad.transpose(-2, -1) @ q)
        qkv_grad = (
            cell_grads if layout.cell_of_row is None else cell_grads.index_select(0, layout.cell_of_row)
        )
        return qkv_grad, None, None, None, None
