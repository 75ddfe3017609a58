"""What a terminal shows of `tokenizer inspect` and `tokenizer extend`: tables that fit 80 columns, and most 40."""

from __future__ import annotations

import shutil
import unicodedata
from typing import Any

from bertsmith import console
from bertsmith.formatting import format_bytes, format_percent, pluralize

_ROWS = 10  # of a list
_LINE = 60  # characters of joined words in a cell
_FEW = 3  # tokenizers whose lists are shown at length
_SCRIPT_ROWS = 20
_NARROW = 60  # columns: a terminal with fewer shows a table for each tokenizer


def print_inspection(report: dict[str, Any]) -> None:
    """The tokenizers, the best first: their numbers, scripts, then for each its words."""
    rows = {name: report["tokenizers"][name] for name in report["order"]}
    text = report["text"]
    title = (
        f"{format_bytes(text['bytes'])}, {pluralize(text['characters'], 'character')}, "
        f"{pluralize(text['words'], 'word')}"
    )
    if len(rows) == 1 or shutil.get_terminal_size().columns < _NARROW:
        console.print_result(title)
        for name, row in rows.items():
            told = [(what, show(row)) for measures in _MEASURES for what, show in measures.items()]
            console.print_table(name + _mark(row), ["what", "figure"], told)
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
        console.print_result("* knows less than 99.5 % of the words: few tokens are no merit here")
    _print_scripts(text["scripts"], rows)
    listed = _ROWS if len(rows) <= _FEW else _FEW
    for name, row in rows.items():
        if row["falling_apart"]:
            console.print_table(
                f"{name}: words that fall apart most",
                ["word", "times", "pieces"],
                [
                    (e["word"], f"{e['times']:,}", " ".join(e["pieces"]))
                    for e in row["falling_apart"][:listed]
                ],
            )
    console.print_table(
        "",
        ["tokenizer", "words"],
        [((name, what), told) for name, row in rows.items() for what, told in _lists(row) if told],
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
    told: list[tuple[str, str, str]] = []
    for script, counts in shown:
        if not one:
            told.append((f"{script}, {pluralize(counts['letters'], 'letter')}:", "", ""))
        for name, row in rows.items():
            found = row["scripts"][script]
            figures = (format_percent(found["letters_known"]), format_percent(found["words_kept_whole"]))
            told.append((script if one else name, *figures))
    console.print_table("by script", ["script", "letters known", "words kept whole"], told)
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


def _seen(character: str) -> str:
    """A character to print before its code: none that a terminal takes for a command, marks on a ring."""
    if not character.isprintable():
        return ""
    return f"{'◌' if unicodedata.category(character)[0] == 'M' else ''}{character} "


def _joined(words: list[str]) -> str:
    """As many as fit a cell, at least one."""
    shown = words[:1]
    for word in words[1:]:
        if len(", ".join([*shown, word])) > _LINE:
            break
        shown.append(word)
    return ", ".join(shown)


def print_extension(report: dict[str, Any]) -> None:
    """The words that save most, what they save together, and which other words they change."""
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
