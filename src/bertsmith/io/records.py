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

from bertsmith.errors import InputError
from bertsmith.io import lines as limits
from bertsmith.io.lines import Faults, Line, Lines, too_long, utf8_blocks

# The module's customary limit of 131,072 characters would refuse a long document as a field.
csv.field_size_limit(sys.maxsize)

_DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_INSTEAD = "\t;|"  # of commas
_NAMED = 40  # columns that a remedy lists
_SHOWN = 40  # characters of a column's name
FOR_ALL_FILES = "--text-column, which holds for all files of the command"
"""What names the column of the texts of a corpus."""
_CLOSE = 'a quote within a quoted field is doubled: ""; a line end within a field needs quotes'


def delimiter_of(path: str | Path, suffix: str, delimiter: str | None, encoding: str | None = None) -> str:
    """The delimiter given, or else what the suffix says. Raises `InputError` for none, and one that cannot be; for
    a suffix that says nothing, what is wrong with the file as a whole comes first."""
    delimiter = delimiter or _DELIMITERS.get(suffix)
    if delimiter is None:
        # A workbook, or what is missing: no delimiter would help it.
        utf8_blocks(path, encoding)
        raise InputError(
            f"{path}: the suffix '{suffix}' does not say what separates columns",
            "say it with --delimiter ','",
        )
    if len(delimiter) != 1 or delimiter in '"\n\r':
        raise InputError(
            f"--delimiter {delimiter!r}: a delimiter is one character", "for a tab: --delimiter $'\\t'"
        )
    return delimiter


def table_delimiter(path: str | Path, suffix: str, given: str | None, encoding: str | None) -> str:
    """What separates the columns of a .csv or .tsv: `given`, or what its suffix says; of a .csv whose first two
    lines have no comma the tab, ";" or "|" that both have (spreadsheets of half the world). Raises as
    `delimiter_of`, and for a missing file."""
    if suffix != ".csv" or given is not None:
        return delimiter_of(path, suffix, given, encoding)
    unheard = Faults(path, lambda reject: None)  # whatever is wrong is told by who reads the rows
    lines = Lines(path, unheard, encoding)
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
                f"{path}:{line}: the column '{name}' occurs twice in the header",
                "rename one, or read the file without a header",
            )
        columns[name] = None
    return list(columns)


def missing_column(
    wanted: str, columns: Sequence[str], option: str | None = None, word: str = "columns"
) -> str:
    """What to do where a column is missing: says which there are (of very many the first ones), and which of them
    may be meant. option: names the column, `--text-column`; word: what they are in this form of file."""
    if not columns:
        return f"no {word.removesuffix('s')} has a value: check how the file was made"
    if len(columns) == 1 and (mark := _mark_in(columns[0])):
        return f"the header has one column, {shortened(columns[0])!r}: add --delimiter {mark}"
    named = {column.lower(): column for column in reversed(columns)}
    near = difflib.get_close_matches(wanted.lower(), list(named), n=1)
    meant = f"did you mean '{shortened(named[near[0]])}'? " if near else ""
    more = f", … ({len(columns):,} in all)" if len(columns) > _NAMED else ""
    how = f"; name it with {option}" if option else ""
    names = ", ".join(map(shortened, columns[:_NAMED]))
    return f"{meant}the {word} are {names}{more}{how}"


class Named(NamedTuple):
    """A column that a person may have named. column: its name, None where it is as it is known; option: of the
    command line; instead_of: what it takes the place of."""

    column: str | None
    option: str
    instead_of: Sequence[str]


def by_known_names(values: Mapping[str, Any], parts: Mapping[str, Named], place: str) -> dict[str, Any]:
    """A row's values, those that were named under the names of their parts. InputError, which begins with `place`,
    for a column that is not there."""
    found = dict(values)
    for part, named in parts.items():
        if named.column is None:
            continue
        here = value_of(values, named.column, named.option, place)
        for other in named.instead_of:
            found.pop(other, None)
        found[part] = here
    return found


def value_of(values: Mapping[str, Any], column: str, option: str, place: str) -> Any:
    """A row's value in a column that was named with an option. InputError where there is none."""
    if column not in values:
        raise InputError(
            f"{place}: the column '{column}' is missing", missing_column(column, list(values), option)
        )
    return values[column]


def shortened(name: str) -> str:
    """A column's name as a message shows it: where a file has no header, its first text stands there."""
    line = " ".join(name.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"


def _mark_in(header: str) -> str:
    """What may separate a header's columns, as a shell takes it; nothing where no such character is in it."""
    mark = next((mark for mark in _INSTEAD if mark in header), "")
    return "$'\\t'" if mark == "\t" else repr(mark) if mark else ""


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
    named = "tab" if delimiter == "\t" else repr(delimiter)
    return f"the header has no {named} but {mark}: add --delimiter {mark}" if mark else ""


def records_of(lines: Lines, delimiter: str, faults: Faults) -> Iterator[tuple[list[Line], list[str]]]:
    """The records of a table, each as the lines that it stands on and its fields; empty lines are none.

    A record that cannot be read is told to `faults` (raised, or handed over and left out).
    """
    return _plain(lines, delimiter) if delimiter == "\t" else _Quoted(lines, delimiter, faults).records()


def _plain(lines: Iterable[Line], delimiter: str) -> Iterator[tuple[list[Line], list[str]]]:
    for line in lines:
        text = line.text.removesuffix("\r")
        if text:
            yield [line], text.split(delimiter)


class _RowTooLongError(InputError):
    """A row of many lines that has more bytes than a row may have."""


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
            fault = too_long(self._faults.path, self._taken[0].number, what, _CLOSE)
            raise _RowTooLongError(fault.sentence, fault.remedy)
        return line.text.removesuffix("\r") + "\n"

    def records(self) -> Iterator[tuple[list[Line], list[str]]]:
        """The records that can be read; the others are told."""
        reader = self._reader()
        while True:
            self._taken, self._size = [], 0
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                number = self._taken[0].number
                remedy = _other_delimiter(self._delimiter, self._header) or _CLOSE
                self._go_on(InputError(f"{self._faults.path}:{number}: {_csv_fault(error)}", remedy))
                reader = self._reader()
            except _RowTooLongError as error:
                self._go_on(error)
                reader = self._reader()
            else:
                if fields:
                    yield self._taken, fields

    def _reader(self) -> Any:
        return csv.reader(self, delimiter=self._delimiter, strict=True)

    def _go_on(self, error: InputError) -> None:
        first, *others = self._taken
        if isinstance(self._source, Lines) and self._source.torn and not self._again:
            return  # the row that the file's torn end cut off, which is told already
        self._faults.tell(error, first.number, first.byte, first.raw)
        self._again.extendleft(reversed(others))


def _csv_fault(error: csv.Error) -> str:
    """The csv module's complaints in words that say what stands in the file."""
    said = str(error)
    if "unexpected end" in said:
        return "a quote opens in this row and never closes"
    if "expected after" in said:
        return "text follows a closing quote"
    if "new-line" in said:
        return "a carriage return is in a field without quotes"
    return said
