"""Heat maps of attention weights, one per head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bertsmith.reports import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GRID_SIDE = 1.1  # inches: of each heat map of several
_CELL_SIZE, _MIN_SIDE = 0.25, 2.2  # inches: of a token in a single heat map, and of the smallest such map


def plot_attention(
    tokens: Sequence[str], weights: NDArray[np.float32], layers: Sequence[int], heads: Sequence[int]
) -> bytes:
    """Plot weights [L, A, T, T] of the numbered layers and heads as a PNG."""
    if len(layers) == len(heads) == 1:
        return _plot_single(tokens, weights[0, 0], f"layer {layers[0]}, head {heads[0]}")

    def draw(axes: Axes, row: int, column: int) -> None:
        _draw_heat_map(axes, weights[row, column])
        if not row:
            axes.set_title(f"head {heads[column]}")
        if not column:
            axes.set_ylabel(f"layer {layers[row]}")

    return plots.png(plots.squares(draw, len(layers), len(heads), _GRID_SIDE))


def _plot_single(tokens: Sequence[str], weights: NDArray[np.float32], title: str) -> bytes:
    names = plots.drawable(tokens, "token")

    def draw(axes: Axes) -> None:
        _draw_heat_map(axes, weights)
        axes.set_xticks(range(len(names)), names, rotation=90, parse_math=False)
        axes.set_yticks(range(len(names)), names, parse_math=False)
        axes.set_xlabel("attends to")
        axes.set_ylabel(title)

    side = max(_MIN_SIDE, _CELL_SIZE * len(tokens)) + 1.4
    figure = plots.figure(draw, (side, side))
    figure.axes[0].grid(visible=False)
    return plots.png(figure)


def _draw_heat_map(axes: Axes, weights: NDArray[np.float32]) -> None:
    axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
