"""A layer of BERT as a whole: its bodies are made ready one after the other and run as one program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from bertsmith.kernels.cpu import layer_functions
from bertsmith.kernels.cpu.compilation import Launcher
from bertsmith.kernels.cpu.layer_functions import AttentionConfig, DropoutSeeds
from bertsmith.kernels.cpu.matmul import PackedMatrix, pack, slice_columns, supports_layer
from bertsmith.kernels.reference import EncoderLayerModules

LayerNormParams = tuple[Tensor, Tensor, float]
"""A LayerNorm's weight, bias and epsilon."""


class LayerMatmuls(Protocol):
    """The products of a layer."""

    def query(self, x: Tensor, run: Launcher) -> Tensor:
        """[M, H] → [M, H]."""
        ...

    def key_value(self, x: Tensor, run: Launcher) -> Tensor:
        """A token's key, and its value behind it: [N, H] → [N, 2H]."""
        ...

    def query_key_value(self, x: Tensor, run: Launcher) -> Tensor:
        """A token's query, key and value, [N, H] → [N, 3H]."""
        ...

    def output_projection(self, x: Tensor, run: Launcher) -> Tensor:
        """[N, H] → [N, H]."""
        ...

    def feed_forward(self, x: Tensor, run: Launcher) -> tuple[Tensor, Tensor, Tensor]:
        """[N, H] → [N, H], and what GELU is taken of, and gives."""
        ...


class LayerWeights(NamedTuple):
    """Weights and biases of a layer: of queries, keys and values; of the projection and the LayerNorm behind it;
    of the feed-forward's two products and the LayerNorm behind these."""

    qkv: Tensor
    qkv_bias: Tensor
    projection: Tensor
    projection_bias: Tensor
    norm: Tensor
    norm_bias: Tensor
    inner: Tensor
    inner_bias: Tensor
    output: Tensor
    output_bias: Tensor
    output_norm: Tensor
    output_norm_bias: Tensor

    def layer_norms(self, epsilons: tuple[float, float]) -> tuple[LayerNormParams, LayerNormParams]:
        """The LayerNorms."""
        first, last = epsilons
        return (self.norm, self.norm_bias, first), (self.output_norm, self.output_norm_bias, last)

    def have_kernels(self, x: Tensor) -> bool:
        """Whether there are bodies for the layer's products of as many rows as x has, in its kind."""
        return supports_layer(x, *self[:4], *self[6:10])

    def matmuls(self) -> FloatLayerMatmuls:
        """As they are."""
        return self._factors(lambda y: y, kept=True)

    def packed_matmuls(self) -> FloatLayerMatmuls:
        """In bf16, copied into panels, for many answers; what GELU is taken of is not kept."""
        return self._factors(pack, kept=False)

    def _factors(self, of: Callable[[Tensor], Tensor | PackedMatrix], *, kept: bool) -> FloatLayerMatmuls:
        matrices = of(self.qkv.T), of(self.projection.T), of(self.inner.T), of(self.output.T)
        biases = self.qkv_bias, self.projection_bias, self.inner_bias, self.output_bias
        return FloatLayerMatmuls(*matrices, *biases, kept)


class FloatLayerMatmuls(NamedTuple):
    """What the products of a layer are made with: matrices [in, out], and biases. kept: whether what GELU is taken
    of has a place of its own."""

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
        """See `LayerMatmuls`."""
        width = x.shape[1]
        return layer_functions.linear(x, slice_columns(self.qkv, 0, width), self.qkv_bias[:width], run)

    def key_value(self, x: Tensor, run: Launcher) -> Tensor:
        """See `LayerMatmuls`."""
        width = x.shape[1]
        return layer_functions.linear(
            x, slice_columns(self.qkv, width, 3 * width), self.qkv_bias[width:], run
        )

    def query_key_value(self, x: Tensor, run: Launcher) -> Tensor:
        """See `LayerMatmuls`."""
        return layer_functions.linear(x, self.qkv, self.qkv_bias, run)

    def output_projection(self, x: Tensor, run: Launcher) -> Tensor:
        """See `LayerMatmuls`."""
        return layer_functions.linear(x, self.projection, self.projection_bias, run)

    def feed_forward(self, x: Tensor, run: Launcher) -> tuple[Tensor, Tensor, Tensor]:
        """See `LayerMatmuls`."""
        of = self.inner, self.inner_bias, self.output, self.output_bias
        return layer_functions.feed_forward(x, *of, run, kept=self.saves_preactivation)


def layer_weights(of: EncoderLayerModules) -> LayerWeights | None:
    """A layer's, where it has all of them."""
    if not all(isinstance(part, nn.Linear) for part in of.linears):
        return None
    if not all(isinstance(norm, nn.LayerNorm) for norm in of.norms):
        return None
    weights = [getattr(part, name) for part in of.parametrized for name in ("weight", "bias")]
    return None if any(weight is None for weight in weights) else LayerWeights(*weights)


class LayerConfig(NamedTuple):
    """How a layer computes: what attention is over; what is dropped of what each LayerNorm is given; and their
    epsilons."""

    attention: AttentionConfig
    dropout_seeds: tuple[DropoutSeeds, DropoutSeeds]
    layer_norm_eps: tuple[float, float]


class LayerActivations(NamedTuple):
    """What the way back reads of the way there, in the order in which it was made. asking: what queries are made
    of; kv: keys and values."""

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
    products: LayerMatmuls,
    norms: Sequence[LayerNormParams],
    asked: LayerConfig,
    run: Launcher,
) -> tuple[Tensor, LayerActivations]:
    """Of x [N, H], of the tokens that have a query. residual: x in the kind of the products. norms: the two
    LayerNorms'."""
    over, drawn = asked.attention, asked.dropout_seeds
    if over.query_indices is None:
        q, kv = layer_functions.split_query_key_value(products.query_key_value(x, run))
    else:
        asking = layer_functions.gather_rows(x, over.query_indices, run)
        residual = asking if residual is x else layer_functions.gather_rows(residual, over.query_indices, run)
        q, kv = products.query(asking, run), products.key_value(x, run)
    mixed, scores = layer_functions.attention_forward(q, kv, over, run)
    projected = products.output_projection(mixed, run)
    middle, stats = layer_functions.add_layer_norm_forward(residual, projected, *norms[0], drawn[0], run)
    fed, inner, activated = products.feed_forward(middle, run)
    found, output_stats = layer_functions.add_layer_norm_forward(middle, fed, *norms[1], drawn[1], run)
    own = residual, q, kv, scores, mixed, projected, stats
    return found, LayerActivations(x, *own, middle, inner, activated, fed, output_stats)


def layer_backward(
    grad: Tensor, made: LayerActivations, weights: LayerWeights, asked: LayerConfig, run: Launcher
) -> tuple[Tensor, LayerWeights]:
    """The slopes of x, and of the weights, from those of what was found, [N, H]."""
    over, drawn = asked.attention, asked.dropout_seeds
    to_middle, to_fed, to_output_norm = layer_functions.add_layer_norm_backward(
        grad,
        made.attention_norm_output,
        made.feed_forward_output,
        weights.output_norm,
        made.output_norm_stats,
        drawn[1],
        run,
    )
    to_output = layer_functions.linear_weight_grads(made.activation, to_fed, run)
    to_inner = layer_functions.linear_input_grad(to_fed, weights.output, made.preactivation, run)
    to_weight = layer_functions.linear_weight_grads(made.attention_norm_output, to_inner, run)
    layer_functions.add_(
        to_middle, layer_functions.linear_input_grad(to_inner, weights.inner, None, run), run
    )
    to_asking, to_projected, to_norm = layer_functions.add_layer_norm_backward(
        to_middle,
        made.query_input,
        made.projection_output,
        weights.norm,
        made.attention_norm_stats,
        drawn[0],
        run,
    )
    to_projection = layer_functions.linear_weight_grads(made.attention_output, to_projected, run)
    to_mixed = layer_functions.linear_input_grad(to_projected, weights.projection, None, run)
    to_qkv = layer_functions.attention_backward(to_mixed, made.q, made.kv, made.softmax_stats, over, run)
    if over.query_indices is None:
        to_weights = layer_functions.linear_weight_grads(made.x, to_qkv[0], run)
        to_x = to_asking
        layer_functions.add_(to_x, layer_functions.linear_input_grad(to_qkv[0], weights.qkv, None, run), run)
    else:
        to_weights = layer_functions.concatenated_weight_grads(
            [(made.query_input, to_qkv[0]), (made.x, to_qkv[1])], run
        )
        width = grad.shape[1]
        of_q, of_kv = weights.qkv[:width], weights.qkv[width:]
        layer_functions.add_(to_asking, layer_functions.linear_input_grad(to_qkv[0], of_q, None, run), run)
        to_x = layer_functions.linear_input_grad(to_qkv[1], of_kv, None, run)
        layer_functions.scatter_add_rows(to_x, over.query_indices, to_asking, run)
    slopes = *to_weights, *to_projection, *to_norm, *to_weight, *to_output, *to_output_norm
    return to_x, LayerWeights(*slopes)
