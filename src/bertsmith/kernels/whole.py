"""A layer of BERT as a whole: its bodies are made ready one after the other and run as one program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from bertsmith.kernels import parts
from bertsmith.kernels.loops import Run
from bertsmith.kernels.multiplying import Panels, has_all_products, in_panels
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

    def queries(self, x: Tensor, run: Run) -> Tensor:
        """See `LayerProducts`."""
        width = x.shape[1]
        return parts.multiplied(x, self.qkv[:width].T, self.qkv_bias[:width], run)

    def keys_values(self, x: Tensor, run: Run) -> Tensor:
        """See `LayerProducts`."""
        width = x.shape[1]
        return parts.multiplied(x, self.qkv[width:].T, self.qkv_bias[width:], run)

    def all_three(self, x: Tensor, run: Run) -> Tensor:
        """See `LayerProducts`."""
        return parts.multiplied(x, self.qkv.T, self.qkv_bias, run)

    def projected(self, x: Tensor, run: Run) -> Tensor:
        """See `LayerProducts`."""
        return parts.multiplied(x, self.projection.T, self.projection_bias, run)

    def fed_forward(self, x: Tensor, run: Run) -> tuple[Tensor, Tensor, Tensor]:
        """See `LayerProducts`."""
        return parts.feed_forward(x, self.inner.T, self.inner_bias, self.output.T, self.output_bias, run)


class LayerPanels(NamedTuple):
    """Weights and biases of a layer's products in bf16, the weights in panels."""

    qkv: Panels
    qkv_bias: Tensor
    projection: Panels
    projection_bias: Tensor
    inner: Panels
    inner_bias: Tensor
    output: Panels
    output_bias: Tensor

    @classmethod
    def of(cls, w: LayerWeights) -> LayerPanels:
        """With these weights."""
        qkv, projection, inner, output = (in_panels(y.T) for y in (w.qkv, w.projection, w.inner, w.output))
        return cls(qkv, w.qkv_bias, projection, w.projection_bias, inner, w.inner_bias, output, w.output_bias)

    def queries(self, x: Tensor, run: Run) -> Tensor:
        """See `LayerProducts`."""
        width = x.shape[1]
        return parts.multiplied(x, self.qkv.between(0, width), self.qkv_bias[:width], run)

    def keys_values(self, x: Tensor, run: Run) -> Tensor:
        """See `LayerProducts`."""
        width = x.shape[1]
        return parts.multiplied(x, self.qkv.between(width, 3 * width), self.qkv_bias[width:], run)

    def all_three(self, x: Tensor, run: Run) -> Tensor:
        """See `LayerProducts`."""
        return parts.multiplied(x, self.qkv, self.qkv_bias, run)

    def projected(self, x: Tensor, run: Run) -> Tensor:
        """See `LayerProducts`."""
        return parts.multiplied(x, self.projection, self.projection_bias, run)

    def fed_forward(self, x: Tensor, run: Run) -> tuple[Tensor, Tensor, Tensor]:
        """See `LayerProducts`; what GELU is taken of is not kept."""
        of = self.inner, self.inner_bias, self.output, self.output_bias
        return parts.feed_forward(x, *of, run, kept=False)


def weights_of(of: LayerParts, x: Tensor) -> LayerWeights | None:
    """A layer's, where it has all of them and there are bodies for its products of as many rows as x has, in its
    kind."""
    if not all(isinstance(part, nn.Linear) for part in of.linear):
        return None
    if not all(isinstance(norm, nn.LayerNorm) for norm in of.norms):
        return None
    weights = [getattr(part, name) for part in of.weighted for name in ("weight", "bias")]
    if any(weight is None for weight in weights):
        return None
    known = LayerWeights(*weights)
    return known if has_all_products(x, *known[:4], *known[6:10]) else None


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
) -> LayerMade:
    """Of x [N, H], of the tokens that have a query; residual: x in the kind of the products. norms, drawn: the two
    LayerNorms', and what is dropped of what they are given."""
    run = Program()
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
