"""The plots of an ablation: a figure of ours, and one of the paper's, each with the rows below each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertsmith.reports import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PAD = 0.1  # of the spread of the values: room beside them


def seeds_plot(
    name: str, rows: Mapping[str, Mapping[str, Any]], paper: Mapping[str, float] | None = None
) -> bytes:
    """A PNG of one figure of ours: a dot a seed, a mark at the mean, a line as long as the deviation on each side.
    rows: of `workflows.ablate`, with their values. paper: its figure of the same name, which is drawn beside."""

    def draw(axes: Axes) -> None:
        for place, one in enumerate(rows.values()):
            values, mean, deviation = one["values"], one["mean"], one["deviation"] or 0.0
            axes.plot([mean - deviation, mean + deviation], [place, place], color=plots.LINE, linewidth=5)
            axes.plot(values, [place] * len(values), "o", color=plots.BAR, markersize=4)
            axes.plot([mean], [place], "|", color=plots.INK, markersize=14, markeredgewidth=1.6)
        _lay_out(axes, list(rows), name)

    def draw_paper(axes: Axes) -> None:
        _dots(axes, {row: paper[row] for row in rows if row in paper} if paper else {}, list(rows))
        _lay_out(axes, list(rows), "in the paper")
        axes.tick_params(axis="y", labelleft=False)

    if not paper:
        return plots.png(plots.figure(draw, _size(len(rows))))
    return plots.png(plots.side_by_side([draw, draw_paper], _size(len(rows))))


def paper_plot(name: str, rows: Mapping[str, float]) -> bytes:
    """A PNG of one figure of the paper, a dot a row."""

    def draw(axes: Axes) -> None:
        _dots(axes, rows, list(rows))
        _lay_out(axes, list(rows), f"{name}, in the paper")

    return plots.png(plots.figure(draw, _size(len(rows))))


def _dots(axes: Axes, values: Mapping[str, float], rows: Sequence[str]) -> None:
    axes.plot(list(values.values()), [rows.index(row) for row in values], "o", color=plots.INK, markersize=5)


def _lay_out(axes: Axes, rows: Sequence[str], across: str) -> None:
    axes.set_yticks(range(len(rows)), rows, parse_math=False)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.margins(x=_PAD)
    axes.set_xlabel(across, parse_math=False)
    axes.locator_params(axis="x", nbins=5)


def _size(rows: int) -> tuple[float, float]:
    return plots.WIDTH, 0.9 + 0.3 * rows
