"""A layer of BERT there and back, written out: products by torch, what stands between them by Triton's programs.

All of it is in one precision, with statistics, softmax and sums in fp32. Biases before an activation or a
LayerNorm are added where these are computed, and a residual's slopes by the product that they meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertsmith.kernels.gpu.activation import activated, activated_backward
from bertsmith.kernels.gpu.attention import AttentionMade, AttentionShape, attend, attend_backward
from bertsmith.kernels.gpu.norm import Norm, Normed, SeededDropout, Slopes, added_norm, added_norm_backward
from bertsmith.kernels.gpu.sums import summed

_WIDENS = "dtype" in torch.ops.aten.mm.overloads()  # type: ignore[no-untyped-call]


class Shape(NamedTuple):
    """What a layer computes beside its weights. drops: dropout before each sum. kind: of its products."""

    asked: AttentionShape
    drops: tuple[SeededDropout, SeededDropout]
    activation: Callable[[Tensor], Tensor]
    epsilons: tuple[float, float]
    kind: torch.dtype


def layer(x: Tensor, shape: Shape, rows: Tensor | None, weights: Sequence[Tensor]) -> Tensor:
    """A layer (Devlin et al. 2018, section 3), [N, H] → [N, H]; rows: long [M], those that are wanted: [M, H].
    weights: weight and bias of each part, in the order of `LayerParts.weighted`."""
    found: Tensor = _Layer.apply(x.to(shape.kind).contiguous(), shape, rows, *weights)  # type: ignore
    return found


class _Weights(NamedTuple):
    """Of a layer, or their slopes."""

    qkv: Tensor
    qkv_bias: Tensor
    projection: Tensor
    projection_bias: Tensor
    first_norm: Tensor
    first_norm_bias: Tensor
    inner: Tensor
    inner_bias: Tensor
    output: Tensor
    output_bias: Tensor
    last_norm: Tensor
    last_norm_bias: Tensor

    def norms(self, epsilons: tuple[float, float]) -> tuple[Norm, Norm]:
        return (
            Norm(self.first_norm, self.first_norm_bias, epsilons[0]),
            Norm(self.last_norm, self.last_norm_bias, epsilons[1]),
        )


class _Products(NamedTuple):
    """The weights of products, in the products' precision."""

    qkv: Tensor
    projection: Tensor
    inner: Tensor
    output: Tensor


class _Made(NamedTuple):
    """What the way back reads of the way there. mixed, residual: of the rows that are wanted."""

    low: _Products
    qkv: Tensor
    attended: AttentionMade
    mixed: Tensor
    residual: Tensor
    projected: Tensor
    first: Normed
    widened: Tensor
    active: Tensor
    narrowed: Tensor
    of_rows: Tensor


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Shape, rows: Tensor | None, *given: Tensor) -> Tensor:
        of = _Weights(*given)
        first_norm, last_norm = of.norms(shape.epsilons)
        weights = [of.qkv, of.projection, of.inner, of.output, of.qkv_bias]
        *lowered, bias = (torch.empty_like(one, dtype=x.dtype) for one in weights)
        torch._foreach_copy_([*lowered, bias], weights)  # at once
        low = _Products(*lowered)
        with torch.autocast(x.device.type, enabled=False):
            qkv = F.linear(x, low.qkv, bias)
            attended = attend(qkv, shape.asked)
            mixed, residual = (
                one if rows is None else one.index_select(0, rows) for one in (attended.out, x)
            )
            projected = mixed @ low.projection.T
            first = added_norm(residual, projected, of.projection_bias, first_norm, shape.drops[0])
            widened = first.out @ low.inner.T
            active = activated(widened, of.inner_bias, shape.activation)
            narrowed = active @ low.output.T
            last = added_norm(first.out, narrowed, of.output_bias, last_norm, shape.drops[1])
        ctx.save_for_backward(x, rows, *given)
        ctx.shape = shape
        ctx.made = _Made(
            *(low, qkv, attended, mixed, residual, projected, first, widened, active, narrowed, last.of_rows)
        )
        return last.out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, rows, *given = ctx.saved_tensors
        of, shape, made = _Weights(*given), ctx.shape, ctx.made
        if made is None:
            raise RuntimeError("a layer goes back once: what it made on its way there is gone")
        ctx.made = None  # so that memory is free before the layer below goes back
        low, (first_norm, last_norm) = made.low, of.norms(shape.epsilons)
        with torch.autocast(x.device.type, enabled=False):
            last = added_norm_backward(
                *(grad, made.first.out, made.narrowed, of.output_bias),
                *(last_norm, shape.drops[1], made.of_rows),
            )
            of_widened, of_inner_bias = activated_backward(
                last.x @ low.output, made.widened, of.inner_bias, shape.activation
            )
            of_first = _added(last, of_widened, low.inner)
            first = added_norm_backward(
                *(of_first, made.residual, made.projected, of.projection_bias),
                *(first_norm, shape.drops[0], made.first.of_rows),
            )
            of_mixed = _spread(first.x @ low.projection, rows, len(x))
            of_qkv = attend_backward(of_mixed, made.qkv, made.attended, shape.asked)
            slopes = (
                *(_product(of_qkv, x, of.qkv), summed(of_qkv) if of.qkv_bias.requires_grad else None),
                *(_product(first.x, made.mixed, of.projection), first.weights[2], *first.weights[:2]),
                *(_product(of_widened, made.first.out, of.inner), of_inner_bias),
                *(_product(last.x, made.active, of.output), last.weights[2], *last.weights[:2]),
            )
            of_x = None
            if ctx.needs_input_grad[0]:
                whole = _spread(first.whole, rows, len(x))
                of_x = _added(first._replace(whole=whole), of_qkv, low.qkv)
        return of_x, None, None, *slopes


def _product(slopes: Tensor, x: Tensor, weight: Tensor) -> Tensor | None:
    """Of a weight, in its precision, which torch's product writes on a GPU since 2.8; None where it is frozen."""
    if not weight.requires_grad:
        return None
    if slopes.dtype == weight.dtype or slopes.is_cpu or not _WIDENS:
        return slopes.T @ x
    found: Tensor = torch.ops.aten.mm.dtype(slopes.T, x, weight.dtype)
    return found


def _added(slopes: Slopes, x: Tensor, y: Tensor) -> Tensor:
    """The sum's slopes, and x y, in their place where this is not wanted for itself."""
    whole = slopes.whole
    return torch.addmm(whole, x, y) if whole is slopes.x else whole.addmm_(x, y)


def _spread(slopes: Tensor, rows: Tensor | None, count: int) -> Tensor:
    """Those of all rows, from those of some."""
    if rows is None:
        return slopes
    return slopes.new_zeros(count, slopes.shape[1]).index_add_(0, rows, slopes)
