"""A BERT layer, forward and backward: matrix products by PyTorch, the operations between them by Triton kernels.

All activations have one dtype; statistics, softmax, and sums are fp32. The kernels of the activation and of
LayerNorm add the bias before them, and a matrix product adds the residual's gradient to its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertsmith.kernels.gpu import layer_norm
from bertsmith.kernels.gpu.activation import bias_activation, bias_activation_backward, column_sums
from bertsmith.kernels.gpu.attention import (
    AttentionActivations,
    TritonAttentionConfig,
    attention_backward,
    attention_forward,
)
from bertsmith.kernels.gpu.layer_norm import LayerNormOutput, NormInputs, SeededDropout
from bertsmith.kernels.reference import EncoderLayerWeights

_MM_HAS_OUT_DTYPE = "dtype" in torch.ops.aten.mm.overloads()  # type: ignore[no-untyped-call]


class TritonLayerConfig(NamedTuple):
    """Configuration of a layer.

    Attributes:
        attention: Configuration of attention.
        dropouts: Dropout before each of the two residual sums.
        activation: One of `SUPPORTED_ACTIVATIONS`.
        eps: Epsilon of each LayerNorm.
        dtype: The dtype of activations and matrix products.
    """

    attention: TritonAttentionConfig
    dropouts: tuple[SeededDropout, SeededDropout]
    activation: Callable[[Tensor], Tensor]
    eps: tuple[float, float]
    dtype: torch.dtype


def encoder_layer(
    x: Tensor, config: TritonLayerConfig, rows: Tensor | None, parameters: Sequence[Tensor]
) -> Tensor:
    """Compute a BERT layer (Devlin et al. 2018, section 3) with autograd support.

    Args:
        x: [N, H].
        config: The layer's configuration.
        rows: The tokens whose outputs are computed, long [M]; None for all.
        parameters: Weight and bias of each module, in the order of `EncoderLayerModules.parametrized`.

    Returns:
        The outputs, [N, H], or [M, H] with rows.
    """
    out: Tensor = _EncoderLayer.apply(x.to(config.dtype).contiguous(), config, rows, *parameters)  # type: ignore[no-untyped-call]
    return out


class _SavedActivations(NamedTuple):
    """Activations that the backward pass reads. All from context on are of the selected rows only."""

    qkv: Tensor
    attention: AttentionActivations
    context: Tensor
    residual: Tensor
    projection: Tensor
    attention_norm: LayerNormOutput
    inner: Tensor
    activation: Tensor
    output: Tensor
    output_norm_stats: Tensor


class _EncoderLayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, config: TritonLayerConfig, rows: Tensor | None, *parameters: Tensor
    ) -> Tensor:
        params = EncoderLayerWeights(*parameters)
        attention_norm_params, output_norm_params = params.norms(config.eps)
        qkv_weight, qkv_bias, projection_weight, inner_weight, output_weight = _cast_like(
            x, [params.qkv, params.qkv_bias, params.projection, params.inner, params.output]
        )
        with torch.autocast(x.device.type, enabled=False):
            qkv = F.linear(x, qkv_weight, qkv_bias)
            attention = attention_forward(qkv, config.attention)
            context, residual = (
                tensor if rows is None else tensor.index_select(0, rows) for tensor in (attention.out, x)
            )
            projection = context @ projection_weight.T
            inputs = NormInputs(projection, residual, params.projection_bias)
            attention_norm = layer_norm.layer_norm_forward(
                inputs, attention_norm_params, config.dropouts[0], x.dtype
            )
            inner = attention_norm.out @ inner_weight.T
            activation = bias_activation(inner, params.inner_bias, config.activation)
            output = activation @ output_weight.T
            inputs = NormInputs(output, attention_norm.out, params.output_bias)
            normalized = layer_norm.layer_norm_forward(
                inputs, output_norm_params, config.dropouts[1], x.dtype
            )
        ctx.save_for_backward(x, rows, *parameters)
        ctx.config = config
        ctx.activations = _SavedActivations(
            *(qkv, attention, context, residual, projection, attention_norm),
            *(inner, activation, output, normalized.row_stats),
        )
        return normalized.out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients. Activations are freed after their last use; sums of gradients are in place."""
        x, rows, *parameters = ctx.saved_tensors
        params, config = EncoderLayerWeights(*parameters), ctx.config
        if ctx.activations is None:
            raise RuntimeError(
                "an encoder layer's backward pass runs only once, since it frees its activations"
            )
        saved: _SavedActivations = ctx.activations
        ctx.activations = None
        qkv, attention, context, residual, projection = saved[:5]
        attention_norm, inner, activation, output, output_stats = saved[5:]
        del saved
        qkv_weight, projection_weight, inner_weight, output_weight = _cast_like(
            x, [params.qkv, params.projection, params.inner, params.output]
        )
        attention_norm_params, output_norm_params = params.norms(config.eps)
        with torch.autocast(x.device.type, enabled=False):
            inputs = NormInputs(output, attention_norm.out, params.output_bias)
            grads = layer_norm.layer_norm_backward(
                grad, inputs, output_norm_params, config.dropouts[1], output_stats
            )
            output_grad = _weight_grad(grads.x_grad, activation, params.output)
            output_norm_grads = grads.param_grads
            del inputs, output, activation
            inner_x_grad, inner_bias_grad = bias_activation_backward(
                grads.x_grad @ output_weight, inner, params.inner_bias, config.activation
            )
            inner_grad = _weight_grad(inner_x_grad, attention_norm.out, params.inner)
            middle_grad = grads.sum_grad.addmm_(inner_x_grad, inner_weight)
            del inner, inner_x_grad
            inputs = NormInputs(projection, residual, params.projection_bias)
            grads = layer_norm.layer_norm_backward(
                middle_grad, inputs, attention_norm_params, config.dropouts[0], attention_norm.row_stats
            )
            projection_grad = _weight_grad(grads.x_grad, context, params.projection)
            attention_norm_grads = grads.param_grads
            del inputs, middle_grad, attention_norm, projection
            context_grad = _scatter_rows(grads.x_grad @ projection_weight, rows, len(x))
            x_grad = _scatter_rows(grads.sum_grad, rows, len(x))
            qkv_out_grad = attention_backward(context_grad, qkv, attention, config.attention)
            del context_grad, qkv, attention, context, residual, grads
            qkv_grad = _weight_grad(qkv_out_grad, x, params.qkv)
            qkv_bias_grad = column_sums(qkv_out_grad) if params.qkv_bias.requires_grad else None
            if ctx.needs_input_grad[0]:
                x_grad.addmm_(qkv_out_grad, qkv_weight)
        return (
            *(x_grad if ctx.needs_input_grad[0] else None, None, None, qkv_grad, qkv_bias_grad),
            *(projection_grad, attention_norm_grads[2], attention_norm_grads[0], attention_norm_grads[1]),
            *(inner_grad, inner_bias_grad),
            *(output_grad, output_norm_grads[2], output_norm_grads[0], output_norm_grads[1]),
        )


def _cast_like(x: Tensor, weights: list[Tensor]) -> list[Tensor]:
    """Copy weights to the dtype of x by one kernel. The backward pass repeats it, so that no copy is kept."""
    copies = [torch.empty_like(weight, dtype=x.dtype) for weight in weights]
    torch._foreach_copy_(copies, weights)
    return copies


def _weight_grad(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor | None:
    """Compute a weight's gradient; None if it is frozen. On a GPU with PyTorch 2.8 it has the weight's dtype."""
    if not weight.requires_grad:
        return None
    if grad.dtype == weight.dtype or grad.is_cpu or not _MM_HAS_OUT_DTYPE:
        return grad.T @ x
    weight_grad: Tensor = torch.ops.aten.mm.dtype(grad.T, x, weight.dtype)
    return weight_grad


def _scatter_rows(grad: Tensor, rows: Tensor | None, num_rows: int) -> Tensor:
    """Return the gradient of all rows from the gradient of the selected rows."""
    if rows is None:
        return grad
    return grad.new_zeros(num_rows, grad.shape[1]).index_add_(0, rows, grad)
