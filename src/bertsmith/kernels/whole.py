"""A layer of BERT as a whole: its bodies are made ready one after the other and run as one program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from bertsmith.kernels import parts
from bertsmith.kernels.loops import Run
from bertsmith.kernels.multiplying import Panels, columns_of, has_all_products, in_panels
from bertsmith.kernels.parts import Seeds, Sequences
from bertsmith.kernels.plain import LayerParts
from bertsmith.kernels.program import Program

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

    @property
    def matrices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Those of the products, [out, in]."""
        return self.qkv, self.projection, self.inner, self.output

    @property
    def biases(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What is added behind them."""
        return self.qkv_bias, self.projection_bias, self.inner_bias, self.output_bias

    def parts_of(self, qkv: Tensor, *, apart: bool) -> Sequence[Tensor]:
        """Of these weights or biases as a whole; or, apart, those of queries, and those of keys and values."""
        width = len(self.projection_bias)
        return (qkv[:width], qkv[width:]) if apart else (qkv,)

    def back(self, *, apart: bool) -> parts.Back:
        """What the way back is made with. apart: queries, and keys with values."""
        return parts.Back(self.parts_of(self.qkv, apart=apart), *self.matrices[1:])

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
        return LayerFactors(*matrices, *self.biases, kept)


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
        return parts.multiplied(x, columns_of(self.qkv, 0, width), self.qkv_bias[:width], run)

    def keys_values(self, x: Tensor, run: Run) -> Tensor:
        """See `LayerProducts`."""
        width = x.shape[1]
        return parts.multiplied(x, columns_of(self.qkv, width, 3 * width), self.qkv_bias[width:], run)

    def all_three(self, x: Tensor, run: Run) -> Tensor:
        """See `LayerProducts`."""
        return parts.multiplied(x, self.qkv, self.qkv_bias, run)

    def projected(self, x: Tensor, run: Run) -> Tensor:
        """See `LayerProducts`."""
        return parts.multiplied(x, self.projection, self.projection_bias, run)

    def fed_forward(self, x: Tensor, run: Run) -> tuple[Tensor, Tensor, Tensor]:
        """See `LayerProducts`."""
        of = self.inner, self.inner_bias, self.output, self.output_bias
        return parts.feed_forward(x, *of, run, kept=self.kept)


def weights_of(of: LayerParts) -> LayerWeights | None:
    """A layer's, where it has all of them."""
    if not all(isinstance(part, nn.Linear) for part in of.linear):
        return None
    if not all(isinstance(norm, nn.LayerNorm) for norm in of.norms):
        return None
    weights = [getattr(part, name) for part in of.weighted for name in ("weight", "bias")]
    return None if any(weight is None for weight in weights) else LayerWeights(*weights)


class LayerMade(NamedTuple):
    """What a layer has made, in the order in which it has; found: the last of it. asking: what queries are made
    of; kv: keys and values."""

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
    found: Tensor


def layer(
    x: Tensor,
    residual: Tensor,
    products: LayerProducts,
    norms: Sequence[Norm],
    over: Sequences,
    drawn: Sequence[Seeds],
    run: Program,
) -> LayerMade:
    """Of x [N, H], of the tokens that have a query; residual: x in the kind of the products. norms, drawn: the two
    LayerNorms', and what is dropped of what they are given. run: what this ends; it may begin with what makes the
    products."""
    if over.rows is None:
        q, kv = parts.sides(products.all_three(x, run))
    else:
        asking = x.index_select(0, over.rows)
        residual = asking if residual is x else residual.index_select(0, over.rows)
        q, kv = products.queries(asking, run), products.keys_values(x, run)
    mixed, scores = parts.attend(q, kv, over, run)
    projected = products.projected(mixed, run)
    middle, stats = parts.add_norm(residual, projected, *norms[0], drawn[0], run)
    fed, inner, activated = products.fed_forward(middle, run)
    found, output_stats = parts.add_norm(middle, fed, *norms[1], drawn[1], run)
    run.end()
    own = residual, q, kv, scores, mixed, projected, stats
    return LayerMade(*own, middle, inner, activated, fed, output_stats, found)
