"""The page and the plot of a comparison of tokenizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bertsmith.formatting import format_percent
from bertsmith.reports.page import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = ("one piece", "2 pieces", "3 pieces", "4 or more", "unknown")
"""Groups of words by their number of pieces."""
_COLORS = ("#1f5f99", "#4f8fca", "#8fbbe3", "#cfe2f4", "#c8452f")  # as in base.html: --part-1 to -4, --lost
_UNKNOWN_HATCH = "///"  # distinguishes unknown words without colors, too
_MAX_NAME_LENGTH = 32  # characters


def tokenizers_page(report: Mapping[str, Any]) -> str:
    """Return the HTML page of a report of `bertsmith.inspect_tokenizers`; text from files is escaped."""
    shares = {name: word_shares(row) for name, row in report["tokenizers"].items()}
    return render("tokenizers.html", report=report, part_names=PARTS, shares=shares)


def word_shares(row: Mapping[str, Any]) -> list[float]:
    """Return the fraction of the words in each of `PARTS`; words without pieces count as unknown."""
    (num_without_pieces, *counts), total = row["words_by_pieces"], max(1, row["words"])
    return [n / total for n in (*counts[:3], sum(counts[3:]), row["unknown_words"] + num_without_pieces)]


def tokenizers_plot(report: Mapping[str, Any]) -> Figure:
    """Plot a stacked bar of `word_shares` per tokenizer, the best tokenizer on top."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = report["order"]
    shares = [word_shares(report["tokenizers"][name]) for name in names]
    figure = Figure(figsize=(7.2, 1.5 + 0.42 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    ticks, starts = range(len(names)), [0.0] * len(names)
    for i, part in enumerate(PARTS):
        widths = [share[i] for share in shares]
        hatch = _UNKNOWN_HATCH if part == "unknown" else ""
        axes.barh(ticks, widths, 0.66, starts, label=part, color=_COLORS[i], hatch=hatch, edgecolor="white")
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axes.set_yticks(ticks, [_format_name(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    for tick, share in zip(ticks, shares, strict=True):
        axes.text(1.01, tick, f"{format_percent(share[-1])} unknown", va="center")
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.set_xlabel("share of the words")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside upper center", ncols=len(PARTS), frameon=False)
    return figure


def _format_name(name: str) -> str:
    """Return the end of a long name, with dollar signs escaped, since Matplotlib reads them as formulas."""
    shown = name if len(name) <= _MAX_NAME_LENGTH else "…" + name[1 - _MAX_NAME_LENGTH :]
    return shown.replace("$", r"\$")
