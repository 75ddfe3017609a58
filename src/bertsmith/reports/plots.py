"""Plots for pages, in the page's colors and font size, drawn without a display.

A plot is as wide as a phone's screen and shown up to a quarter larger, so that its text has about the size of the
page's text at any width. Bar charts of shares are HTML: see the macro `bars` in templates/parts.html.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from markupsafe import Markup

from bertsmith.formatting import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# The page's colors in its light color scheme: of text, bars and lines of data, grid lines, and limits or a second
# line of data. A PNG keeps them; in a page they become CSS variables that follow the color scheme.
INK, BAR, LINE, ALERT = "#1c1f23", "#3b7fc0", "#d9dde2", "#c8452f"
_CSS_COLORS = {INK: "currentColor", BAR: "var(--bar)", LINE: "var(--line)", ALERT: "var(--lost)"}
_COLOR = re.compile(f"(fill|stroke): ({'|'.join(_CSS_COLORS)})")
WIDTH = 340 / 72  # inches of 72 points
_SIZE = (WIDTH, 200 / 72)
_FONT_SIZE = 11  # points
_PNG_DPI = 144
_LABEL_MARGIN = 0.5  # inches, for the labels of a grid of squares
_FIRST_MISSING_GLYPH = 0x0530  # Matplotlib's font lacks most characters from this code point on
_MAX_LABEL_LENGTH = 20  # characters
_MIN_BARS = 8  # the x axis has space for at least as many bars, so that a few do not fill it


def histogram(
    edges: Sequence[float], counts: Sequence[int], x_label: str, y_label: str, mark: float | None = None
) -> Figure:
    """Plot a histogram of integers: linearly if each bin holds one integer, else with a logarithmic x axis.

    Args:
        edges: The edges of the bins, of which the right one is excluded.
        counts: The number of values in each bin.
        x_label: The label of the x axis.
        y_label: The label of the y axis.
        mark: The position of a vertical line.
    """

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import LogLocator, StrMethodFormatter

        widths = [end - start for start, end in pairwise(edges)]
        low, high = edges[0], max(edges[0], edges[-1] - 1)
        set_integer_ticks(axes.xaxis)
        set_integer_ticks(axes.yaxis)
        if all(width == 1 for width in widths):
            axes.bar(edges[:-1], counts, width=0.9, color=BAR)
            margin = max(0.0, (_MIN_BARS - len(counts)) / 2)
            axes.set_xlim(low - 0.6 - margin, high + 0.6 + margin)
        else:
            axes.bar(edges[:-1], counts, width=widths, align="edge", color=BAR)
            axes.set_xscale("log")
            if high < 10 * low:
                set_integer_ticks(axes.xaxis)
            else:
                digits = (1,) if high >= 100 * low else (1, 2, 5)
                axes.xaxis.set_major_locator(LogLocator(subs=digits, numticks=5))
                axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_ylim(0, 1.05 * max(1, *counts))
        axes.minorticks_off()
        if mark is not None and low <= mark <= high:
            axes.axvline(mark, color=ALERT, linestyle="--")
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)

    return figure(draw)


def set_integer_ticks(axis: Axis) -> None:
    """Use a few integers as ticks."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axis.set_major_locator(MaxNLocator(4, integer=True))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def to_svg(fig: Figure, description: str) -> Markup:
    """Return a figure as inline SVG with a description for screen readers."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": description}):
        fig.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    body = text[text.index("<svg") :]
    body = _COLOR.sub(lambda match: f"{match[1]}: {_CSS_COLORS[match[2]]}", body)
    # Matplotlib has escaped the text; its metadata would contain the only external links of the page.
    start, end = body.find("<metadata>"), body.find("</metadata>")
    if start >= 0:
        body = body[:start] + body[end + len("</metadata>") :]
    label = Markup('<svg role="img" aria-label="{}" ').format(description)
    return label + Markup(body[len("<svg ") :])


def to_png(fig: Figure) -> bytes:
    """Return a figure as a PNG on white."""
    out = io.BytesIO()
    fig.savefig(out, format="png", dpi=_PNG_DPI, facecolor="white", metadata={"Software": None})
    return out.getvalue()


def figure(draw: Callable[[Axes], None], size: tuple[float, float] = _SIZE) -> Figure:
    """Return a figure with one pair of axes in the page's style.

    Args:
        draw: Fills the axes.
        size: Width and height in inches of 72 points.
    """
    return figure_row([draw], size)


def figure_row(draws: Sequence[Callable[[Axes], None]], size: tuple[float, float] = _SIZE) -> Figure:
    """Return a figure with several axes side by side.

    Args:
        draws: A function for each of the axes, which fills them.
        size: Total width and height in inches of 72 points.
    """

    def fill(result: Figure) -> None:
        for draw, axes in zip(draws, result.subplots(1, len(draws), squeeze=False)[0], strict=True):
            draw(axes)
            style(axes)

    def style(axes: Axes) -> None:
        axes.set_axisbelow(True)
        axes.grid(axis="y", color=LINE, linewidth=0.8)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(INK)
        # Without labelsize, Matplotlib looks up the font size again when the figure is saved, outside rc_context.
        axes.tick_params(colors=INK, labelsize=_FONT_SIZE)
        axes.tick_params(axis="y", length=0)
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set_color(INK)

    return _build(fill, size)


def square_grid(draw: Callable[[Axes, int, int], None], rows: int, columns: int, side: float) -> Figure:
    """Return a figure with a grid of square axes without ticks.

    Args:
        draw: Fills the axes of a row and a column, and may set a title and a y label.
        rows: The number of rows.
        columns: The number of columns.
        side: The side of a square in inches of 72 points.
    """

    def fill(result: Figure) -> None:
        for row, axes_row in enumerate(result.subplots(rows, columns, squeeze=False)):
            for column, axes in enumerate(axes_row):
                axes.set_xticks([])
                axes.set_yticks([])
                axes.spines[:].set_color(LINE)
                draw(axes, row, column)
                for label in (axes.title, axes.yaxis.label):
                    label.set_color(INK)

    return _build(fill, (side * columns + _LABEL_MARGIN, side * rows + _LABEL_MARGIN))


def displayable_labels(labels: Sequence[str], noun: str = "label") -> list[str]:
    """Shorten labels, and replace those that the font cannot show by a noun and their index."""

    def displayable(index: int, label: str) -> str:
        if not all(ord(c) < _FIRST_MISSING_GLYPH and c.isprintable() for c in label):
            return f"{noun} {index}"
        return shorten(label, _MAX_LABEL_LENGTH)

    return [displayable(i, label) for i, label in enumerate(labels)]


def _build(fill: Callable[[Figure], None], size: tuple[float, float]) -> Figure:
    """Create a figure in the page's font size, fill it, and compute its layout.

    Args:
        fill: Adds axes to the figure and draws on them.
        size: Width and height in inches of 72 points.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context({"font.size": _FONT_SIZE}):
        layout = ConstrainedLayoutEngine()
        result = Figure(figsize=size, layout=layout)
        FigureCanvasAgg(result)
        fill(result)
        # Fix the layout; otherwise saving the figure changes it, and a second file of it differs.
        layout.execute(result)
        result.set_layout_engine("none")
    return result
