"""Tables that print a corpus check, a comparison of tokenizers, and an extension of a vocabulary."""

from __future__ import annotations

from typing import Any

from bertsmith import console, formatting
from bertsmith.cli.tables import print_values
from bertsmith.formatting import format_bytes, format_number, format_percent, join_names, pluralize

_ROWS = 10
_ADDED_ROWS = 20
_SCRIPT_COLUMNS = ("letters_known", "words_kept_whole")


def print_check(report: dict[str, Any]) -> None:
    """Print the report of a corpus check: the findings, the worst first, then the statistics."""
    if findings := report["findings"]:
        columns = ["", "problem, first location, and what to do", "number"]
        console.print_table("findings", columns, map(_finding_row, findings))
    else:
        console.print_result("no problems")
    _print_corpus(report)
    structure = report["structure"]
    console.print_table(
        "suitability",
        ["", "objective, reason, and what to do"],
        [
            (structure[key]["verdict"], (f"{name}: {structure[key]['why']}", *_remedy(structure[key])))
            for name, key in (("NSP", "nsp"), ("SOP", "sop"), ("full sentences", "full_sentences"))
        ],
    )
    if "tokenizer" in report:
        _print_tokenizer(report["tokenizer"])
    if "against" in report:
        _print_leakage(report["against"])
    _print_forecast(report["forecast"])
    for limit in report["limits"]:
        console.print_note(f"limit: {limit}")
    console.print_note("--html and --json list the faults of each file, repeated texts, and more examples")


def _finding_row(finding: dict[str, Any]) -> tuple[object, ...]:
    first = [f"first at {finding['first']}"] if finding["first"] else []
    share = [format_percent(finding["share"])] if finding["share"] is not None else []
    lines = (finding["what"], *first, *_remedy(finding))
    return finding["severity"], lines, (f"{finding['number']:,}", *share)


def _remedy(finding: dict[str, Any]) -> list[str]:
    return [f"→ {finding['remedy']}"] if finding["remedy"] else []


def _print_corpus(report: dict[str, Any]) -> None:
    documents = report["documents"]
    lengths, lines = documents["characters"], report["lines"]["lengths"]
    sentences = documents["sentences_per_document"]
    boilerplate = report["lines"]["boilerplate"]["any"]
    values = {
        "files": len(report["files"]),
        "text": format_bytes(report["bytes"]),
        "documents": f"{documents['number']:,}{_spread(lengths, ' of', ' characters')}",
        "documents of one line": documents["one_line"]["number"],
        "documents without a word": documents["empty"]["number"],
        "sentences": f"{documents['sentences']:,}{_spread(sentences, ',', ' per document')}",
        "lines": f"{lines['number']:,}{_spread(lines, ' of', ' characters')}",
        "words": report["words"],
        "lines not like prose": f"{format_percent(boilerplate['share_of_characters'])} of the characters",
        "scripts": _shares(report["scripts"]),
    }
    print_values("the corpus", values)


def _print_tokenizer(report: dict[str, Any]) -> None:
    values = {
        "tokens": report["tokens"],
        "unknown tokens": f"{report['unknown_tokens']:,} ({format_percent(report['unknown_token_share'])})",
        "unknown words": f"{report['unknown_words']:,} ({format_percent(report['unknown_word_share'])})",
        "pieces per known word": format_number(report["pieces_per_word"], 3),
        "words of one piece": format_percent(report["words_kept_whole"]),
    }
    print_values("with this tokenizer", values)


def _print_leakage(report: dict[str, Any]) -> None:
    rows = [
        (
            (file["file"], f"{pluralize(file['rows'], 'row')}, {file['too_short']:,} too short to compare"),
            f"{file['hit']:,}",
            format_percent(file["share"]),
        )
        for file in report["files"]
    ]
    title = f"task rows in the corpus (runs of {report['ngram']} words)"
    console.print_table(title, ["file", "rows found", "share"], rows)
    texts = [
        ((row["row"], f"= {row['corpus']}", row["text"]), format_percent(row["share"]))
        for row in report["rows"][:_ROWS]
    ]
    if texts:
        console.print_table("", ["row, where in the corpus, text", "share of it"], texts)


def _print_forecast(report: dict[str, Any]) -> None:
    values = {
        f"tokens ({report['tokens_are']})": report["tokens"],
        "shards on disk": format_bytes(report["shard_bytes"]),
        f"updates of {report['batch_size']} × {report['sequence_length']} tokens": report["steps"],
        "parameters": report["parameters"],
    }
    if report["seconds"] is not None:
        each = f"{formatting.format_seconds(report['seconds_per_update'])} per update"
        values["time on this machine"] = f"{console.format_duration(report['seconds'])}, {each}"
    epochs = f"{report['epochs']:g} epoch{'' if report['epochs'] == 1 else 's'}"
    print_values(f"forecast: {report['preset']}, {epochs}", values)
    console.print_result(f"an estimate of {report['covers']}; it rests on: {report['rests_on']}")


def _spread(summary: dict[str, Any], before: str, behind: str) -> str:
    """Return the range and the median of a distribution; empty if there are no values."""
    least, most, median = summary["least"], summary["most"], summary["median"]
    if not most:
        return ""
    text = f"{most:,}" if least == most else f"{least:,} to {most:,} (median {median:,})"
    return f"{before} {text}{behind}"


def _shares(parts: dict[str, Any]) -> str:
    return join_names([f"{name} {format_percent(entry['share'])}" for name, entry in parts.items()]) or "none"


# Tokenizers


def print_inspection(report: dict[str, Any]) -> None:
    """Print the comparison of tokenizers, the best first: measures, scripts, and words."""
    rows = {name: report["tokenizers"][name] for name in report["order"]}
    text = report["text"]
    title = (
        f"{format_bytes(text['bytes'])}, {pluralize(text['characters'], 'character')}, "
        f"{pluralize(text['words'], 'word')}"
    )
    measures = [
        (
            name,
            format_percent(row["unknown_word_share"]),
            format_percent(row["words_kept_whole"]),
            format_number(row["pieces_per_word"], 2),
            f"{row['tokens']:,}",
            f"{row['vocab_size']:,}",
        )
        for name, row in rows.items()
    ]
    columns = ["tokenizer", "unknown words", "words kept whole", "pieces per known word", "tokens"]
    console.print_table(title, [*columns, "vocabulary"], measures)
    for name in [name for name, row in rows.items() if row["many_unknown"]]:
        console.print_result(f"{name} knows less than 99.5 % of the words: do not compare its tokens")
    scripts = [
        (script, name, *(format_percent(row["scripts"][script][key]) for key in _SCRIPT_COLUMNS))
        for script in list(text["scripts"])[:_ROWS]
        for name, row in rows.items()
    ]
    headings = [key.replace("_", " ") for key in _SCRIPT_COLUMNS]
    console.print_table("by script", ["script", "tokenizer", *headings], scripts)
    words = [
        (name, join_names([f"{e['word']} {e['times']:,}" for e in row[key]], _ROWS))
        for name, row in rows.items()
        for key in ("frequent_unknown_words", "falling_apart")
        if row[key]
    ]
    if words:
        console.print_table("words that are unknown, or have most pieces", ["tokenizer", "words"], words)
    for note in report["notes"]:
        console.print_note(note)
    console.print_note("--html and --json have further measures and examples")


def print_extension(report: dict[str, Any]) -> None:
    """Print the added words, the tokens that they save, and the other words that they change."""
    words, effect = report["words"], report["effect"]
    rows = [
        (
            word["word"],
            f"{word['count']:,}",
            " ".join(word["pieces"]),
            f"{word['saved']:,}",
            format_number(word.get("commoner"), 1),
        )
        for word in words[:_ADDED_ROWS]
    ]
    more = f", the first {_ADDED_ROWS}" if len(words) > _ADDED_ROWS else ""
    columns = ["word", "count", "pieces now", "tokens saved", "times commoner"]
    console.print_table(pluralize(report["added"], "word") + more, columns, rows)
    if listed := report["already_whole"]:
        count = pluralize(len(listed), "word")
        console.print_note(f"{count} of the list already one token, or named before: {join_names(listed)}")
    if effect is None:
        return
    console.print_result(
        f"tokens of the files: {effect['tokens_before']:,} → {effect['tokens_after']:,} "
        f"({format_percent(effect['saved_share'])} saved)"
    )
    others = effect["other_words"]
    if others["distinct"]:
        examples = [
            (e["word"], f"{e['times']:,}", " ".join(e["before"]), " ".join(e["after"]))
            for e in others["examples"][:_ROWS]
        ]
        title = (
            f"{pluralize(others['distinct'], 'other word')} ({pluralize(others['times'], 'occurrence')}) split "
            f"differently: {others['longer']:,} into more tokens, {others['become_unknown']:,} now unknown"
        )
        console.print_table(title, ["word", "times", "before", "after"], examples)
    else:
        console.print_result("no other word of the files is split differently")
    if effect["words_forgotten"]:
        console.print_note(
            f"{pluralize(effect['words_forgotten'], 'occurrence')} of rare words not remembered: "
            "each counts as one token before and after"
        )
