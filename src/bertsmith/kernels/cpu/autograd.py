"""The compiled bodies as torch knows functions: those of training, each with its way back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertsmith.kernels.cpu import embedding, layer_functions, row_kernels
from bertsmith.kernels.cpu.compilation import bits, launch
from bertsmith.kernels.cpu.encoder_layer import AskedOfLayer, LayerMade, LayerWeights, layer, layer_back
from bertsmith.kernels.cpu.layer_functions import Seeds, Sequences
from bertsmith.kernels.cpu.program import Program


def called(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    """A function of torch's, which says nothing of its types."""
    found: Tensor = function.apply(*inputs)  # type: ignore[no-untyped-call]
    return found


class Gelu(torch.autograd.Function):
    """x times the share of the normal distribution below x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        found = torch.empty_like(x)
        launch(row_kernels.gelu, layer_functions.is_half(x), x, found, x.numel())
        ctx.save_for_backward(x)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        grad, found = grad.to(x.dtype).contiguous(), torch.empty_like(x)
        launch(row_kernels.gelu_back, layer_functions.is_half(x), x, found, x.numel(), grad)
        return found


class Attended(torch.autograd.Function):
    """Attention over packed sequences. Of the scores each row's highest and its sum are kept."""

    @staticmethod
    def forward(ctx: Any, over: Sequences, *given: Tensor) -> Tensor:
        """given: see `parts.sides`."""
        given = tuple(x.contiguous() for x in given)
        found, stats = layer_functions.attend(*layer_functions.sides(*given), over, launch)
        ctx.save_for_backward(stats, *given)
        ctx.over = over
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        stats, *given = ctx.saved_tensors
        grad = grad.to(given[0].dtype).contiguous()
        return None, *layer_functions.attend_back(
            grad, *layer_functions.sides(*given), stats, ctx.over, launch
        )


class AddNorm(torch.autograd.Function):
    """LN(residual + dropout(x))."""

    @staticmethod
    def forward(
        ctx: Any, residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, drawn: Seeds
    ) -> Tensor:
        residual, x = residual.contiguous(), x.contiguous()
        found, stats = layer_functions.add_norm(residual, x, weight, bias, epsilon, drawn, launch)
        ctx.save_for_backward(residual, x, weight, stats)
        ctx.drawn = drawn
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        residual, x, weight, stats = ctx.saved_tensors
        grad = grad.to(x.dtype).contiguous()
        of_sum, of_x, sums = layer_functions.add_norm_back(
            grad, residual, x, weight, stats, ctx.drawn, launch
        )
        return of_sum, of_x, *sums, None, None


class FedForward(torch.autograd.Function):
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
            found[3:] = layer_functions.slopes(activated, grad, launch)
        elif to_output_bias:
            found[4] = grad.sum(0, dtype=torch.float32)
        if to_x or to_weight or to_bias:
            of_inner = layer_functions.multiplied_back(grad, of_output, inner, launch)
            if to_weight:
                found[1:3] = layer_functions.slopes(x, of_inner, launch)
            elif to_bias:
                found[2] = of_inner.sum(0, dtype=torch.float32)
            found[0] = layer_functions.multiplied_back(of_inner, weight, None, launch) if to_x else None
        return tuple(
            slope if wanted else None for slope, wanted in zip(found, ctx.needs_input_grad, strict=True)
        )


class Embedded(torch.autograd.Function):
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
        drawn: Seeds,
        kind: torch.dtype,
    ) -> Tensor:
        """first, second: the tables. places: which of their rows each token has. kind: of the result."""
        found, stats = torch.empty_like(x, dtype=kind), torch.empty(len(x), 2)
        launch(
            embedding.forward,
            *(layer_functions.is_half(found), x, first, places[0], second, places[1], *x.shape),
            *(weight, stats, *drawn, found, bias, bits(epsilon), 0, 0, len(first), len(second)),
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
            *(layer_functions.is_half(grad), x, first, ctx.places[0], second, ctx.places[1], *x.shape),
            *(weight, stats, *ctx.drawn, grad, to_first, to_second, to_x, sums, len(first), len(second)),
        )
        return to_x, to_first, to_second, *layer_functions.summed(sums, launch), None, None, None, None


class Layer(torch.autograd.Function):
    """A layer, in one program there and one back: the same, to the bit, as its parts one after the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, asked: AskedOfLayer, *weights: Tensor) -> Tensor:
        """weights: see `LayerWeights`."""
        x, run, own = x.contiguous(), Program(), LayerWeights(*weights)
        found, made = layer(x, x, own.factors(), own.norms(asked.epsilons), asked, run)
        run.end()
        ctx.save_for_backward(*made, *weights)
        ctx.asked = asked
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        run, count = Program(), len(LayerMade._fields)
        made, weights = LayerMade(*ctx.saved_tensors[:count]), LayerWeights(*ctx.saved_tensors[count:])
        to_x, slopes = layer_back(grad.to(made.x.dtype).contiguous(), made, weights, ctx.asked, run)
        run.end()
        return to_x, None, *slopes
