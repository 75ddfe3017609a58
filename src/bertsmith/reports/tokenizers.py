"""The page and the picture of a comparison of tokenizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertsmith.reports import plots
from bertsmith.reports.page import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_PIECES = 8  # pieces a word that have a place of their own in the plot
_COLOURS = ("#3b82c4", "#d1722e", "#4a9b6a", "#a8559b", "#8a7a2f", "#5b6470")
_HATCHES = ("", "//", "..", "xx", "\\\\", "++")  # told apart without colours, too


def tokenizers_page(report: dict[str, Any]) -> str:
    """The HTML page of a report of `survey.inspect.measure`; all that came from files is escaped."""
    told = "; ".join(
        f"{name}: {row['pieces_a_word']:.2f} pieces per word, {row['unknown_token_share']:.2%} unknown"
        for name, row in report["tokenizers"].items()
    )
    figure = tokenizers_plot(report, ink=plots._INK)
    return render("tokenizers.html", report=report, picture=plots.picture(figure, told))


def tokenizers_plot(report: Mapping[str, Any], *, ink: str = "black") -> Figure:
    """Pieces a word (share of the words, by tokenizer) and, below, the share of unknown tokens and words."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = report["tokenizers"]
    figure = Figure(figsize=(7.2, 4.2 + 0.35 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, height_ratios=[3, 1 + 0.5 * len(rows)])
    width = 0.8 / len(rows)
    for i, (name, row) in enumerate(rows.items()):
        look = {"color": _COLOURS[i % len(_COLOURS)], "hatch": _HATCHES[i // len(_COLOURS) % len(_HATCHES)]}
        shares = _distribution(row["words_by_pieces"])
        places = [place + i * width for place in range(len(shares))]
        label = f"{_plain(name)} ({row['pieces_a_word']:.2f} a word)"
        above.bar(places, shares, width, align="edge", label=label, **look)
        values = [row["unknown_token_share"], row["unknown_word_share"]]
        drawn = below.barh(
            [place + i * width for place in (0, 1)], values, width, align="edge", label=_plain(name), **look
        )
        below.bar_label(drawn, [f"{100 * value:.2g} %" for value in values], padding=3, color=ink)
    names = [str(n) for n in range(1, _MOST_PIECES)] + [f"{_MOST_PIECES} or more"]
    above.set_xticks([place + 0.4 for place in range(_MOST_PIECES)], names)
    above.set_xlabel("pieces per word")
    above.set_ylabel("share of the words")
    above.yaxis.set_major_formatter(lambda y, _: f"{100 * y:.3g} %")
    above.legend(frameon=False, labelcolor=ink)
    below.set_yticks([0.4, 1.4], ["tokens", "words"])
    below.invert_yaxis()
    below.margins(x=0.16)
    below.set_xlim(left=0)
    below.xaxis.set_major_formatter(lambda x, _: f"{100 * x:.3g} %")
    below.set_xlabel("share unknown")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=ink, which="both")
        axes.xaxis.label.set_color(ink)
        axes.yaxis.label.set_color(ink)
        for spine in axes.spines.values():
            spine.set_color(ink)
    return figure


def _distribution(counts: Sequence[int]) -> list[float]:
    """Shares of words with 1, 2, … pieces, the last with all that have more; `counts` begins with none."""
    total = max(1, sum(counts))
    head = [count / total for count in counts[1:_MOST_PIECES]]
    return [*head, sum(counts[_MOST_PIECES:]) / total]


def _plain(name: str) -> str:
    """A name that is drawn as it is: no formula between dollars, no leading underscore (it hides a label)."""
    return (" " + name if name.startswith("_") else name).replace("$", r"\$")
