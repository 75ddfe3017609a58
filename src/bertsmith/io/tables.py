"""Task files as rows of named columns, each with its line: csv, tsv, jsonl, and the .txt that people label.

The one reader for every verb that takes a task file. What parts the columns of a .csv or .tsv is said by its
suffix; of a .txt by its lines (`delimiter_of_labelled`), and a .txt without any has one text per line.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError, option
from bertsmith.io.files import bare_suffix, json_object, read_lines
from bertsmith.io.lines import Faults, Lines
from bertsmith.io.memory import InMemory
from bertsmith.io.records import columns_of, delimiter_of, missing_column, ragged, ragged_remedy, records_of
from bertsmith.io.records import table_delimiter as delimiter_of_table

_LOOKED_AT = 1000  # lines that show what separates the columns of a .txt
_ALIKE = (
    0.95  # the share of them that must agree; the others are bad rows, which raise errors when they are read
)
_LONGEST_LABEL = 40  # characters


@dataclass(frozen=True)
class Row:
    """A row: the line that it began on (from 1) and its values by column. In jsonl a value may be absent."""

    line: int
    values: dict[str, str]


@dataclass(frozen=True)
class TabularFile:
    """A file's rows, in order, and the names of its columns.

    plain: a .txt of one text per line, without columns; its one column is "1".
    """

    path: str
    columns: list[str]
    rows: list[Row]
    plain: bool = False

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str, argument: str | None = None, note: str = "") -> list[str]:
        """Return the values of one column, row by row.

        Args:
            name: The column.
            argument: Python's name of the argument that names the column, such as `label_column`.
            note: Text to append to the argument in the hint, for a file.

        Raises:
            InputError: The table, or a row of a jsonl file, lacks the column.
        """
        if name not in self.columns and self.plain:
            raise InputError(
                "column_missing",
                f"column '{name}' is missing: this file has one text per line and nothing that separates columns",
                location=f"{self.path}:1",
                argument=argument,
                hint="give a .csv, .tsv, or .jsonl file; finetune, evaluate, and predict also take "
                f"{option('delimiter')}",
            )
        if name not in self.columns:
            in_memory = isinstance(self.path, InMemory)
            raise InputError(
                "column_missing",
                f"column '{name}' is missing",
                location=self.path.bare_name if isinstance(self.path, InMemory) else f"{self.path}:1",
                argument=argument,
                hint=missing_column(name, self.columns, argument, note="" if in_memory else note),
            )
        for row in self.rows:
            if name not in row.values:
                keys = ", ".join(row.values) or "none"  # a key without a value is none
                raise InputError(
                    "field_missing",
                    f"the field '{name}' is missing or null",
                    location=f"{self.path}:{row.line}",
                    argument=argument,
                    hint=f"give it in every line; the keys of this one are {keys}",
                )
        return [row.values[name] for row in self.rows]


def read_table(
    path: str | Path,
    *,
    delimiter: str | None = None,
    header: bool = True,
    encoding: str | None = None,
    keep_blank: bool = False,
) -> TabularFile:
    """Read a task file into memory. encoding: of a file that is not UTF-8. keep_blank: an empty line between rows
    of a table is a row of empty values, so that answers can stand beside the file's own rows.

    The delimiter is `delimiter`, or what the file says: comma for .csv (or what its header has instead), tab for
    .tsv, `delimiter_of_labelled` for .txt. A .txt without any is `plain`: a text a line in the column "1",
    whatever `header` says. .jsonl has one object a line, whose keys are the columns and whose values other than
    strings become their JSON text (`3`, `true`; null is absent, of data in memory empty). Without `header` the
    columns are named "1", "2", …, and so is a column whose header is blank. Other empty lines are skipped.

    Raises `InputError` with file:line for a ragged row, a header that occurs twice, an open quote, an empty
    file, and what `read_lines` raises.
    """
    if bare_suffix(path) == ".jsonl":
        return _of_jsonl(path, encoding)
    delimiter = table_delimiter(path, delimiter, encoding)
    if delimiter is None:
        return _plain(path, encoding)
    columns: list[str] | None = None
    rows: list[Row] = []
    end = 0  # the last line of the record before
    faults = Faults(path, None)
    for record, fields in records_of(Lines(path, faults, encoding), delimiter, faults):
        line = record[0].number
        blank, end = range(end + 1, line), record[-1].number
        if columns is None:
            columns = columns_of(path, line, fields) if header else [str(i + 1) for i in range(len(fields))]
            if header:
                continue
        if len(fields) != len(columns):
            raise InputError(
                "field_count",
                ragged(len(fields), columns, header),
                location=f"{path}:{line}",
                hint=ragged_remedy(delimiter, columns),
            )
        if keep_blank and (rows or header):
            rows += [Row(number, dict.fromkeys(columns, "")) for number in blank]
        rows.append(Row(line, dict(zip(columns, fields, strict=True))))
    if columns is None:
        raise _empty_table(path)
    if not rows:
        message = "there is a header but no row"
        raise InputError("no_rows", message, location=f"{path}:1", hint="check how the file was made")
    return TabularFile(str(path), columns, rows)


def table_records(
    path: str | Path, delimiter: str, encoding: str | None = None
) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table as (line, fields), however many fields each has. Raises as `read_table`."""
    faults = Faults(path, None)
    for record, fields in records_of(Lines(path, faults, encoding), delimiter, faults):
        yield record[0].number, fields


def table_delimiter(path: str | Path, given: str | None = None, encoding: str | None = None) -> str | None:
    """What separates the columns of a table that is no jsonl: `given`, or what its suffix and its lines say; None
    for a .txt of a text a line, in which nothing does (nor `given`, where no line holds it)."""
    suffix = bare_suffix(path)
    if suffix != ".txt":
        return delimiter_of_table(path, suffix, given, encoding)
    lines = list(islice((line for _, line in read_lines(path, encoding) if line.strip()), _LOOKED_AT))
    if given is None:
        return delimiter_of_labelled(lines)
    delimiter = delimiter_of(path, suffix, given)
    return delimiter if any(delimiter in line for line in lines) else None


def delimiter_of_labelled(lines: Sequence[str]) -> str | None:
    """What parts labels from texts in the lines of a .txt: a tab that the first line holds; else a ";" or "," of
    which nearly every line holds the same number, with a column that looks like labels (short, no blanks at its
    ends, some value twice). None: each line is one text, as in prose, where a blank follows a comma."""
    if not lines:
        return None
    if "\t" in lines[0]:
        return "\t"
    return next((mark for mark in ";," if _parts_labels(lines, mark)), None)


def _parts_labels(lines: Sequence[str], mark: str) -> bool:
    rows = [fields for line in lines for fields in csv.reader([line], delimiter=mark)]
    number, alike = Counter(map(len, rows)).most_common(1)[0]
    if number < 2 or alike < _ALIKE * len(lines):
        return False
    return any(map(_like_labels, zip(*(fields for fields in rows if len(fields) == number), strict=True)))


def _like_labels(values: Sequence[str]) -> bool:
    several = len(set(values))
    if several == len(values) or any(not v or v != v.strip() or len(v) > _LONGEST_LABEL for v in values):
        return False
    return several <= len(values) / 4 or not any(character.isspace() for v in values for character in v)


def _plain(path: str | Path, encoding: str | None) -> TabularFile:
    lines = read_lines(path, encoding)
    rows = [Row(number, {"1": line}) for number, line in lines]  # blank ones too: an answer a line
    if not rows:
        raise InputError(
            "empty_file", "this file is empty", location=f"{path}:1", hint="write one text per line"
        )
    return TabularFile(str(path), ["1"], rows, plain=True)


def _of_jsonl(path: str | Path, encoding: str | None) -> TabularFile:
    columns: dict[str, None] = {}
    rows: list[Row] = []
    blank = isinstance(path, InMemory)  # each row has every column there, as in a .csv, where a cell is empty
    for number, line in read_lines(path, encoding):
        if line and not line.isspace():
            values = {
                k: _text(v) for k, v in json_object(path, number, line).items() if v is not None or blank
            }
            columns.update(dict.fromkeys(values))
            rows.append(Row(number, values))
    if not rows:
        raise _empty_table(path)
    return TabularFile(str(path), list(columns), rows)


def _empty_table(path: str | Path) -> InputError:
    return InputError(
        "empty_table", "this table is empty", location=f"{path}:1", hint="check how the file was made"
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
