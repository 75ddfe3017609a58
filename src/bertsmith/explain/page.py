"""The page of an explanation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from markupsafe import Markup

from bertsmith.explain.explanation import Explanation, WordAttribution
from bertsmith.explain.faithfulness import Faithfulness
from bertsmith.reports import plots
from bertsmith.reports.page import render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CURVES_CAPTION = (
    "The output as words are masked, the most important first (solid), in random order (dotted), and the least "
    "important first (dashed). The faster the solid line falls below the dotted one, the more faithful the order."
)


def render_explanation(explanation: Explanation, model: str) -> str:
    """Return the HTML page of an explanation, which needs no network; texts are escaped.

    Args:
        explanation: The explanation.
        model: The name of the model.
    """
    curves = Markup()
    if explanation.faithfulness is not None:
        curves = plots.to_svg(plot_curves(explanation.faithfulness), _CURVES_CAPTION)
    return render(
        "explanation.html",
        explanation=explanation,
        model=model,
        inputs=_inputs(explanation.words),
        largest=max((abs(word.attribution) for word in explanation.words), default=0) or 1,
        curves=curves,
        caption=_CURVES_CAPTION,
    )


def plot_curves(faithfulness: Faithfulness) -> Figure:
    """Plot the output by the number of masked words."""

    def draw(axes: Axes) -> None:
        plots.set_integer_ticks(axes.xaxis)
        axes.plot(faithfulness.random, color=plots.INK, linestyle=":")
        axes.plot(faithfulness.reversed, color=plots.ALERT, linestyle="--")
        axes.plot(faithfulness.deletion, color=plots.BAR)
        axes.set_xlabel("masked words")
        axes.set_ylabel("output")

    return plots.figure(draw)


def _inputs(words: Sequence[WordAttribution]) -> list[tuple[str, list[WordAttribution]]]:
    """Return the words of each input by its name; "" if their place is unknown."""
    return [(name, list(group)) for name, group in groupby(words, key=lambda word: word.source or "")]
