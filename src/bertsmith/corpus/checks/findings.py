"""Derive the findings of a corpus check from its counts: problem, extent, first location, and remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bertsmith.corpus.checks.structure import MIN_DOCUMENTS, NO_VALIDATION_SETTINGS, format_settings
from bertsmith.formatting import pluralize
from bertsmith.tokenizer.script_coverage import recommended_options

SEVERITIES = ("problem", "warning", "note")
# The fractions from which on something is a finding, a warning instead of a note, or a problem.
_REPEATED_LINES_WARNING = 0.01
_BOILERPLATE_WARNING = 0.05
_NAVIGATION_FINDING, _NAVIGATION_WARNING = 0.001, 0.005
_UNENDED_FINDING, _UNENDED_WARNING = 0.2, 0.5
_URLS_FINDING = 0.02
_SYMBOLS_FINDING = 0.02
_UNKNOWN_TOKENS_PROBLEM = 0.005
_MAX_PIECES_PER_WORD = 1.6
_INVISIBLE = "invisible marks (zero-width, direction, soft hyphen)"
_SEVERE_CLASSES = ("NUL characters", "replacement characters (U+FFFD)", "half characters (lone surrogates)")

Report = dict[str, Any]


class Finding(NamedTuple):
    """A finding of a corpus check.

    Attributes:
        severity: "problem", "warning", or "note".
        what: The problem.
        number: The number of occurrences.
        first: The location of the first; "": there is none.
        remedy: What to do.
        share: The fraction of the corpus; None: unknown.
    """

    severity: str
    what: str
    number: int
    first: str
    remedy: str
    share: float | None = None


def findings(report: Report) -> list[dict[str, Any]]:
    """Return the findings of a report as plain values, the worst first."""
    result = [
        *_reading_findings(report),
        *_character_findings(report),
        *_structure_findings(report),
        *_duplicate_findings(report),
        *_line_findings(report),
        *_document_findings(report),
        *_token_findings(report),
        *_leakage_findings(report),
    ]
    result.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return [finding._asdict() for finding in result]


def _first(occurrences: dict[str, Any]) -> str:
    locations = occurrences["places"]
    if not locations:
        return ""
    return str(locations[0]["place"] if isinstance(locations[0], dict) else locations[0])


def _unreadable_remedy(occurrences: Sequence[dict[str, Any]]) -> str:
    """Return the remedy for files that cannot be read; it names the encoding of those where it was detected."""
    encodings = {occurrence["encoding"] for occurrence in occurrences}
    names = sorted(name for name in encodings if name)
    remedies = [f"read {name.upper()} files with encoding={name}" for name in names]
    if None in encodings:
        remedies.append(f"fix {'the others' if remedies else 'them'} or leave them out")
    return "; ".join(remedies)


def _reading_findings(report: Report) -> Iterator[Finding]:
    encoding, unreadable, records = report["encoding"], report["unreadable"], report["records"]
    if unreadable["number"]:
        what = f"files that cannot be read to their end: {unreadable['places'][0]['reason']}"
        remedy = _unreadable_remedy(unreadable["places"])
        yield Finding("problem", what, unreadable["number"], _first(unreadable), remedy)
    if encoding["bytes"]:
        what = f"bytes that are not UTF-8, in {pluralize(encoding['lines'], 'line')}"
        remedy = f"{encoding['remedy']}; prepare with --on-error skip skips such lines"
        yield Finding("problem", what, encoding["bytes"], _first(encoding), remedy)
    if records["number"]:
        first = records["places"][0]
        what = f"lines or rows that cannot be read: {first['reason']}"
        remedy = "fix them, or prepare with --on-error skip"
        if first["code"] == "field_missing":
            remedy = "name the column with the text: text_column"
        yield Finding("problem", what, records["number"], _first(records), remedy)
    if not report["documents"]["number"]:
        yield Finding("problem", "there is no text", 0, report["files"][0], "check how the files were made")
    if empty := report["left_out"]["empty"]:
        remedy = "check how they were made; they are skipped"
        yield Finding("warning", "files without any text", len(empty), empty[0], remedy)
    if skipped := report["left_out"]["skipped"]:
        what = f"files of other kinds in the folders, skipped: {report['left_out']['kinds']}"
        yield Finding("note", what, sum(skipped.values()), "", "name text files one by one to read them")


def _character_findings(report: Report) -> Iterator[Finding]:
    characters = report["characters"]
    if (mojibake := characters["mojibake"])["number"]:
        example = mojibake["places"][0]
        what = f"UTF-8 that was read as another encoding ({example['found']} for {example['meant']})"
        remedy = "decode the source again as UTF-8, or fix it with ftfy"
        yield Finding("problem", what, mojibake["number"], _first(mojibake), remedy)
    for name, occurrences in characters["kinds"].items():
        if not occurrences["number"]:
            continue
        severity = "problem" if name in _SEVERE_CLASSES else "note" if name == _INVISIBLE else "warning"
        remedy = {
            "replacement characters (U+FFFD)": "text was lost when it was decoded: decode the source again",
            "lone carriage returns": "convert line ends to \\n: tr '\\r' '\\n', or dos2unix -c mac",
            _INVISIBLE: "the text cleaning of BERT removes them; other tokenizers may not",
        }.get(name, "remove them; the text cleaning of BERT removes them, other tokenizers may not")
        yield Finding(severity, name, occurrences["number"], _first(occurrences), remedy)


def _structure_findings(report: Report) -> Iterator[Finding]:
    structure, num_documents = report["structure"], report["documents"]["number"]
    for fault in structure["faults"]:
        yield Finding("problem", fault["what"], fault["number"], fault["first"], fault["remedy"])
    if structure["faults"] or not num_documents:
        return
    for name in ("nsp", "sop"):
        verdict = structure[name]
        if verdict["verdict"] == "unfit":
            what = f"{name.upper()} cannot be trained: {verdict['why']}"
            yield Finding("warning", what, num_documents, "", verdict["remedy"])
    if 1 < num_documents < MIN_DOCUMENTS and structure["nsp"]["verdict"] != "unfit":
        what = f"too few documents to hold some out: {num_documents}"
        settings = format_settings(NO_VALIDATION_SETTINGS)
        remedy = f"give more, with a blank line between them, or train with {settings}"
        yield Finding("warning", what, num_documents, "", remedy)


def _duplicate_findings(report: Report) -> Iterator[Finding]:
    exact, near = report["duplicates"]["exact"], report["duplicates"]["near"]
    for method, duplicates, what in (
        ("exact", exact, "documents that repeat another word for word"),
        ("near", near, f"near-duplicate documents (Jaccard similarity ≥ {near['threshold']:g})"),
    ):
        if duplicates["number"]:
            cluster = duplicates["clusters"][0]
            first, share = f"{cluster['places'][0]} = {cluster['first']}", duplicates["share_of_characters"]
            remedy = f"prepare with deduplicate={method}"
            yield Finding("warning", what, duplicates["number"], first, remedy, share)


def _line_findings(report: Report) -> Iterator[Finding]:
    repeated, boilerplate = report["lines"]["repeated"], report["lines"]["boilerplate"]
    if repeated["repeated"]:
        number, share = repeated["occurrences_too_many"], repeated["share_of_characters"]
        severity = "warning" if share >= _REPEATED_LINES_WARNING else "note"
        first = repeated["examples"][0]["first"] if repeated["examples"] else ""
        remedy = "look at the list; remove navigation and footers"
        yield Finding(severity, "repeated lines", number, first, remedy, share)
    if (navigation := boilerplate["navigation"])["share_of_lines"] >= _NAVIGATION_FINDING:
        yield _boilerplate_finding("navigation and cookie lines", navigation, _NAVIGATION_WARNING)
    if (urls := boilerplate["urls"])["share_of_characters"] >= _URLS_FINDING:
        yield _boilerplate_finding("lines with web addresses", urls, _BOILERPLATE_WARNING)
    if (symbols := boilerplate["symbols"])["share_of_characters"] >= _SYMBOLS_FINDING:
        yield _boilerplate_finding("lines of mostly digits and symbols", symbols, _BOILERPLATE_WARNING)
    unended = boilerplate["unended"]
    is_wrapped = any(fault["fault"] == "hard_wrapped" for fault in report["structure"]["faults"])
    if not is_wrapped and unended["share_of_characters"] >= _UNENDED_FINDING:
        what = "lines without punctuation at their end (headings, lists, captions?)"
        yield _boilerplate_finding(what, unended, _UNENDED_WARNING)


def _boilerplate_finding(what: str, lines: dict[str, Any], warning_share: float) -> Finding:
    share = lines["share_of_characters"]
    severity = "warning" if share >= warning_share else "note"
    return Finding(severity, what, lines["lines"], "", "remove what is not prose; see the examples", share)


def _document_findings(report: Report) -> Iterator[Finding]:
    documents = report["documents"]
    num_documents = max(1, documents["number"])
    if num_empty := documents["empty"]["number"]:
        first, share = _first(documents["empty"]), num_empty / num_documents
        yield Finding("warning", "documents without a word", num_empty, first, "prepare drops them", share)
    if (huge := documents["huge"])["number"]:
        what = f"documents of more than {huge['characters_more_than']:,} characters"
        remedy = "check for missing blank lines; the setting `documents` determines what ends a document"
        yield Finding("warning", what, huge["number"], _first(huge), remedy)
    num_one_line = documents["one_line"]["number"]
    if num_one_line and documents["number"] > 1 and report["documents_are"] != "line":
        first, share = _first(documents["one_line"]), num_one_line / num_documents
        remedy = "fine for web pages; else let blank lines separate documents, not paragraphs"
        yield Finding("note", "documents of one line", num_one_line, first, remedy, share)


def _token_findings(report: Report) -> Iterator[Finding]:
    stats = report.get("tokenizer")
    needed = recommended_options({name: script["share"] for name, script in report["scripts"].items()})
    options = f" with {needed[0]}" if needed else ""
    if needed and stats is None:
        yield Finding("note", needed[1], report["words"], "", f"train the tokenizer{options}")
    if stats is None or not stats["tokens"]:
        return
    if stats["unknown_tokens"]:
        characters = " ".join(entry["character"] for entry in stats["frequent_unknown_characters"][:5])
        words = ", ".join(entry["word"] for entry in stats["frequent_unknown_words"][:3])
        share = stats["unknown_token_share"]
        severity = "problem" if share > _UNKNOWN_TOKENS_PROBLEM else "note"
        what = f"tokens unknown to this tokenizer, most often: {characters or words or 'very long words'}"
        remedy = f"train a tokenizer on this corpus{options}"
        yield Finding(severity, what, stats["unknown_tokens"], "", remedy, share)
    if (stats["pieces_per_word"] or 0) > _MAX_PIECES_PER_WORD:
        words = ", ".join(entry["word"] for entry in stats["falling_apart"][:3])
        what = f"words are split into {stats['pieces_per_word']:.2f} pieces on average: {words}"
        num_known = stats["words"] - stats["unknown_words"]
        yield Finding("warning", what, num_known, "", "train or extend a tokenizer on this corpus")


def _leakage_findings(report: Report) -> Iterator[Finding]:
    leakage = report.get("against")
    if leakage is None:
        return
    for file in leakage["files"]:
        if file["hit"]:
            rows = [row for row in leakage["rows"] if row["row"].startswith(file["file"])]
            what = f"rows of {file['file']} that are in the corpus (runs of {leakage['ngram']} words)"
            first = f"{rows[0]['row']} = {rows[0]['corpus']}" if rows else ""
            remedy = "remove those documents, or do not evaluate on those rows"
            yield Finding("problem", what, file["hit"], first, remedy, file["share"])
