"""Tables that print a corpus check, a comparison of tokenizers, and an extension of a vocabulary."""

from __future__ import annotations

import shutil
import unicodedata
from typing import Any

from bertsmith import console
from bertsmith.formatting import format_bytes, format_percent, format_seconds, pluralize

_ROWS = 10


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


def _finding_row(finding: dict[str, Any]) -> tuple[object, ...]:
    lines = [finding["what"]]
    if finding["first"]:
        lines.append(f"first at {finding['first']}")
    number = [f"{finding['number']:,}"]
    if finding["share"] is not None:
        number.append(format_percent(finding["share"]))
    return finding["severity"], (*lines, *_remedy(finding["remedy"])), tuple(number)


def _remedy(remedy: str) -> tuple[str, ...]:
    return (f"→ {remedy}",) if remedy else ()


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
    ]
    console.print_table("the corpus", ["measure", "value"], rows)


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


def _print_tokenizer(report: dict[str, Any]) -> None:
    rows = [
        ("tokens", f"{report['tokens']:,}"),
        ("unknown tokens", f"{report['unknown_tokens']:,} ({format_percent(report['unknown_token_share'])})"),
        ("unknown words", f"{report['unknown_words']:,} ({format_percent(report['unknown_word_share'])})"),
        (
            "pieces per known word",
            "–" if report["pieces_per_word"] is None else f"{report['pieces_per_word']:.3f}",
        ),
        ("words of one piece", format_percent(report["words_kept_whole"])),
    ]
    console.print_table("with this tokenizer", ["measure", "value"], rows)
    if report["falling_apart"]:
        console.print_table(
            "words with the most pieces",
            ["word", "times", "pieces"],
            [(w["word"], f"{w['times']:,}", " ".join(w["pieces"])) for w in report["falling_apart"][:_ROWS]],
        )


def _print_leakage(report: dict[str, Any]) -> None:
    console.print_table(
        f"task rows in the corpus (runs of {report['ngram']} words)",
        ["file", "rows found", "share"],
        [
            (
                (f["file"], f"{pluralize(f['rows'], 'row')}, {f['too_short']:,} too short to compare"),
                f"{f['hit']:,}",
                format_percent(f["share"]),
            )
            for f in report["files"]
        ],
    )
    if report["rows"]:
        console.print_table(
            "",
            ["row, where in the corpus, text", "share of it"],
            [
                ((r["row"], f"= {r['corpus']}", r["text"]), format_percent(r["share"]))
                for r in report["rows"][: 2 * _ROWS]
            ],
        )
        if report["hit"] > 2 * _ROWS:
            console.print_note(f"{pluralize(report['hit'] - 2 * _ROWS, 'more row')}: --json lists them")


def _print_forecast(report: dict[str, Any]) -> None:
    rows = [
        (f"tokens ({report['tokens_are']})", f"{report['tokens']:,}"),
        ("shards on disk", format_bytes(report["shard_bytes"])),
        (f"updates of {report['batch_size']} × {report['sequence_length']} tokens", f"{report['steps']:,}"),
        ("parameters", f"{report['parameters']:,}"),
    ]
    if report["seconds"] is not None:
        each = f"{format_seconds(report['seconds_per_update'])} per update"
        rows.append(("time on this machine", f"{console.format_duration(report['seconds'])}, {each}"))
    epochs = f"{report['epochs']:g} epoch{'' if report['epochs'] == 1 else 's'}"
    console.print_table(f"forecast: {report['preset']}, {epochs}", ["measure", "estimate"], rows)
    console.print_result(f"an estimate of {report['covers']}; it rests on: {report['rests_on']}")


def _spread(summary: dict[str, Any], before: str, behind: str) -> str:
    """Return the range and the median of a distribution; empty if there are no values."""
    least, most, median = summary["least"], summary["most"], summary["median"]
    if not most:
        return ""
    text = f"{most:,}" if least == most else f"{least:,} to {most:,} (median {median:,})"
    return f"{before} {text}{behind}"


def _shares(parts: dict[str, Any]) -> str:
    top = [f"{name} {format_percent(entry['share'])}" for name, entry in list(parts.items())[:5]]
    rest = len(parts) - len(top)
    return ", ".join(top) + (f", {rest} more" if rest > 0 else "") or "none"


# Tokenizers

_LINE = 60  # characters of joined words in a cell
_FEW = 3  # tokenizers whose lists are shown at length
_SCRIPT_ROWS = 20
_NARROW = 60  # columns: a terminal with fewer shows a table for each tokenizer


def print_inspection(report: dict[str, Any]) -> None:
    """Print the comparison of tokenizers, the best first: measures, scripts, and words."""
    rows = {name: report["tokenizers"][name] for name in report["order"]}
    text = report["text"]
    title = (
        f"{format_bytes(text['bytes'])}, {pluralize(text['characters'], 'character')}, "
        f"{pluralize(text['words'], 'word')}"
    )
    if len(rows) == 1 or shutil.get_terminal_size().columns < _NARROW:
        console.print_result(title)
        for name, row in rows.items():
            measured = [(what, show(row)) for measures in _MEASURES for what, show in measures.items()]
            console.print_table(name + _mark(row), ["measure", "value"], measured)
    else:
        for measures in _MEASURES:
            console.print_table(
                title,
                ["tokenizer", *measures],
                [
                    [name + _mark(row), *(show(row) for show in measures.values())]
                    for name, row in rows.items()
                ],
            )
            title = ""
    if any(row["many_unknown"] for row in rows.values()):
        console.print_result(
            "* knows less than 99.5 % of the words, so its number of tokens is not comparable"
        )
    _print_scripts(text["scripts"], rows)
    listed = _ROWS if len(rows) <= _FEW else _FEW
    for name, row in rows.items():
        if row["falling_apart"]:
            console.print_table(
                f"{name}: words with the most pieces",
                ["word", "times", "pieces"],
                [
                    (e["word"], f"{e['times']:,}", " ".join(e["pieces"]))
                    for e in row["falling_apart"][:listed]
                ],
            )
    console.print_table(
        "",
        ["tokenizer", "words"],
        [((name, title), words) for name, row in rows.items() for title, words in _lists(row) if words],
    )
    for note in report["notes"]:
        console.print_note(note)


def _mark(row: dict[str, Any]) -> str:
    return " *" if row["many_unknown"] else ""


# Some tables of a few columns each, the ones that decide first.
_MEASURES: list[dict[str, Any]] = [
    {
        "unknown words": lambda row: format_percent(row["unknown_word_share"]),
        "words kept whole": lambda row: format_percent(row["words_kept_whole"]),
        "pieces per known word": lambda row: _two_digits(row["pieces_per_word"]),
    },
    {
        "tokens": lambda row: f"{row['tokens']:,}",
        "unknown tokens": lambda row: format_percent(row["unknown_token_share"]),
        "characters per token": lambda row: _two_digits(row["characters_per_token"]),
    },
    {
        "vocabulary": lambda row: f"{row['vocab_size']:,}",
        "used here": lambda row: format_percent(row["pieces_used_share"]),
        "unknown characters": lambda row: format_percent(row["unknown_character_share"]),
    },
    {"kind": lambda row: row["kind"], "lower-cased": lambda row: "yes" if row["lowercase"] else "no"},
]


def _two_digits(number: float | None) -> str:
    return "–" if number is None else f"{number:.2f}"


def _print_scripts(scripts: dict[str, Any], rows: dict[str, Any]) -> None:
    shown = list(scripts.items())[: max(_FEW, _SCRIPT_ROWS // len(rows))]
    one = len(rows) == 1
    table_rows: list[tuple[str, str, str]] = []
    for script, counts in shown:
        if not one:
            table_rows.append((f"{script}, {pluralize(counts['letters'], 'letter')}:", "", ""))
        for name, row in rows.items():
            counts_of_row = row["scripts"][script]
            figures = (
                format_percent(counts_of_row["letters_known"]),
                format_percent(counts_of_row["words_kept_whole"]),
            )
            table_rows.append((script if one else name, *figures))
    console.print_table("by script", ["script", "letters known", "words kept whole"], table_rows)
    if more := len(scripts) - len(shown):
        console.print_note(f"{pluralize(more, 'more script')}: --html and --json list them")


def _lists(row: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("unknown words", _joined([f"{e['word']} {e['times']:,}" for e in row["frequent_unknown_words"]])),
        (
            "unknown characters",
            _joined(
                [f"{e['character']} {e['code']} {e['times']:,}" for e in row["frequent_unknown_characters"]]
            ),
        ),
        ("longest pieces", _joined(row["longest_pieces"])),
        ("longest used", _joined([f"{e['piece']} {e['times']:,}" for e in row["longest_pieces_used"]])),
    ]


def _printable(character: str) -> str:
    """A character to print before its code: none that a terminal takes for a command, marks on a ring."""
    if not character.isprintable():
        return ""
    return f"{'◌' if unicodedata.category(character)[0] == 'M' else ''}{character} "


def _joined(words: list[str]) -> str:
    """Return as many words as fit a cell, at least one."""
    shown = words[:1]
    for word in words[1:]:
        if len(", ".join([*shown, word])) > _LINE:
            break
        shown.append(word)
    return ", ".join(shown)


def print_extension(report: dict[str, Any]) -> None:
    """Print the added words, the tokens that they save, and the other words that they change."""
    words, effect = report["words"], report["effect"]
    compared = any("commoner" in word for word in words)
    console.print_table(
        pluralize(report["added"], "word") + (f", the first {2 * _ROWS}" if len(words) > 2 * _ROWS else ""),
        ["word", "count", "pieces now", "tokens saved", *(["times commoner"] if compared else [])],
        [
            [
                word["word"],
                f"{word['count']:,}",
                " ".join(word["pieces"]),
                f"{word['saved']:,}",
                *([f"{word['commoner']:,.1f}"] if compared else []),
            ]
            for word in words[: 2 * _ROWS]
        ],
    )
    if report["already_whole"]:
        console.print_note(
            f"no entry needed (one token already, or named before) for "
            f"{pluralize(len(report['already_whole']), 'word')} of the list: {_joined(report['already_whole'])}"
        )
    if effect is None:
        return
    console.print_result(
        f"tokens of the files: {effect['tokens_before']:,} → {effect['tokens_after']:,} "
        f"({format_percent(effect['saved_share'])} saved)"
    )
    others = effect["other_words"]
    if others["distinct"]:
        console.print_table(
            f"{pluralize(others['distinct'], 'other word')} ({pluralize(others['times'], 'occurrence')}) cut "
            f"in another "
            f"way: {others['longer']:,} into more tokens, {others['become_unknown']:,} now unknown",
            ["word", "times", "before", "after"],
            [
                (e["word"], f"{e['times']:,}", " ".join(e["before"]), " ".join(e["after"]))
                for e in others["examples"][:_ROWS]
            ],
        )
    else:
        console.print_result("no other word of the files is split differently")
    if effect["words_forgotten"]:
        console.print_note(
            f"{pluralize(effect['words_forgotten'], 'occurrence')} of rare words not remembered: "
            "each counts as one token before and after"
        )
