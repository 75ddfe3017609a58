"""Curves of several runs: charts in a terminal, and a page that reloads itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.formatting import pluralize
from bertsmith.reports import plots
from bertsmith.reports.page import render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.text import Text

Curves = Mapping[str, Mapping[int, float]]
"""The values of a metric by run and update."""

COLORS = ("cyan", "yellow", "magenta", "green", "red", "blue")
MARKERS = "*+xo#@"
_BRAILLE = np.array(
    [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]]
)  # bit of each dot of a character
_BRAILLE_BASE = 0x2800
_LABEL_WIDTH = 8
_LINE_STYLES = [
    (plots.BAR, "-"),
    (plots.ALERT, "--"),
    (plots.INK, ":"),
    (plots.BAR, "-."),
    (plots.ALERT, "-"),
]
_MAX_POINTS = 400  # of a curve of the page


def draw_chart(
    title: str, curves: Curves, order: Sequence[str], width: int, height: int, *, colored: bool
) -> Text:
    """Draw curves with characters.

    Args:
        title: The first line.
        curves: The curves by run.
        order: The names of all runs, which determine the colors or the characters.
        width: Characters of a line.
        height: Lines, of which the first is the title and the last one has the updates.
        colored: Draw with dots of braille in colors, otherwise with a character for each run.
    """
    from rich.text import Text

    columns, rows = max(4, width - _LABEL_WIDTH - 1), max(2, height - 2)
    x_dots, y_dots = (2, 4) if colored else (1, 1)
    values = [value for curve in curves.values() for value in curve.values()]
    low, high = min(values), max(values)
    first, last = min(min(curve) for curve in curves.values()), max(max(curve) for curve in curves.values())
    cells = np.full((rows, columns), " ", dtype=object)
    styles = np.full((rows, columns), "", dtype=object)
    for name, curve in curves.items():
        heights = _resample(curve, first, last, columns * x_dots)
        dots = _dots((heights - low) / ((high - low) or 1.0), rows * y_dots)
        index = list(order).index(name)
        codes = (dots.reshape(rows, y_dots, columns, x_dots) * _BRAILLE[None, :y_dots, None, :x_dots]).sum(
            (1, 3)
        )
        for row, column in np.argwhere(codes):
            marker = MARKERS[index % len(MARKERS)]
            cells[row, column] = chr(_BRAILLE_BASE + int(codes[row, column])) if colored else marker
            styles[row, column] = COLORS[index % len(COLORS)] if colored else ""
    text = Text(f"{'':{_LABEL_WIDTH}} {title}\n", style="", no_wrap=True)
    text.stylize("bold")
    for row in range(rows):
        label = _format(high) if row == 0 else _format(low) if row == rows - 1 else ""
        text.append(f"{label:>{_LABEL_WIDTH}} ", style="not bold")
        for style, group in groupby(zip(styles[row], cells[row], strict=True), key=itemgetter(0)):
            text.append("".join(cell for _, cell in group), style=f"not bold {style}")
        text.append("\n")
    right = f"update {last:,}"
    text.append(f"{'':{_LABEL_WIDTH}} {first:<{max(1, columns - len(right))},}{right}", style="not bold dim")
    return text


def _resample(curve: Mapping[int, float], first: int, last: int, size: int) -> NDArray[np.float64]:
    """Return means of a curve at `size` positions between two steps, interpolated; NaN outside of the curve."""
    steps, values = np.array(list(curve)), np.array(list(curve.values()), dtype=np.float64)
    positions = np.rint((steps - first) / max(1, last - first) * (size - 1)).astype(np.int64)
    used, inverse = np.unique(positions, return_inverse=True)
    means = np.bincount(inverse, values) / np.bincount(inverse)
    return np.interp(np.arange(size), used, means, left=np.nan, right=np.nan)


def _dots(heights: NDArray[np.float64], size: int) -> NDArray[np.bool_]:
    """Return which dots a line covers, bool [size, columns], from heights between 0 and 1."""
    dots = np.zeros((size, len(heights)), dtype=bool)
    previous: int | None = None
    for column, height in enumerate(heights):
        if np.isnan(height):
            previous = None
            continue
        row = size - 1 - round(float(height) * (size - 1))
        top, bottom = sorted((row, row if previous is None else previous))
        dots[top + (top != row) : bottom + 1 - (bottom != row), column] = True
        previous = row
    return dots


def _format(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def render_curves_page(
    runs: Sequence[Mapping[str, Any]], charts: Mapping[str, Curves], refresh_seconds: int | None
) -> str:
    """Return the page of some runs; text from files is escaped.

    Args:
        runs: The summary of each run.
        charts: Curves by title.
        refresh_seconds: The time after which a browser loads the page again; None: never.
    """
    order = [str(run["run"]) for run in runs]
    pictures = {
        title: plots.to_svg(
            _plot(title, curves, order), f"{title} of {pluralize(len(curves), 'run')} by update"
        )
        for title, curves in charts.items()
    }
    return render("watch.html", runs=runs, pictures=pictures, refresh_seconds=refresh_seconds)


def _plot(title: str, curves: Curves, order: Sequence[str]) -> Any:
    counts = Counter(Path(run).name for run in order)
    names = ["/".join(Path(run).parts[-2 if counts[Path(run).name] > 1 else -1 :]) for run in order]
    labels = dict(zip(order, plots.displayable_labels(names, "run"), strict=True))

    def draw(axes: Axes) -> None:
        for name, curve in curves.items():
            index = order.index(name)
            color, dash = _LINE_STYLES[index % len(_LINE_STYLES)]
            first, last = min(curve), max(curve)
            steps, values = np.array(list(curve)), np.array(list(curve.values()))
            if len(curve) > _MAX_POINTS:
                steps, values = (
                    np.linspace(first, last, _MAX_POINTS),
                    _resample(curve, first, last, _MAX_POINTS),
                )
            marker = "o" if len(curve) == 1 else None
            axes.plot(steps, values, dash, color=color, marker=marker, markersize=4, label=labels[name])
        if len(order) > 1:
            axes.legend(frameon=False, labelcolor=plots.INK, fontsize="small")
        plots.set_integer_ticks(axes.xaxis)
        axes.set_xlabel("update")
        axes.set_ylabel(title)

    return plots.figure(draw)
