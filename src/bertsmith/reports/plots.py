"""Plots as pictures inside of a page: drawn without a display, in the page's own text colour."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK = "#123457"  # stands for the page's text colour until the picture is written
_BAR = "#3b82c4"
_SIZE = (5.4, 2.7)  # inches


def histogram(edges: Sequence[float], counts: Sequence[int], across: str, up: str) -> Figure:
    """Counts between edges, on a scale of logarithms across."""

    def draw(axes: Axes) -> None:
        widths = [right - left for left, right in pairwise(edges)]
        axes.bar(edges[:-1], counts, width=widths, align="edge", color=_BAR)
        if edges[-1] / max(1, edges[0]) > 50:
            axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
        axes.xaxis.set_minor_formatter("")
        axes.set_xlabel(across)
        axes.set_ylabel(up)

    return _figure(draw)


def bars(names: Sequence[str], values: Sequence[float], across: str, *, shares: bool = False) -> Figure:
    """A bar a name, the first on top; shares are written as per cent."""

    def draw(axes: Axes) -> None:
        drawn = axes.barh(range(len(names)), values, color=_BAR)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.bar_label(
            drawn, [f"{100 * v:.2g} %" if shares else f"{v:,.4g}" for v in values], padding=3, color=_INK
        )
        axes.margins(x=0.16)
        if shares:
            axes.xaxis.set_major_formatter(lambda x, _: f"{100 * x:.3g} %")
        axes.set_xlabel(across)

    return _figure(draw)


def picture(figure: Figure, alternative: str) -> Markup:
    """A figure as SVG to stand in a page, with a description for those who do not see it."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": alternative}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    body = text[text.index("<svg") :].replace(_INK, "currentColor")
    # Matplotlib has escaped the words in it; links in its metadata would be the page's only ones outwards.
    begin, end = body.find("<metadata>"), body.find("</metadata>")
    if begin >= 0:
        body = body[:begin] + body[end + len("</metadata>") :]
    label = Markup('<svg role="img" aria-label="{}" ').format(alternative)
    return label + Markup(body[len("<svg ") :])


def _figure(draw: Callable[[Axes], None]) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw(axes)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK, which="both")
    for part in (axes.xaxis.label, axes.yaxis.label):
        part.set_color(_INK)
    for spine in axes.spines.values():
        spine.set_color(_INK)
    return figure
