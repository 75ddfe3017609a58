"""Read CoNLL files: one word on each line with its annotations in columns, and a blank line after each sentence.

Tabs separate columns if the first row has one, else spaces (a word may contain other white space). Lines that
begin with -DOCSTART- separate sentences. In .conllu, comments, ranges of words that are written as one (3-4),
and words that are not written (8.1) are skipped, and columns have names: those of the format, or of a first line
`# global.columns = …`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.io.compression import format_suffix
from bertsmith.io.text_io import read_lines

CONLLU_COLUMNS = ["ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC"]
_GLOBAL_COLUMNS = re.compile(r"#\s*global\.columns\s*=\s*(.*)")
_NUMBER = re.compile(r"-?\d+")
_SPACES = re.compile(r"[ \t]+")


class Column(NamedTuple):
    """A column to read.

    Attributes:
        selected: The user's choice: a number (1 is the first, -1 the last), or in .conllu also a name.
        default: The number of the column otherwise.
        conllu_name: Its default in .conllu.
        argument: Python's name of the argument that selects it.
        required: If False, the column may be missing, and is then empty.
        filled: If False, a cell of the column may be empty.
    """

    selected: str | None
    default: str
    conllu_name: str
    argument: str
    required: bool = True
    filled: bool = True


@dataclass
class Sentence:
    """The rows of a sentence.

    Attributes:
        lines: The number of each row's line.
        cells: The columns to read, row by row.
        fields: All columns, row by row.
    """

    layout: _Layout
    lines: list[int] = field(default_factory=list)
    cells: list[list[str]] = field(default_factory=list)
    fields: list[list[str]] = field(default_factory=list)
    raw_lines: list[str] = field(default_factory=list)

    def add(self, number: int, line: str, fields: list[str], location: str) -> None:
        """Add a row."""
        self.cells.append(self.layout.select(fields, location))
        self.lines.append(number)
        self.fields.append(fields)
        self.raw_lines.append(line)

    @property
    def line_numbers(self) -> Sequence[int]:
        """Return the numbers of the lines, as a range if they are consecutive."""
        numbers = range(self.lines[0], self.lines[-1] + 1)
        return numbers if len(numbers) == len(self.lines) else self.lines

    @property
    def further_fields(self) -> list[list[str]]:
        """Return the columns behind the last of those to read, row by row."""
        last = self.layout.indices[-1]
        return [[] if last is None or last == -1 else fields[last + 1 :] for fields in self.fields]

    @property
    def output_rows(self) -> list[str]:
        """Return each row as text behind which a prediction is written.

        An optional tag is repeated as its last column, in which scripts such as conlleval look for it.
        """
        rows = zip(self.raw_lines, self.fields, strict=True)
        return [self.layout.output_row(line, fields) for line, fields in rows]


def read_conll(
    path: str | Path, columns: Sequence[Column], encoding: str | None = None
) -> Iterator[Sentence]:
    """Yield the sentences of a file.

    Raises:
        InputError: A row lacks one of the columns or has nothing in it; if a column is counted from the end,
        also for
            a row with another number of columns than the first.
    """
    is_conllu = format_suffix(path) == ".conllu"
    names = CONLLU_COLUMNS if is_conllu else []
    layout: _Layout | None = None
    sentence: Sentence | None = None
    for number, line in read_lines(path, encoding):
        if is_conllu and line.startswith("#"):
            if match := _GLOBAL_COLUMNS.match(line):
                names = match[1].split()
            continue
        if not line.strip(" \t") or line.startswith("-DOCSTART-"):
            if sentence is not None:
                yield sentence
                sentence = None
            continue
        location = f"{path}:{number}"
        layout = layout or _Layout.of(columns, line, names, location)
        fields = split_columns(line, has_tabs=layout.has_tabs)
        if is_conllu and not fields[0].isdecimal():
            continue
        sentence = sentence or Sentence(layout)
        sentence.add(number, line, fields, location)
    if sentence is not None:
        yield sentence


def split_columns(line: str, *, has_tabs: bool | None = None) -> list[str]:
    """Return the columns of a row; by default tabs separate them if there is one."""
    has_tabs = "\t" in line if has_tabs is None else has_tabs
    return line.split("\t") if has_tabs else _SPACES.split(line.strip(" \t"))


@dataclass(frozen=True)
class _Layout:
    """The positions of the columns to read.

    Attributes:
        indices: The index of each column (negative: from the end); None for an optional one that is missing.
        required: The indices of the required columns.
        filled: The indices of those whose cells may not be empty.
        width: The number of columns of the first row.
    """

    indices: list[int | None]
    required: list[int]
    filled: list[int]
    width: int
    has_tabs: bool

    @classmethod
    def of(cls, columns: Sequence[Column], line: str, names: Sequence[str], location: str) -> _Layout:
        """Find the columns in the first row."""
        width = len(split_columns(line))
        indices: list[int | None] = []
        for column in columns:
            index = _find_column(column, names, width, location)
            if not column.required and (
                index is None or index % width in [i % width for i in indices if i is not None]
            ):
                index = None
            indices.append(index)
        present = [(i, column) for i, column in zip(indices, columns, strict=True) if i is not None]
        required = [index for index, column in present if column.required]
        if len({index % width for index in required}) < len(required):
            options = " and ".join(option(column.argument) for column in columns)
            raise InputError(
                "same_column",
                f"the row has {pluralize(width, 'column')}, and the same one would be both word and tag",
                location=location,
                hint=f"write a tag behind each word; choose the columns with {options}",
            )
        filled = [index for index, column in present if column.required and column.filled]
        return cls(indices, required, filled, width, "\t" in line)

    def select(self, fields: Sequence[str], location: str) -> list[str]:
        """Return the cells of a row in the columns to read."""
        if (min(self.required) < 0 and len(fields) != self.width) or max(self.required) >= len(fields):
            raise InputError(
                "field_count",
                f"the row has {pluralize(len(fields), 'column')}, the file's first has {self.width}",
                location=location,
                hint="fix the row; where spaces separate columns no word can contain one: use tabs",
            )
        if empty := [index for index in self.filled if not fields[index]]:
            message = f"column {empty[0] % len(fields) + 1} is empty"
            hint = "give each word a tag, or remove the row"
            raise InputError("empty_cell", message, location=location, hint=hint)
        return ["" if index is None or index >= len(fields) else fields[index] for index in self.indices]

    def output_row(self, line: str, fields: Sequence[str]) -> str:
        """Return a row as text that ends with the last of the columns to read, if it is optional and exists."""
        index, separator = self.indices[-1], "\t" if self.has_tabs else " "
        text = (line if self.has_tabs else line.strip(" ")) + separator
        if index is None or index in self.required or index >= len(fields) or index in (-1, len(fields) - 1):
            return text
        return f"{text}{fields[index]}{separator}"


def _find_column(column: Column, names: Sequence[str], width: int, location: str) -> int | None:
    """Return the index of a column in a row; None for an optional column that is missing."""
    name = column.selected or (column.conllu_name if names else column.default)
    if not _NUMBER.fullmatch(name):
        if name in names and (column.required or names.index(name) < width):
            return names.index(name)
        message = f"there is no column '{name}'"
        hint = f"its columns are {', '.join(names)}" if names else "its columns have numbers, from 1"
        hint += f"; choose one with {option(column.argument)}"
    else:
        if 1 <= abs(int(name)) <= width:
            return int(name) - 1 if int(name) > 0 else int(name)
        message = f"there is no column {name}, the row has {pluralize(width, 'column')}"
        hint = f"choose another with {option(column.argument)}"
    if not column.required:
        return None
    raise InputError("column_missing", message, location=location, argument=column.argument, hint=hint)
