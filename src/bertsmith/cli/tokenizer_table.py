"""What a terminal shows of `tokenizer inspect` and `tokenizer extend`: tables that fit 80 columns."""

from __future__ import annotations

import unicodedata
from typing import Any

from bertsmith import console
from bertsmith.wording import counted

_ROWS = 10  # of a list
_LINE = 60  # characters of joined words in a cell


def print_inspection(report: dict[str, Any]) -> None:
    """The numbers side by side, scripts, then for each tokenizer its words."""
    rows = report["tokenizers"]
    text = report["text"]
    console.result_table(
        f"{counted(text['bytes'], 'byte')}, {counted(text['characters'], 'character')}, "
        f"{counted(text['words'], 'word')}",
        ["on this text", *rows],
        [[head, *(show(row) for row in rows.values())] for head, show in _MEASURES],
    )
    console.result_table(
        "letters known / words kept whole, by script",
        ["script", "letters", *rows],
        [
            [name, f"{counts['letters']:,}", *(_script(row["scripts"][name]) for row in rows.values())]
            for name, counts in list(text["scripts"].items())[: 2 * _ROWS]
        ],
    )
    for name, row in rows.items():
        if row["falling_apart"]:
            console.result_table(
                f"{name}: words that fall apart most",
                ["word", "times", "pieces"],
                [(e["word"], f"{e['times']:,}", " ".join(e["pieces"])) for e in row["falling_apart"][:_ROWS]],
            )
    console.result_table(
        "",
        ["tokenizer", "what", "are"],
        [(name, what, told) for name, row in rows.items() for what, told in _lists(row) if told],
    )
    for note in report["notes"]:
        console.note(note)


def _percent(share: float | None) -> str:
    if share is None:
        return "–"
    return f"{share:.2%}" if share in (0, 1) or 0.0001 <= share <= 0.9999 else f"{share:.4%}"


_MEASURES: list[tuple[str, Any]] = [
    ("kind", lambda row: row["kind"]),
    ("lower-cased", lambda row: "yes" if row["lowercase"] else "no"),
    ("vocabulary", lambda row: f"{row['vocab_size']:,}"),
    ("tokens", lambda row: f"{row['tokens']:,}"),
    ("characters a token", lambda row: f"{row['characters_a_token']:.2f}"),
    ("pieces a word", lambda row: f"{row['pieces_a_word']:.3f}"),
    ("words kept whole", lambda row: _percent(row["words_kept_whole"])),
    ("unknown tokens", lambda row: _percent(row["unknown_token_share"])),
    ("unknown words", lambda row: _percent(row["unknown_word_share"])),
    ("unknown characters", lambda row: _percent(row["unknown_character_share"])),
    ("vocabulary used", lambda row: _percent(row["pieces_used_share"])),
]


def _script(row: dict[str, Any]) -> str:
    shares = (row["letters_known"], row["words_kept_whole"])
    return " / ".join("–" if share is None else f"{share:.1%}" for share in shares)


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
    console.result_table(
        counted(report["added"], "word") + (f", the first {2 * _ROWS}" if len(words) > 2 * _ROWS else ""),
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
        console.note(
            f"no entry needed (one token already, or named before) for "
            f"{counted(len(report['already_whole']), 'word')} of the list: {_joined(report['already_whole'])}"
        )
    if effect is None:
        return
    console.result(
        f"tokens of the files: {effect['tokens_before']:,} → {effect['tokens_after']:,} "
        f"({effect['saved_share']:.2%} saved)"
    )
    others = effect["other_words"]
    if others["distinct"]:
        console.result_table(
            f"{counted(others['distinct'], 'other word')} ({counted(others['times'], 'occurrence')}) cut "
            f"in another "
            f"way: {others['longer']:,} into more tokens, {others['become_unknown']:,} now unknown",
            ["word", "times", "before", "after"],
            [
                (e["word"], f"{e['times']:,}", " ".join(e["before"]), " ".join(e["after"]))
                for e in others["examples"][:_ROWS]
            ],
        )
    else:
        console.result("no other word of the files is cut in another way")
    if effect["words_forgotten"]:
        console.note(
            f"{counted(effect['words_forgotten'], 'occurrence')} of rare words not remembered: "
            "each counts as one token before and after"
        )
