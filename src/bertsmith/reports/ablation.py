"""Plots of an ablation: a metric of each row, measured in our runs and reported by the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertsmith.reports import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_X_MARGIN = 0.1  # fraction of the range of the values


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

    def draw(axes: Axes) -> None:
        for y, row in enumerate(rows.values()):
            values, mean, deviation = row["values"], row["mean"], row["deviation"] or 0.0
            axes.plot([mean - deviation, mean + deviation], [y, y], color=plots.LINE, linewidth=5)
            axes.plot(values, [y] * len(values), "o", color=plots.BAR, markersize=4)
            axes.plot([mean], [y], "|", color=plots.INK, markersize=14, markeredgewidth=1.6)
        _format_axes(axes, list(rows), name)

    def draw_paper(axes: Axes) -> None:
        _draw_dots(axes, {row: paper[row] for row in rows if row in paper} if paper else {}, list(rows))
        _format_axes(axes, list(rows), "in the paper")
        axes.tick_params(axis="y", labelleft=False)

    if not paper:
        return plots.to_png(plots.figure(draw, _size(len(rows))))
    return plots.to_png(plots.figure_row([draw, draw_paper], _size(len(rows))))


def plot_paper_values(name: str, rows: Mapping[str, float]) -> bytes:
    """Plot the paper's values of a metric by row as a PNG."""

    def draw(axes: Axes) -> None:
        _draw_dots(axes, rows, list(rows))
        _format_axes(axes, list(rows), f"{name}, in the paper")

    return plots.to_png(plots.figure(draw, _size(len(rows))))


def _draw_dots(axes: Axes, values: Mapping[str, float], rows: Sequence[str]) -> None:
    axes.plot(list(values.values()), [rows.index(row) for row in values], "o", color=plots.INK, markersize=5)


def _format_axes(axes: Axes, rows: Sequence[str], x_label: str) -> None:
    axes.set_yticks(range(len(rows)), rows, parse_math=False)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.margins(x=_X_MARGIN)
    axes.set_xlabel(x_label, parse_math=False)
    axes.locator_params(axis="x", nbins=5)


def _size(num_rows: int) -> tuple[float, float]:
    """Return the width and height of a figure in inches."""
    return plots.WIDTH, 0.9 + 0.3 * num_rows
