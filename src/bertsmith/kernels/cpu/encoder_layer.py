"""A layer of BERT as a whole: its bodies are made ready one after the other and run as one program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from bertsmith.kernels.cpu import layer_functions
from bertsmith.kernels.cpu.compilation import Run
from bertsmith.kernels.cpu.layer_functions import Seeds, Sequences
from bertsmith.kernels.cpu.matmul import Panels, columns_of, has_all_products, in_panels
from bertsmith.kernels.reference import LayerParts

Norm = tuple[Tensor, Tensor, float]
"""A LayerNorm's weight, bias and epsilon."""


class LayerProducts(Protocol):
    """The products of a layer."""

    def queries(self, x: Tensor, run: Run) -> Tensor:
        """[M, H] → [M, H]."""
        ...

    def keys_values(self, x: Tensor, run: Run) -> Tensor:
        """A token's key, and its value behind it: [N, H] → [N, 2H]."""
        ...

    def all_three(self, x: Tensor, run: Run) -> Tensor:
        """A token's query, key and value, [N, H] → [N, 3H]."""
        ...

    def projected(self, x: Tensor, run: Run) -> Tensor:
        """[N, H] → [N, H]."""
        ...

    def fed_forward(self, x: Tensor, run: Run) -> tuple[Tensor, Tensor, Tensor]:
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

    def norms(self, epsilons: tuple[float, float]) -> tuple[Norm, Norm]:
        """The LayerNorms."""
        first, last = epsilons
        return (self.norm, self.norm_bias, first), (self.output_norm, self.output_norm_bias, last)

    def have_bodies(self, x: Tensor) -> bool:
        """Whether there are bodies for the layer's products of as many rows as x has, in its kind."""
        return has_all_products(x, *self[:4], *self[6:10])

    def factors(self) -> LayerFactors:
        """As they are."""
        return self._factors(lambda y: y, kept=True)

    def in_panels(self) -> LayerFactors:
        """In bf16, copied into panels, for many answers; what GELU is taken of is not kept."""
        return self._factors(in_panels, kept=False)

    def _factors(self, of: Callable[[Tensor], Tensor | Panels], *, kept: bool) -> LayerFactors:
        matrices = of(self.qkv.T), of(self.projection.T), of(self.inner.T), of(self.output.T)
        biases = self.qkv_bias, self.projection_bias, self.inner_bias, self.output_bias
        return LayerFactors(*matrices, *biases, kept)


class LayerFactors(NamedTuple):
    """What the products of a layer are made with: matrices [in, out], and biases. kept: whether what GELU is taken
    of has a place of its own."""

    qkv: Tensor | Panels
    projection: Tensor | Panels
    inner: Tensor | Panels
    output: Tensor | Panels
    qkv_bias: Tensor
    projection_bias: Tensor
    inner_bias: Tensor
    output_bias: Tensor
    kept: bool

    def queries(self, x: Tensor, run: Run) -> Tensor:
        """See `LayerProducts`."""
        width = x.shape[1]
        return layer_functions.multiplied(x, columns_of(self.qkv, 0, width), self.qkv_bias[:width], run)

    def keys_values(self, x: Tensor, run: Run) -> Tensor:
        """See `LayerProducts`."""
        width = x.shape[1]
        return layer_functions.multiplied(
            x, columns_of(self.qkv, width, 3 * width), self.qkv_bias[width:], run
        )

    def all_three(self, x: Tensor, run: Run) -> Tensor:
        """See `LayerProducts`."""
        return layer_functions.multiplied(x, self.qkv, self.qkv_bias, run)

    def projected(self, x: Tensor, run: Run) -> Tensor:
        """See `LayerProducts`."""
        return layer_functions.multiplied(x, self.projection, self.projection_bias, run)

    def fed_forward(self, x: Tensor, run: Run) -> tuple[Tensor, Tensor, Tensor]:
        """See `LayerProducts`."""
        of = self.inner, self.inner_bias, self.output, self.output_bias
        return layer_functions.feed_forward(x, *of, run, kept=self.kept)


def weights_of(of: LayerParts) -> LayerWeights | None:
    """A layer's, where it has all of them."""
    if not all(isinstance(part, nn.Linear) for part in of.linear):
        return None
    if not all(isinstance(norm, nn.LayerNorm) for norm in of.norms):
        return None
    weights = [getattr(part, name) for part in of.weighted for name in ("weight", "bias")]
    return None if any(weight is None for weight in weights) else LayerWeights(*weights)


class AskedOfLayer(NamedTuple):
    """How a layer computes: what attention is over; what is dropped of what each LayerNorm is given; and their
    epsilons."""

    over: Sequences
    drawn: tuple[Seeds, Seeds]
    epsilons: tuple[float, float]


class LayerMade(NamedTuple):
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


def layer(
    x: Tensor,
    residual: Tensor,
    products: LayerProducts,
    norms: Sequence[Norm],
    asked: AskedOfLayer,
    run: Run,
) -> tuple[Tensor, LayerMade]:
    """Of x [N, H], of the tokens that have a query. residual: x in the kind of the products. norms: the two
    LayerNorms'."""
    over, drawn = asked.over, asked.drawn
    if over.rows is None:
        q, kv = layer_functions.sides(products.all_three(x, run))
    else:
        asking = layer_functions.chosen(x, over.rows, run)
        residual = asking if residual is x else layer_functions.chosen(residual, over.rows, run)
        q, kv = products.queries(asking, run), products.keys_values(x, run)
    mixed, scores = layer_functions.attend(q, kv, over, run)
    projected = products.projected(mixed, run)
    middle, stats = layer_functions.add_norm(residual, projected, *norms[0], drawn[0], run)
    fed, inner, activated = products.fed_forward(middle, run)
    found, output_stats = layer_functions.add_norm(middle, fed, *norms[1], drawn[1], run)
    own = residual, q, kv, scores, mixed, projected, stats
    return found, LayerMade(x, *own, middle, inner, activated, fed, output_stats)


def layer_back(
    grad: Tensor, made: LayerMade, weights: LayerWeights, asked: AskedOfLayer, run: Run
) -> tuple[Tensor, LayerWeights]:
    """The slopes of x, and of the weights, from those of what was found, [N, H]."""
    over, drawn = asked.over, asked.drawn
    to_middle, to_fed, to_output_norm = layer_functions.add_norm_back(
        grad, made.middle, made.fed, weights.output_norm, made.output_stats, drawn[1], run
    )
    to_output = layer_functions.slopes(made.activated, to_fed, run)
    to_inner = layer_functions.multiplied_back(to_fed, weights.output, made.inner, run)
    to_weight = layer_functions.slopes(made.middle, to_inner, run)
    layer_functions.add(to_middle, layer_functions.multiplied_back(to_inner, weights.inner, None, run), run)
    to_asking, to_projected, to_norm = layer_functions.add_norm_back(
        to_middle, made.asking, made.projected, weights.norm, made.stats, drawn[0], run
    )
    to_projection = layer_functions.slopes(made.mixed, to_projected, run)
    to_mixed = layer_functions.multiplied_back(to_projected, weights.projection, None, run)
    to_qkv = layer_functions.attend_back(to_mixed, made.q, made.kv, made.scores, over, run)
    if over.rows is None:
        to_weights = layer_functions.slopes(made.x, to_qkv[0], run)
        to_x = to_asking
        layer_functions.add(to_x, layer_functions.multiplied_back(to_qkv[0], weights.qkv, None, run), run)
    else:
        to_weights = layer_functions.joined_slopes([(made.asking, to_qkv[0]), (made.x, to_qkv[1])], run)
        width = grad.shape[1]
        of_q, of_kv = weights.qkv[:width], weights.qkv[width:]
        layer_functions.add(to_asking, layer_functions.multiplied_back(to_qkv[0], of_q, None, run), run)
        to_x = layer_functions.multiplied_back(to_qkv[1], of_kv, None, run)
        layer_functions.add_to_rows(to_x, over.rows, to_asking, run)
    slopes = *to_weights, *to_projection, *to_norm, *to_weight, *to_output, *to_output_norm
    return to_x, LayerWeights(*slopes)
