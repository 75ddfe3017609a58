"""A corpus check on a terminal: findings first, the worst on top, then the facts in a few tables.

No table has more than four columns that hold words, so that they can be read on 40 columns.
"""

from __future__ import annotations

from typing import Any

from bertsmith import console
from bertsmith.formatting import format_bytes, format_percent, format_seconds, pluralize

_ROWS = 10
_PLACES = 3  # of a fault in a file


def print_check(report: dict[str, Any]) -> None:
    """Print the report of `look.check.check_corpus`."""
    found = report["findings"]
    if found:
        console.print_table(
            "findings", ["", "what, where first, and what to do", "number"], map(_finding, found)
        )
    else:
        console.print_result("nothing was found")
    _print_faults(report["faults_by_file"])
    _print_corpus(report)
    structure = report["structure"]
    console.print_table(
        "fit for",
        ["", "objective, why, and what to do"],
        [
            (judged["verdict"], (f"{name}: {judged['why']}", *_remedy(judged["remedy"])))
            for name, judged in (
                ("NSP", structure["nsp"]),
                ("SOP", structure["sop"]),
                ("full sentences", structure["full_sentences"]),
            )
        ],
    )
    _print_repetitions(report)
    if "tokenizer" in report:
        _print_tokenizer(report["tokenizer"])
    if "against" in report:
        _print_leakage(report["against"])
    _print_forecast(report["forecast"])
    for limit in report["limits"]:
        console.print_note(f"limit: {limit}")


def _finding(finding: dict[str, Any]) -> tuple[object, ...]:
    told = [finding["what"]]
    if finding["first"]:
        told.append(f"first at {finding['first']}")
    number = [f"{finding['number']:,}"]
    if finding["share"] is not None:
        number.append(format_percent(finding["share"]))
    return finding["severity"], (*told, *_remedy(finding["remedy"])), tuple(number)


def _remedy(remedy: str) -> tuple[str, ...]:
    return (f"→ {remedy}",) if remedy else ()


def _print_faults(found: dict[str, Any]) -> None:
    """Each file's faults, and where the first of them are."""
    files = found["files"]
    if not files:
        return
    rows = [((entry["file"], *map(_fault, entry["faults"])),) for entry in files[:_ROWS]]
    console.print_table("faults by file", ["file; faults at line:column, or line of a record"], rows)
    if more := len(files) - len(rows) + found["files_not_listed"]:
        console.print_note(
            f"{pluralize(more, 'more file has', 'more files have')} faults: --html and --json list them"
        )


def _fault(fault: dict[str, Any]) -> str:
    places = fault["places"][:_PLACES]
    if not places[0]["at"]:
        return f"- {fault['what']}: {places[0]['told']}"
    told = "; " if any(place["told"] for place in places) else ", "
    first = "first " if fault["number"] > len(places) else ""
    at = told.join(f"{place['at']} {place['told']}".rstrip() for place in places)
    return f"- {fault['what']}: {fault['number']:,}, {first}at {at}"


def _print_corpus(report: dict[str, Any]) -> None:
    documents = report["documents"]
    lengths, lines = documents["characters"], report["lines"]["lengths"]
    sentences = documents["sentences_per_document"]
    boilerplate = report["lines"]["boilerplate"]["any"]
    rows = [
        ("files", f"{len(report['files']):,}"),
        ("text", format_bytes(report["bytes"])),
        ("documents", f"{documents['number']:,}{_spread(lengths, ' of', ' characters')}"),
        ("documents of one line", f"{documents['one_line']['number']:,}"),
        ("documents without a word", f"{documents['empty']['number']:,}"),
        ("sentences", f"{documents['sentences']:,}{_spread(sentences, ',', ' per document')}"),
        ("lines", f"{lines['number']:,}{_spread(lines, ' of', ' characters')}"),
        ("words", f"{report['words']:,}"),
        ("lines not like prose", f"{format_percent(boilerplate['share_of_characters'])} of the characters"),
        ("scripts", _shares(report["scripts"])),
        ("languages (a guess)", _shares(report["languages"])),
    ]
    console.print_table("the corpus", ["what", "how much"], rows)


def _print_repetitions(report: dict[str, Any]) -> None:
    rows = [
        (kind, (cluster["first"], f"again at {', '.join(cluster['places'][:3])}"), f"{cluster['repeated']:,}")
        for kind in ("exact", "near")
        for cluster in report["duplicates"][kind]["clusters"][: _ROWS // 2]
    ]
    if rows:
        console.print_table("repeated documents", ["", "first", "times more"], rows)
    lines = report["lines"]["repeated"]["examples"][:_ROWS]
    if lines:
        console.print_table(
            "repeated lines",
            ["line, and where first", "times", "documents"],
            [
                ((line["text"], f"first at {line['first']}"), f"{line['times']:,}", f"{line['documents']:,}")
                for line in lines
            ],
        )


def _print_tokenizer(found: dict[str, Any]) -> None:
    rows = [
        ("tokens", f"{found['tokens']:,}"),
        ("unknown tokens", f"{found['unknown_tokens']:,} ({format_percent(found['unknown_token_share'])})"),
        ("unknown words", f"{found['unknown_words']:,} ({format_percent(found['unknown_word_share'])})"),
        (
            "pieces per known word",
            "–" if found["pieces_per_word"] is None else f"{found['pieces_per_word']:.3f}",
        ),
        ("words of one piece", format_percent(found["words_kept_whole"])),
    ]
    console.print_table("with this tokenizer", ["what", "how much"], rows)
    if found["falling_apart"]:
        console.print_table(
            "words that fall apart most",
            ["word", "times", "pieces"],
            [(w["word"], f"{w['times']:,}", " ".join(w["pieces"])) for w in found["falling_apart"][:_ROWS]],
        )


def _print_leakage(found: dict[str, Any]) -> None:
    console.print_table(
        f"task rows in the corpus (runs of {found['ngram']} words)",
        ["file", "rows found", "share"],
        [
            (
                (f["file"], f"{pluralize(f['rows'], 'row')}, {f['too_short']:,} too short to compare"),
                f"{f['hit']:,}",
                format_percent(f["share"]),
            )
            for f in found["files"]
        ],
    )
    if found["rows"]:
        console.print_table(
            "",
            ["row, where in the corpus, text", "share of it"],
            [
                ((r["row"], f"= {r['corpus']}", r["text"]), format_percent(r["share"]))
                for r in found["rows"][: 2 * _ROWS]
            ],
        )
        if found["hit"] > 2 * _ROWS:
            console.print_note(f"{pluralize(found['hit'] - 2 * _ROWS, 'more row')}: --json lists them")


def _print_forecast(found: dict[str, Any]) -> None:
    rows = [
        (f"tokens ({found['tokens_are']})", f"{found['tokens']:,}"),
        ("shards on disk", format_bytes(found["shard_bytes"])),
        (f"updates of {found['batch_size']} × {found['sequence_length']} tokens", f"{found['steps']:,}"),
        ("parameters", f"{found['parameters']:,}"),
    ]
    if found["seconds"] is not None:
        each = f"{format_seconds(found['seconds_per_update'])} per update"
        rows.append(("time on this machine", f"{console.format_duration(found['seconds'])}, {each}"))
    epochs = f"{found['epochs']:g} epoch{'' if found['epochs'] == 1 else 's'}"
    console.print_table(f"forecast: {found['preset']}, {epochs}", ["what", "estimate"], rows)
    console.print_result(f"an estimate of {found['covers']}; it rests on: {found['rests_on']}")


def _spread(summary: dict[str, Any], before: str, behind: str) -> str:
    """From the least to the most, as far as they differ; nothing where there is none."""
    least, most, median = summary["least"], summary["most"], summary["median"]
    if not most:
        return ""
    said = f"{most:,}" if least == most else f"{least:,} to {most:,} (median {median:,})"
    return f"{before} {said}{behind}"


def _shares(found: dict[str, Any]) -> str:
    top = [f"{name} {format_percent(entry['share'])}" for name, entry in list(found.items())[:5]]
    rest = len(found) - len(top)
    return ", ".join(top) + (f", {rest} more" if rest > 0 else "") or "none"
