"""Heat maps of attention weights, one per head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bertsmith.reports import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GRID_SIDE = 1.1  # inches: side of each of several heat maps
_CELL_SIZE = 0.25  # inches: side of a token's cell in a single heat map
_MIN_SIDE = 2.2  # inches: side of the smallest single heat map
_LABEL_MARGIN = 1.4  # inches: space for the tokens at a single heat map


def plot_attention(
    tokens: Sequence[str], weights: NDArray[np.float32], layers: Sequence[int], heads: Sequence[int]
) -> bytes:
    """Plot attention weights as a heat map per layer and head.

    Args:
        tokens: The T tokens.
        weights: The weights, [len(layers), len(heads), T, T]; queries are rows, keys are columns.
        layers: The numbers of the layers, for the titles.
        heads: The numbers of the heads, for the titles.

    Returns:
        A PNG.
    """
    if len(layers) == len(heads) == 1:
        return _plot_single(tokens, weights[0, 0], f"layer {layers[0]}, head {heads[0]}")

    def draw(axes: Axes, row: int, column: int) -> None:
        _draw_heat_map(axes, weights[row, column])
        if not row:
            axes.set_title(f"head {heads[column]}")
        if not column:
            axes.set_ylabel(f"layer {layers[row]}")

    return plots.to_png(plots.square_grid(draw, len(layers), len(heads), _GRID_SIDE))


def _plot_single(tokens: Sequence[str], weights: NDArray[np.float32], title: str) -> bytes:
    names = plots.displayable_labels(tokens, "token")

    def draw(axes: Axes) -> None:
        _draw_heat_map(axes, weights)
        axes.set_xticks(range(len(names)), names, rotation=90, parse_math=False)
        axes.set_yticks(range(len(names)), names, parse_math=False)
        axes.set_xlabel("attends to")
        axes.set_ylabel(title)

    side = max(_MIN_SIDE, _CELL_SIZE * len(tokens)) + _LABEL_MARGIN
    figure = plots.figure(draw, (side, side))
    figure.axes[0].grid(visible=False)
    return plots.to_png(figure)


def _draw_heat_map(axes: Axes, weights: NDArray[np.float32]) -> None:
    axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
