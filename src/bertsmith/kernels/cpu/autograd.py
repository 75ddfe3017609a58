"""Autograd functions of the compiled kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertsmith.kernels.cpu import embedding, encoder_layer, layer_functions, row_kernels
from bertsmith.kernels.cpu.encoder_layer import LayerActivations, LayerConfig, LayerWeights
from bertsmith.kernels.cpu.launcher import KernelSequence, float_bits, is_bf16, launch
from bertsmith.kernels.cpu.layer_functions import AttentionConfig, DropoutSeeds, split_query_key_value
from bertsmith.kernels.reference import LayerNormParams


def apply(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    """Call `function.apply`, which PyTorch does not annotate."""
    output: Tensor = function.apply(*inputs)  # type: ignore[no-untyped-call]
    return output


class GeluFunction(torch.autograd.Function):
    """GELU, computed with the normal distribution function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        output = torch.empty_like(x)
        launch(row_kernels.gelu, is_bf16(x), x, output, x.numel())
        ctx.save_for_backward(x)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        grad, x_grad = grad.to(x.dtype).contiguous(), torch.empty_like(x)
        launch(row_kernels.gelu_backward, is_bf16(x), x, x_grad, x.numel(), grad)
        return x_grad


class AttentionFunction(torch.autograd.Function):
    """Attention over packed sequences; of the scores only the maximum and sum of each row are saved."""

    @staticmethod
    def forward(ctx: Any, config: AttentionConfig, *inputs: Tensor) -> Tensor:
        """Compute attention; the inputs are the arguments of `split_query_key_value`."""
        inputs = tuple(x.contiguous() for x in inputs)
        output, stats = layer_functions.attention_forward(*split_query_key_value(*inputs), config, launch)
        ctx.save_for_backward(stats, *inputs)
        ctx.config = config
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        stats, *inputs = ctx.saved_tensors
        grad = grad.to(inputs[0].dtype).contiguous()
        q, kv = split_query_key_value(*inputs)
        return None, *layer_functions.attention_backward(grad, q, kv, stats, ctx.config, launch)


class AddLayerNormFunction(torch.autograd.Function):
    """LN(residual + dropout(x))."""

    @staticmethod
    def forward(
        ctx: Any, residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float, seeds: DropoutSeeds
    ) -> Tensor:
        residual, x = residual.contiguous(), x.contiguous()
        norm = LayerNormParams(weight, bias, eps)
        output, stats = layer_functions.add_layer_norm_forward(residual, x, norm, seeds, launch)
        ctx.save_for_backward(residual, x, weight, stats)
        ctx.seeds = seeds
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        residual, x, weight, stats = ctx.saved_tensors
        grad = grad.to(x.dtype).contiguous()
        residual_grad, x_grad, param_grads = layer_functions.add_layer_norm_backward(
            grad, residual, x, weight, stats, ctx.seeds, launch
        )
        return residual_grad, x_grad, *param_grads, None, None


class FeedForwardFunction(torch.autograd.Function):
    """W2·GELU(W1·x + b1) + b2."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, inner_weight: Tensor, inner_bias: Tensor, out_weight: Tensor, out_bias: Tensor
    ) -> Tensor:
        x = x if x.stride(1) == 1 and x.stride(0) else x.contiguous()
        output, preactivation, activation = layer_functions.feed_forward(
            x, inner_weight.T, inner_bias, out_weight.T, out_bias, launch
        )
        ctx.save_for_backward(x, inner_weight, preactivation, activation, out_weight)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, inner_weight, preactivation, activation, output_weight = ctx.saved_tensors
        needs_x, needs_inner, needs_inner_bias, needs_output, needs_output_bias = ctx.needs_input_grad
        grad = grad if grad.stride(1) == 1 and grad.stride(0) else grad.contiguous()
        grads: list[Tensor | None] = [None] * 5
        if needs_output:
            grads[3:] = layer_functions.linear_weight_grads(activation, grad, launch)
        elif needs_output_bias:
            grads[4] = grad.sum(0, dtype=torch.float32)
        if needs_x or needs_inner or needs_inner_bias:
            inner_grad = layer_functions.linear_input_grad(grad, output_weight, preactivation, launch)
            if needs_inner:
                grads[1:3] = layer_functions.linear_weight_grads(x, inner_grad, launch)
            elif needs_inner_bias:
                grads[2] = inner_grad.sum(0, dtype=torch.float32)
            if needs_x:
                grads[0] = layer_functions.linear_input_grad(inner_grad, inner_weight, None, launch)
        return tuple(
            value if is_needed else None for value, is_needed in zip(grads, ctx.needs_input_grad, strict=True)
        )


class EmbedFunction(torch.autograd.Function):
    """dropout(LN(x + rows of two embeddings)); the backward pass computes the sum again."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        first: Tensor,
        second: Tensor,
        weight: Tensor,
        bias: Tensor,
        indices: tuple[Tensor, Tensor],
        eps: float,
        seeds: DropoutSeeds,
        dtype: torch.dtype,
    ) -> Tensor:
        """Compute the sum, LayerNorm, and dropout.

        Args:
            ctx: The autograd context.
            x: Token embeddings, [N, E].
            first: Weights of the first embedding, [V1, E].
            second: Weights of the second embedding, [V2, E].
            weight: Weight of the LayerNorm, [E].
            bias: Bias of the LayerNorm, [E].
            indices: Each token's row of both embeddings, long [N].
            eps: Epsilon of the LayerNorm.
            seeds: Seeds of the dropout.
            dtype: The dtype of the result.
        """
        output, stats = torch.empty_like(x, dtype=dtype), torch.empty(len(x), 2)
        launch(
            embedding.forward,
            *(is_bf16(output), x, first, indices[0], second, indices[1], *x.shape),
            *(weight, stats, *seeds, output, bias, float_bits(eps), 0, 0, len(first), len(second)),
        )
        ctx.save_for_backward(x, first, second, weight, stats)
        ctx.indices, ctx.seeds, ctx.dtype = indices, seeds, dtype
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, first, second, weight, stats = ctx.saved_tensors
        grad = grad.to(ctx.dtype).contiguous()
        grads = torch.empty_like(x), torch.zeros_like(first), torch.zeros_like(second)
        x_grad, first_grad, second_grad = grads
        param_grads = torch.zeros(layer_functions.num_row_parts(len(x)), 2, len(weight))
        launch(
            embedding.backward,
            *(is_bf16(grad), x, first, ctx.indices[0], second, ctx.indices[1], *x.shape),
            *(weight, stats, *ctx.seeds, grad, first_grad, second_grad, x_grad),
            *(param_grads, len(first), len(second), len(param_grads)),
        )
        return *grads, *layer_functions.sum_over_parts(param_grads, launch), None, None, None, None


class EncoderLayerFunction(torch.autograd.Function):
    """A layer, whose forward and backward pass are one sequence of kernels each; bit-equal to its parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, config: LayerConfig, *weights: Tensor) -> Tensor:
        """Compute a layer; `weights` are those of `LayerWeights`."""
        x, sequence, layer = x.contiguous(), KernelSequence(), LayerWeights(*weights)
        norms = layer.norms(config.layer_norm_eps)
        output, activations = encoder_layer.layer_forward(x, x, layer.matmuls(), norms, config, sequence)
        sequence.run()
        ctx.save_for_backward(*activations, *weights)
        ctx.config = config
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        sequence, count = KernelSequence(), len(LayerActivations._fields)
        saved = LayerActivations(*ctx.saved_tensors[:count])
        weights = LayerWeights(*ctx.saved_tensors[count:])
        grad = grad.to(saved.x.dtype).contiguous()
        x_grad, weight_grads = encoder_layer.layer_backward(grad, saved, weights, ctx.config, sequence)
        sequence.run()
        return x_grad, None, *weight_grads
