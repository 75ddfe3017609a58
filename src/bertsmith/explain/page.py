"""The pages and plots of explanations and of attention weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from bertsmith.errors import InputError, option
from bertsmith.explain.attention_view import AttentionView, attention_view
from bertsmith.formatting import format_bytes
from bertsmith.io import atomic
from bertsmith.reports import plots
from bertsmith.reports.page import check_suffix, load_script, render, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bertsmith.explain.attention import AttentionMaps
    from bertsmith.explain.explanation import Explanation, WordAttribution
    from bertsmith.explain.faithfulness import Faithfulness

_MAX_BYTES = 64_000_000  # of a page: 12 layers with 12 heads and 512 tokens always fit
_MAX_BARS = 30  # words of a plot: those with the largest attributions
_BAR_HEIGHT, _MARGIN, _MIN_HEIGHT = 0.25, 0.7, 2.8  # inches

_CURVES_CAPTION = (
    "The output as words are masked, the most important first (solid), in random order (dotted), and the least "
    "important first (dashed). The faster the solid line falls below the dotted one, the more faithful the order."
)


def render_attention(maps: AttentionMaps) -> str:
    """Return the HTML page of attention weights, which needs no network; tokens are escaped."""
    return render("attention.html", maps=maps, view=attention_view(maps), script=load_script("attention.js"))


def render_explanations(explanations: Sequence[Explanation]) -> str:
    """Return the HTML page of the explanations of one or several models, side by side; texts are escaped."""
    views = [_attention_views(explanation) for explanation in explanations]
    return render(
        "explanation.html",
        explanations=explanations,
        inputs=[_inputs(explanation) for explanation in explanations],
        curves=[_curves(explanation.faithfulness) for explanation in explanations],
        caption=_CURVES_CAPTION,
        views=views,
        script=load_script("attention.js") if any(views) else None,
    )


def save_explanations(file: str | Path, explanations: Sequence[Explanation]) -> Path:
    """Write the page (.html) or the plot (.png) of the explanations of one or several models; return its path.

    Raises:
        InputError: The name of the file has another ending, or the page would have more than 64 MB.
    """
    if check_suffix(file) == ".png":
        with atomic.write_errors(file):
            atomic.write_bytes(Path(file), plot_explanations(explanations))
        return Path(file)
    hint = f"use a shorter text, or leave out the weights: {option('attention', False)}"
    return save_page(file, render_explanations(explanations), hint)


def save_page(file: str | Path, page: str, hint: str) -> Path:
    """Write a page, and return its path; raise InputError with the hint if it has more than 64 MB."""
    content = page.encode("utf-8")
    if len(content) > _MAX_BYTES:
        size, limit = map(format_bytes, (len(content), _MAX_BYTES))
        message = f"the page would have {size}, and a page has at most {limit}"
        raise InputError("page_too_large", message, location=file, hint=hint)
    with atomic.write_errors(file):
        atomic.write_bytes(Path(file), content)
    return Path(file)


def _attention_views(explanation: Explanation) -> list[AttentionView]:
    """Return a view for each sequence that the model reads."""
    count = len(explanation.attention)
    titles = [f"sequence {i + 1} of {count}" if count > 1 else "" for i in range(count)]
    return [
        attention_view(maps, maps.title or title)
        for maps, title in zip(explanation.attention, titles, strict=True)
    ]


def plot_explanations(explanations: Sequence[Explanation]) -> bytes:
    """Plot the attributions of words, and the curves of faithfulness, of each model as a PNG."""
    draws = [draw for explanation in explanations for draw in _draws(explanation)]
    num_bars = max(min(len(explanation.words), _MAX_BARS) for explanation in explanations)
    size = (plots.WIDTH * len(draws), max(_MIN_HEIGHT, _BAR_HEIGHT * num_bars + _MARGIN))
    return plots.to_png(plots.figure_row(draws, size))


def _draws(explanation: Explanation) -> list[Callable[[Axes], None]]:
    words = sorted(explanation.words, key=lambda word: -abs(word.attribution))[:_MAX_BARS]
    words.sort(key=lambda word: word.tokens)
    labels = plots.displayable_labels([visible(word.word) for word in words], "word")
    (target,) = plots.displayable_labels([visible(explanation.target)], "output")
    (model,) = plots.displayable_labels([visible(Path(explanation.model).name)], "model")

    def draw_bars(axes: Axes) -> None:
        values = [word.attribution for word in words]
        colors = [plots.BAR if value >= 0 else plots.ALERT for value in values]
        axes.barh(range(len(words)), values, color=colors)
        axes.set_yticks(range(len(words)), labels, parse_math=False)
        axes.invert_yaxis()
        axes.set_xlabel(f"attribution to {target}", parse_math=False)
        axes.set_title(model, fontsize="small", parse_math=False)

    faithfulness = explanation.faithfulness
    return [draw_bars] if faithfulness is None else [draw_bars, partial(_draw_curves, faithfulness)]


def _curves(faithfulness: Faithfulness | None) -> Markup:
    if faithfulness is None:
        return Markup()
    return plots.to_svg(plots.figure(partial(_draw_curves, faithfulness)), _CURVES_CAPTION)


def _draw_curves(faithfulness: Faithfulness, axes: Axes) -> None:
    """Plot the output by the number of masked words."""
    plots.set_integer_ticks(axes.xaxis)
    axes.plot(faithfulness.deletion, color=plots.BAR, label="most important first")
    axes.plot(faithfulness.random, color=plots.INK, linestyle=":", label="random order")
    axes.plot(faithfulness.reversed, color=plots.ALERT, linestyle="--", label="least important first")
    # Above the axes, where it covers no curve.
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (-0.02, 0.98), "ncols": 2}
    axes.legend(**place, frameon=False, labelcolor=plots.INK, fontsize="small", columnspacing=1)
    axes.set_xlabel("masked words")
    axes.set_ylabel("output")


def _inputs(explanation: Explanation) -> list[tuple[str, list[tuple[str, WordAttribution | None]]]]:
    """Return the parts of each input by its name, "" if it is unknown: its words, and the text between them."""
    inputs = []
    for name, words_of_input in groupby(
        explanation.words, key=lambda word: (word.source or "").partition("[")[0]
    ):
        parts: list[tuple[str, WordAttribution | None]] = []
        for source, words in groupby(words_of_input, key=lambda word: word.source):
            text, end = explanation.texts.get(source or "", ""), 0
            parts.append((" ", None))
            for word in words:
                has_place = text and word.start is not None
                parts += [(text[end : word.start] if has_place else " ", None), (word.word, word)]
                end = word.end or 0
            parts.append((text[end:], None))
        inputs.append((name, parts))
    return inputs
