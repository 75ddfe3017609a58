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

    def queries(self, x: Tensor, run: Launcher) -> Tensor:
        """[M, H] → [M, H]."""
        ...

    def keys_values(self, x: Tensor, run: Launcher) -> Tensor:
        """A token's key, and its value behind it: [N, H] → [N, 2H]."""
        ...

    def all_three(self, x: Tensor, run: Launcher) -> Tensor:
        """A token's query, key and value, [N, H] → [N, 3H]."""
        ...

    def projected(self, x: Tensor, run: Launcher) -> Tensor:
        """[N, H] → [N, H]."""
        ...

    def fed_forward(self, x: Tensor, run: Launcher) -> tuple[Tensor, Tensor, Tensor]:
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

    def norms(self, epsilons: tuple[float, float]) -> tuple[LayerNormParams, LayerNormParams]:
        """The LayerNorms."""
        first, last = epsilons
        return (self.norm, self.norm_bias, first), (self.output_norm, self.output_norm_bias, last)

    def have_bodies(self, x: Tensor) -> bool:
        """Whether there are bodies for the layer's products of as many rows as x has, in its kind."""
        return supports_layer(x, *self[:4], *self[6:10])

    def factors(self) -> FloatLayerMatmuls:
        """As they are."""
        return self._factors(lambda y: y, kept=True)

    def in_panels(self) -> FloatLayerMatmuls:
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
    kept: bool

    def queries(self, x: Tensor, run: Launcher) -> Tensor:
        """See `LayerProducts`."""
        width = x.shape[1]
        return layer_functions.linear(x, slice_columns(self.qkv, 0, width), self.qkv_bias[:width], run)

    def keys_values(self, x: Tensor, run: Launcher) -> Tensor:
        """See `LayerProducts`."""
        width = x.shape[1]
        return layer_functions.linear(
            x, slice_columns(self.qkv, width, 3 * width), self.qkv_bias[width:], run
        )

    def all_three(self, x: Tensor, run: Launcher) -> Tensor:
        """See `LayerProducts`."""
        return layer_functions.linear(x, self.qkv, self.qkv_bias, run)

    def projected(self, x: Tensor, run: Launcher) -> Tensor:
        """See `LayerProducts`."""
        return layer_functions.linear(x, self.projection, self.projection_bias, run)

    def fed_forward(self, x: Tensor, run: Launcher) -> tuple[Tensor, Tensor, Tensor]:
        """See `LayerProducts`."""
        of = self.inner, self.inner_bias, self.output, self.output_bias
        return layer_functions.feed_forward(x, *of, run, kept=self.kept)


def layer_weights(of: EncoderLayerModules) -> LayerWeights | None:
    """A layer's, where it has all of them."""
    if not all(isinstance(part, nn.Linear) for part in of.linear):
        return None
    if not all(isinstance(norm, nn.LayerNorm) for norm in of.norms):
        return None
    weights = [getattr(part, name) for part in of.weighted for name in ("weight", "bias")]
    return None if any(weight is None for weight in weights) else LayerWeights(*weights)


class LayerConfig(NamedTuple):
    """How a layer computes: what attention is over; what is dropped of what each LayerNorm is given; and their
    epsilons."""

    over: AttentionConfig
    drawn: tuple[DropoutSeeds, DropoutSeeds]
    epsilons: tuple[float, float]


class LayerActivations(NamedTuple):
    """What the way back reads of the way there, in the order in which it was made. asking: what queries are made
    of; kv: keys and values."""

    x: Tensor
    asking: Tensor
    q: Tensor
    kv: Tensor
    scores: Tensor
    mixed: Tensor
    projected: Tensor
    stats: Tensor
    middle: Tensor
    inner: Tensor
    activated: Tensor
    fed: Tensor
    output_stats: Tensor


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
    over, drawn = asked.over, asked.drawn
    if over.rows is None:
        q, kv = layer_functions.split_query_key_value(products.all_three(x, run))
    else:
        asking = layer_functions.gather_rows(x, over.rows, run)
        residual = asking if residual is x else layer_functions.gather_rows(residual, over.rows, run)
        q, kv = products.queries(asking, run), products.keys_values(x, run)
    mixed, scores = layer_functions.attention_forward(q, kv, over, run)
    projected = products.projected(mixed, run)
    middle, stats = layer_functions.add_layer_norm_forward(residual, projected, *norms[0], drawn[0], run)
    fed, inner, activated = products.fed_forward(middle, run)
    found, output_stats = layer_functions.add_layer_norm_forward(middle, fed, *norms[1], drawn[1], run)
    own = residual, q, kv, scores, mixed, projected, stats
    return found, LayerActivations(x, *own, middle, inner, activated, fed, output_stats)


def layer_backward(
    grad: Tensor, made: LayerActivations, weights: LayerWeights, asked: LayerConfig, run: Launcher
) -> tuple[Tensor, LayerWeights]:
    """The slopes of x, and of the weights, from those of what was found, [N, H]."""
    over, drawn = asked.over, asked.drawn
    to_middle, to_fed, to_output_norm = layer_functions.add_layer_norm_backward(
        grad, made.middle, made.fed, weights.output_norm, made.output_stats, drawn[1], run
    )
    to_output = layer_functions.linear_weight_grads(made.activated, to_fed, run)
    to_inner = layer_functions.linear_input_grad(to_fed, weights.output, made.inner, run)
    to_weight = layer_functions.linear_weight_grads(made.middle, to_inner, run)
    layer_functions.add_(
        to_middle, layer_functions.linear_input_grad(to_inner, weights.inner, None, run), run
    )
    to_asking, to_projected, to_norm = layer_functions.add_layer_norm_backward(
        to_middle, made.asking, made.projected, weights.norm, made.stats, drawn[0], run
    )
    to_projection = layer_functions.linear_weight_grads(made.mixed, to_projected, run)
    to_mixed = layer_functions.linear_input_grad(to_projected, weights.projection, None, run)
    to_qkv = layer_functions.attention_backward(to_mixed, made.q, made.kv, made.scores, over, run)
    if over.rows is None:
        to_weights = layer_functions.linear_weight_grads(made.x, to_qkv[0], run)
        to_x = to_asking
        layer_functions.add_(to_x, layer_functions.linear_input_grad(to_qkv[0], weights.qkv, None, run), run)
    else:
        to_weights = layer_functions.concatenated_weight_grads(
            [(made.asking, to_qkv[0]), (made.x, to_qkv[1])], run
        )
        width = grad.shape[1]
        of_q, of_kv = weights.qkv[:width], weights.qkv[width:]
        layer_functions.add_(to_asking, layer_functions.linear_input_grad(to_qkv[0], of_q, None, run), run)
        to_x = layer_functions.linear_input_grad(to_qkv[1], of_kv, None, run)
        layer_functions.scatter_add_rows(to_x, over.rows, to_asking, run)
    slopes = *to_weights, *to_projection, *to_norm, *to_weight, *to_output, *to_output_norm
    return to_x, LayerWeights(*slopes)
