"""The facts about a corpus become findings: what is wrong, how much of it, where first, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from bertsmith.corpus.diagnostics import FEW_DOCUMENTS, NOT_HELD_OUT, as_options
from bertsmith.formatting import counted
from bertsmith.io.binary_files import how_to_read
from bertsmith.tokenizer.script_coverage import fitting_options

SEVERITIES = ("problem", "warning", "note")
_NAME_IT = "name the one that holds the text with --text-column"
_MISSING = re.compile(r"the field '.*' is missing|there is no column '")
_SHARE_OF_REPEATED_LINES = 0.01
_SHARE_OF_BOILERPLATE = 0.05
_SHARE_OF_NAVIGATION = 0.001
_SHARE_UNENDED = 0.2
_SHARE_OF_URLS = 0.02
_SHARE_ONE_LINE = 0.5
_SHARE_OF_SECOND_LANGUAGE = 0.05
_UNKNOWN_RATE = 0.005
_PIECES_PER_WORD = 1.6
_INVISIBLE = "invisible marks (zero-width, direction, soft hyphen)"
_SERIOUS = ("NUL characters", "replacement characters (U+FFFD)", "half characters (lone surrogates)")


def findings(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The findings of a report, the worst first: severity ("problem", "warning", "note"), what, number, share of
    the corpus (None where it says nothing), first place ("" for none), remedy."""
    found = [
        *_of_bytes(report),
        *_of_characters(report),
        *_of_structure(report),
        *_of_duplicates(report),
        *_of_lines(report),
        *_of_documents(report),
        *_of_languages(report),
        *_of_tokens(report),
        *_of_tasks(report),
    ]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding["severity"]))


def _finding(
    severity: str, what: str, number: int, first: str, remedy: str, share: float | None = None
) -> dict[str, Any]:
    return {
        "severity": severity, "what": what, "number": number, "share": share, "first": first, "remedy": remedy,
    }  # fmt: skip


def _first(found: dict[str, Any]) -> str:
    places = found["places"]
    if not places:
        return ""
    return str(places[0]["place"] if isinstance(places[0], dict) else places[0])


def _to_read(places: Sequence[dict[str, Any]]) -> str:
    """What to do about files that cannot be read; some are only in another encoding, which is known."""
    found = [re.search(r"this file is (UTF-\d+(?:LE|BE)?), not ", place["reason"]) for place in places]
    named = sorted({match[1] for match in found if match})
    told = [f"add --encoding {name.lower()} for what is {name}" for name in named]
    if None in found:
        told.append(f"fix {'the others' if told else 'them'} or leave them out")
    return "; ".join(told)


def _of_bytes(report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    encoding, unreadable, records = report["encoding"], report["unreadable"], report["records"]
    if unreadable["number"]:
        reason = unreadable["places"][0]["reason"]
        yield _finding(
            "problem", f"files that cannot be read to their end: {reason}", unreadable["number"],
            _first(unreadable), _to_read(unreadable["places"]),
        )  # fmt: skip
    if encoding["bytes"]:
        lines = counted(encoding["lines"], "line")
        yield _finding(
            "problem", f"bytes that are not UTF-8, in {lines}", encoding["bytes"],
            _first(encoding), f"{encoding['remedy']}; data prepare --on-error skip leaves such lines out",
        )  # fmt: skip
    if records["number"]:
        reason = records["places"][0]["reason"]
        yield _finding(
            "problem", f"lines or rows that cannot be read: {reason}", records["number"], _first(records),
            _NAME_IT if _MISSING.search(reason) else "fix them, or data prepare --on-error skip",
        )  # fmt: skip
    if not report["documents"]["number"]:
        yield _finding("problem", "there is no text", 0, report["files"][0], "check how the files were made")
    if empty := report["left_out"]["empty"]:
        yield _finding(
            "warning",
            "files without any text",
            len(empty),
            empty[0],
            "check how they were made; they are left out",
        )
    if skipped := report["left_out"]["skipped"]:
        kinds = report["left_out"]["kinds"]
        yield _finding(
            "note", f"files of other kinds in the folders, skipped: {kinds}", sum(skipped.values()), "",
            how_to_read(skipped),
        )  # fmt: skip


def _of_characters(report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    characters = report["characters"]
    if (mojibake := characters["mojibake"])["number"]:
        example = mojibake["places"][0]
        yield _finding(
            "problem", f"UTF-8 that was read as another encoding ({example['found']} for {example['meant']})",
            mojibake["number"], _first(mojibake), "decode the source again as UTF-8, or fix it with ftfy",
        )  # fmt: skip
    for name, found in characters["kinds"].items():
        if not found["number"]:
            continue
        severity = "problem" if name in _SERIOUS else "note" if name == _INVISIBLE else "warning"
        remedy = {
            "replacement characters (U+FFFD)": "text was lost when it was decoded: decode the source again",
            "lone carriage returns": "turn line ends into \\n: tr '\\r' '\\n', or dos2unix -c mac",
            _INVISIBLE: "BERT's cleaning drops them; others may not",
        }.get(name, "remove them; BERT's cleaning drops or blanks them, others may not")
        yield _finding(severity, name, found["number"], _first(found), remedy)


def _of_structure(report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    structure = report["structure"]
    for fault in structure["faults"]:
        yield _finding("problem", fault["what"], fault["number"], fault["first"], fault["remedy"])
    if structure["faults"] or not report["documents"]["number"]:
        return
    for name in ("nsp", "sop"):
        verdict = structure[name]
        if verdict["verdict"] == "unfit":
            yield _finding(
                "warning", f"{name.upper()} cannot be trained: {verdict['why']}", report["documents"]["number"],
                "", verdict["remedy"],
            )  # fmt: skip
    if 1 < report["documents"]["number"] < FEW_DOCUMENTS and structure["nsp"]["verdict"] != "unfit":
        yield _finding(
            "warning", f"too few documents to hold some out: {report['documents']['number']}",
            report["documents"]["number"], "",
            f"give more, with a blank line between two, or train with {as_options(NOT_HELD_OUT)}",
        )  # fmt: skip


def _of_duplicates(report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for kind, what in (
        ("exact", "documents that repeat another word for word"),
        ("near", "near-repetitions"),
    ):
        found = report["duplicates"][kind]
        if not found["number"]:
            continue
        if kind == "near":
            what = f"documents nearly like another (share of common runs of words ≥ {found['threshold']:g})"
        cluster = found["clusters"][0]
        yield _finding(
            "warning", what, found["number"], f"{cluster['places'][0]} = {cluster['first']}",
            f"data prepare --deduplicate {kind}", found["share_of_characters"],
        )  # fmt: skip


def _of_lines(report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    repeated, boilerplate = report["lines"]["repeated"], report["lines"]["boilerplate"]
    if repeated["repeated"]:
        many = repeated["share_of_characters"] >= _SHARE_OF_REPEATED_LINES
        yield _finding(
            "warning" if many else "note", "repeated lines", repeated["occurrences_too_many"],
            repeated["examples"][0]["first"] if repeated["examples"] else "",
            "look at the list: navigation and footers are best removed", repeated["share_of_characters"],
        )  # fmt: skip
    if (navigation := boilerplate["navigation"])["share_of_lines"] >= _SHARE_OF_NAVIGATION:
        yield _boilerplate("navigation and cookie lines", navigation, 0.005)
    if (urls := boilerplate["urls"])["share_of_characters"] >= _SHARE_OF_URLS:
        yield _boilerplate("lines with web addresses", urls, _SHARE_OF_BOILERPLATE)
    if (symbols := boilerplate["symbols"])["share_of_characters"] >= _SHARE_OF_URLS:
        yield _boilerplate("lines of mostly digits and signs", symbols, _SHARE_OF_BOILERPLATE)
    unended = boilerplate["unended"]
    wrapped = any(fault["fault"] == "hard_wrapped" for fault in report["structure"]["faults"])
    if not wrapped and unended["share_of_characters"] >= _SHARE_UNENDED:
        yield _boilerplate(
            "lines without punctuation at their end (headings, lists, captions?)", unended, 0.5
        )


def _boilerplate(what: str, found: dict[str, Any], warn_at: float) -> dict[str, Any]:
    share = found["share_of_characters"]
    return _finding(
        "warning" if share >= warn_at else "note", what, found["lines"], "",
        "look at the examples; remove what is no prose", share,
    )  # fmt: skip


def _of_documents(report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    documents = report["documents"]
    number = max(1, documents["number"])
    if documents["empty"]["number"]:
        yield _finding(
            "warning", "documents without a word", documents["empty"]["number"], _first(documents["empty"]),
            "they are dropped by data prepare", documents["empty"]["number"] / number,
        )  # fmt: skip
    if documents["huge"]["number"]:
        yield _finding(
            "warning", f"documents of more than {documents['huge']['characters_more_than']:,} characters",
            documents["huge"]["number"], _first(documents["huge"]),
            "are blank lines missing? --documents says what ends a document",
        )  # fmt: skip
    one_line = documents["one_line"]["number"]
    if one_line and documents["number"] > 1 and report["documents_are"] != "line":
        yield _finding(
            "note", "documents of one line", one_line, _first(documents["one_line"]),
            "fine for web pages; else let blank lines separate documents, not paragraphs", one_line / number,
        )  # fmt: skip


def _of_languages(report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    known = [
        (name, found["share"])
        for name, found in report["languages"].items()
        if name not in ("unknown", "no letters")
    ]
    others = [f"{name} {share:.0%}" for name, share in known[1:] if share >= _SHARE_OF_SECOND_LANGUAGE]
    if others:
        yield _finding(
            "note", f"several languages (a guess by stop words): {known[0][0]} {known[0][1]:.0%}, "
            + ", ".join(others), len(others) + 1, "", "one vocabulary has to hold them all; or separate them",
        )  # fmt: skip


def _of_tokens(report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    found = report.get("tokenizer")
    needed = fitting_options({name: script["share"] for name, script in report["scripts"].items()})
    options = f" with {needed[0]}" if needed else ""
    if needed and found is None:
        yield _finding(
            "note", needed[1], report["words"], "", f"train its tokenizer so: bertsmith tokenizer train{options}"
        )  # fmt: skip
    if found is None or not found["tokens"]:
        return
    if found["unknown_tokens"]:
        characters = " ".join(entry["character"] for entry in found["frequent_unknown_characters"][:5])
        words = ", ".join(entry["word"] for entry in found["frequent_unknown_words"][:3])
        worst = characters or words or "very long words"
        yield _finding(
            "problem" if found["unknown_token_share"] > _UNKNOWN_RATE else "note",
            f"tokens unknown to this tokenizer, most often: {worst}", found["unknown_tokens"], "",
            f"train a tokenizer on this corpus: bertsmith tokenizer train{options}",
            found["unknown_token_share"],
        )  # fmt: skip
    if (found["pieces_per_word"] or 0) > _PIECES_PER_WORD:
        worst = ", ".join(entry["word"] for entry in found["falling_apart"][:3])
        yield _finding(
            "warning", f"words fall into {found['pieces_per_word']:.2f} pieces on average: {worst}",
            found["words"] - found["unknown_words"], "", "train or extend a tokenizer on this corpus",
        )  # fmt: skip


def _of_tasks(report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    found = report.get("against")
    if found is None:
        return
    for file in found["files"]:
        if file["hit"]:
            rows = [row for row in found["rows"] if row["row"].startswith(file["file"])]
            first = f"{rows[0]['row']} = {rows[0]['corpus']}" if rows else ""
            yield _finding(
                "problem", f"rows of {file['file']} that are in the corpus (runs of {found['ngram']} words)",
                file["hit"], first, "remove those documents, or do not score on those rows", file["share"],
            )  # fmt: skip
