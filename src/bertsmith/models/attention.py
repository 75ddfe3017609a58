"""Attention over packed sequences, by buckets of sequences of similar length.

qkv [N, 3H] has the concatenated query, key, and value of each of N tokens, each split into A heads of d = H / A
columns (Vaswani et al. 2017, section 3.2.2; scores are divided by sqrt(d)). Sequences are padded inside a bucket
only (`attention_layout` defines rows and cells); the grouping is computed once per batch and shared by all layers.
A bucket has b sequences of T cells; a sequence has t tokens. Compiled kernels have their own implementation.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.kernels.reference import REFERENCE, DropoutLike, KernelBackend, softmax_fp32
from bertsmith.models.attention_layout import AttentionLayout, causal_mask
from bertsmith.models.config import AttentionDirection
from bertsmith.packed import Packed, copy_to_device

# torch computes products of fewer multiplications by another algorithm, so that a single sequence would differ in
# the last bits from one in a batch. Without gradients, products are padded with zeros to this size.
_MIN_MULTIPLICATIONS = 2**12


def attention_weights(
    qkv: Tensor, packed: Packed, num_heads: int, *, direction: AttentionDirection = "all"
) -> list[Tensor]:
    """Return the attention weights of each sequence, [A, t, t] each, from tokens (rows) to tokens (columns).

    Each row sums to 1; tokens that are not attended to have exactly 0.
    """
    weights = []
    for start, end in pairwise(packed.cu_seqlens.tolist()):
        sequence_qkv = qkv[start:end]
        q, k, _ = _split_heads(sequence_qkv, num_heads)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if direction != "all":
            mask = torch.from_numpy(causal_mask(len(sequence_qkv), direction))
            scores = scores.masked_fill(copy_to_device(mask, qkv.device), -torch.inf)
        weights.append(softmax_fp32(scores))
    return weights


def _split_heads(sequence_qkv: Tensor, num_heads: int) -> Tensor:
    """Split the qkv of a sequence, [t, 3H], into queries, keys, and values, [3, A, t, d]."""
    length, size = sequence_qkv.shape
    return sequence_qkv.view(length, 3, num_heads, size // 3 // num_heads).permute(1, 2, 0, 3)


def attention(
    qkv: Tensor,
    layout: AttentionLayout,
    num_heads: int,
    dropout: DropoutLike | None = None,
    kernels: KernelBackend = REFERENCE,
) -> Tensor:
    """Compute attention by the kernels, or else by buckets: [N, 3H] → [N, H].

    Args:
        qkv: Queries, keys, and values, with the layout's padding rows at the end; their output is 0.
        layout: The layout of the batch.
        num_heads: The number of attention heads.
        dropout: The dropout of the attention weights; None if it is inactive.
        kernels: The kernels to use.
    """
    output = kernels.attention(qkv, layout.sequence_layout, num_heads, dropout)
    if output is not None:
        return output
    padding = layout.num_padding_rows
    context = bucket_attention(qkv[: len(qkv) - padding], layout, num_heads, dropout, kernels)
    return F.pad(context, (0, 0, 0, padding)) if padding else context


def bucket_attention(
    qkv: Tensor,
    layout: AttentionLayout,
    num_heads: int,
    dropout: DropoutLike | None = None,
    kernels: KernelBackend = REFERENCE,
) -> Tensor:
    """Compute attention by buckets of sequences of similar length: [N, 3H] → [N, H].

    Without gradients and padding a sequence's result does not depend, even in rounding, on the rest of its batch:
    hence the care about the algorithm of each product.
    """
    if not layout.buckets:
        return qkv[:, : qkv.shape[1] // 3]  # no tokens: an empty tensor of the right shape
    if torch.is_grad_enabled() and qkv.requires_grad:
        apply: Any = _BucketAttention.apply  # which torch does not annotate
        output: Tensor = apply(qkv, layout, num_heads, dropout, kernels)
        return output
    # Without dropout torch's fused kernel is up to twice as fast as separate products, except in bf16 on a CPU,
    # where separate products are up to twice as fast.
    uses_sdpa = dropout is None and (qkv.is_cuda or qkv.dtype == torch.float32)
    outputs = []
    for bucket, bucket_qkv in zip(
        layout.buckets, torch.split(_rows_to_cells(qkv, layout), layout.bucket_sizes), strict=True
    ):
        b, t = bucket.sequences, bucket.length
        shares_bias = bucket.bias is None or len(bucket.bias) == 1  # all sequences have the same bias
        if not uses_sdpa and dropout is None and shares_bias and not torch.is_grad_enabled():
            b = max(b, _MIN_MULTIPLICATIONS // (t * t * bucket_qkv.shape[1] // 3) + 1)
            bucket_qkv = F.pad(bucket_qkv, (0, 0, 0, b * t - len(bucket_qkv)))
        q, k, v = _split_bucket(bucket_qkv, b, t, num_heads)
        if uses_sdpa:
            bias = None if bucket.bias is None else bucket.bias.to(q.dtype)
            context = F.scaled_dot_product_attention(q, k, v, bias)
        else:
            # torch copies strided inputs of several sequences but not of one, whose last bits would then differ
            q, k, v = (tensor.contiguous() for tensor in (q, k, v))
            scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
            weights, _, _ = REFERENCE.attention_softmax(scores, bucket.bias, dropout)
            context = weights @ v
        outputs.append(context.transpose(1, 2).reshape(b * t, -1)[: bucket.sequences * t])
    return _cells_to_rows(torch.cat(outputs), layout)


def _rows_to_cells(rows: Tensor, layout: AttentionLayout) -> Tensor:
    return rows if layout.row_of_cell is None else rows.index_select(0, layout.row_of_cell)


def _cells_to_rows(cells: Tensor, layout: AttentionLayout) -> Tensor:
    return cells if layout.cell_of_row is None else cells.index_select(0, layout.cell_of_row)


def _split_bucket(bucket_qkv: Tensor, sequences: int, length: int, num_heads: int) -> Tensor:
    """Split the qkv of a bucket, [b · T, 3H], into queries, keys, and values, [3, b, A, T, d]."""
    return bucket_qkv.view(sequences, length, 3, num_heads, -1).permute(2, 0, 3, 1, 4)


class _BucketAttention(torch.autograd.Function):
    """`bucket_attention` with a backward pass that saves, of size T · T, only the weights and their dropout mask.

    Autograd through torch's functions would save four tensors of that size, in fp32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        layout: AttentionLayout,
        num_heads: int,
        dropout: DropoutLike | None,
        kernels: KernelBackend,
    ) -> Tensor:
        cells_qkv = _rows_to_cells(qkv, layout)
        cells_output = cells_qkv.new_empty(len(cells_qkv), cells_qkv.shape[1] // 3)
        saved: list[Tensor | None] = []
        ctx.dropout_seeds = []
        for bucket, bucket_qkv, bucket_output in zip(
            layout.buckets,
            torch.split(cells_qkv, layout.bucket_sizes),
            torch.split(cells_output, layout.bucket_sizes),
            strict=True,
        ):
            b, t = bucket.sequences, bucket.length
            # a copy in the layout that is fast in both passes' products
            q, k, v = _split_bucket(bucket_qkv, b, t, num_heads).clone(memory_format=torch.contiguous_format)
            q *= q.shape[-1] ** -0.5
            dropped_weights, weights, dropout_state = kernels.attention_softmax(
                q @ k.transpose(-2, -1), bucket.bias, dropout
            )
            bucket_output.view(b, t, num_heads, -1).copy_((dropped_weights @ v).transpose(1, 2))
            # The state is a mask, which autograd must save, or seeds, from which backward draws the mask again.
            mask = dropout_state if isinstance(dropout_state, Tensor) else None
            saved += [q, k, v, weights, mask]
            ctx.dropout_seeds.append(dropout_state if mask is None else None)
        ctx.layout, ctx.num_heads, ctx.kernels = layout, num_heads, kernels
        ctx.save_for_backward(*saved)
        return _cells_to_rows(cells_output, layout)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        layout, num_heads = ctx.layout, ctx.num_heads
        if layout.cell_of_row is None:
            cells_output_grad = grad.contiguous()
        else:  # padding has no gradient
            zeros = grad.new_zeros(len(layout.row_of_cell), grad.shape[1])
            cells_output_grad = zeros.index_copy_(0, layout.cell_of_row, grad)
        cells_qkv_grad = grad.new_empty(len(cells_output_grad), 3 * grad.shape[1])
        saved = iter(ctx.saved_tensors)
        for bucket, dropout_seeds, bucket_output_grad, bucket_qkv_grad in zip(
            layout.buckets,
            ctx.dropout_seeds,
            torch.split(cells_output_grad, layout.bucket_sizes),
            torch.split(cells_qkv_grad, layout.bucket_sizes),
            strict=True,
        ):
            b, t = bucket.sequences, bucket.length
            q, k, v, weights, mask = (next(saved) for _ in range(5))
            output_grad = bucket_output_grad.view(b, t, num_heads, -1).transpose(1, 2).contiguous()
            q_grad, k_grad, v_grad = _split_bucket(bucket_qkv_grad, b, t, num_heads)
            dropped_weights_grad = output_grad @ v.transpose(-2, -1)
            dropped_weights, scores_grad = ctx.kernels.softmax_backward(
                weights, dropout_seeds if mask is None else mask, dropped_weights_grad
            )
            v_grad.copy_(dropped_weights.transpose(-2, -1) @ output_grad)
            q_grad.copy_((scores_grad @ k).mul_(q.shape[-1] ** -0.5))
            k_grad.copy_(scores_grad.transpose(-2, -1) @ q)
        return _cells_to_rows(cells_qkv_grad, layout), None, None, None, None
