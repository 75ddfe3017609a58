"""The compiled bodies as torch knows functions: those of training, each with its way back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertsmith.kernels import compiled, embedding, integer_products, parts
from bertsmith.kernels.loops import bits, launch
from bertsmith.kernels.parts import Seeds, Sequences
from bertsmith.kernels.program import Program
from bertsmith.kernels.whole import LayerWeights, layer


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
        launch(compiled.gelu, parts.is_half(x), x, found, x.numel())
        ctx.save_for_backward(x)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        grad, found = grad.to(x.dtype).contiguous(), torch.empty_like(x)
        launch(compiled.gelu_back, parts.is_half(x), x, found, x.numel(), grad)
        return found


class Attended(torch.autograd.Function):
    """Attention over packed sequences. Of the scores each row's highest and its sum are kept."""

    @staticmethod
    def forward(ctx: Any, over: Sequences, *given: Tensor) -> Tensor:
        """given: see `parts.sides`."""
        given = tuple(x.contiguous() for x in given)
        found, stats = parts.attend(*parts.sides(*given), over, launch)
        ctx.save_for_backward(stats, *given)
        ctx.over = over
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        stats, *given = ctx.saved_tensors
        grad, found = grad.to(given[0].dtype).contiguous(), [torch.empty_like(x) for x in given]
        parts.attend_back(grad, *parts.sides(*given), stats, ctx.over, *parts.sides(*found), launch)
        return None, *found


class AddNorm(torch.autograd.Function):
    """LN(residual + dropout(x))."""

    @staticmethod
    def forward(
        ctx: Any, residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, drawn: Seeds
    ) -> Tensor:
        residual, x = residual.contiguous(), x.contiguous()
        found, stats = parts.add_norm(residual, x, weight, bias, epsilon, drawn, launch)
        ctx.save_for_backward(residual, x, weight, stats)
        ctx.drawn = drawn
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        residual, x, weight, stats = ctx.saved_tensors
        grad = grad.to(x.dtype).contiguous()
        of_sum, of_x, sums = parts.add_norm_back(grad, residual, x, weight, stats, ctx.drawn, launch)
        return of_sum, of_x, *sums, None, None


class FedForward(torch.autograd.Function):
    """W2·GELU(W1·x + b1) + b2."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, of_output: Tensor, output_bias: Tensor
    ) -> Tensor:
        x = x if x.stride(1) == 1 and x.stride(0) else x.contiguous()
        found, inner, activated = parts.feed_forward(x, weight.T, bias, of_output.T, output_bias, launch)
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
            found[3:] = parts.slopes(activated, grad, launch)
        elif to_output_bias:
            found[4] = grad.sum(0, dtype=torch.float32)
        if to_x or to_weight or to_bias:
            of_inner = parts.multiplied_back(grad, of_output, inner, launch)
            if to_weight:
                found[1:3] = parts.slopes(x, of_inner, launch)
            elif to_bias:
                found[2] = of_inner.sum(0, dtype=torch.float32)
            found[0] = parts.multiplied_back(of_inner, weight, None, launch) if to_x else None
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
            *(parts.is_half(found), x, first, places[0], second, places[1], *x.shape),
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
            *(parts.is_half(grad), x, first, ctx.places[0], second, ctx.places[1], *x.shape),
            *(weight, stats, *ctx.drawn, grad, to_first, to_second, to_x, sums, len(first), len(second)),
        )
        return to_x, to_first, to_second, *parts.summed(sums, launch), None, None, None, None


class Layer(torch.autograd.Function):
    """A layer as a whole, in one program there and one back: the same, to the bit, as its parts one after the
    other."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        over: Sequences,
        drawn: tuple[Seeds, Seeds],
        epsilons: tuple[float, float],
        in_integers: bool,
        *weights: Tensor,
    ) -> Tensor:
        """drawn, epsilons: of both LayerNorms. in_integers: whether products are those of `integer_products`.
        weights: see `LayerWeights`."""
        x, w = x.contiguous(), LayerWeights(*weights)
        norms = (w.norm, w.norm_bias, epsilons[0]), (w.output_norm, w.output_norm_bias, epsilons[1])
        run, apart = Program(), over.rows is not None
        integers = integer_products.IntegerFactors.of(w, run, apart=apart) if in_integers else None
        *made, found = layer(x, x, integers or w.factors(), norms, over, drawn, run)
        ctx.save_for_backward(x, *made, *weights)
        ctx.over, ctx.drawn, ctx.in_integers, ctx.integers = over, drawn, in_integers, integers
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, asking, q, kv, scores, mixed, projected, stats, *others = ctx.saved_tensors
        middle, inner, activated, fed, output_stats, *weights = others
        w, drawn, over, run = LayerWeights(*weights), ctx.drawn, ctx.over, Program()
        apart = over.rows is not None
        if ctx.in_integers:
            integers = ctx.integers or integer_products.IntegerFactors.of(w, run, apart=apart)
            ctx.integers = None  # torch gives back what it has saved, but not this
            back = integers.back()
        else:
            back = w.back(apart=apart)
        grad = grad.to(x.dtype).contiguous()
        to_middle, to_fed, to_output_norm = parts.add_norm_back(
            grad, middle, fed, w.output_norm, output_stats, drawn[1], run
        )
        to_output = back.slopes([(activated, to_fed)], run)
        to_inner = back.multiplied(to_fed, back.output, inner, run)
        to_weight = back.slopes([(middle, to_inner)], run)
        parts.add(to_middle, back.multiplied(to_inner, back.inner, None, run), run)
        to_asking, to_projected, to_norm = parts.add_norm_back(
            to_middle, asking, projected, w.norm, stats, drawn[0], run
        )
        to_projection = back.slopes([(mixed, to_projected)], run)
        to_mixed = back.multiplied(to_projected, back.projection, None, run)
        of = to_mixed, q, kv, scores, over
        if over.rows is None:
            to_qkv = x.new_empty(len(x), 3 * x.shape[1])
            parts.attend_back(*of, *parts.sides(to_qkv), run)
            to_weights = back.slopes([(x, to_qkv)], run)
            parts.add(to_asking, back.multiplied(to_qkv, back.qkv[0], None, run), run)
            run.end()
            to_x = to_asking
        else:
            to_q, to_kv = torch.empty_like(q), torch.empty_like(kv)
            parts.attend_back(*of, to_q, to_kv, run)
            to_weights = back.slopes([(asking, to_q), (x, to_kv)], run)
            parts.add(to_asking, back.multiplied(to_q, back.qkv[0], None, run), run)
            to_x = back.multiplied(to_kv, back.qkv[1], None, run)
            run.end()
            to_x += torch.zeros_like(x).index_add_(0, over.rows, to_asking)
        return (
            *(to_x, None, None, None, None, *to_weights, *to_projection, *to_norm),
            *(*to_weight, *to_output, *to_output_norm),
        )
