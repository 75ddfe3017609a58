"""The pages of a corpus check and of a comparison of tokenizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertsmith.formatting import pluralize
from bertsmith.reports import plots
from bertsmith.reports.page import describe_lengths, render

_MAX_BARS = 10  # in a chart of scripts
_MAX_PIECES = 6  # the last bar is of words with this many pieces or more
_UNKNOWN = "with an unknown piece"
_MAX_ROWS = 50  # rows of evaluation data that the corpus contains
PARTS = ("one piece", "2 pieces", "3 pieces", "4 or more", "unknown")
"""Groups of words by their number of pieces."""


def corpus_page(report: Mapping[str, Any]) -> str:
    """Return the HTML page of a report of `bertsmith.check_corpus`; text from files is escaped."""
    documents = report["documents"]
    lengths = [
        _length_histogram(documents["characters"], "document", "characters per document"),
        _length_histogram(documents["sentences_per_document"], "document", "sentences per document"),
        _length_histogram(documents["sentence_characters"], "sentence", "characters per sentence"),
        _length_histogram(report["lines"]["lengths"], "line", "characters per line"),
    ]
    bars = {
        "scripts": _top_shares(report["scripts"]),
        "repeated": _repetition_shares(report),
        "pieces": _piece_shares(report["tokenizer"]) if "tokenizer" in report else [],
    }
    values = {"lengths": list(filter(None, lengths)), "bars": bars, "unknown": _UNKNOWN}
    return render("corpus.html", report=report, **values, max_rows=_MAX_ROWS)


def _repetition_shares(report: Mapping[str, Any]) -> list[tuple[str, float]]:
    boilerplate = report["lines"]["boilerplate"]
    kinds = {
        "repeated documents": report["duplicates"]["exact"],
        "near-duplicate documents": report["duplicates"]["near"],
        "repeated lines": report["lines"]["repeated"],
        "lines that occur in many documents": report["lines"]["repeated"]["in_many_documents"],
        "navigation and cookie lines": boilerplate["navigation"],
        "lines with web addresses": boilerplate["urls"],
        "lines of mostly digits and signs": boilerplate["symbols"],
        "lines without punctuation at their end": boilerplate["unended"],
    }
    return [(name, kind["share_of_characters"]) for name, kind in kinds.items()]


def _length_histogram(summary: Mapping[str, Any], noun: str, measure: str) -> dict[str, Any] | None:
    """Return a histogram with its title and caption, without a picture for a single value; None without values."""
    if not summary["number"]:
        return None
    count, minimum, maximum = (summary[key] for key in ("number", "least", "most"))
    unit = measure.partition(" ")[0]
    if minimum == maximum:
        caption = f"{pluralize(count, noun)} of {pluralize(maximum, unit[:-1])}"
        return {"title": measure, "picture": None, "caption": caption + (" each" if count > 1 else "")}
    caption = describe_lengths(summary, noun, unit)
    histogram = summary["histogram"]
    figure = plots.histogram(histogram["edges"], histogram["counts"], measure, f"{noun}s")
    return {"title": measure, "picture": plots.to_svg(figure, f"{measure}: {caption}"), "caption": caption}


def _top_shares(entries: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Return the name and share of the first entries, with the others summed in a last row."""
    shares = [(name, entry["share"]) for name, entry in entries.items()]
    if len(shares) <= _MAX_BARS:
        return shares
    rest = shares[_MAX_BARS - 1 :]
    return [*shares[: _MAX_BARS - 1], (f"{len(rest)} others", sum(share for _, share in rest))]


def _piece_shares(report: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return the fractions of words by their number of pieces, and of words with an unknown piece."""
    counts, total = report["words_by_pieces"][1:], report["words"]
    if not total:
        return []
    rows = [(pluralize(n, "piece"), count) for n, count in enumerate(counts[: _MAX_PIECES - 1], start=1)]
    rows.append((f"{_MAX_PIECES} or more", sum(counts[_MAX_PIECES - 1 :])))
    while not rows[-1][1] and len(rows) > 1:
        rows.pop()
    rows.append((_UNKNOWN, report["unknown_words"]))
    return [(name, count / total) for name, count in rows]


def tokenizers_page(report: Mapping[str, Any]) -> str:
    """Return the HTML page of a report of `bertsmith.inspect_tokenizers`; text from files is escaped."""
    shares = {name: word_shares(row) for name, row in report["tokenizers"].items()}
    return render("tokenizers.html", report=report, part_names=PARTS, shares=shares)


def word_shares(row: Mapping[str, Any]) -> list[float]:
    """Return the fraction of the words in each of `PARTS`; words without pieces count as unknown."""
    (num_without_pieces, *counts), total = row["words_by_pieces"], max(1, row["words"])
    return [n / total for n in (*counts[:3], sum(counts[3:]), row["unknown_words"] + num_without_pieces)]
