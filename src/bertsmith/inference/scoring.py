"""Texts and their scores as people take them away: rows with ranks, files of rows, what to say of them."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bertsmith import console
from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names, pluralize
from bertsmith.inference.minimal_pairs import told_of_scores
from bertsmith.inference.output import refuse_existing, shortened
from bertsmith.inference.pseudo_likelihood import PseudoLikelihood, Scorer, pseudo_perplexity
from bertsmith.io import atomic
from bertsmith.io.compression import format_suffix
from bertsmith.io.sources import is_missing
from bertsmith.io.tables import read_table
from bertsmith.io.text_io import read_lines

_FILE_WIDTH = 120  # characters of a table that goes into a file
_TABLE_COLUMNS = ("rank", "text", "score", "tokens", "pseudo-perplexity")

logger = logging.getLogger(__name__)


def read_texts(
    file: str | Path, column: str | None = None, encoding: str | None = None
) -> list[tuple[str, str]]:
    """The texts of a file, each with its place: of a .txt its lines, of a table the values of a column ("text" if
    none is named). encoding: of a file that is not UTF-8. InputError for what the readers refuse."""
    if format_suffix(file) == ".txt":
        if column is not None:
            raise InputError(
                "no_columns",
                "a .txt file has one text per line and no columns",
                location=file,
                argument="text_column",
                hint=f"omit {option('text_column')}",
            )
        return [(f"{file}:{number}", line) for number, line in read_lines(file, encoding)]
    table = read_table(file, encoding=encoding)
    values = table.texts(column or "text", "text_column")
    return [(row.location, value) for row, value in zip(table, values, strict=True)]


def strings(texts: Sequence[Any]) -> list[str]:
    """Texts as Python gives them, what is missing as an empty one. InputError for what is no string."""
    found = ["" if is_missing(text) else text for text in texts]
    for number, text in enumerate(found, start=1):
        if not isinstance(text, str):
            raise InputError(
                "text_not_a_string",
                f"{text!r:.60} is not a string",
                location=f"text {number}",
                hint="pass each text as a string",
            )
    return found


def as_row(found: PseudoLikelihood) -> dict[str, Any]:
    """The figures of one text; a text without a token has no score and no perplexity."""
    return {
        "score": found.score if found.tokens else None,
        "tokens": found.tokens,
        "words": found.words,
        "unknown": found.unknown,
        "pseudo_perplexity": found.perplexity,
    }


def ranked(
    placed: Sequence[tuple[str, str]],
    scorer: Scorer,
    progress: Callable[[int], None] = lambda done: None,
) -> list[dict[str, Any]]:
    """A row for each text but the empty ones, in order: its line in a file, the text, its rank among all (1: the
    likeliest) and its figures. placed: places and texts. Logs
    which texts are empty, and the pseudo-perplexity of all."""
    found = scorer.scores([text for _, text in placed], progress)
    empty = [place for (place, _), one in zip(placed, found, strict=True) if not one.tokens]
    if empty:
        logger.warning("%s", told_of_unscored(empty))
    for sentence in told_of_scores(found):
        logger.info("%s", sentence)
    order = sorted((one.score for one in found if one.tokens), reverse=True)
    ranks = {score: rank for rank, score in reversed([*enumerate(order, start=1)])}
    if (together := pseudo_perplexity(found)) is not None and len(order) > 1:
        tokens = sum(one.tokens for one in found)
        logger.info(
            "all %s texts: pseudo-perplexity %s over %s",
            f"{len(order):,}",
            f"{together:,.2f}",
            pluralize(tokens, "token"),
        )
    return [
        {**_line_of(place), "text": text, "rank": ranks[one.score], **as_row(one)}
        for (place, text), one in zip(placed, found, strict=True)
        if one.tokens
    ]


def told_of_unscored(places: Sequence[str]) -> str:
    """A sentence on texts that have no score since there is nothing to read."""
    return f"{pluralize(len(places), 'text is', 'texts are')} empty and not scored: {join_names(places)}"


def as_table(rows: Iterable[dict[str, Any]], width: int) -> tuple[Sequence[str], list[tuple[object, ...]]]:
    """The columns and rows of texts for reading; a text is cut so that a row fits `width` characters."""
    return _TABLE_COLUMNS, [
        (
            row["rank"],
            shortened(row["text"], max(12, width - 51)),
            f"{row['score']:.3f}",
            f"{row['tokens']:,}",
            f"{row['pseudo_perplexity']:,.2f}",
        )
        for row in rows
    ]


def write_rows(rows: Sequence[dict[str, Any]], form: str, out: Path) -> None:
    """Rows into a file that is whole or not there, as `predictions.FORMATS` names forms. A csv begins with a byte
    order mark, as a spreadsheet wants it. InputError where something is at its place."""
    refuse_existing(out)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with atomic.atomic_file(out) as path, path.open("w", encoding="utf-8", newline="") as file:
        if form == "csv":
            file.write("\ufeff")
            table = csv.DictWriter(file, columns, lineterminator="\n")
            table.writeheader()
            table.writerows(rows)
        elif form == "table":
            cells = [
                tuple(shortened(row.get(name, ""), _FILE_WIDTH // 3) for name in columns) for row in rows
            ]
            file.write(console.format_table("", columns, cells, width=_FILE_WIDTH) + "\n")
        elif out.suffix.lower() == ".json":
            file.write(json.dumps(list(rows), ensure_ascii=False) + "\n")
        else:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _line_of(place: str) -> dict[str, int]:
    _, _, line = place.rpartition(":")
    return {"line": int(line)} if line.isdecimal() else {}
