"""Corpus files become documents, one in memory at a time: plain text, jsonl, csv, tsv, parquet.

Plain text (.txt, and every suffix that is not named here): a blank line ends a document, or the file does, or
each line's end; see `lines` for what ends a line. .jsonl and .ndjson: an object a line (see `jsonl`). .csv
(RFC 4180) and .tsv, with a header (see `columns`). Each of these also .gz, .zst, .bz2 and .xz. .parquet.

All text is UTF-8, strictly, unless an encoding is named. NUL, control characters, U+2028 and a byte order mark
within are characters of the text; a blank line is one of white space alone. A document of plain text longer than
4 Mi characters comes in parts of whole lines, so that a file of any size fits into memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertsmith.io.columns import texts_of_parquet, texts_of_table
from bertsmith.io.compressed import FileFault, bare_suffix, is_compressed
from bertsmith.io.encodings import known_encoding
from bertsmith.io.folders import Notes, find_files
from bertsmith.io.jsonl import json_object, texts_of_jsonl
from bertsmith.io.lines import Faults, LineRun, Lines, Reject, read_lines
from bertsmith.io.records import table_delimiter

__all__ = [
    "Document",
    "Notes",
    "Reading",
    "Reject",
    "bare_suffix",
    "find_files",
    "json_object",
    "read_documents",
    "read_lines",
]

_LONGEST = 1 << 22  # characters of a document in plain text, or of one of its parts
_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")  # a line's end, and the lines of white space behind it


@dataclass(frozen=True)
class Document:
    """One document: its text (lines joined by "\\n") and the place of its first line or row (`path:line`).

    part: which part it is: 0, but for what goes on a document too long to be held whole. head: of such a part the
    place where the document begins, else None.
    """

    text: str
    place: str
    part: int = 0
    head: str | None = None


@dataclass(frozen=True)
class Reading:
    """How files become documents.

    documents: what a document is in plain text; text_column: the key of a .jsonl, the column of a .csv, .tsv or
    .parquet; delimiter: what separates the columns of a .csv or .tsv (None: a tab in a .tsv; of a .csv the tab,
    ";" or "|" that its header has in place of commas). encoding: of files that are not UTF-8, by any of Python's
    names; latin-1 is read as cp1252, gbk as gb18030, as browsers do. A byte order mark, and bytes that plainly
    are UTF-8, count for more. InputError for a name that is none.
    """

    documents: Literal["blank_line", "file", "line"] = "blank_line"
    text_column: str = "text"
    delimiter: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.encoding is not None:
            object.__setattr__(self, "encoding", known_encoding(self.encoding))


def read_documents(
    paths: Sequence[str | Path],
    reading: Reading = Reading(),
    *,
    reject: Callable[[Reject], None] | None = None,
    notes: Notes | None = None,
) -> Iterator[Document]:
    """The documents of some files, folders and globs (see `find_files`), in order.

    Without `reject` the first fault is an `InputError` whose location is `file:line:column`, `file:line` (or row),
    or `file`: bytes that are not UTF-8, another encoding, what is no text, a torn compressed
    file, a line or row of more than 64 MiB, a row without text or with another number of fields, a jsonl line
    that is not an object with a string. With it each bad line or row is handed over, all others stay, and reading
    goes on; what is wrong with a file as a whole, or from some byte on, is one `Reject`.

    A file without any text is no fault, and `notes` counts it; without `notes` it is one where no file has text.
    Raises `InputError` for a missing file or one that may not be read with `reject`, too.
    """
    empty: list[Faults] = []
    something = False  # text, or a fault that was handed over
    for path in find_files(paths, notes):
        faults = Faults(path, reject)
        text = False
        try:
            for document in _documents(path, reading, faults, notes):
                text = text or (bool(document.text) and not document.text.isspace())
                yield document
            if not text and not faults.count:
                empty.append(faults)
        except FileFault as fault:
            faults.add(fault, raw=fault.raw)
        something = something or text or faults.count > 0
    if notes is not None:
        notes.empty.update(dict.fromkeys(faults.path for faults in empty))
    elif empty and not something:
        empty[0].add(
            FileFault(
                "no_text",
                "there is no text in this file",
                location=f"{empty[0].path}:1",
                hint="leave it out, or check how it was made",
            )
        )


def _documents(path: str | Path, reading: Reading, faults: Faults, notes: Notes | None) -> Iterator[Document]:
    suffix = bare_suffix(path)
    if suffix == ".parquet":
        if is_compressed(path):
            raise FileFault(
                "compressed_parquet",
                "a parquet file is compressed inside, not as a whole",
                location=path,
                hint="decompress it",
            )
        rows = texts_of_parquet(path, reading.text_column, faults)
    elif suffix == ".jsonl":
        rows = texts_of_jsonl(Lines(path, faults, reading.encoding), reading.text_column, faults)
    elif suffix in (".csv", ".tsv"):
        delimiter = table_delimiter(path, suffix, reading.delimiter, reading.encoding)
        if notes is not None and suffix == ".csv" and delimiter != "," and reading.delimiter is None:
            notes.delimiters[str(path)] = delimiter
        lines = Lines(path, faults, reading.encoding)
        rows = texts_of_table(lines, reading.text_column, delimiter, faults)
    else:
        read = {"blank_line": _by_blank_lines, "file": _by_file, "line": _by_line}[reading.documents]
        yield from read(path, Lines(path, faults, reading.encoding).runs())
        return
    for number, text in rows:
        yield Document(text, f"{path}:{number}")


def _by_line(path: str | Path, runs: Iterable[LineRun]) -> Iterator[Document]:
    for run in runs:
        for number, line in enumerate(_unified(run.text).split("\n"), start=run.line):
            if line and not line.isspace():
                yield Document(line, f"{path}:{number}")


def _by_file(path: str | Path, runs: Iterable[LineRun]) -> Iterator[Document]:
    parts = _Parts(path)
    for run in runs:
        text, line = _unified(run.text), run.line
        if parts.empty and (blank := _BLANK_LINES.match("\n" + text)):
            line += blank[0].count("\n") - 1
            text = text[blank.end() - 1 :]
        if text:
            yield from parts.add(text, line)
    yield from parts.close()


def _by_blank_lines(path: str | Path, runs: Iterable[LineRun]) -> Iterator[Document]:
    # Whole runs are searched for blank lines: a line costs nothing by itself.
    parts = _Parts(path)
    for run in runs:
        text, line, begin = "\n" + _unified(run.text), run.line, 1
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


def _unified(text: str) -> str:
    return text.replace("\r\n", "\n") if "\r" in text else text


class _Parts:
    """The lines of one document until it is whole; what would grow too long goes out before, as a part."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._waiting: list[str] = []
        self._size = self._first = self._part = 0
        self._head: str | None = None  # where the document begins, once a part of it is out

    @property
    def empty(self) -> bool:
        """Whether the document has no line yet."""
        return not self._waiting and not self._part

    def add(self, text: str, line: int) -> Iterator[Document]:
        """Add lines, each with its "\\n", of which the first has the number `line`. A part holds as many lines as
        fit, or one that is longer: that depends on the lines alone, not on how they come."""
        while text and self._size + len(text) - 1 > _LONGEST:
            end = text.rfind("\n", 0, max(_LONGEST - self._size + 1, 0)) + 1
            if not end and not self._waiting:
                end = text.find("\n") + 1
            if end:
                self._take(text[:end], line)
                line += text.count("\n", 0, end)
                text = text[end:]
            yield from self._out()
        if text:
            self._take(text, line)

    def close(self) -> Iterator[Document]:
        """The document ends here."""
        if self._waiting:
            yield from self._out()
        self._part, self._head = 0, None

    def _take(self, text: str, line: int) -> None:
        if not self._waiting:
            self._first = line
        self._waiting.append(text)
        self._size += len(text)

    def _out(self) -> Iterator[Document]:
        text = "".join(self._waiting)[:-1]
        self._waiting, self._size = [], 0
        last = len(text.rstrip())
        if last:  # no blank lines at the end
            end = text.find("\n", last)
            place = f"{self._path}:{self._first}"
            yield Document(text if end < 0 else text[:end], place, self._part, self._head)
            self._part += 1
            self._head = self._head or place
