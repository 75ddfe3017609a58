"""The rows of every table of text, whoever reads it: what separates columns, quotes, header, words for a bad row.

Tabs part plain fields: a `"` is a character there, as GLUE's and most task files have it. Commas and other
delimiters come with RFC 4180 quotes, which may hold delimiters, line ends and doubled quotes. A quote that never
closes takes the rest of a file into its row: there the first line alone is bad, and reading goes on behind it.
"""

from __future__ import annotations

import csv
import difflib
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.errors import InputError, option
from bertsmith.io import lines as limits
from bertsmith.io.lines import Faults, Line, Lines, too_long, utf8_blocks

# The module's customary limit of 131,072 characters would refuse a long document as a field.
csv.field_size_limit(sys.maxsize)

_DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_TAB = "\t"
_INSTEAD = "\t;|"  # of commas
_NAMED = 40  # columns that a remedy lists
_SHOWN = 40  # characters of a column's name
FOR_ALL_FILES = ", which applies to all files"
"""Follows the option that names the text column of a corpus."""
_CLOSE = 'a quote within a quoted field is doubled: ""; a line end within a field needs quotes'


def delimiter_of(path: str | Path, suffix: str, delimiter: str | None, encoding: str | None = None) -> str:
    """The delimiter given, or else what the suffix says. Raises `InputError` for none, and one that cannot be; for
    a suffix that says nothing, what is wrong with the file as a whole comes first."""
    delimiter = delimiter or _DELIMITERS.get(suffix)
    if delimiter is None:
        # A workbook, or what is missing: no delimiter would help it.
        utf8_blocks(path, encoding)
        comma = "','"
        raise InputError(
            "delimiter_unknown",
            f"the suffix '{suffix}' does not determine what separates columns",
            location=path,
            argument="delimiter",
            hint=f"add {option('delimiter', comma)}",
        )
    if len(delimiter) != 1 or delimiter in '"\n\r':
        raise InputError(
            "bad_delimiter",
            f"a delimiter is one character, not {delimiter!r}",
            argument="delimiter",
            hint=f"for a tab, {_use_delimiter(_TAB)}",
        )
    return delimiter


def table_delimiter(path: str | Path, suffix: str, given: str | None, encoding: str | None) -> str:
    """What separates the columns of a .csv or .tsv: `given`, or what its suffix says; of a .csv whose first two
    lines have no comma the tab, ";" or "|" that both have (spreadsheets of half the world). Raises as
    `delimiter_of`, and for a missing file."""
    if suffix != ".csv" or given is not None:
        return delimiter_of(path, suffix, given, encoding)
    ignored = Faults(path, lambda reject: None)  # the reader of the rows reports errors
    lines = Lines(path, ignored, encoding)
    begin = list(islice((line.text for line in lines if line.text.strip()), 2))
    if not begin or "," in begin[0]:
        return ","
    marks = [mark for mark in _INSTEAD if all(mark in line for line in begin)]
    return marks[0] if len(marks) == 1 else ","


def columns_of(path: str | Path, line: int, fields: list[str]) -> list[str]:
    """The names in a header. Raises `InputError` for one that occurs twice."""
    columns: dict[str, None] = {}
    for i, field in enumerate(fields):
        name = field.strip() or str(i + 1)  # pandas leaves the header of its index blank
        if name in columns:
            raise InputError(
                "duplicate_column",
                f"the column '{name}' occurs twice in the header",
                location=f"{path}:{line}",
                hint="rename one, or read the file without a header",
            )
        columns[name] = None
    return list(columns)


def missing_column(
    name: str,
    columns: Sequence[str],
    argument: str | None = None,
    *,
    word: str = "columns",
    note: str = "",
) -> str:
    """Return the hint for a missing column: the columns of the file (of many, the first) and a similar name.

    Args:
        name: The column that is missing.
        columns: The columns of the file.
        argument: Python's name of the argument that names the column, such as `text_column`.
        word: The noun for columns in this format.
        note: Text to append to the argument.
    """
    if not columns:
        return f"no {word.removesuffix('s')} has a value: check how the file was made"
    if len(columns) == 1 and (mark := _mark_in(columns[0])):
        return f"the header has one column, {shortened(columns[0])!r}: {_use_delimiter(mark)}"
    named = {column.lower(): column for column in reversed(columns)}
    near = difflib.get_close_matches(name.lower(), list(named), n=1)
    meant = f"did you mean '{shortened(named[near[0]])}'? " if near else ""
    more = f", … ({len(columns):,} in all)" if len(columns) > _NAMED else ""
    how = f"; name it with {option(argument)}{note}" if argument else ""
    names = ", ".join(map(shortened, columns[:_NAMED]))
    return f"{meant}the {word} are {names}{more}{how}"


class Named(NamedTuple):
    """A column that the user may have named. column: its name, None where it is as it is known; argument: Python's
    name of the argument that names it; instead_of: what it takes the place of."""

    column: str | None
    argument: str
    instead_of: Sequence[str]


def by_known_names(values: Mapping[str, Any], parts: Mapping[str, Named], place: str) -> dict[str, Any]:
    """Return a row's values, those that were named under the names of their parts. InputError with the location
    `place` for a column that is not there."""
    found = dict(values)
    for part, named in parts.items():
        if named.column is None:
            continue
        here = value_of(values, named.column, named.argument, place)
        for other in named.instead_of:
            found.pop(other, None)
        found[part] = here
    return found


def value_of(values: Mapping[str, Any], column: str, argument: str, place: str) -> Any:
    """Return a row's value in a column that an argument names. InputError where there is none."""
    if column not in values:
        raise InputError(
            "column_missing",
            f"the column '{column}' is missing",
            location=place,
            argument=argument,
            hint=missing_column(column, list(values), argument),
        )
    return values[column]


def shortened(name: str) -> str:
    """A column's name as a message shows it: where a file has no header, its first text stands there."""
    line = " ".join(name.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"


def _mark_in(header: str) -> str:
    """Return the character that may separate a header's columns; "" if none of them is in it."""
    return next((mark for mark in _INSTEAD if mark in header), "")


def _use_delimiter(mark: str) -> str:
    """Return the advice to set a delimiter; a shell and Python write a tab in different ways."""
    if mark == _TAB:
        return f"set {option('delimiter')} to a tab ($'\\t' in a shell, '\\t' in Python)"
    return f"add {option('delimiter', repr(mark))}"


def ragged(found: int, columns: list[str], header: bool = True) -> str:
    """Says that a row has another number of fields than the others."""
    fields = "1 field" if found == 1 else f"{found} fields"
    return f"{fields} where the {'header' if header else 'first row'} has {len(columns)}"


def ragged_remedy(delimiter: str, columns: Sequence[str]) -> str:
    """What to do about that."""
    if len(columns) == 1 and (said := _other_delimiter(delimiter, columns[0])):
        return said
    if delimiter == "\t":
        return "a field cannot hold a tab or a line end; use .csv or .jsonl for such texts"
    return f"a field that contains '{delimiter}' or a line end needs quotes: \"…\""


def _other_delimiter(delimiter: str, header: str) -> str:
    """What to do where a header has another delimiter than the one that was named; nothing where it has not."""
    mark = "" if delimiter in header else _mark_in(header)
    if not mark:
        return ""
    present, absent = ("a tab" if sign == _TAB else repr(sign) for sign in (mark, delimiter))
    return f"the header has {present} and not {absent}: {_use_delimiter(mark)}"


def records_of(lines: Lines, delimiter: str, faults: Faults) -> Iterator[tuple[list[Line], list[str]]]:
    """The records of a table, each as the lines that it stands on and its fields; empty lines are none.

    A record that cannot be read is added to `faults`, which raises the error or skips the record.
    """
    return _plain(lines, delimiter) if delimiter == "\t" else _Quoted(lines, delimiter, faults).records()


def _plain(lines: Iterable[Line], delimiter: str) -> Iterator[tuple[list[Line], list[str]]]:
    for line in lines:
        text = line.text.removesuffix("\r")
        if text:
            yield [line], text.split(delimiter)


class _RowTooLongError(Exception):
    """A row of several lines has more bytes than a row may have; the argument is the `InputError`."""


class _Quoted:
    """Records as the csv module reads them, each with its lines, which it takes one by one."""

    def __init__(self, lines: Iterable[Line], delimiter: str, faults: Faults) -> None:
        self._lines, self._delimiter, self._faults = iter(lines), delimiter, faults
        self._source = lines
        self._again: deque[Line] = deque()  # lines of a bad record behind its first, to be read as rows
        self._taken: list[Line] = []
        self._size = 0
        self._header = ""  # the first line with anything in it

    def __iter__(self) -> _Quoted:
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._lines)
        self._header = self._header or line.text
        self._taken.append(line)
        self._size += len(line.text)
        if self._taken[1:] and self._size > limits.LONGEST:
            what = "row (does a quote in it never close?)"
            raise _RowTooLongError(too_long(self._faults.path, self._taken[0].number, what, _CLOSE))
        return line.text.removesuffix("\r") + "\n"

    def records(self) -> Iterator[tuple[list[Line], list[str]]]:
        """Yield the records that can be read; report the others."""
        reader = self._reader()
        while True:
            self._taken, self._size = [], 0
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                location = f"{self._faults.path}:{self._taken[0].number}"
                hint = _other_delimiter(self._delimiter, self._header) or _CLOSE
                self._go_on(InputError("bad_quoting", _csv_fault(error), location=location, hint=hint))
                reader = self._reader()
            except _RowTooLongError as error:
                self._go_on(error.args[0])
                reader = self._reader()
            else:
                if fields:
                    yield self._taken, fields

    def _reader(self) -> Any:
        return csv.reader(self, delimiter=self._delimiter, strict=True)

    def _go_on(self, error: InputError) -> None:
        first, *others = self._taken
        if isinstance(self._source, Lines) and self._source.torn and not self._again:
            return  # the file's torn end cut off this row, which was reported before
        self._faults.add(error, first.number, first.byte, first.raw)
        self._again.extendleft(reversed(others))


def _csv_fault(error: csv.Error) -> str:
    """Return the error of the csv module in terms of the file."""
    message = str(error)
    if "unexpected end" in message:
        return "a quote opens in this row and never closes"
    if "expected after" in message:
        return "text follows a closing quote"
    if "new-line" in message:
        return "a carriage return is in a field without quotes"
    return message
