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

from bertsmith.kernels.gpu.activation import bias_activation, bias_activation_backward
from bertsmith.kernels.gpu.attention import (
    AttentionActivations,
    AttentionConfig,
    attention_backward,
    attention_forward,
)
from bertsmith.kernels.gpu.column_sums import column_sums
from bertsmith.kernels.gpu.layer_norm import (
    LayerNormOutput,
    LayerNormParams,
    SeededDropout,
    add_layer_norm,
    added_norm_backward,
)

_WIDENS = "dtype" in torch.ops.aten.mm.overloads()  # type: ignore[no-untyped-call]


class LayerConfig(NamedTuple):
    """What a layer computes beside its weights. drops: dropout before each sum. kind: of its products."""

    attention: AttentionConfig
    dropouts: tuple[SeededDropout, SeededDropout]
    activation: Callable[[Tensor], Tensor]
    epsilons: tuple[float, float]
    dtype: torch.dtype


def encoder_layer(x: Tensor, shape: LayerConfig, rows: Tensor | None, weights: Sequence[Tensor]) -> Tensor:
    """A layer (Devlin et al. 2018, section 3), [N, H] → [N, H]; rows: long [M], those that are wanted: [M, H].
    weights: weight and bias of each part, in the order of `LayerParts.weighted`."""
    found: Tensor = _Layer.apply(x.to(shape.dtype).contiguous(), shape, rows, *weights)  # type: ignore
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

    def norms(self, epsilons: tuple[float, float]) -> tuple[LayerNormParams, LayerNormParams]:
        return (
            LayerNormParams(self.first_norm, self.first_norm_bias, epsilons[0]),
            LayerNormParams(self.last_norm, self.last_norm_bias, epsilons[1]),
        )


class _Made(NamedTuple):
    """What the way back reads of the way there. mixed, residual: of the rows that are wanted."""

    qkv: Tensor
    attended: AttentionActivations
    mixed: Tensor
    residual: Tensor
    projected: Tensor
    first: LayerNormOutput
    widened: Tensor
    active: Tensor
    narrowed: Tensor
    of_rows: Tensor


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: LayerConfig, rows: Tensor | None, *given: Tensor) -> Tensor:
        of = _Weights(*given)
        first_norm, last_norm = of.norms(shape.epsilons)
        qkv_weight, qkv_bias, projection, inner, output = _lowered(
            x, [of.qkv, of.qkv_bias, of.projection, of.inner, of.output]
        )
        with torch.autocast(x.device.type, enabled=False):
            qkv = F.linear(x, qkv_weight, qkv_bias)
            attended = attention_forward(qkv, shape.attention)
            mixed, residual = (
                one if rows is None else one.index_select(0, rows) for one in (attended.out, x)
            )
            projected = mixed @ projection.T
            first = add_layer_norm(residual, projected, of.projection_bias, first_norm, shape.dropouts[0])
            widened = first.out @ inner.T
            active = bias_activation(widened, of.inner_bias, shape.activation)
            narrowed = active @ output.T
            last = add_layer_norm(first.out, narrowed, of.output_bias, last_norm, shape.dropouts[1])
        ctx.save_for_backward(x, rows, *given)
        ctx.shape = shape
        ctx.made = _Made(
            *(qkv, attended, mixed, residual, projected, first, widened, active, narrowed, last.row_stats)
        )
        return last.out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """What was made is let go as soon as nothing reads it; slopes of a sum are added to in their place."""
        x, rows, *given = ctx.saved_tensors
        of, shape = _Weights(*given), ctx.shape
        if ctx.made is None:
            raise RuntimeError("a layer goes back once: what it made on its way there is gone")
        qkv, attended, mixed, residual, projected, first, widened, active, narrowed, of_rows = ctx.made
        ctx.made = None
        qkv_weight, projection, inner, output = _lowered(x, [of.qkv, of.projection, of.inner, of.output])
        first_norm, last_norm = of.norms(shape.epsilons)
        with torch.autocast(x.device.type, enabled=False):
            summed_up = added_norm_backward(
                grad, first.out, narrowed, of.output_bias, last_norm, shape.dropouts[1], of_rows
            )
            to_output, to_last = _product(summed_up.x, active, of.output), summed_up.weights
            del narrowed, active
            of_widened, to_inner_bias = bias_activation_backward(
                summed_up.x @ output, widened, of.inner_bias, shape.activation
            )
            to_inner = _product(of_widened, first.out, of.inner)
            of_first = summed_up.sum_grad.addmm_(of_widened, inner)
            del widened, of_widened
            summed_up = added_norm_backward(
                *(of_first, residual, projected, of.projection_bias),
                *(first_norm, shape.dropouts[0], first.row_stats),
            )
            to_projection, to_first = _product(summed_up.x, mixed, of.projection), summed_up.weights
            del of_first, first, projected
            of_mixed = _spread(summed_up.x @ projection, rows, len(x))
            of_x = _spread(summed_up.sum_grad, rows, len(x))
            of_qkv = attention_backward(of_mixed, qkv, attended, shape.attention)
            del of_mixed, qkv, attended, mixed, residual, summed_up
            to_qkv = _product(of_qkv, x, of.qkv)
            to_qkv_bias = column_sums(of_qkv) if of.qkv_bias.requires_grad else None
            if ctx.needs_input_grad[0]:
                of_x.addmm_(of_qkv, qkv_weight)
        return (
            *(of_x if ctx.needs_input_grad[0] else None, None, None, to_qkv, to_qkv_bias),
            *(to_projection, to_first[2], to_first[0], to_first[1]),
            *(to_inner, to_inner_bias, to_output, to_last[2], to_last[0], to_last[1]),
        )


def _lowered(x: Tensor, weights: list[Tensor]) -> list[Tensor]:
    """Weights in x's precision, by one program: made again on the way back, so that none is kept meanwhile."""
    found = [torch.empty_like(one, dtype=x.dtype) for one in weights]
    torch._foreach_copy_(found, weights)
    return found


def _product(slopes: Tensor, x: Tensor, weight: Tensor) -> Tensor | None:
    """The slopes of a weight, None where it is frozen: on a GPU in the weight's precision, since torch 2.8."""
    if not weight.requires_grad:
        return None
    if slopes.dtype == weight.dtype or slopes.is_cpu or not _WIDENS:
        return slopes.T @ x
    found: Tensor = torch.ops.aten.mm.dtype(slopes.T, x, weight.dtype)
    return found


def _spread(slopes: Tensor, rows: Tensor | None, count: int) -> Tensor:
    """Those of all rows, from those of some."""
    if rows is None:
        return slopes
    return slopes.new_zeros(count, slopes.shape[1]).index_add_(0, rows, slopes)
