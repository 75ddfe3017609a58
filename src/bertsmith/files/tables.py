"""Rows of csv, tsv and jsonl files for the tasks: named columns, and the line that each row began on.

Tabs part plain fields: a `"` is a character there, as GLUE's and most task files have it. Commas and other
delimiters come with RFC 4180 quotes, which may hold delimiters, line ends and doubled quotes.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.files.files import bare_suffix, json_object, read_lines
from bertsmith.files.records import CLOSE, columns_of, csv_fault, delimiter_of, ragged, ragged_remedy


@dataclass(frozen=True)
class Row:
    """A row: the line that it began on (from 1) and its values by column. In jsonl a value may be absent."""

    line: int
    values: dict[str, str]


@dataclass(frozen=True)
class TabularFile:
    """A file's rows, in order, and the names of its columns."""

    path: str
    columns: list[str]
    rows: list[Row]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str, option: str | None = None) -> list[str]:
        """The values of one column, row by row. Raises `InputError` when the table, or a jsonl row, lacks it;
        `option` is the command line's name for the choice (`--label-column`)."""
        if name not in self.columns:
            remedy = f"; name it with {option}" if option else ""
            known = ", ".join(self.columns)
            raise InputError(f"{self.path}:1: column '{name}' is missing", f"the columns are {known}{remedy}")
        for row in self.rows:
            if name not in row.values:
                raise InputError(
                    f"{self.path}:{row.line}: the field '{name}' is missing", "give it in every line"
                )
        return [row.values[name] for row in self.rows]


def read_table(path: str | Path, *, delimiter: str | None = None, header: bool = True) -> TabularFile:
    """Read a table into memory.

    The delimiter is `delimiter`, or what the suffix says: comma for .csv, tab for .tsv and .txt; .jsonl has
    one object a line, whose keys are the columns and whose values other than strings become their JSON text
    (`3`, `true`; null is absent). Each also .gz and .zst. Without `header` the columns are named "1", "2", …,
    and so is a column whose header is blank. Empty lines are skipped.

    Raises `InputError` with file:line for a ragged row, a header that stands twice, an open quote, an empty
    file, and what `read_lines` raises.
    """
    suffix = bare_suffix(path)
    if suffix == ".jsonl":
        return _of_jsonl(path)
    delimiter = delimiter_of(path, suffix, delimiter)
    records = _plain(path, delimiter) if delimiter == "\t" else _quoted(path, delimiter)
    columns: list[str] | None = None
    rows: list[Row] = []
    for line, fields in records:
        if columns is None:
            columns = columns_of(path, line, fields) if header else [str(i + 1) for i in range(len(fields))]
            if header:
                continue
        if len(fields) != len(columns):
            raise InputError(
                f"{path}:{line}: {ragged(len(fields), columns, header)}", ragged_remedy(delimiter)
            )
        rows.append(Row(line, dict(zip(columns, fields, strict=True))))
    if columns is None:
        raise InputError(f"{path}:1: this table is empty", "check how it was made")
    if not rows:
        raise InputError(f"{path}:1: there is a header but no row", "check how it was made")
    return TabularFile(str(path), columns, rows)


def _of_jsonl(path: str | Path) -> TabularFile:
    columns: dict[str, None] = {}
    rows: list[Row] = []
    for number, line in read_lines(path):
        if line and not line.isspace():
            values = {k: _text(v) for k, v in json_object(path, number, line).items() if v is not None}
            columns.update(dict.fromkeys(values))
            rows.append(Row(number, values))
    if not rows:
        raise InputError(f"{path}:1: this table is empty", "check how it was made")
    return TabularFile(str(path), list(columns), rows)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _plain(path: str | Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in read_lines(path):
        if line:
            yield number, line.split(delimiter)


def _quoted(path: str | Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Records as the csv module reads them; a quote open at a line's end goes on in the next line."""
    lines = (f"{line}\n" for _, line in read_lines(path))
    records = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        first = records.line_num + 1
        try:
            fields = next(records)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(f"{path}:{first}: {csv_fault(error)}", CLOSE) from None
        if fields:
            yield first, fields
