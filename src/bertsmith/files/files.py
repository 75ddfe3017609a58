"""Corpus files become documents, one in memory at a time: plain text, jsonl, csv, tsv, parquet.

Plain text (.txt, and every suffix that is not named here): a blank line ends a document, or the file does, or
each line's end; see `lines` for what ends a line. .jsonl and .ndjson: an object a line (see `jsonl`). .csv
(RFC 4180) and .tsv, with a header (see `columns`). Each of these also .gz, .zst, .bz2 and .xz. .parquet.

All text is UTF-8, strictly. NUL, control characters, U+2028 and a byte order mark within are characters of the
text; a blank line is one of white space alone. A document of plain text longer than 4 Mi characters comes in
parts of whole lines, so that a file of any size fits into memory.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertsmith.errors import InputError
from bertsmith.files.columns import texts_of_parquet, texts_of_table
from bertsmith.files.compressed import FileFault, bare_suffix, check_name, is_compressed
from bertsmith.files.jsonl import json_object, texts_of_jsonl
from bertsmith.files.lines import Faults, LineRun, Lines, Reject, read_lines
from bertsmith.files.memory import InMemory
from bertsmith.files.records import delimiter_of

__all__ = [
    "Document",
    "Reading",
    "Reject",
    "bare_suffix",
    "find_files",
    "json_object",
    "read_documents",
    "read_lines",
]

_LONGEST = 1 << 22  # characters of a document in plain text, or of one of its parts
_FORMS = {".txt", ".text", ".jsonl", ".csv", ".tsv", ".parquet"}
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
    .parquet; delimiter: what separates the columns of a .csv or .tsv (None: a comma, a tab).
    """

    documents: Literal["blank_line", "file", "line"] = "blank_line"
    text_column: str = "text"
    delimiter: str | None = None


def find_files(paths: Sequence[str | Path]) -> list[str | Path]:
    """The files that some paths name, in order: files as they are, of a folder all that have a known suffix (.txt,
    .text, .jsonl, .ndjson, .csv, .tsv, .parquet, and compressed) however deep, of a glob (`**` too) all.

    Those of a folder or glob are sorted, and what is hidden (`.name`) is left out. What is in memory stays.
    Raises `InputError` for a path with nothing there, a folder or glob without a file, a file that is named
    twice, and a name that is not UTF-8.
    """
    files: list[str | Path] = []
    seen: set[str] = set()
    for path in paths:
        check_name(path)
        for file in [path] if isinstance(path, InMemory) else _named(path):
            check_name(file)
            name = os.path.abspath(file)
            if name in seen:
                raise InputError(f"{file}: this file is named twice", "name each file once")
            seen.add(name)
            files.append(file)
    return files


def _named(path: str | Path) -> list[Path]:
    if os.path.isdir(path):
        found = _in_folder(path)
        if not found:
            raise InputError(
                f"{path}: there is no .txt, .jsonl, .csv, .tsv or .parquet in this folder",
                f"name files with another suffix: {path}/*",
            )
        return found
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        pass
    except OSError:
        return [Path(path)]  # what is wrong is said by who opens it
    else:
        return [Path(path)]
    if not glob.has_magic(str(path)):
        raise InputError(f"{path}: there is no such file", "check the path")
    found = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if os.path.isfile(name))
    if not found:
        raise InputError(f"{path}: no file has such a name", "check the path")
    return found


def _in_folder(folder: str | Path) -> list[Path]:
    def refused(error: OSError) -> None:
        raise InputError(f"{error.filename}: this folder may not be read", "check its permissions") from None

    found: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=refused):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files = (Path(place, name) for name in names if not name.startswith("."))
        found += [file for file in files if bare_suffix(file) in _FORMS and file.is_file()]
    return sorted(found)


def read_documents(
    paths: Sequence[str | Path],
    reading: Reading = Reading(),
    *,
    reject: Callable[[Reject], None] | None = None,
) -> Iterator[Document]:
    """The documents of some files, folders and globs (see `find_files`), in order.

    Without `reject` the first fault is an `InputError` whose sentence begins with its place, `file:line:column`,
    `file:line` (or row), or `file`: bytes that are not UTF-8, another encoding, a file without any text, a torn
    compressed file, a line or row of more than 64 MiB, a row without text or with another number of fields, a
    jsonl line that is not an object with a string. With it each bad line or row is handed over, all others
    stay, and reading goes on; what is wrong with a file as a whole, or from some byte on, is one `Reject`.

    Raises `InputError` for a missing file or one that may not be read with `reject`, too.
    """
    for path in find_files(paths):
        faults = Faults(path, reject)
        empty = True
        try:
            for document in _documents(path, reading, faults):
                empty = empty and (not document.text or document.text.isspace())
                yield document
            if empty and not faults.count:
                raise FileFault(
                    f"{path}:1: there is no text in this file", "leave it out, or check how it was made"
                )
        except FileFault as fault:
            faults.tell(fault, raw=fault.raw)


def _documents(path: str | Path, reading: Reading, faults: Faults) -> Iterator[Document]:
    suffix = bare_suffix(path)
    if suffix == ".parquet":
        if is_compressed(path):
            raise FileFault(f"{path}: a parquet is compressed inside, not as a whole", "unpack it")
        rows = texts_of_parquet(path, reading.text_column, faults)
    elif suffix == ".jsonl":
        rows = texts_of_jsonl(Lines(path, faults), reading.text_column, faults)
    elif suffix in (".csv", ".tsv"):
        delimiter = delimiter_of(path, suffix, reading.delimiter)
        rows = texts_of_table(Lines(path, faults), reading.text_column, delimiter, faults)
    else:
        read = {"blank_line": _by_blank_lines, "file": _by_file, "line": _by_line}[reading.documents]
        yield from read(path, Lines(path, faults).runs())
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
