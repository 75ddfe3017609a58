"""The page of a corpus check: findings first, then the facts with their plots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertsmith.formatting import counted
from bertsmith.reports import plots
from bertsmith.reports.page import render

_MOST_BARS = 10
_MOST_PIECES = 6  # that have a bar of their own
_UNKNOWN = "with an unknown piece"
_MOST_FILES = 200  # whose faults are listed
_MOST_ROWS = 50  # of tasks, found in the corpus


def corpus_page(report: Mapping[str, Any]) -> str:
    """The HTML page of a report of `look.check.check_corpus`."""
    documents = report["documents"]
    lengths = [
        _lengths(documents["characters"], "document", "characters per document"),
        _lengths(documents["sentences_per_document"], "document", "sentences per document"),
        _lengths(documents["sentence_characters"], "sentence", "characters per sentence"),
        _lengths(report["lines"]["lengths"], "line", "characters per line"),
    ]
    bars = {
        "scripts": _shares(report["scripts"]),
        "languages": _shares(report["languages"]),
        "repeated": _repeated(report),
        "pieces": _pieces(report["tokenizer"]) if "tokenizer" in report else [],
    }
    shown = list(filter(None, lengths))
    most = {"most_files": _MOST_FILES, "most_rows": _MOST_ROWS}
    return render("corpus.html", report=report, lengths=shown, bars=bars, unknown=_UNKNOWN, **most)


def _repeated(report: Mapping[str, Any]) -> list[tuple[str, float]]:
    boilerplate = report["lines"]["boilerplate"]
    parts = {
        "repeated documents": report["duplicates"]["exact"],
        "near-repetitions of documents": report["duplicates"]["near"],
        "repeated lines": report["lines"]["repeated"],
        "lines that recur in many documents": report["lines"]["repeated"]["in_many_documents"],
        "navigation and cookie lines": boilerplate["navigation"],
        "lines with web addresses": boilerplate["urls"],
        "lines of mostly digits and signs": boilerplate["symbols"],
        "lines without punctuation at their end": boilerplate["unended"],
    }
    return [(name, part["share_of_characters"]) for name, part in parts.items()]


def _lengths(summary: Mapping[str, Any], noun: str, measure: str) -> dict[str, Any] | None:
    """A histogram and what it says; no picture of a single value."""
    if not summary["number"]:
        return None
    number, least, most = (summary[key] for key in ("number", "least", "most"))
    unit = measure.partition(" ")[0]
    if least == most:
        told = f"{counted(number, noun)} of {counted(most, unit[:-1])}"
        return {"title": measure, "picture": None, "told": told + (" each" if number > 1 else "")}
    told = (
        f"{counted(number, noun)} of {least:,} to {most:,} {unit}; median {summary['median']:,}, "
        f"95 % have up to {summary['percentile_95']:,}"
    )
    histogram = summary["histogram"]
    figure = plots.histogram(histogram["edges"], histogram["counts"], measure, f"{noun}s")
    return {"title": measure, "picture": plots.picture(figure, f"{measure}: {told}"), "told": told}


def _shares(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, float]]:
    shown = [(name, entry["share"]) for name, entry in found.items()]
    if len(shown) <= _MOST_BARS:
        return shown
    rest = shown[_MOST_BARS - 1 :]
    return [*shown[: _MOST_BARS - 1], (f"{len(rest)} others", sum(share for _, share in rest))]


def _pieces(found: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Shares of the words by their pieces, those with an unknown piece apart."""
    counts, total = found["words_by_pieces"][1:], found["words"]
    if not total:
        return []
    shown = [(counted(n, "piece"), count) for n, count in enumerate(counts[: _MOST_PIECES - 1], start=1)]
    shown.append((f"{_MOST_PIECES} or more", sum(counts[_MOST_PIECES - 1 :])))
    while not shown[-1][1] and len(shown) > 1:
        shown.pop()
    shown.append((_UNKNOWN, found["unknown_words"]))
    return [(name, count / total) for name, count in shown]
