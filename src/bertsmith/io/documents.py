"""Read the documents of a corpus, one in memory at a time: text, .jsonl, .csv, .tsv, .parquet, and tables.

In a text file (.txt and every suffix that is not named here) a blank line ends a document, or the file does, or
each line is one. .jsonl (.ndjson): one object on each line; .json: that, or an array. .csv (RFC 4180) and .tsv:
with a header. Each of these also compressed (.gz, .zst, .bz2, .xz). Text is UTF-8 unless an encoding is given. A
document of a text file with more than 4 Mi characters comes in parts of whole lines, so that a file of any size
fits into memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertsmith.errors import InputError, option
from bertsmith.io.compression import FileError, format_suffix
from bertsmith.io.delimited import FOR_ALL_FILES, detect_delimiter, missing_column_hint, read_rows
from bertsmith.io.encodings import resolve_encoding
from bertsmith.io.folders import CorpusNotes, find_files
from bertsmith.io.jsonl import read_objects
from bertsmith.io.parquet import read_text_column
from bertsmith.io.tables import Row, Table, has_json_lines, json_rows
from bertsmith.io.text_io import ErrorCollector, LineReader, RejectedRow, TextBlock
from bertsmith.io.values import MISSING_TEXTS, to_text

_MAX_CHARACTERS = 1 << 22  # of a document in a text file, or of one of its parts
_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")  # a line end, and the blank lines behind it


@dataclass(frozen=True)
class Document:
    """One document.

    Attributes:
        text: Its text, with lines joined by "\\n".
        location: The location of its first line or row: `path:line`.
        part: The index of this part of a document that is too long for memory; else 0.
        head: The location where the document of a further part begins; else None.
    """

    text: str
    location: str
    part: int = 0
    head: str | None = None


@dataclass(frozen=True)
class Reading:
    """The rules by which files become documents.

    Attributes:
        documents: The end of a document in text files.
        text_column: The column of the text in .jsonl, .csv, .tsv, .parquet, and data in memory.
        delimiter: The delimiter of .csv and .tsv; None: a tab in a .tsv, and in a .csv the tab, ";", or "|" that
            its header has in place of commas.
        encoding: The encoding of files that are not UTF-8, by any of Python's names; latin-1 is read as cp1252,
            and gbk as gb18030, as in browsers. A byte order mark and plain UTF-8 take precedence.
    """

    documents: Literal["blank_line", "file", "line"] = "blank_line"
    text_column: str = "text"
    delimiter: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.encoding is not None:
            object.__setattr__(self, "encoding", resolve_encoding(self.encoding))


def read_documents(
    sources: Sequence[str | Path | Table],
    reading: Reading = Reading(),
    *,
    on_reject: Callable[[RejectedRow], None] | None = None,
    notes: CorpusNotes | None = None,
) -> Iterator[Document]:
    """Yield the documents of files, folders, globs (see `find_files`), and tables, in order.

    Args:
        sources: The files and tables.
        reading: The rules by which files become documents.
        on_reject: A function that receives each line or row that cannot be read; the others remain. An error of a
            whole file, or from some byte on, is one rejected row. Without it the first error is raised.
        notes: Counts files without any text; without it they are an error if no file has text.

    Raises:
        InputError: A file is missing or may not be read; without `on_reject` also: bytes that are not UTF-8,
            another encoding, a binary file, a truncated compressed file, a line or row of more than 64 MiB, a row
            without text or with another number of fields. The location is `file:line:column`, `file:line` (or
            row), or `file`.
    """
    empty: list[ErrorCollector] = []
    has_output = False  # text or a rejected row
    for source in find_files(sources, notes):
        errors = ErrorCollector(source, on_reject)
        has_text = False
        try:
            for document in _documents(source, reading, errors, notes):
                has_text = has_text or (bool(document.text) and not document.text.isspace())
                yield document
            if not has_text and not errors.count:
                empty.append(errors)
        except FileError as error:
            errors.add(error, raw=error.raw)
        has_output = has_output or has_text or errors.count > 0
    if notes is not None:
        notes.empty.update(dict.fromkeys(errors.path for errors in empty))
    elif empty and not has_output:
        message, hint = "there is no text in this file", "leave it out, or check how it was made"
        empty[0].add(FileError("no_text", message, location=f"{empty[0].path}:1", hint=hint))


def _documents(
    source: str | Path | Table, reading: Reading, errors: ErrorCollector, notes: CorpusNotes | None
) -> Iterator[Document]:
    if isinstance(source, Table):
        yield from _table_texts(source, reading.text_column, errors)
        return
    suffix = format_suffix(source)
    if suffix == ".json" and not has_json_lines(source, reading.encoding):
        yield from _table_texts(json_rows(source, reading.encoding), reading.text_column, errors)
        return
    if suffix == ".parquet":
        for number, text in read_text_column(source, reading.text_column, errors):
            yield Document(text, f"{source}:{number}")
        return
    if suffix in (".csv", ".tsv"):
        delimiter = detect_delimiter(source, reading.delimiter, reading.encoding) or ","
        if notes is not None and suffix == ".csv" and delimiter != "," and reading.delimiter is None:
            notes.delimiters[str(source)] = delimiter
    lines = LineReader(errors, reading.encoding)
    if suffix in (".jsonl", ".json"):
        yield from _json_texts(lines, reading.text_column)
    elif suffix in (".csv", ".tsv"):
        for line, values in read_rows(lines, delimiter, text_column=reading.text_column):
            text = values[reading.text_column]
            yield Document("" if text in MISSING_TEXTS else text, f"{lines.path}:{line.number}")
    else:
        split = {"blank_line": _split_at_blank_lines, "file": _whole_file, "line": _split_at_lines}
        yield from split[reading.documents](str(source), lines.blocks())


def _table_texts(rows: Iterable[Row], column: str, errors: ErrorCollector) -> Iterator[Document]:
    for number, row in enumerate(rows, start=1):
        try:
            text = _text_field(row, column)
        except InputError as error:
            raw = json.dumps(dict(row.values), default=str).encode("ascii")
            errors.add(error, number, None, raw)
        else:
            yield Document(text, row.location)


def _json_texts(lines: LineReader, column: str) -> Iterator[Document]:
    for line, values in read_objects(lines):
        row = Row(values, f"{lines.path}:{line.number}")
        try:
            yield Document(_text_field(row, column), row.location)
        except InputError as error:
            lines.errors.add(error, line.number, line.byte, line.raw)


def _text_field(row: Row, column: str) -> str:
    """Return the text of a row, "" for null. Raises `InputError` if the field is missing, or not a text."""
    if column not in row.values:
        message = f"the field '{column}' is missing"
        hint = missing_column_hint(column, list(row.values), "text_column", unit="keys", note=FOR_ALL_FILES)
        raise InputError("field_missing", message, location=row.location, argument="text_column", hint=hint)
    hint = f"write each text as one string, or name its column with {option('text_column')}{FOR_ALL_FILES}"
    return to_text(row.values[column], f"field '{column}'", row.location, "text_column", hint)


def _split_at_lines(path: str, blocks: Iterable[TextBlock]) -> Iterator[Document]:
    for block in blocks:
        for number, line in enumerate(_unix_lines(block.text).split("\n"), start=block.line):
            if line and not line.isspace():
                yield Document(line, f"{path}:{number}")


def _whole_file(path: str, blocks: Iterable[TextBlock]) -> Iterator[Document]:
    parts = _DocumentParts(path)
    for block in blocks:
        text, line = _unix_lines(block.text), block.line
        if parts.is_empty and (blank := _BLANK_LINES.match("\n" + text)):
            line += blank[0].count("\n") - 1
            text = text[blank.end() - 1 :]
        if text:
            yield from parts.add(text, line)
    yield from parts.close()


def _split_at_blank_lines(path: str, blocks: Iterable[TextBlock]) -> Iterator[Document]:
    # The search for blank lines runs over whole blocks: single lines cost nothing.
    parts = _DocumentParts(path)
    for block in blocks:
        text, line, begin = "\n" + _unix_lines(block.text), block.line, 1
        for blank in _BLANK_LINES.finditer(text):
            end = blank.start() + 1
            if begin < end:
                yield from parts.add(text[begin:end], line)
            yield from parts.close()
            line += text.count("\n", begin, blank.end())
            begin = blank.end()
        if begin < len(text):
            yield from parts.add(text[begin:], line)
    yield from parts.close()


def _unix_lines(text: str) -> str:
    return text.replace("\r\n", "\n") if "\r" in text else text


class _DocumentParts:
    """Collect the lines of one document; a document that grows too long is yielded in parts."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._pending: list[str] = []
        self._num_characters = self._first_line = self._part = 0
        self._head: str | None = None  # the location of the document, once a part was yielded

    @property
    def is_empty(self) -> bool:
        """Return True if the document has no line yet."""
        return not self._pending and not self._part

    def add(self, text: str, line: int) -> Iterator[Document]:
        """Add lines, each with its "\\n", the first with the number `line`, and yield the parts that are complete.

        A part holds as many lines as fit, or one that is longer; it does not depend on how the lines are added.
        """
        while text and self._num_characters + len(text) - 1 > _MAX_CHARACTERS:
            end = text.rfind("\n", 0, max(_MAX_CHARACTERS - self._num_characters + 1, 0)) + 1
            if not end and not self._pending:
                end = text.find("\n") + 1
            if end:
                self._append(text[:end], line)
                line += text.count("\n", 0, end)
                text = text[end:]
            yield from self._take_part()
        if text:
            self._append(text, line)

    def close(self) -> Iterator[Document]:
        """Yield the rest of the document, and start another."""
        if self._pending:
            yield from self._take_part()
        self._part, self._head = 0, None

    def _append(self, text: str, line: int) -> None:
        if not self._pending:
            self._first_line = line
        self._pending.append(text)
        self._num_characters += len(text)

    def _take_part(self) -> Iterator[Document]:
        text = "".join(self._pending)[:-1]
        self._pending, self._num_characters = [], 0
        if length := len(text.rstrip()):  # no blank lines at the end
            end = text.find("\n", length)
            location = f"{self._path}:{self._first_line}"
            yield Document(text if end < 0 else text[:end], location, self._part, self._head)
            self._part += 1
            self._head = self._head or location
