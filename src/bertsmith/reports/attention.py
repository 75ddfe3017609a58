"""The plot of attention weights: a square a head, darker where more of a token's value goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bertsmith.reports import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIDE = 1.1  # inches: of a square among several
_CELL, _LEAST = 0.25, 2.2  # of a token in a square of its own, and of the smallest such square


def attention_plot(
    tokens: Sequence[str], weights: NDArray[np.float32], layers: Sequence[int], heads: Sequence[int]
) -> bytes:
    """A PNG of the weights [L, A, T, T] of layers and heads with these numbers."""
    if len(layers) == len(heads) == 1:
        return _one(tokens, weights[0, 0], f"layer {layers[0]}, head {heads[0]}")

    def draw(axes: Axes, row: int, column: int) -> None:
        _square(axes, weights[row, column])
        if not row:
            axes.set_title(f"head {heads[column]}")
        if not column:
            axes.set_ylabel(f"layer {layers[row]}")

    return plots.png(plots.squares(draw, len(layers), len(heads), _SIDE))


def _one(tokens: Sequence[str], weights: NDArray[np.float32], title: str) -> bytes:
    names = plots.drawable(tokens, "token")

    def draw(axes: Axes) -> None:
        _square(axes, weights)
        axes.set_xticks(range(len(names)), names, rotation=90, parse_math=False)
        axes.set_yticks(range(len(names)), names, parse_math=False)
        axes.set_xlabel("looks at")
        axes.set_ylabel(title)

    side = max(_LEAST, _CELL * len(tokens)) + 1.4
    made = plots.figure(draw, (side, side))
    made.axes[0].grid(visible=False)
    return plots.png(made)


def _square(axes: Axes, weights: NDArray[np.float32]) -> None:
    axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
