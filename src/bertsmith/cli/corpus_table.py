"""A corpus check on a terminal: findings first, the worst on top, then the facts in a few tables."""

from __future__ import annotations

from typing import Any

from bertsmith import console

_ROWS = 10


def print_check(report: dict[str, Any]) -> None:
    """Print the report of `workflows.check.check_corpus`."""
    found = report["findings"]
    if found:
        console.result_table(
            "findings", ["", "what, and what to do", "number", "first"], map(_finding, found)
        )
    else:
        console.result("nothing was found")
    _print_places(report)
    _print_corpus(report)
    structure = report["structure"]
    console.result_table(
        "fit for",
        ["objective", "verdict", "why", "what to do"],
        [
            (name, structure[key]["verdict"], structure[key]["why"], structure[key]["remedy"])
            for name, key in (("NSP", "nsp"), ("SOP", "sop"), ("full sentences", "full_sentences"))
        ],
    )
    _print_repetitions(report)
    if "tokenizer" in report:
        _print_tokenizer(report["tokenizer"])
    if "against" in report:
        _print_leakage(report["against"])
    _print_forecast(report["forecast"])
    for limit in report["limits"]:
        console.note(f"limit: {limit}")


def _finding(finding: dict[str, Any]) -> tuple[object, ...]:
    number = [f"{finding['number']:,}"]
    if finding["share"] is not None:
        number.append(_percent(finding["share"]))
    return finding["severity"], (finding["what"], f"→ {finding['remedy']}"), tuple(number), finding["first"]


def _print_places(report: dict[str, Any]) -> None:
    """Where faults of bytes and characters stand: the first of each kind."""
    rows: list[tuple[str, str]] = []
    for part in ("unreadable", "encoding", "records"):
        rows += [(fault["place"], fault["reason"]) for fault in report[part]["places"][:_ROWS]]
    wrong = report["characters"]["mojibake"]["places"][:_ROWS]
    rows += [(fault["place"], f"{fault['found']} for {fault['meant']}") for fault in wrong]
    for name, found in report["characters"]["kinds"].items():
        rows += [(place, name) for place in found["places"][: _ROWS // 2]]
    if rows:
        console.result_table("first places", ["place", "what is there"], rows)


def _print_corpus(report: dict[str, Any]) -> None:
    documents = report["documents"]
    lengths, lines = documents["characters"], report["lines"]["lengths"]
    sentences = documents["sentences_a_document"]
    boilerplate = report["lines"]["boilerplate"]["any"]
    rows = [
        ("files", f"{len(report['files']):,}"),
        ("text", f"{report['bytes'] / 1e6:,.2f} MB"),
        ("documents", f"{documents['number']:,}, of {_spread(lengths)} characters"),
        (
            "of one line, without a word",
            f"{documents['one_line']['number']:,}, {documents['empty']['number']:,}",
        ),
        ("sentences", f"{documents['sentences']:,}, {_spread(sentences)} per document"),
        ("lines", f"{lines['number']:,}, of {_spread(lines)} characters"),
        ("words", f"{report['words']:,}"),
        ("lines not like prose", f"{_percent(boilerplate['share_of_characters'])} of the characters"),
        ("scripts", _shares(report["scripts"])),
        ("languages (a guess)", _shares(report["languages"])),
    ]
    console.result_table("the corpus", ["what", "how much"], rows)


def _print_repetitions(report: dict[str, Any]) -> None:
    rows = [
        (kind, cluster["first"], str(cluster["repeated"]), ", ".join(cluster["places"][:3]))
        for kind in ("exact", "near")
        for cluster in report["duplicates"][kind]["clusters"][: _ROWS // 2]
    ]
    if rows:
        console.result_table("repeated documents", ["", "first", "times more", "at"], rows)
    lines = report["lines"]["repeated"]["examples"][:_ROWS]
    if lines:
        console.result_table(
            "repeated lines",
            ["line", "times", "documents", "first"],
            [(line["text"], str(line["times"]), str(line["documents"]), line["first"]) for line in lines],
        )


def _print_tokenizer(found: dict[str, Any]) -> None:
    rows = [
        ("tokens", f"{found['tokens']:,}"),
        ("unknown", f"{found['unknown_tokens']:,} ({_percent(found['unknown_token_share'])})"),
        ("pieces per word", f"{found['pieces_a_word']:.3f}"),
        ("words of one piece", _percent(found["words_kept_whole"])),
    ]
    console.result_table("with this tokenizer", ["what", "how much"], rows)
    if found["falling_apart"]:
        console.result_table(
            "words that fall apart most",
            ["word", "times", "pieces"],
            [(w["word"], str(w["times"]), " ".join(w["pieces"])) for w in found["falling_apart"][:_ROWS]],
        )


def _print_leakage(found: dict[str, Any]) -> None:
    console.result_table(
        f"task rows in the corpus (runs of {found['ngram']} words)",
        ["file", "rows", "too short", "found", "share"],
        [
            (f["file"], str(f["rows"]), str(f["too_short"]), str(f["hit"]), _percent(f["share"]))
            for f in found["files"]
        ],
    )
    if found["rows"]:
        console.result_table(
            "",
            ["row", "in the corpus", "share of it", "text"],
            [(r["row"], r["corpus"], _percent(r["share"]), r["text"]) for r in found["rows"][: 2 * _ROWS]],
        )
        if found["hit"] > 2 * _ROWS:
            console.note(f"{found['hit'] - 2 * _ROWS:,} more rows: --json lists them")


def _print_forecast(found: dict[str, Any]) -> None:
    rows = [
        (f"tokens ({found['tokens_are']})", f"{found['tokens']:,}"),
        ("shards on disk", f"{found['shard_bytes'] / 1e6:,.1f} MB"),
        (f"updates of {found['batch_size']} × {found['sequence_length']} tokens", f"{found['steps']:,}"),
        ("parameters", f"{found['parameters']:,}"),
    ]
    if found["seconds"] is not None:
        each = f"{found['seconds_per_update']:.3g} s per update"
        rows.append(("time on this machine", f"{console.duration(found['seconds'])}, {each}"))
    epochs = f"{found['epochs']:g} epoch{'' if found['epochs'] == 1 else 's'}"
    console.result_table(f"forecast: {found['preset']}, {epochs}", ["what", "estimate"], rows)
    console.result(f"an estimate of {found['covers']}; it rests on: {found['rests_on']}")


def _spread(summary: dict[str, Any]) -> str:
    return f"{summary['least']:,} to {summary['most']:,} (median {summary['median']:,})"


def _shares(found: dict[str, Any]) -> str:
    top = [f"{name} {_percent(entry['share'])}" for name, entry in list(found.items())[:5]]
    rest = len(found) - len(top)
    return ", ".join(top) + (f", {rest} more" if rest > 0 else "") or "none"


def _percent(share: float) -> str:
    if share and share < 0.0001:
        return "< 0.01 %"
    return f"{100 * share:.0f} %" if share in (0, 1) else f"{100 * share:.2f} %"
