"""Plots of an ablation, of a learning rate range test, of probes, and of attention weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.reports import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_X_MARGIN = 0.1  # fraction of the range of an ablation's values
_DIVERGENCE_MARGIN = 0.15  # a plot ends at least this fraction above the first loss; larger losses diverge
_GRID_SIDE = 1.1  # inches: side of each of several heat maps
_CELL_SIZE = 0.25  # inches: side of a token's cell in a single heat map
_MIN_SIDE = 2.2  # inches: side of the smallest single heat map
_LABEL_MARGIN = 1.4  # inches: space for the tokens at a single heat map


def plot_seeds(
    name: str, rows: Mapping[str, Mapping[str, Any]], paper: Mapping[str, float] | None = None
) -> bytes:
    """Plot a metric by row: a dot per seed, a mark at the mean, and a line of one standard deviation on each side.

    Args:
        name: The name of the metric.
        rows: By name of the row, its `values` by seed, their `mean`, and their `deviation` (None: one seed only).
        paper: The paper's value by name of the row, plotted on the right.

    Returns:
        A PNG.
    """

    def draw_paper(axes: Axes) -> None:
        _draw_dots(axes, {row: paper[row] for row in rows if row in paper} if paper else {}, list(rows))
        _format_rows(axes, list(rows), "in the paper")
        axes.tick_params(axis="y", labelleft=False)

    draws: list[Callable[[Axes], None]] = [partial(_draw_seeds, name, rows)]
    draws += [draw_paper] if paper else []
    return plots.to_png(plots.figure_row(draws, _row_size(len(rows))))


def seeds_figure(name: str, rows: Mapping[str, Mapping[str, Any]], *, is_logarithmic: bool = False) -> Figure:
    """Return the figure of `plot_seeds` without a paper; the axis of values may be logarithmic."""

    def draw(axes: Axes) -> None:
        if is_logarithmic:
            axes.set_xscale("log")
        _draw_seeds(name, rows, axes)

    return plots.figure(draw, _row_size(len(rows)))


def _draw_seeds(name: str, rows: Mapping[str, Mapping[str, Any]], axes: Axes) -> None:
    for y, row in enumerate(rows.values()):
        values, mean, deviation = row["values"], row["mean"], row["deviation"] or 0.0
        axes.plot([mean - deviation, mean + deviation], [y, y], color=plots.LINE, linewidth=5)
        axes.plot(values, [y] * len(values), "o", color=plots.BAR, markersize=4)
        axes.plot([mean], [y], "|", color=plots.INK, markersize=14, markeredgewidth=1.6)
    _format_rows(axes, list(rows), name)


def plot_paper_values(name: str, rows: Mapping[str, float]) -> bytes:
    """Plot the paper's values of a metric by row as a PNG."""

    def draw(axes: Axes) -> None:
        _draw_dots(axes, rows, list(rows))
        _format_rows(axes, list(rows), f"{name}, in the paper")

    return plots.to_png(plots.figure(draw, _row_size(len(rows))))


def _draw_dots(axes: Axes, values: Mapping[str, float], rows: Sequence[str]) -> None:
    axes.plot(list(values.values()), [rows.index(row) for row in values], "o", color=plots.INK, markersize=5)


def _format_rows(axes: Axes, rows: Sequence[str], x_label: str) -> None:
    axes.set_yticks(range(len(rows)), rows, parse_math=False)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.margins(x=_X_MARGIN)
    axes.set_xlabel(x_label, parse_math=False)
    if axes.get_xscale() == "linear":
        axes.locator_params(axis="x", nbins=5)


def _row_size(num_rows: int) -> tuple[float, float]:
    """Return the width and height of a figure in inches."""
    return plots.WIDTH, 0.9 + 0.3 * num_rows


def plot_lr_range_test(
    rates: Sequence[float],
    curves: Mapping[int, tuple[Sequence[float], Sequence[float]]],
    marks: Mapping[str, float],
) -> bytes:
    """Plot the loss by learning rate.

    Args:
        rates: The learning rates.
        curves: The losses (dots) and smoothed losses (a line) by seed; they may end before the last rate.
        marks: The learning rates to mark, by their names.

    Returns:
        A PNG.
    """

    def draw(axes: Axes) -> None:
        first = max(smoothed[0] for _, smoothed in curves.values())
        low = min(min(losses) for losses, _ in curves.values())
        for seed, (losses, smoothed) in curves.items():
            (line,) = axes.plot(rates[: len(smoothed)], smoothed, linewidth=1.6, label=f"seed {seed}")
            axes.plot(rates[: len(losses)], losses, ".", color=line.get_color(), alpha=0.25, markersize=3)
        for i, (name, rate) in enumerate(marks.items()):
            axes.axvline(rate, color=plots.INK, linestyle=("--", ":")[i % 2], linewidth=1.2)
            # One below the other, since two rates may be close.
            offset: dict[str, Any] = {"xytext": (3, -3 - 12 * i), "textcoords": "offset points", "va": "top"}
            coordinates = "data", "axes fraction"
            text = f"{name}: {rate:g}"
            axes.annotate(text, (rate, 1), xycoords=coordinates, **offset, color=plots.INK)
        axes.set_xscale("log")
        high = first + max(_DIVERGENCE_MARGIN * first, 0.5 * (first - low))
        axes.set_ylim(low - 0.05 * (first - low), high)
        axes.legend(frameon=False, labelcolor=plots.INK, loc="lower left", fontsize="small")
        axes.set_xlabel("learning rate")
        axes.set_ylabel("training loss")

    return plots.to_png(plots.figure(draw))


def plot_probes(rows: Mapping[str, Sequence[float]], baseline: float) -> bytes:
    """Plot accuracies of probes by layer as a PNG, with a dotted line at that of a baseline.

    Args:
        rows: The accuracies of each layer, by name.
        baseline: The accuracy of the most frequent label of each word.
    """
    styles = [(plots.BAR, "o-"), (plots.ALERT, "s--")]

    def draw(axes: Axes) -> None:
        for (name, values), (color, style) in zip(rows.items(), styles, strict=False):
            axes.plot(range(len(values)), values, style, color=color, markersize=4, label=name)
        axes.axhline(baseline, color=plots.INK, linestyle=":", label="most frequent label of each word")
        axes.legend(frameon=False, labelcolor=plots.INK, fontsize="small")
        plots.set_integer_ticks(axes.xaxis)
        axes.set_xlabel("layer")
        axes.set_ylabel("accuracy")

    return plots.to_png(plots.figure(draw))


def plot_gradients(curves: Mapping[str, Sequence[float]]) -> bytes:
    """Plot the norms of gradients by distance in tokens, with a logarithmic y axis, as a PNG.

    Args:
        curves: The norms at the distances 0, 1, … for each of up to nine models, relative to distance 0; zeros are
            omitted.
    """

    styles = [(color, line) for line in ("-", "--", ":") for color in (plots.BAR, plots.ALERT, plots.INK)]

    def draw(axes: Axes) -> None:
        for (name, values), (color, line) in zip(curves.items(), styles, strict=False):
            axes.plot(
                range(len(values)), [value or np.nan for value in values], line, color=color, label=name
            )
        axes.set_yscale("log")
        axes.legend(frameon=False, labelcolor=plots.INK, fontsize="small")
        axes.set_xlabel("distance in tokens")
        axes.set_ylabel("norm of the gradient")

    return plots.to_png(plots.figure(draw))


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
