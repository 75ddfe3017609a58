"""Read tables, files and data in memory alike, as rows of named columns, each with its location.

Files are .csv, .tsv, and .txt (see `delimited`), .jsonl, .json, and .parquet; `sources` makes tables of data
frames, lists, and the like.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names, pluralize, shorten
from bertsmith.io import parquet
from bertsmith.io.compression import format_suffix
from bertsmith.io.delimited import (
    QUOTED_FIELD,
    TEXT_DELIMITERS,
    detect_delimiter,
    missing_column_hint,
    read_rows,
)
from bertsmith.io.jsonl import is_object, read_json, read_objects
from bertsmith.io.parquet import COLUMNAR_SUFFIXES
from bertsmith.io.text_io import ErrorCollector, LineReader, read_lines
from bertsmith.io.values import MISSING_TEXTS, display_text, is_printed_collection, to_python, to_text

logger = logging.getLogger(__name__)
_ROW_KEYS = ("data", "rows", "records", "examples", "instances", "items")  # of an object around the rows
IN_MEMORY = " (in memory)"
"""Follows the name of data in memory in locations."""


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        values: The values by column; None for a missing value. In JSON a column may be absent.
        location: `file:line` of its first line, `file:row` of a parquet file, or `train (in memory):17`.
    """

    values: Mapping[str, Any]
    location: str

    @property
    def line(self) -> int:
        """Return its line or row, from 1."""
        return int(self.location.rpartition(":")[2].strip(" []"))

    @property
    def texts(self) -> dict[str, str]:
        """Return all its values as text, for output."""
        return {name: display_text(value) for name, value in self.values.items()}


class TextRow(NamedTuple):
    """A text of a row or line.

    Attributes:
        text: The text.
        location: The file and line of the text.
        id: The id in the user's file, or else the line number.
    """

    text: str
    location: str
    id: str


class Table:
    """The rows of one file, or of data in memory.

    Attributes:
        name: The path of the file, or the name of the data in locations: `train (in memory)`.
        columns: The names of the columns.
        is_plain: True for a .txt with one text per line, whose only column is called "1".
        in_memory: True for data that is in no file.
        is_delimited: True for the cells of a .csv, .tsv, or .txt file.
    """

    in_memory = False
    is_delimited = False

    def __init__(
        self, name: str, columns: Sequence[str], rows: Sequence[Row], *, is_plain: bool = False
    ) -> None:
        """Hold rows."""
        self.name, self.columns, self.rows, self.is_plain = name, list(columns), rows, is_plain

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows."""
        return iter(self.rows)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def __str__(self) -> str:
        """Return its name, for locations."""
        return self.name

    @property
    def start(self) -> str:
        """Return the location of its header, for errors."""
        return self.name.removesuffix(IN_MEMORY) if self.in_memory else f"{self.name}:1"

    @property
    def named_columns(self) -> list[str]:
        """Return the columns without those that a header leaves blank, most of whose fields are empty."""
        num_values = {
            name: sum(row.values.get(name) not in (None, "") for row in self) for name in self.columns
        }
        numbered = enumerate(self.columns, start=1)
        return [name for i, name in numbered if name != str(i) or num_values[name] >= len(self) / 2]

    def column(self, name: str, argument: str | None = None, note: str = "") -> list[Any]:
        """Return the values of one column, row by row; None for a missing value.

        Args:
            name: The column.
            argument: Python's name of the argument that names the column, such as `label_column`.
            note: Text to append to the argument in the hint, for a file.

        Raises:
            InputError: The table lacks the column, or a row the field.
        """
        rows = list(self)
        if name not in self.columns and not any(name in row.values for row in rows):
            hint = missing_column_hint(
                name, self.named_columns, argument, note="" if self.in_memory else note
            )
            message = f"column '{name}' is missing"
            if self.is_plain:
                message += ": this file has one text per line and no delimiter"
                hint = "give a .csv, .tsv, or .jsonl file"
                lines = [line for row in self if (line := row.values["1"]).strip()]
                for mark in TEXT_DELIMITERS:
                    if all(mark in line for line in lines):
                        hint = f"if {mark!r} separates columns, add {option('delimiter', repr(mark))}{note}"
            raise InputError("column_missing", message, location=self.start, argument=argument, hint=hint)
        for row in rows:
            if name not in row.values:
                message = f"the field '{name}' is missing"
                hint = f"give it in every row; the keys of this one are {', '.join(row.values) or 'none'}"
                raise InputError(
                    "field_missing", message, location=row.location, argument=argument, hint=hint
                )
        return [row.values[name] for row in rows]

    def strings(
        self, name: str, argument: str | None = None, note: str = "", hint: str | None = None
    ) -> list[str]:
        """Return the values of one column as strings, missing ones as ""; arguments and errors as for `column`.

        Args:
            name: The column.
            argument: Python's name of the argument that names the column.
            note: Text to append to the argument in the hint of a missing column.
            hint: The advice for a value that is a list or an object.
        """
        values = zip(self.column(name, argument, note), self, strict=True)
        return [to_text(value, f"field '{name}'", row.location, argument, hint) for value, row in values]

    def texts(
        self, name: str, argument: str | None = None, note: str = "", hint: str | None = None
    ) -> list[str]:
        """Return a column of texts as `strings` does; spellings of missing values in a delimited file are empty.

        Log these, and texts that are printed lists or objects.
        """
        texts = self.strings(name, argument, note, hint)
        located = [(text, row.location) for text, row in zip(texts, self, strict=True)]
        if self.is_delimited:
            warn_of_missing_texts(name, located)
        warn_of_printed_lists(name, located)
        return ["" if self.is_delimited and text in MISSING_TEXTS else text for text in texts]

    @cached_property
    def size(self) -> int:
        """Return the bytes of its rows as JSON lines."""
        return sum(map(len, self._json_lines()))

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 digest (hex) of its rows."""
        digest = hashlib.sha256()
        for line in self._json_lines():
            digest.update(line)
        return digest.hexdigest()

    def _json_lines(self) -> Iterator[bytes]:
        return (json.dumps(dict(row.values), default=str).encode("ascii") + b"\n" for row in self)


def warn_of_missing_texts(column: str, texts: Iterable[tuple[str, str]]) -> None:
    """Log texts of a delimited file that stand for a missing value; each comes with its location."""
    missing = [(text, location) for text, location in texts if text in MISSING_TEXTS]
    _warn_of_texts(column, missing, "missing value", "read as an empty text; a .jsonl can have it as a word")


def warn_of_printed_lists(column: str, texts: Iterable[tuple[str, str]]) -> None:
    """Log texts that are printed lists or objects; each comes with its location."""
    printed = [(text, location) for text, location in texts if is_printed_collection(text)]
    _warn_of_texts(column, printed, "printed list", "whose brackets and quotes are read as text")


def _warn_of_texts(column: str, texts: Sequence[tuple[str, str]], noun: str, consequence: str) -> None:
    if texts:
        shown = join_names(f"'{shorten(text, 40)}' ({location})" for text, location in texts)
        count = pluralize(len(texts), noun)
        logger.warning("column '%s' has %s, %s: %s", column, count, consequence, shown)


def read_table(
    source: str | Path | Table,
    *,
    delimiter: str | None = None,
    header: bool = True,
    encoding: str | None = None,
    keep_blank: bool = False,
) -> Table:
    """Read a file as a table: .csv, .tsv, .txt, .jsonl, .json, and .parquet; text files also compressed.

    Args:
        source: The file; a table is returned as it is.
        delimiter: The delimiter; None: see `detect_delimiter`.
        header: The first row of a text file has the names of the columns; without it they are "1", "2", …, and so
            is a column whose name is blank.
        encoding: The encoding of a text file that is not UTF-8.
        keep_blank: An empty line between rows is a row of empty values, so that predictions align with the file.

    Raises:
        InputError: The file is empty or has no rows, a row has another number of fields than the header, a column
            occurs twice, a quote is not closed; and as `read_lines`.
    """
    if isinstance(source, Table):
        if not len(source):
            raise _empty_table_error(source)
        return source
    suffix = format_suffix(source)
    if is_json_source(source):
        return _table_of_rows(source, json_rows(source, encoding))
    delimiter = detect_delimiter(source, delimiter, encoding)
    if delimiter is None:
        # Blank lines are rows, too, so that predictions align with the file.
        rows = [Row({"1": line}, f"{source}:{number}") for number, line in read_lines(source, encoding)]
        if not rows:
            hint = "write one text per line"
            raise InputError("empty_file", "this file is empty", location=f"{source}:1", hint=hint)
        return Table(str(source), ["1"], rows, is_plain=True)
    lines = LineReader(ErrorCollector(source), encoding)
    numbered = read_rows(lines, delimiter, header=header, keep_blank=keep_blank)
    table = _table_of_rows(source, (Row(values, f"{source}:{line.number}") for line, values in numbered))
    table.is_delimited = True
    _warn_of_quotes(table, after_space=delimiter != "\t" or suffix == ".csv")
    return table


def _warn_of_quotes(table: Table, *, after_space: bool) -> None:
    """Log a warning for columns all of whose quotes enclose a value, since they are read as characters.

    Args:
        table: The table.
        after_space: Fields may have quotes, but not behind a space.
    """
    hint = (
        "remove the spaces before them" if after_space else "if they are as in CSV, let its name end in .csv"
    )
    for column in table.columns:
        values = [value for row in table if (value := row.values[column].strip())]
        if len(values) > 1 and all(value[0] == value[-1] == "'" and len(value) > 1 for value in values):
            message = "%s: the single quotes around all values of the column '%s' are read as characters"
            logger.warning(message, table.name, column)
        quoted = [value for row in table if '"' in (value := row.values[column])]
        if quoted and all(QUOTED_FIELD.fullmatch(v) and (v[0].isspace() or not after_space) for v in quoted):
            message = "%s: the quotes around %s of the column '%s' are read as characters; %s"
            logger.warning(message, table.name, pluralize(len(quoted), "value"), column, hint)


def make_row(values: Mapping[Any, Any], location: str) -> Row:
    """Return a row of values of JSON, Arrow, or data in memory."""
    return Row({str(name): to_python(value) for name, value in values.items()}, location)


def is_json_source(source: str | Path | Table) -> bool:
    """Return True for rows that `json_rows` reads: .jsonl, .json, .parquet, Arrow, or data in memory."""
    return isinstance(source, Table) or format_suffix(source) in (".jsonl", ".json", *COLUMNAR_SUFFIXES)


def json_rows(source: str | Path | Table, encoding: str | None = None) -> Iterator[Row]:
    """Yield the rows of a .jsonl or .json file, or of a table.

    A .json file is an array, or an object with one under a usual name (`data`, `rows`), or one object, or has one
    object on each line; the location of a row of an array is `file: [17]` or `file: data[17]`.
    """
    if isinstance(source, Table):
        yield from source
        return
    if format_suffix(source) in COLUMNAR_SUFFIXES:
        yield from (make_row(values, f"{source}:{number}") for number, values in parquet.read_rows(source))
        return
    if has_json_lines(source, encoding):
        for line, values in read_objects(LineReader(ErrorCollector(source), encoding)):
            yield make_row(values, f"{source}:{line.number}")
        return
    document, key = read_json(source, encoding), ""
    if isinstance(document, dict):
        wrappers = [name for name in _ROW_KEYS if _are_objects(document.get(name))]
        if len(wrappers) == 1:
            (key,) = wrappers
            document = [item["row"] if "row_idx" in item else item for item in document[key]]
    for index, values in enumerate(document if isinstance(document, list) else [document]):
        location = f"{source}: {key}[{index}]"
        if not isinstance(values, dict):
            hint = "write an array of objects, one for each row"
            raise InputError("not_an_object", "this is not an object", location=location, hint=hint)
        if document is values and values and all(isinstance(v, list | dict) for v in values.values()):
            message = f"this is one object with {join_names(values)}, not one object for each row"
            hint = "write an array of objects, as pandas' to_json(orient='records') does"
            raise InputError("not_rows", message, location=source, hint=hint)
        yield make_row(values, location)


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def has_json_lines(path: str | Path, encoding: str | None = None) -> bool:
    """Return True for a .jsonl file, and for a .json file with one object on each of several lines."""
    if format_suffix(path) != ".json":
        return format_suffix(path) == ".jsonl"
    ignored = ErrorCollector(path, lambda row: None)  # The reader of the rows reports errors.
    texts = (line.text for line in LineReader(ignored, encoding))
    lines = list(islice(filter(str.strip, texts), 2))
    return len(lines) == 2 and is_object(lines[0])


def _table_of_rows(path: str | Path, rows: Iterable[Row]) -> Table:
    rows = list(rows)
    if not rows:
        raise _empty_table_error(path)
    columns = {name: None for row in rows for name, value in row.values.items() if value is not None}
    return Table(str(path), list(columns), rows)


def _empty_table_error(path: str | Path | Table) -> InputError:
    hint = "check how the file was made"
    return InputError("empty_table", "this table has no rows", location=f"{path}:1", hint=hint)
