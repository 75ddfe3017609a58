"""Plots as pictures inside of a page: drawn without a display, in the page's own colours and type.

A picture is drawn as wide as a phone and shown up to a quarter larger, so that its words are as large as the
page's at any width. Bars of shares are no pictures: see `bars` in templates/parts.html.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The page's light colours, which a PNG keeps; in a page they become the page's own, whatever its scheme.
INK, BAR, LINE, LOST = "#1c1f23", "#3b7fc0", "#d9dde2", "#c8452f"
_OF_PAGE = {INK: "currentColor", BAR: "var(--bar)", LINE: "var(--line)", LOST: "var(--lost)"}
_COLOUR = re.compile(f"(fill|stroke): ({'|'.join(_OF_PAGE)})")
WIDTH = 340 / 72  # inches of 72 units
_SIZE = (WIDTH, 200 / 72)
_TYPE = 11  # units
_PNG_DOTS = 144  # an inch
_ROOM = 0.5  # inches beside squares, for what they are called
_LAST_OF_DRAWN = 0x0530  # characters of labels from here on are in no font that comes with the plots
_LONGEST = 20  # characters of a label
_LEAST_BARS = 8  # there is room for: a plot of one bar is not all bar


def histogram(
    edges: Sequence[float], counts: Sequence[int], across: str, up: str, mark: float | None = None
) -> Figure:
    """Counts of whole numbers between edges (the right one not within). mark: a number to draw a line at.

    Bars of one number each stand on a plain scale, wider ones on a scale of logarithms.
    """

    def draw(axes: Axes) -> None:
        widths = [right - left for left, right in pairwise(edges)]
        low, high = edges[0], max(edges[0], edges[-1] - 1)
        if all(width == 1 for width in widths):
            axes.bar(edges[:-1], counts, width=0.9, color=BAR)
            spare = max(0.0, (_LEAST_BARS - len(counts)) / 2)
            axes.set_xlim(low - 0.6 - spare, high + 0.6 + spare)
            ticks = whole_ticks(low, high)
        else:
            axes.bar(edges[:-1], counts, width=widths, align="edge", color=BAR)
            axes.set_xscale("log")
            ticks = log_ticks(low, high)
        axes.set_xticks(ticks, [tick_label(tick) for tick in ticks])
        heights = whole_ticks(0, max(1, *counts), 5)
        axes.set_yticks(heights, [tick_label(height) for height in heights])
        axes.minorticks_off()
        if mark is not None and low <= mark <= high:
            axes.axvline(mark, color=LOST, linestyle="--")
        axes.set_xlabel(across)
        axes.set_ylabel(up)

    return figure(draw)


def whole_ticks(low: float, high: float, most: int = 6) -> list[int]:
    """Whole numbers from low to high in even steps of 1, 2 or 5 times a power of ten; `most` (4 or more) of them
    at most."""
    step = 1
    while (high - low) / step > most - 1:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def log_ticks(low: float, high: float, most: int = 6) -> list[int]:
    """At most `most` (4 or more) ticks for a scale of logarithms: 1, 2, 5, 10 …; or 1, 3, 10 …; or powers of ten,
    or some of them; even steps where these are fewer than three. low: at least 1."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    choices = [[first * 10**power for power in powers for first in firsts] for firsts in ((1, 2, 5), (1, 3))]
    choices += [[10**power for power in powers[::apart]] for apart in range(1, len(powers) + 1)]
    fitting = ([tick for tick in ticks if low <= tick <= high] for ticks in choices)
    ticks = next((ticks for ticks in fitting if len(ticks) <= most), [])
    return ticks if len(ticks) > 2 else whole_ticks(low, high, 4)


def tick_label(tick: int) -> str:
    """A whole number, short and exact: 950, 2,500, 20 k, 1.5 M."""
    if tick and tick % 100_000 == 0:
        millions, tenths = divmod(tick // 100_000, 10)
        return f"{millions:,}.{tenths} M" if tenths else f"{millions:,} M"
    return f"{tick // 1000:,} k" if tick >= 10_000 and tick % 1000 == 0 else f"{tick:,}"


def picture(drawn: Figure, alternative: str) -> Markup:
    """A figure as SVG to stand in a page, with a description for those who do not see it."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": alternative}):
        drawn.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    body = text[text.index("<svg") :]
    body = _COLOUR.sub(lambda found: f"{found[1]}: {_OF_PAGE[found[2]]}", body)
    # Matplotlib has escaped the words in it; links in its metadata would be the page's only ones outwards.
    begin, end = body.find("<metadata>"), body.find("</metadata>")
    if begin >= 0:
        body = body[:begin] + body[end + len("</metadata>") :]
    label = Markup('<svg role="img" aria-label="{}" ').format(alternative)
    return label + Markup(body[len("<svg ") :])


def png(drawn: Figure) -> bytes:
    """A figure as a PNG on white."""
    out = io.BytesIO()
    drawn.savefig(out, format="png", dpi=_PNG_DOTS, facecolor="white", metadata={"Software": None})
    return out.getvalue()


def figure(draw: Callable[[Axes], None], size: tuple[float, float] = _SIZE) -> Figure:
    """A figure of what `draw` puts on its axes, in the page's type and colours. size: in inches of 72 units."""

    return side_by_side([draw], size)


def side_by_side(draws: Sequence[Callable[[Axes], None]], size: tuple[float, float] = _SIZE) -> Figure:
    """A figure as `figure` makes it, with several axes beside each other. size: of all of it."""

    def lay_out(made: Figure) -> None:
        for draw, axes in zip(draws, made.subplots(1, len(draws), squeeze=False)[0], strict=True):
            draw(axes)
            settle(axes)

    def settle(axes: Axes) -> None:
        axes.set_axisbelow(True)
        axes.grid(axis="y", color=LINE, linewidth=0.8)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(INK)
        # With their size: else it is looked up again when the picture is drawn, and with it how many ticks fit.
        axes.tick_params(colors=INK, labelsize=_TYPE)
        axes.tick_params(axis="y", length=0)
        for part in (axes.xaxis.label, axes.yaxis.label):
            part.set_color(INK)

    return _made(lay_out, size)


def squares(draw: Callable[[Axes, int, int], None], rows: int, columns: int, side: float) -> Figure:
    """A figure of pictures beside and below each other, without ticks. draw: puts one on its axes, given its row
    and column, and may give it a title and a label on its left; side: of each, in inches of 72 units."""

    def lay_out(made: Figure) -> None:
        for row, line in enumerate(made.subplots(rows, columns, squeeze=False)):
            for column, axes in enumerate(line):
                axes.set_xticks([])
                axes.set_yticks([])
                axes.spines[:].set_color(LINE)
                draw(axes, row, column)
                for part in (axes.title, axes.yaxis.label):
                    part.set_color(INK)

    return _made(lay_out, (side * columns + _ROOM, side * rows + _ROOM))


def drawable(labels: Sequence[str], what: str = "label") -> list[str]:
    """Labels as a picture can show them: shortened, and by their number where its font lacks their characters."""
    known = [all(ord(c) < _LAST_OF_DRAWN and c.isprintable() for c in label) for label in labels]
    short = [label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…" for label in labels]
    return [
        name if drawn else f"{what} {i}" for i, (name, drawn) in enumerate(zip(short, known, strict=True))
    ]


def _made(lay_out: Callable[[Figure], None], size: tuple[float, float]) -> Figure:
    """A figure in the page's type, which later changes of what is around it do not touch."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context({"font.size": _TYPE}):  # of labels and ticks, too
        layout = ConstrainedLayoutEngine()
        made = Figure(figsize=size, layout=layout)
        FigureCanvasAgg(made)
        lay_out(made)
        # once and for all, so that a picture does not depend on what was made of the figure before
        layout.execute(made)
        made.set_layout_engine("none")
    return made
