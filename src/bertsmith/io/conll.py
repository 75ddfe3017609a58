"""CoNLL files: a word a line, what is said of it in columns, a blank line after each sentence.

Columns are separated by tabs where the first row has one, else by blanks (a word may hold other white space).
Lines that begin with -DOCSTART- part sentences and hold no word. In .conllu, comments, the ranges of words written
as one (3-4) and words that are not written (8.1) are left out, and columns have names: those of the format, or
those that a first line `# global.columns = …` gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.io.files import bare_suffix, read_lines

UNIVERSAL = ["ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC"]
_GLOBAL = re.compile(r"#\s*global\.columns\s*=\s*(.*)")
_NUMBER = re.compile(r"-?\d+")
_BLANKS = re.compile(r"[ \t]+")


class Column(NamedTuple):
    """A column that is wanted. chosen: by the user, a number (1 the first, -1 the last), in .conllu also a name;
    None for `default`, a number, or in .conllu for `name`. argument: Python's name of the argument that chooses
    it. needed: else it may be missing, and is then blank; filled: else it may be blank where it is there."""

    chosen: str | None
    default: str
    name: str
    argument: str
    needed: bool = True
    filled: bool = True


@dataclass
class Sentence:
    """The lines of its rows, and of each row the columns that are wanted."""

    lines: list[int]
    rows: list[list[str]]
    _fields: list[list[str]]
    _texts: list[str]
    _chosen: _Chosen

    @property
    def numbers(self) -> Sequence[int]:
        """The lines, as a range where they follow one another."""
        run = range(self.lines[0], self.lines[-1] + 1)
        return run if len(run) == len(self.lines) else self.lines

    @property
    def behind(self) -> list[list[str]]:
        """Of each row the columns behind the last wanted one."""
        return [self._chosen.behind(fields) for fields in self._fields]

    @property
    def texts(self) -> list[str]:
        """Each row as another column can be put behind it: a wanted column that is not needed is its last, where
        scripts such as conlleval look for the tag."""
        pairs = zip(self._texts, self._fields, strict=True)
        return [self._chosen.whole(text, fields) for text, fields in pairs]


def read_conll(
    path: str | Path, columns: Sequence[Column], encoding: str | None = None
) -> Iterator[Sentence]:
    """The sentences of a file, in order; encoding: of one that is not UTF-8.

    InputError with file and line for a row without one of the columns or with nothing in it, and, where one is
    counted from the end, for a row longer or shorter than the first.
    """
    universal = bare_suffix(path) == ".conllu"
    names = UNIVERSAL if universal else []
    chosen: _Chosen | None = None
    sentence: Sentence | None = None
    for number, line in read_lines(path, encoding):
        if universal and line.startswith("#"):
            if found := _GLOBAL.match(line):
                names = found[1].split()
            continue
        if not line.strip(" \t") or line.startswith("-DOCSTART-"):
            if sentence is not None:
                yield sentence
                sentence = None
            continue
        place = f"{path}:{number}"
        if chosen is None:
            chosen = _Chosen.of(columns, line, names, place)
        fields = fields_of(line, tabs=chosen.tabs)
        if universal and not fields[0].isdecimal():
            continue
        if sentence is None:
            sentence = Sentence([], [], [], [], chosen)
        sentence.lines.append(number)
        sentence.rows.append(chosen.picked(fields, place))
        sentence._fields.append(fields)
        sentence._texts.append(line)
    if sentence is not None:
        yield sentence


def fields_of(line: str, *, tabs: bool) -> list[str]:
    """A row's columns."""
    return line.split("\t") if tabs else _BLANKS.split(line.strip(" \t"))


@dataclass(frozen=True)
class _Chosen:
    """The wanted columns' places in a row (below 0: from its end; None: it is missing, and may be), and how many
    columns the first row has."""

    places: list[int | None]
    needed: list[int]
    filled: list[int]
    width: int
    tabs: bool

    @classmethod
    def of(cls, columns: Sequence[Column], line: str, names: Sequence[str], place: str) -> _Chosen:
        """By the first row."""
        tabs = "\t" in line
        width = len(fields_of(line, tabs=tabs))
        places: list[int | None] = []
        for column in columns:
            wanted = column.chosen or (column.name if names else column.default)
            if not column.needed and not _is_there(wanted, names, width, places):
                places.append(None)
                continue
            if not _NUMBER.fullmatch(wanted):
                if wanted not in names:
                    known = (
                        f"its columns are {', '.join(names)}" if names else "its columns have numbers, from 1"
                    )
                    raise InputError(
                        "column_missing",
                        f"there is no column '{wanted}'",
                        location=place,
                        argument=column.argument,
                        hint=f"{known}; choose one with {option(column.argument)}",
                    )
                places.append(names.index(wanted))
                continue
            if not 1 <= abs(int(wanted)) <= width:
                raise InputError(
                    "column_missing",
                    f"there is no column {wanted}, the row has {_columns(width)}",
                    location=place,
                    argument=column.argument,
                    hint=f"choose another with {option(column.argument)}",
                )
            places.append(int(wanted) - 1 if int(wanted) > 0 else int(wanted))
        needed = [at for at, column in zip(places, columns, strict=True) if at is not None and column.needed]
        if len({at % width for at in needed}) < len(needed):
            options = " and ".join(option(column.argument) for column in columns)
            raise InputError(
                "same_column",
                f"the row has {_columns(width)}, and the same one would be both word and tag",
                location=place,
                hint=f"write a tag behind each word; choose the columns with {options}",
            )
        filled = [at for at, column in zip(places, columns, strict=True) if at in needed and column.filled]
        return cls(places, needed, [at for at in filled if at is not None], width, tabs)

    def picked(self, fields: Sequence[str], place: str) -> list[str]:
        """The wanted columns of a row."""
        if (min(self.needed) < 0 and len(fields) != self.width) or max(self.needed) >= len(fields):
            raise InputError(
                "field_count",
                f"the row has {_columns(len(fields))}, the file's first has {self.width}",
                location=place,
                hint="fix the row; where spaces separate columns no word can contain one: use tabs",
            )
        empty = [at for at in self.filled if not fields[at]]
        if empty:
            at = empty[0] % len(fields) + 1
            raise InputError(
                "empty_cell",
                f"column {at} is empty",
                location=place,
                hint="give each word a tag, or remove the row",
            )
        return ["" if at is None or at >= len(fields) else fields[at] for at in self.places]

    def behind(self, fields: Sequence[str]) -> list[str]:
        """The columns of a row behind the last wanted one."""
        at = self.places[-1]
        return [] if at is None else list(fields[at + 1 :]) if at != -1 else []

    def whole(self, line: str, fields: Sequence[str]) -> str:
        """A row that ends with the last of the wanted columns, if it has it and is not needed, and with what
        separates columns."""
        at, blank = self.places[-1], "\t" if self.tabs else " "
        whole = line if self.tabs else line.strip(" ")
        if at is None or at in self.needed or at >= len(fields) or at in (-1, len(fields) - 1):
            return whole + blank
        return f"{whole}{blank}{fields[at]}{blank}"


def _is_there(wanted: str, names: Sequence[str], width: int, others: Sequence[int | None]) -> bool:
    """Whether a row of this width has the column, and as another one than these."""
    if not _NUMBER.fullmatch(wanted):
        return wanted in names and names.index(wanted) < width
    at = int(wanted) - 1 if int(wanted) > 0 else width + int(wanted)
    return 0 <= at < width and wanted != "0" and at not in [o % width for o in others if o is not None]


def _columns(number: int) -> str:
    return pluralize(number, "column")
