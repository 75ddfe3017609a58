"""Find the text files of a corpus in folders and globs, and count the files that are skipped.

The suffix shows whether a file is text; a file without one is read at its beginning.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.formatting import join_names, pluralize, shorten
from bertsmith.io.compression import FileError, check_name, format_suffix, is_compressed
from bertsmith.io.tables import Table
from bertsmith.io.text_io import utf8_blocks
from bertsmith.suggestions import not_found_error

_SUFFIXES = {".txt", ".text", ".md", ".markdown", ".rst", ".jsonl", ".csv", ".tsv", ".parquet"}
_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9_+~-]{0,9}")  # `chapter.1` and `Mr. Smith` have none
_MIN_TEXT_WORDS, _MAX_NAME_CHARACTERS = 5, 255  # a missing path with more is a text
_MAX_SHOWN_CHARACTERS = 60
_MAX_NAMES = 8  # in a message


@dataclass
class CorpusNotes:
    """Notes on the files of a corpus.

    Attributes:
        skipped: The number of skipped files of folders by suffix, or by another reason.
        hidden: The number of entries whose name begins with a dot.
        empty: The files without any text.
        delimiters: The delimiters that were recognized by headers, by file.
    """

    skipped: Counter[str] = field(default_factory=Counter)
    hidden: int = 0
    empty: dict[str, None] = field(default_factory=dict)
    delimiters: dict[str, str] = field(default_factory=dict)

    def sentences(self) -> list[str]:
        """Return a sentence for each note except for hidden files."""
        sentences = []
        if self.skipped:
            sentences.append(f"skipped {pluralize(self.skipped.total(), 'file')}: {self.skipped_names()}")
        if self.empty:
            files = pluralize(len(self.empty), "file has", "files have")
            sentences.append(f"{files} no text: {join_names(self.empty, _MAX_NAMES)}")
        for delimiter in sorted(set(self.delimiters.values())):
            names = [file for file, other in self.delimiters.items() if other == delimiter]
            sentences.append(
                f"columns are separated by {delimiter!r}, as the header shows: {join_names(names, _MAX_NAMES)}"
            )
        return sentences

    def skipped_names(self) -> str:
        """Return the skipped files as text: "7 .png, 5 .py"."""
        counts = self.skipped_counts().items()
        names = [f"{n:,} {name}" if name[0] == "." else pluralize(n, name) for name, n in counts]
        return join_names(names, _MAX_NAMES)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for reports."""
        return {"skipped": self.skipped_counts(), "hidden": self.hidden, "empty": list(self.empty)}

    def skipped_counts(self) -> dict[str, int]:
        """Return the number of skipped files by suffix, the most frequent first."""
        return dict(sorted(self.skipped.items(), key=lambda item: (-item[1], item[0])))


def find_files(
    sources: Sequence[str | Path | Table], notes: CorpusNotes | None = None
) -> list[str | Path | Table]:
    """Return the files of paths, folders, and globs (with `**`), in order; tables stay.

    A folder's text files have a known suffix (.txt, .text, .md, .markdown, .rst, .jsonl, .ndjson, .csv, .tsv,
    .parquet, and compressed), or none and text at their beginning; `notes` counts the others. Files of a folder or
    glob are sorted, without hidden ones (`.name`).

    Raises:
        InputError: A path does not exist, a folder or glob has no file, a file is named twice, or a name is not
            UTF-8.
    """
    notes = notes if notes is not None else CorpusNotes()
    files: list[str | Path | Table] = []
    seen: set[str] = set()
    for source in sources:
        check_name(source, max_bytes=sys.maxsize)  # a longer one is a text
        for file in [source] if isinstance(source, Table) else _expand(source, notes):
            check_name(file)
            name = os.path.abspath(str(file))
            if name in seen:
                message, hint = "this file is named twice", "name each file once"
                raise InputError("duplicate_file", message, location=file, hint=hint)
            seen.add(name)
            files.append(file)
    return files


def _expand(path: str | Path, notes: CorpusNotes) -> list[Path]:
    """Return the files of a path, folder, or glob."""
    if os.path.isdir(path):
        folder_notes = CorpusNotes()
        files = _walk(path, folder_notes)
        if not files:
            skipped = f" (skipped: {folder_notes.skipped_names()})" if folder_notes.skipped else ""
            message = f"there is no .txt, .md, .jsonl, .csv, .tsv, or .parquet in this folder{skipped}"
            hint = f"name files with another suffix: {path}/*"
            raise InputError("no_files", message, location=path, hint=hint)
        notes.skipped += folder_notes.skipped
        notes.hidden += folder_notes.hidden
        return files
    try:
        os.stat(path)
        return [Path(path)]
    except (FileNotFoundError, NotADirectoryError, ValueError):
        pass
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise _missing_error(path) from None
        return [Path(path)]  # Opening it raises the error.
    if not glob.has_magic(str(path)):
        raise _missing_error(path)
    files = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if os.path.isfile(name))
    if not files:
        raise _missing_error(path, is_pattern=True)
    return files


def _missing_error(path: str | Path, *, is_pattern: bool = False) -> InputError:
    """Return the error for a path or pattern of no file, or for a text in place of a path."""
    name = str(path)
    message = "no file has such a name" if is_pattern else "no such file"
    if len(name.split()) < _MIN_TEXT_WORDS and "\n" not in name and len(name) <= _MAX_NAME_CHARACTERS:
        if not is_pattern:
            return not_found_error(path)
        return InputError("no_match", message, location=name, hint="check the pattern")
    location = shorten(name, _MAX_SHOWN_CHARACTERS)
    hint = "check the path; in Python, pass texts themselves as bertsmith.Texts(docs)"
    return InputError("not_found", message, location=location, hint=hint)


def _walk(root: str | Path, notes: CorpusNotes) -> list[Path]:
    """Return the text files below a folder, sorted."""

    def refuse(error: OSError) -> None:
        message, hint = "this folder may not be read", "check its permissions"
        raise InputError("permission_denied", message, location=error.filename, hint=hint) from None

    files: list[Path] = []
    for folder, subfolders, names in os.walk(root, onerror=refuse):
        notes.hidden += sum(name.startswith(".") for name in (*subfolders, *names))
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        if num_links := sum(os.path.islink(os.path.join(folder, name)) for name in subfolders):
            notes.skipped["linked folder"] += num_links
        for file in (Path(folder, name) for name in names if not name.startswith(".")):
            if (reason := _skip_reason(file)) is None:
                files.append(file)
            else:
                notes.skipped[reason] += 1
    return sorted(files)


def _skip_reason(file: Path) -> str | None:
    """Return the suffix of a file that is not text, or another reason to skip it; None for text."""
    if not file.is_file():
        return "broken link" if file.is_symlink() else "device"
    suffix = format_suffix(file)
    if suffix in _SUFFIXES:
        return None
    if _SUFFIX.fullmatch(suffix):
        return suffix + file.suffix.lower() if is_compressed(file) else suffix
    return None if _starts_with_text(file) else "binary file"


def _starts_with_text(file: Path) -> bool:
    try:
        utf8_blocks(file, None)
    except FileError as error:
        return error.code == "other_encoding"
    except InputError:
        pass  # Reading it raises the error.
    return True
