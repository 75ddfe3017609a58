"""The loss over the vocabulary: rows compared with each token's vector, and cross-entropy of what comes of it.

The logits are the largest tensor of a training step. They are kept once, and become their own slopes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertsmith.kernels.reference import Kernels, Predicted, Products, kind_of
from bertsmith.models.layers import product, way_of

_PART = 4096  # vectors of the vocabulary that are compared at a time
# Columns of logits are a multiple of this, for which the products' libraries are up to half as quick again.
_COLUMNS = 16
_NO_LABEL = -1


def table_loss(
    x: Tensor, table: Tensor, bias: Tensor, labels: Tensor, kernels: Kernels
) -> tuple[Tensor, Tensor]:
    """Sum of the cross-entropies of rows x [M, E] over the table [V, E] with bias [V] and labels long [M], in
    fp32, and how many are right at the top. Products are made in the precision of autocast, where it is on."""
    dtype = kind_of(x)
    if len(labels) and table.dtype in (dtype, torch.float32) and kernels.takes_parts(x):
        way, is_kept = way_of(x, kernels), torch.is_grad_enabled()
        return _ByParts.apply(x.to(dtype), table, bias, labels, kernels, way, is_kept)  # type: ignore
    return _ByRows.apply(x, table, bias, labels, kernels, dtype)  # type: ignore


class _ByRows(torch.autograd.Function):
    """Of all logits [M, V] at once; their buffer becomes softmax - one-hot, their gradient. Where products want
    their columns to be a multiple of some number, words that never come are added, whose bias is -inf."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        table: Tensor,
        bias: Tensor,
        labels: Tensor,
        kernels: Kernels,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        x_low, table_low = x.to(dtype), table.to(dtype)
        if spare := -len(table) % kernels.columns:
            table_low, bias = F.pad(table_low, (0, 0, 0, spare)), F.pad(bias, (0, spare), value=-torch.inf)
        logits = product(x_low, table_low)
        loss, right, of_bias = kernels.table_loss(logits, bias, labels)
        ctx.save_for_backward(logits, x_low, table_low, of_bias)
        ctx.kinds, ctx.words = (x.dtype, table.dtype, bias.dtype), len(table)
        ctx.mark_non_differentiable(right)
        return loss, right

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        slope, x, table, bias = ctx.saved_tensors
        of_x, of_table, of_bias = ctx.kinds
        return (
            product(slope, table.T).to(of_x) * grad,
            product(slope.T, (x * grad).to(x.dtype).T)[: ctx.words].to(of_table),
            bias[: ctx.words].to(of_bias) * grad,
            None,
            None,
            None,
        )


class _ByParts(torch.autograd.Function):
    """Of some thousand vectors of the table at a time: logits [v, M], which are still in the cache when they are
    looked at, and on the way back when they are multiplied. Second derivatives and a second way back are refused.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        table: Tensor,
        bias: Tensor,
        labels: Tensor,
        kernels: Kernels,
        way: Products,
        is_kept: bool,
    ) -> tuple[Tensor, Tensor]:
        count, spare = len(labels), -len(labels) % _COLUMNS
        x, labels = F.pad(x, (0, 0, 0, spare)), F.pad(labels, (0, spare), value=_NO_LABEL)
        kept: list[Tensor] = []
        predicted = Predicted(x, table, bias, labels)
        top, total, gold = kernels.parts_seen(predicted, parts_of(len(table)), way, kept if is_kept else None)
        ctx.save_for_backward(x, table, bias, labels, top, total, *kept)
        ctx.count, ctx.kernels, ctx.way = count, kernels, way
        right = (gold == top)[:count].sum()
        ctx.mark_non_differentiable(right)
        return (total.log() + (top - gold))[:count].sum(), right

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        x, table, bias, labels, top, total, *kept = ctx.saved_tensors
        share = grad / total
        share[ctx.count :] = 0
        of_table = torch.empty_like(table) if ctx.needs_input_grad[1] else None
        of_x, of_bias = ctx.kernels.parts_slopes(
            *(Predicted(x, table, bias, labels), parts_of(len(table)), ctx.way, kept),
            *((top, share, grad), of_table),
        )
        torch.autograd.graph.increment_version(kept)  # who asks again is told that they are gone
        return of_x[: ctx.count], of_table, of_bias, None, None, None, None


def parts_of(size: int) -> list[tuple[int, int]]:
    """Where each part of a vocabulary begins and ends; they are of nearly one size."""
    count = -(-size // _PART)
    return [(size * number // count, size * (number + 1) // count) for number in range(count)]
