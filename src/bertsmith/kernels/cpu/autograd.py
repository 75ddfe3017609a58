"""The compiled bodies as torch knows functions: those of training, each with its way back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertsmith.kernels.cpu import embedding, layer_functions, row_kernels
from bertsmith.kernels.cpu.compilation import float_bits, launch
from bertsmith.kernels.cpu.encoder_layer import (
    LayerActivations,
    LayerConfig,
    LayerWeights,
    layer_backward,
    layer_forward,
)
from bertsmith.kernels.cpu.layer_functions import AttentionConfig, DropoutSeeds
from bertsmith.kernels.cpu.program import KernelSequence


def apply(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    """A function of torch's, which says nothing of its types."""
    found: Tensor = function.apply(*inputs)  # type: ignore[no-untyped-call]
    return found


class Gelu(torch.autograd.Function):
    """x times the share of the normal distribution below x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        found = torch.empty_like(x)
        launch(row_kernels.gelu, layer_functions.is_bf16(x), x, found, x.numel())
        ctx.save_for_backward(x)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        grad, found = grad.to(x.dtype).contiguous(), torch.empty_like(x)
        launch(row_kernels.gelu_backward, layer_functions.is_bf16(x), x, found, x.numel(), grad)
        return found


class Attention(torch.autograd.Function):
    """Attention over packed sequences. Of the scores each row's highest and its sum are kept."""

    @staticmethod
    def forward(ctx: Any, over: AttentionConfig, *given: Tensor) -> Tensor:
        """given: see `parts.sides`."""
        given = tuple(x.contiguous() for x in given)
        found, stats = layer_functions.attention_forward(
            *layer_functions.split_query_key_value(*given), over, launch
        )
        ctx.save_for_backward(stats, *given)
        ctx.over = over
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        stats, *given = ctx.saved_tensors
        grad = grad.to(given[0].dtype).contiguous()
        return None, *layer_functions.attention_backward(
            grad, *layer_functions.split_query_key_value(*given), stats, ctx.over, launch
        )


class AddLayerNorm(torch.autograd.Function):
    """LN(residual + dropout(x))."""

    @staticmethod
    def forward(
        ctx: Any,
        residual: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        epsilon: float,
        drawn: DropoutSeeds,
    ) -> Tensor:
        residual, x = residual.contiguous(), x.contiguous()
        found, stats = layer_functions.add_layer_norm_forward(
            residual, x, weight, bias, epsilon, drawn, launch
        )
        ctx.save_for_backward(residual, x, weight, stats)
        ctx.drawn = drawn
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        residual, x, weight, stats = ctx.saved_tensors
        grad = grad.to(x.dtype).contiguous()
        of_sum, of_x, sums = layer_functions.add_layer_norm_backward(
            grad, residual, x, weight, stats, ctx.drawn, launch
        )
        return of_sum, of_x, *sums, None, None


class FeedForward(torch.autograd.Function):
    """W2·GELU(W1·x + b1) + b2."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, of_output: Tensor, output_bias: Tensor
    ) -> Tensor:
        x = x if x.stride(1) == 1 and x.stride(0) else x.contiguous()
        found, inner, activated = layer_functions.feed_forward(
            x, weight.T, bias, of_output.T, output_bias, launch
        )
        ctx.save_for_backward(x, weight, inner, activated, of_output)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, inner, activated, of_output = ctx.saved_tensors
        to_x, to_weight, to_bias, to_output, to_output_bias = ctx.needs_input_grad
        grad = grad if grad.stride(1) == 1 and grad.stride(0) else grad.contiguous()
        found: list[Tensor | None] = [None] * 5
        if to_output:
            found[3:] = layer_functions.linear_weight_grads(activated, grad, launch)
        elif to_output_bias:
            found[4] = grad.sum(0, dtype=torch.float32)
        if to_x or to_weight or to_bias:
            of_inner = layer_functions.linear_input_grad(grad, of_output, inner, launch)
            if to_weight:
                found[1:3] = layer_functions.linear_weight_grads(x, of_inner, launch)
            elif to_bias:
                found[2] = of_inner.sum(0, dtype=torch.float32)
            found[0] = layer_functions.linear_input_grad(of_inner, weight, None, launch) if to_x else None
        return tuple(
            slope if wanted else None for slope, wanted in zip(found, ctx.needs_input_grad, strict=True)
        )


class Embed(torch.autograd.Function):
    """dropout(LN(x + rows of two tables)). The sum is made again on the way back."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        first: Tensor,
        second: Tensor,
        weight: Tensor,
        bias: Tensor,
        places: tuple[Tensor, Tensor],
        epsilon: float,
        drawn: DropoutSeeds,
        kind: torch.dtype,
    ) -> Tensor:
        """first, second: the tables. places: which of their rows each token has. kind: of the result."""
        found, stats = torch.empty_like(x, dtype=kind), torch.empty(len(x), 2)
        launch(
            embedding.forward,
            *(layer_functions.is_bf16(found), x, first, places[0], second, places[1], *x.shape),
            *(weight, stats, *drawn, found, bias, float_bits(epsilon), 0, 0, len(first), len(second)),
        )
        ctx.save_for_backward(x, first, second, weight, stats)
        ctx.places, ctx.drawn, ctx.kind = places, drawn, kind
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, first, second, weight, stats = ctx.saved_tensors
        grad = grad.to(ctx.kind).contiguous()
        to_x, to_first, to_second = torch.empty_like(x), torch.zeros_like(first), torch.zeros_like(second)
        sums = torch.zeros(torch.get_num_threads(), 2, len(weight))
        launch(
            embedding.backward,
            *(layer_functions.is_bf16(grad), x, first, ctx.places[0], second, ctx.places[1], *x.shape),
            *(weight, stats, *ctx.drawn, grad, to_first, to_second, to_x, sums, len(first), len(second)),
        )
        return (
            to_x,
            to_first,
            to_second,
            *layer_functions.sum_over_threads(sums, launch),
            None,
            None,
            None,
            None,
        )


class EncoderLayer(torch.autograd.Function):
    """A layer, in one program there and one back: the same, to the bit, as its parts one after the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, asked: LayerConfig, *weights: Tensor) -> Tensor:
        """weights: see `LayerWeights`."""
        x, run, own = x.contiguous(), KernelSequence(), LayerWeights(*weights)
        found, made = layer_forward(x, x, own.matmuls(), own.layer_norms(asked.layer_norm_eps), asked, run)
        run.run()
        ctx.save_for_backward(*made, *weights)
        ctx.asked = asked
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        run, count = KernelSequence(), len(LayerActivations._fields)
        made, weights = LayerActivations(*ctx.saved_tensors[:count]), LayerWeights(*ctx.saved_tensors[count:])
        to_x, slopes = layer_backward(grad.to(made.x.dtype).contiguous(), made, weights, ctx.asked, run)
        run.run()
        return to_x, None, *slopes
