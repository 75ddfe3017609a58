"""A BERT layer as one sequence of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from bertsmith.kernels.cpu import layer_functions
from bertsmith.kernels.cpu.launcher import Launcher
from bertsmith.kernels.cpu.layer_functions import (
    AttentionConfig,
    DropoutSeeds,
    draw_dropout_seeds,
    linear_input_grad,
    linear_weight_grads,
)
from bertsmith.kernels.cpu.matmul import PackedMatrix, pack, slice_columns, supports_layer
from bertsmith.kernels.reference import EncoderLayerModules, EncoderLayerWeights, LayerNormParams


class LayerMatmuls(Protocol):
    """Matrix products of a layer, with biases."""

    def query(self, x: Tensor, run: Launcher) -> Tensor:
        """Compute queries, [M, H] → [M, H]."""
        ...

    def key_value(self, x: Tensor, run: Launcher) -> Tensor:
        """Compute keys and values, [N, H] → [N, 2H]."""
        ...

    def query_key_value(self, x: Tensor, run: Launcher) -> Tensor:
        """Compute queries, keys, and values, [N, H] → [N, 3H]."""
        ...

    def output_projection(self, x: Tensor, run: Launcher) -> Tensor:
        """Compute the output projection of attention, [N, H] → [N, H]."""
        ...

    def feed_forward(self, x: Tensor, run: Launcher) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the feed-forward sublayer, [N, H] → [N, H], and return GELU's input and output with it."""
        ...


class LayerWeights(EncoderLayerWeights):
    """Weights and biases of a layer, and its matrix products."""

    def have_kernels(self, x: Tensor) -> bool:
        """Return True if there are kernels for the layer's products with the dtype and number of rows of x."""
        return supports_layer(x, *self[:4], *self[6:10])

    def matmuls(self) -> FloatLayerMatmuls:
        """Return products that read the weights as they are."""
        return self._matmuls(lambda weight: weight, saves_preactivation=True)

    def packed_matmuls(self, dtype: torch.dtype) -> FloatLayerMatmuls:
        """Return products in fp32 or bf16 with packed weights, for inference; they do not save GELU's input."""
        return self._matmuls(partial(pack, dtype=dtype), saves_preactivation=False)

    def _matmuls(
        self, convert: Callable[[Tensor], Tensor | PackedMatrix], *, saves_preactivation: bool
    ) -> FloatLayerMatmuls:
        weights = self.qkv, self.projection, self.inner, self.output
        qkv, projection, inner, output = (convert(weight.T) for weight in weights)
        biases = self.qkv_bias, self.projection_bias, self.inner_bias, self.output_bias
        return FloatLayerMatmuls(qkv, projection, inner, output, *biases, saves_preactivation)


class FloatLayerMatmuls(NamedTuple):
    """Matrix products of a layer in fp32 or bf16 (see `LayerMatmuls`), with matrices [in, out]."""

    qkv: Tensor | PackedMatrix
    projection: Tensor | PackedMatrix
    inner: Tensor | PackedMatrix
    output: Tensor | PackedMatrix
    qkv_bias: Tensor
    projection_bias: Tensor
    inner_bias: Tensor
    output_bias: Tensor
    saves_preactivation: bool

    def query(self, x: Tensor, run: Launcher) -> Tensor:
        hidden_size = x.shape[1]
        return layer_functions.linear(
            x, slice_columns(self.qkv, 0, hidden_size), self.qkv_bias[:hidden_size], run
        )

    def key_value(self, x: Tensor, run: Launcher) -> Tensor:
        hidden_size = x.shape[1]
        weight = slice_columns(self.qkv, hidden_size, 3 * hidden_size)
        return layer_functions.linear(x, weight, self.qkv_bias[hidden_size:], run)

    def query_key_value(self, x: Tensor, run: Launcher) -> Tensor:
        return layer_functions.linear(x, self.qkv, self.qkv_bias, run)

    def output_projection(self, x: Tensor, run: Launcher) -> Tensor:
        return layer_functions.linear(x, self.projection, self.projection_bias, run)

    def feed_forward(self, x: Tensor, run: Launcher) -> tuple[Tensor, Tensor, Tensor]:
        return layer_functions.feed_forward(
            *(x, self.inner, self.inner_bias, self.output, self.output_bias, run),
            saves_preactivation=self.saves_preactivation,
        )


def layer_weights(modules: EncoderLayerModules) -> LayerWeights | None:
    """Return a layer's weights; None if a module is of another type or lacks a weight or bias."""
    if not all(isinstance(module, nn.Linear) for module in modules.linears):
        return None
    if not all(isinstance(norm, nn.LayerNorm) for norm in modules.norms):
        return None
    weights = [getattr(module, name) for module in modules.parametrized for name in ("weight", "bias")]
    return None if any(weight is None for weight in weights) else LayerWeights(*weights)


class LayerConfig(NamedTuple):
    """Configuration of one call of a layer: attention, and dropout and epsilon of each LayerNorm."""

    attention: AttentionConfig
    dropout_seeds: tuple[DropoutSeeds, DropoutSeeds]
    layer_norm_eps: tuple[float, float]


def layer_config(modules: EncoderLayerModules, attention: AttentionConfig) -> LayerConfig:
    """Return the configuration of one call of a layer; draw its dropout seeds."""
    attention = attention._replace(dropout_seeds=draw_dropout_seeds(modules.attention_dropout))
    attention_eps, output_eps = (cast(nn.LayerNorm, norm).eps for norm in modules.norms)
    seeds = draw_dropout_seeds(modules.dropout), draw_dropout_seeds(modules.dropout)
    return LayerConfig(attention, seeds, (attention_eps, output_eps))


class LayerActivations(NamedTuple):
    """Tensors that the forward pass saves for the backward pass, in the order of computation.

    `query_input` is the input of the queries, `x` that of keys and values.
    """

    x: Tensor
    query_input: Tensor
    q: Tensor
    kv: Tensor
    softmax_stats: Tensor
    attention_output: Tensor
    projection_output: Tensor
    attention_norm_stats: Tensor
    attention_norm_output: Tensor
    preactivation: Tensor
    activation: Tensor
    feed_forward_output: Tensor
    output_norm_stats: Tensor


def layer_forward(
    x: Tensor,
    residual: Tensor,
    matmuls: LayerMatmuls,
    norms: Sequence[LayerNormParams],
    config: LayerConfig,
    run: Launcher,
) -> tuple[Tensor, LayerActivations]:
    """Compute a layer.

    Args:
        x: Inputs, [N, H].
        residual: The inputs in the dtype of the activations; `x` itself if that has this dtype.
        matmuls: The layer's matrix products.
        norms: Parameters of both LayerNorms.
        config: The configuration of this call.
        run: The launcher.

    Returns:
        The outputs of the tokens with a query, [M, H], and the activations.
    """
    attention, (attention_seeds, output_seeds) = config.attention, config.dropout_seeds
    if attention.query_indices is None:
        query_input = residual
        q, kv = layer_functions.split_query_key_value(matmuls.query_key_value(x, run))
    else:
        x_rows = layer_functions.gather_rows(x, attention.query_indices, run)
        query_input = (
            x_rows if residual is x else layer_functions.gather_rows(residual, attention.query_indices, run)
        )
        q, kv = matmuls.query(x_rows, run), matmuls.key_value(x, run)
    attention_output, softmax_stats = layer_functions.attention_forward(q, kv, attention, run)
    projection_output = matmuls.output_projection(attention_output, run)
    attention_norm_output, attention_norm_stats = layer_functions.add_layer_norm_forward(
        query_input, projection_output, norms[0], attention_seeds, run
    )
    feed_forward_output, preactivation, activation = matmuls.feed_forward(attention_norm_output, run)
    output, output_norm_stats = layer_functions.add_layer_norm_forward(
        attention_norm_output, feed_forward_output, norms[1], output_seeds, run
    )
    return output, LayerActivations(
        *(x, query_input, q, kv, softmax_stats, attention_output, projection_output, attention_norm_stats),
        *(attention_norm_output, preactivation, activation, feed_forward_output, output_norm_stats),
    )


def layer_backward(
    grad: Tensor, saved: LayerActivations, weights: LayerWeights, config: LayerConfig, run: Launcher
) -> tuple[Tensor, LayerWeights]:
    """Return the gradients of the inputs and of the weights, from that of the outputs, [M, H]."""
    attention, (attention_seeds, output_seeds) = config.attention, config.dropout_seeds
    inputs = saved.attention_norm_output, saved.feed_forward_output
    middle_grad, feed_forward_grad, output_norm_grads = layer_functions.add_layer_norm_backward(
        grad, *inputs, weights.output_norm, saved.output_norm_stats, output_seeds, run
    )
    output_grads = linear_weight_grads(saved.activation, feed_forward_grad, run)
    preactivation_grad = linear_input_grad(feed_forward_grad, weights.output, saved.preactivation, run)
    inner_grads = linear_weight_grads(saved.attention_norm_output, preactivation_grad, run)
    layer_functions.add_(middle_grad, linear_input_grad(preactivation_grad, weights.inner, None, run), run)
    inputs = saved.query_input, saved.projection_output
    query_input_grad, projection_grad, norm_grads = layer_functions.add_layer_norm_backward(
        middle_grad, *inputs, weights.attention_norm, saved.attention_norm_stats, attention_seeds, run
    )
    projection_grads = linear_weight_grads(saved.attention_output, projection_grad, run)
    attention_grad = linear_input_grad(projection_grad, weights.projection, None, run)
    qkv_grads = layer_functions.attention_backward(
        attention_grad, saved.q, saved.kv, saved.softmax_stats, attention, run
    )
    if attention.query_indices is None:
        (qkv_grad,) = qkv_grads
        qkv_weight_grads = linear_weight_grads(saved.x, qkv_grad, run)
        x_grad = query_input_grad
        layer_functions.add_(x_grad, linear_input_grad(qkv_grad, weights.qkv, None, run), run)
    else:
        q_grad, kv_grad = qkv_grads
        qkv_weight_grads = layer_functions.concatenated_weight_grads(
            [(saved.query_input, q_grad), (saved.x, kv_grad)], run
        )
        hidden_size = grad.shape[1]
        q_weight, kv_weight = weights.qkv[:hidden_size], weights.qkv[hidden_size:]
        layer_functions.add_(query_input_grad, linear_input_grad(q_grad, q_weight, None, run), run)
        x_grad = linear_input_grad(kv_grad, kv_weight, None, run)
        layer_functions.scatter_add_rows(x_grad, attention.query_indices, query_input_grad, run)
    grads = *qkv_weight_grads, *projection_grads, *norm_grads, *inner_grads, *output_grads, *output_norm_grads
    return x_grad, LayerWeights(*grads)
