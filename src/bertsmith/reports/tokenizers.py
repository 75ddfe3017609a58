"""The page and the picture of a comparison of tokenizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bertsmith.formatting import percent
from bertsmith.reports.page import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Words by what becomes of them, and the colours of the picture; those of the page are in its style.
PARTS = ("one piece", "2 pieces", "3 pieces", "4 or more", "unknown")
_COLOURS = ("#1f5f99", "#4f8fca", "#8fbbe3", "#cfe2f4", "#c8452f")
_UNKNOWN_HATCH = "///"  # told apart without colours, too
_NAME = 32  # characters of a name beside a bar


def tokenizers_page(report: Mapping[str, Any]) -> str:
    """The HTML page of a report of `survey.inspect.measure`; all that came from files is escaped."""
    shares = {name: word_shares(row) for name, row in report["tokenizers"].items()}
    return render("tokenizers.html", report=report, part_names=PARTS, shares=shares)


def word_shares(row: Mapping[str, Any]) -> list[float]:
    """The shares of the words that are one piece, 2, 3, 4 or more, and those with an unknown piece or none."""
    (dropped, *known), total = row["words_by_pieces"], max(1, row["words"])
    return [n / total for n in (*known[:3], sum(known[3:]), row["unknown_words"] + dropped)]


def tokenizers_plot(report: Mapping[str, Any]) -> Figure:
    """Of each tokenizer, the best on top, a bar of all words: those of one piece, of more, and unknown ones."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = report["order"]
    shares = [word_shares(report["tokenizers"][name]) for name in names]
    figure = Figure(figsize=(7.2, 1.5 + 0.42 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    places, left = range(len(names)), [0.0] * len(names)
    for i, part in enumerate(PARTS):
        widths = [share[i] for share in shares]
        hatch = _UNKNOWN_HATCH if part == "unknown" else ""
        axes.barh(places, widths, 0.66, left, label=part, color=_COLOURS[i], hatch=hatch, edgecolor="white")
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    axes.set_yticks(places, [_plain(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    for place, share in zip(places, shares, strict=True):
        axes.text(1.01, place, f"{percent(share[-1])} unknown", va="center")
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.set_xlabel("share of the words")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside upper center", ncols=len(PARTS), frameon=False)
    return figure


def _plain(name: str) -> str:
    """A name that is drawn as it is, no formula between dollars; the end of a long one."""
    shown = name if len(name) <= _NAME else "…" + name[1 - _NAME :]
    return shown.replace("$", r"\$")
