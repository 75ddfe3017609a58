"""Write predictions as JSON, CSV, and tables."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.errors import InputError
from bertsmith.formatting import shorten
from bertsmith.io import atomic
from bertsmith.tasks.registry import OutputFormat
from bertsmith.tasks.report import TaskReport

FORMATS = {".csv": "csv", ".jsonl": "json", ".json": "json"}
"""The format of a file by its suffix."""

_DECIMALS = 4  # of a number in a cell; JSON has all


class Answered(NamedTuple):
    """An example with its prediction; None if the example is empty."""

    example: Any
    prediction: Any | None


def output_format(
    output: str | Path | None, requested: str | None, task_format: OutputFormat | None = None
) -> str:
    """Return the format of predictions: as requested, or by the suffix of the file.

    Args:
        output: The file; None for standard output.
        requested: The name of a format; None: by the suffix.
        task_format: The official format of the task.

    Raises:
        InputError: The format or the suffix is unknown.
    """
    names, suffixes = ["csv", "json", *(["table"] if output is None else [])], dict(FORMATS)
    if task_format is not None:
        names.append(task_format.name)
        suffixes |= {task_format.suffix: task_format.name} if task_format.suffix else {}
    if requested is not None and requested not in names:
        message = f"predictions of this model have no format '{requested}'"
        hint = f"use one of {', '.join(names)}"
        raise InputError("unknown_format", message, argument="format", hint=hint)
    if requested is not None or output is None:
        return requested or "json"
    return suffixes[check_suffix(output, suffixes)]


def check_suffix(output: str | Path, suffixes: Iterable[str]) -> str:
    """Return the suffix of an output file in lowercase; raise InputError if it is not one of these."""
    suffix = Path(output).suffix.lower()
    if suffix not in suffixes:
        message = f"this file name does not end in {', '.join(suffixes)}"
        raise InputError("suffix_unsupported", message, location=output, argument="output", hint="rename it")
    return suffix


def prediction_objects(answered: Iterable[Answered]) -> Iterator[dict[str, Any]]:
    """Yield an object per prediction: the line (or place) in the file, the inputs, and the prediction."""
    for example, prediction in answered:
        if prediction is not None:
            yield {**line_or_place(example), **example.display_inputs, **prediction.to_dict()}


def csv_lines(report: TaskReport, answered: Iterable[Answered], delimiter: str = ",") -> Iterator[str]:
    """Yield the lines of a table: each row of the input with the prediction behind it, blank if it is empty.

    Examples that do not come from a table have columns for the line, the inputs, and the prediction.
    """
    remaining = iter(answered)
    head: list[Answered] = []  # up to the first prediction, whose cells define the header
    for pair in remaining:
        head.append(pair)
        if pair.prediction is not None:
            break
    if not head:
        return
    source = head[-1].example.table_row or {}
    names = {name: _unused_name(name, source) for name in next(_csv_cells(report, head[-1]), {})}
    header = [*source, *names.values()]
    yield _csv_line(header, delimiter)
    for pair in chain(head, remaining):
        for cells in _csv_cells(report, pair):
            new_cells = {names[name]: _cell(cell) for name, cell in cells.items() if name in names}
            row = {**(pair.example.table_row or {}), **new_cells}
            yield _csv_line([row.get(name, "") for name in header], delimiter)


def _csv_cells(report: TaskReport, pair: Answered) -> Iterator[dict[str, Any]]:
    """Yield the cells that a prediction adds to the row of its example; those of the inputs if it is empty."""
    example, prediction = pair
    inputs = example.display_inputs
    for cells in [inputs] if prediction is None else report.table_rows(example, prediction):
        if example.table_row:
            yield {name: cell for name, cell in cells.items() if name not in inputs}
        else:
            yield {**line_or_place(example), **cells}


def table_of(
    report: TaskReport, answered: Iterable[Answered], width: int
) -> tuple[list[str], list[tuple[object, ...]]]:
    """Return the columns and rows of a table for reading; inputs are shortened to fit `width` characters."""
    rows: list[dict[str, Any]] = []
    for example, prediction in answered:
        if prediction is not None:
            inputs = example.display_inputs
            max_length = max(12, (width - 36) // max(1, len(inputs)))
            rows += [
                {
                    name: shorten(str(cell), max_length) if name in inputs else _cell(cell)
                    for name, cell in cells.items()
                }
                for cells in report.table_rows(example, prediction)
            ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return names, [tuple(row.get(name, "") for name in names) for row in rows]


def write_predictions(
    report: TaskReport, answered: Iterable[Answered], format: str, delimiter: str, output: Path
) -> int:
    """Write predictions to a file atomically, and return their number.

    A csv file begins with a byte order mark, without which spreadsheets assume the encoding of their country.
    """
    count = 0

    def counted() -> Iterator[Answered]:
        nonlocal count
        for pair in answered:
            count += pair.prediction is not None
            yield pair

    with atomic.atomic_file(output) as path, path.open("w", encoding="utf-8", newline="") as file:
        if format == "csv":
            file.write("\ufeff")
            file.writelines(csv_lines(report, counted(), delimiter))
        elif format == "json":
            file.writelines(json_lines(prediction_objects(counted()), output))
        else:
            file.writelines(report.write_output(counted()))
    return count


def json_lines(objects: Iterable[Mapping[str, Any]], output: Path) -> Iterator[str]:
    """Yield the lines of a .jsonl file, or the line of a .json file with a list."""
    if output.suffix.lower() == ".json":
        yield json.dumps(list(objects), ensure_ascii=False) + "\n"
    else:
        yield from (json.dumps(value, ensure_ascii=False) + "\n" for value in objects)


def write_rows(rows: Sequence[Mapping[str, Any]], format: str, output: Path) -> None:
    """Write rows of plain values to a file atomically; raise InputError if it exists."""
    atomic.check_output_file(output)
    with atomic.atomic_file(output) as path, path.open("w", encoding="utf-8", newline="") as file:
        if format == "csv":
            file.write("\ufeff")
            columns = list(dict.fromkeys(name for row in rows for name in row))
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(json_lines(rows, output))


def line_or_place(example: Any) -> dict[str, Any]:
    """Return the line of a file that an example begins on, or its place in a document, if it has one."""
    file, _, position = str(example.location).rpartition(":")
    if file and position.isdecimal():
        return {"line": int(position)}
    return {"place": position.strip()} if file else {}


def _unused_name(name: str, taken: Iterable[str]) -> str:
    number, unused = 1, name
    while unused in taken:
        number += 1
        unused = f"{name} {number}"
    return unused


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.{_DECIMALS}f}" if isinstance(value, float) else str(value)


def _csv_line(cells: Sequence[Any], delimiter: str) -> str:
    text = StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerow(cells)
    return text.getvalue()
