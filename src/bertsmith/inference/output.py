"""Answers as people take them away: JSON, rows of a spreadsheet, a table for a terminal. No task is named here."""

from __future__ import annotations

import csv
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith import console
from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names, pluralize
from bertsmith.io import atomic
from bertsmith.tasks.base import TaskReport
from bertsmith.tasks.registry import OutputFormat

FORMATS = {".csv": "csv", ".jsonl": "json", ".json": "json", ".txt": "table"}
"""What a file of answers holds, by its suffix."""

_FILE_WIDTH = 120  # characters of a table that goes into a file
_DIGITS = 4  # of a share in a cell; JSON has all

logger = logging.getLogger(__name__)


class Answered(NamedTuple):
    """An example with its answer; None where there was nothing to read."""

    example: Any
    prediction: Any | None


def answered_of(
    parts: Iterable[Sequence[Any]],
    answers: Callable[[Sequence[Any]], Iterator[Any]],
) -> Iterator[Answered]:
    """All examples in order, each with its answer; logs at the end which are empty, and how much was truncated.
    parts: the examples, some at a time."""
    empty: list[str] = []
    cut = lost = 0
    for examples in parts:
        empty += [example.location for example in examples if example.is_empty]
        found = answers([example for example in examples if not example.is_empty])
        for example in examples:
            prediction = None if example.is_empty else next(found)
            unread = (prediction.tokens or 0) - (prediction.tokens_read or 0) if prediction else 0
            cut, lost = cut + (unread > 0), lost + unread
            yield Answered(example, prediction)
    if empty:
        logger.warning("%s", told_of_unanswered(empty))
    if cut:
        logger.warning(
            "%s truncated; %s not read",
            pluralize(cut, "text was", "texts were"),
            pluralize(lost, "token was", "tokens were"),
        )


def told_of_unanswered(places: Sequence[str]) -> str:
    """A sentence on examples that have no answer since there is nothing to read."""
    return f"{pluralize(len(places), 'text is', 'texts are')} empty and not predicted: {join_names(places)}"


def format_of(out: str | Path | None, chosen: str | None, own: OutputFormat | None = None) -> str:
    """json, csv, table or the task's `own` form: what was chosen, or what the file's name says. InputError where
    it says nothing, and for a form that the task does not have."""
    forms, suffixes = list(dict.fromkeys(FORMATS.values())), dict(FORMATS)
    if own is not None:
        forms.append(own.name)
        suffixes |= {own.suffix: own.name} if own.suffix else {}
    if chosen is not None and chosen not in forms:
        raise InputError(
            "unknown_format",
            f"predictions of this model have no format '{chosen}'",
            argument="format",
            hint=f"use one of {', '.join(forms)}",
        )
    if chosen is not None or out is None:
        return chosen or "json"
    if (found := suffixes.get(Path(out).suffix.lower())) is None:
        raise InputError(
            "suffix_unsupported",
            f"this file name does not end in {', '.join(suffixes)}",
            location=out,
            argument="output",
            hint="rename it",
        )
    return found


def as_json(answered: Iterable[Answered]) -> Iterator[dict[str, Any]]:
    """An object an answer: its line (or place) in the file, what was asked, the answer."""
    for example, prediction in answered:
        if prediction is not None:
            yield {**where(example), **example.display_inputs, **prediction.to_dict()}


def as_csv(report: TaskReport, answered: Iterable[Answered], delimiter: str = ",") -> Iterator[str]:
    """Lines of a table: each row of the file as it was, with the answer behind it, so that it has as many rows;
    where there was nothing to read, the answer is blank. Of what is no table, the line, what was asked, and the
    answer."""
    columns: dict[str, str] | None = None  # a cell's name in the answer → in the table
    waiting: list[dict[str, Any]] = []
    known: list[str] = []
    for example, prediction in answered:
        source = dict(example.table_row or {})
        if prediction is None:
            blank = source or {**where(example), **example.display_inputs}
            if columns is None:
                waiting.append(blank)
            else:
                yield _line([blank.get(name, "") for name in known], delimiter)
            continue
        asked = example.display_inputs
        for cells in report.table_rows(example, prediction):
            if source:
                cells = {name: value for name, value in cells.items() if name not in asked}
            else:
                cells = {**where(example), **cells}
            if columns is None:
                columns = {name: _free(name, source) for name in cells}
                known = [*source, *columns.values()]
                yield _line(known, delimiter)
                for row in waiting:
                    yield _line([row.get(name, "") for name in known], delimiter)
            row = source | {columns[name]: _cell(value) for name, value in cells.items() if name in columns}
            yield _line([row.get(name, "") for name in known], delimiter)
    if columns is None and waiting:  # nothing to read anywhere
        yield _line(list(waiting[0]), delimiter)
        for row in waiting:
            yield _line(list(row.values()), delimiter)


def as_table(
    report: TaskReport, answered: Iterable[Answered], width: int
) -> tuple[list[str], list[tuple[object, ...]]]:
    """The names of the columns, and the rows; what was asked is cut so that a row fits `width` characters."""
    rows: list[dict[str, Any]] = []
    for example, prediction in answered:
        if prediction is not None:
            asked = example.display_inputs
            most = max(12, (width - 36) // max(1, len(asked)))
            rows += [
                {
                    name: shortened(value, most) if name in asked else _cell(value)
                    for name, value in row.items()
                }
                for row in report.table_rows(example, prediction)
            ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return names, [tuple(row.get(name, "") for name in names) for row in rows]


def refuse_existing(out: Path) -> None:
    """InputError where there is something at the place of a file of answers."""
    if os.path.lexists(out):
        raise InputError(
            "output_exists",
            "already exists",
            location=out,
            argument="output",
            hint=f"choose another {option('output')}, or remove the file; in Python, overwrite=True replaces it",
        )


def write_answers(
    report: TaskReport, answered: Iterable[Answered], form: str, delimiter: str, out: Path
) -> int:
    """Answers into a file that is whole or not there; how many there are. form: of `format_of`. A csv file
    begins with a byte order mark: spreadsheets read a file without one in the encoding of their country."""
    number = 0

    def counting() -> Iterator[Answered]:
        nonlocal number
        for one in answered:
            number += one.prediction is not None
            yield one

    with atomic.atomic_file(out) as path, path.open("w", encoding="utf-8", newline="") as file:
        if form == "csv":
            file.write("\ufeff")
            file.writelines(as_csv(report, counting(), delimiter))
        elif form == "table":
            columns, rows = as_table(report, counting(), _FILE_WIDTH)
            file.write(console.format_table("", columns, rows, width=_FILE_WIDTH) + "\n")
        elif form != "json":
            file.writelines(report.write_output(counting()))
        elif out.suffix.lower() == ".json":
            file.write(json.dumps(list(as_json(counting())), ensure_ascii=False) + "\n")
        else:
            answers = as_json(counting())
            file.writelines(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers)
    return number


def where(example: Any) -> dict[str, Any]:
    """The line of a file that an example begins on, or its place in a document; nothing for one of no file."""
    file, _, last = str(example.location).rpartition(":")
    if file and last.isdecimal():
        return {"line": int(last)}
    return {"place": last.strip()} if file else {}


def _free(name: str, taken: Iterable[str]) -> str:
    """A name that the file does not have already."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name} {number}"
    return found


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.{_DIGITS}f}" if isinstance(value, float) else str(value)


def shortened(value: Any, most: int) -> str:
    """A value in one line of at most `most` characters."""
    line = " ".join(str(value).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _line(cells: Sequence[Any], delimiter: str) -> str:
    text = StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerow(cells)
    return text.getvalue()
