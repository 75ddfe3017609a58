"""The page of a corpus check: findings first, then the facts with their plots."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from bertsmith.reports import plots
from bertsmith.reports.page import render

_MOST_BARS = 10


def corpus_page(report: dict[str, Any]) -> str:
    """The HTML page of a report of `workflows.check.check_corpus`."""
    documents = report["documents"]
    pictures = {
        "documents": _lengths(documents["characters"], "characters per document", "documents"),
        "sentences": _lengths(documents["sentence_characters"], "characters a sentence", "sentences"),
        "lines": _lengths(report["lines"]["lengths"], "characters per line", "lines"),
        "a_document": _lengths(documents["sentences_a_document"], "sentences per document", "documents"),
        "scripts": _shares({n: v["share"] for n, v in report["scripts"].items()}, "share of the letters"),
        "languages": _shares({n: v["share"] for n, v in report["languages"].items()}, "share of the text"),
        "repeated": _shares(_repeated(report), "share of the characters", keep_order=True),
    }
    if "tokenizer" in report:
        pictures["pieces"] = _pieces(report["tokenizer"]["words_by_pieces"][1:])
    return render("corpus.html", report=report, pictures=pictures)


def _repeated(report: dict[str, Any]) -> dict[str, float]:
    boilerplate = report["lines"]["boilerplate"]
    return {
        "documents, exactly": report["duplicates"]["exact"]["share_of_characters"],
        "documents, nearly": report["duplicates"]["near"]["share_of_characters"],
        "lines": report["lines"]["repeated"]["share_of_characters"],
        "lines of many documents": report["lines"]["repeated"]["in_many_documents"]["share_of_characters"],
        "navigation": boilerplate["navigation"]["share_of_characters"],
        "web addresses": boilerplate["urls"]["share_of_characters"],
        "digits and signs": boilerplate["symbols"]["share_of_characters"],
        "no end punctuation": boilerplate["unended"]["share_of_characters"],
    }


def _lengths(summary: dict[str, Any], across: str, up: str) -> Markup | None:
    if not summary["number"]:
        return None
    histogram = summary["histogram"]
    figure = plots.histogram(histogram["edges"], histogram["counts"], across, up)
    told = f"{across}: median {summary['median']:,}, 95 % up to {summary['percentile_95']:,}"
    return plots.picture(figure, told)


def _shares(shares: dict[str, float], across: str, *, keep_order: bool = False) -> Markup | None:
    shown = list(shares.items())
    if not keep_order:
        others = sum(share for _, share in shown[_MOST_BARS:])
        shown = [*shown[:_MOST_BARS], *([("others", others)] if others else [])]
    if not shown:
        return None
    names, values = [name for name, _ in shown], [share for _, share in shown]
    told = f"{across}: " + ", ".join(f"{name} {100 * share:.2g} %" for name, share in shown[:5])
    return plots.picture(plots.bars(names, values, across, shares=True), told)


def _pieces(counts: list[int]) -> Markup | None:
    total = sum(counts)
    if not total:
        return None
    last = max(i for i, count in enumerate(counts) if count) + 1
    names = [str(i + 1) for i in range(last)]
    if last == len(counts):
        names[-1] += " or more"
    shown = [count / total for count in counts[:last]]
    if last > _MOST_BARS:
        names = [*names[: _MOST_BARS - 1], f"{_MOST_BARS} or more"]
        shown = [*shown[: _MOST_BARS - 1], sum(shown[_MOST_BARS - 1 :])]
    figure = plots.bars(names, shown, "share of the words, by pieces", shares=True)
    return plots.picture(figure, f"pieces per word: {shown[0]:.0%} of the words are one piece")
