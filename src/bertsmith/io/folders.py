"""Which files some paths name, and what the readers left out on their way: for people, and for records.

In a folder the suffix says what is text; a file without one is looked into. What is passed over is counted.
"""

from __future__ import annotations

import errno
import glob
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.formatting import pluralize
from bertsmith.io.binary_files import not_text
from bertsmith.io.compressed import FileFault, bare_suffix, check_name, is_compressed, read_blocks
from bertsmith.io.encodings import encoding_of, wide_encoding
from bertsmith.io.memory import InMemory
from bertsmith.suggestions import not_found_error

_TEXTS = {".txt", ".text", ".md", ".markdown", ".rst"}
_FORMS = {*_TEXTS, ".jsonl", ".csv", ".tsv", ".parquet"}
_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9_+~-]{0,9}")  # `chapter.1` and `Mr. Smith` have none
_WORDS, _LONGEST_NAME = 5, 255  # words and characters from which on a path that is not there is a text
_SHOWN = 60  # characters of it in a message
_NAMED = 8  # kinds of files, and files, that a sentence names


@dataclass
class Notes:
    """What readers left out or found out by themselves.

    skipped: files of folders by suffix, or by what else they are; hidden: entries whose name begins with a dot;
    empty: files without any text; delimiters: of tables whose header told it, by file.
    """

    skipped: Counter[str] = field(default_factory=Counter)
    hidden: int = 0
    empty: dict[str, None] = field(default_factory=dict)
    delimiters: dict[str, str] = field(default_factory=dict)

    def sentences(self) -> list[str]:
        """For people; hidden files are no news."""
        told = []
        if self.skipped:
            told.append(f"skipped {pluralize(self.skipped.total(), 'file')}: {self.kinds()}")
        if self.empty:
            number = "1 file has" if len(self.empty) == 1 else f"{len(self.empty):,} files have"
            told.append(f"{number} no text: {_some(list(self.empty))}")
        for delimiter in sorted(set(self.delimiters.values())):
            files = [file for file, found in self.delimiters.items() if found == delimiter]
            told.append(f"columns are separated by {delimiter!r}, as the header shows: {_some(files)}")
        return told

    def kinds(self) -> str:
        """The files skipped: "7 .png, 5 .py"."""
        ordered = self.by_number().items()
        return _some(
            [f"{n:,} {kind}" if kind[0] == "." else pluralize(n, kind) for kind, n in ordered], "kinds more"
        )

    def record(self) -> dict[str, Any]:
        """Plain values, for reports."""
        return {"skipped": self.by_number(), "hidden": self.hidden, "empty": list(self.empty)}

    def by_number(self) -> dict[str, int]:
        """The files skipped by kind, the most frequent first; the same for the same folders."""
        return dict(sorted(self.skipped.items(), key=lambda kind: (-kind[1], kind[0])))


def _some(names: Sequence[str], others: str = "more") -> str:
    if len(names) <= _NAMED + 1:
        return ", ".join(names)
    return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED:,} {others}"


def find_files(paths: Sequence[str | Path], notes: Notes | None = None) -> list[str | Path]:
    """The files that some paths name, in order: files as they are, of a folder all that hold text, however deep,
    of a glob (`**` too) all.

    In a folder text is what has a known suffix (.txt, .text, .md, .markdown, .rst, .jsonl, .ndjson, .csv, .tsv,
    .parquet, and compressed), and a file without suffix whose first bytes are text; the others are counted in
    `notes`. Files of a folder or glob are sorted, and what is hidden (`.name`) is left out. What is in memory
    stays. Raises `InputError` for a path with nothing there, a folder or glob without a file, a file that is named
    twice, and a name that is not UTF-8.
    """
    notes = notes if notes is not None else Notes()
    files: list[str | Path] = []
    seen: set[str] = set()
    for path in paths:
        check_name(path)
        for file in [path] if isinstance(path, InMemory) else _named(path, notes):
            check_name(file)
            name = os.path.abspath(file)
            if name in seen:
                raise InputError(
                    "duplicate_file", "this file is named twice", location=file, hint="name each file once"
                )
            seen.add(name)
            files.append(file)
    return files


def _named(path: str | Path, notes: Notes) -> list[Path]:
    if os.path.isdir(path):
        walk = Notes()
        found = _in_folder(path, walk)
        if not found:
            skipped = f" (skipped: {walk.kinds()})" if walk.skipped else ""
            raise InputError(
                "no_files",
                f"there is no .txt, .md, .jsonl, .csv, .tsv, or .parquet in this folder{skipped}",
                location=path,
                hint=f"name files with another suffix: {path}/*",
            )
        notes.skipped += walk.skipped
        notes.hidden += walk.hidden
        return found
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        pass
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise _absent(path) from None
        return [Path(path)]  # opening it raises the error
    else:
        return [Path(path)]
    if not glob.has_magic(str(path)):
        raise _absent(path)
    found = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if os.path.isfile(name))
    if not found:
        raise _absent(path, "no file has such a name")
    return found


def _absent(path: str | Path, of_pattern: str = "") -> InputError:
    """Return the error for a path or a pattern that names no file; a text in place of a path is shortened."""
    name = str(path)
    if len(name.split()) < _WORDS and "\n" not in name and len(name) <= _LONGEST_NAME:
        if not of_pattern:
            return not_found_error(path)
        return InputError("no_match", of_pattern, location=name, hint="check the pattern")
    line = " ".join(name.split())
    shown = line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"
    return InputError(
        "not_found",
        of_pattern or "no such file",
        location=shown,
        hint="check the path; in Python, pass texts themselves as bertsmith.Texts(docs)",
    )


def _in_folder(folder: str | Path, notes: Notes) -> list[Path]:
    def refused(error: OSError) -> None:
        raise InputError(
            "permission_denied",
            "this folder may not be read",
            location=error.filename,
            hint="check its permissions",
        ) from None

    found: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=refused):
        notes.hidden += sum(name.startswith(".") for name in (*folders, *names))
        folders[:] = [name for name in folders if not name.startswith(".")]
        linked = sum(os.path.islink(os.path.join(place, name)) for name in folders)
        if linked:
            notes.skipped["linked folder"] += linked
        for name in names:
            if not name.startswith("."):
                file = Path(place, name)
                if (kind := _other_kind(file)) is None:
                    found.append(file)
                else:
                    notes.skipped[kind] += 1
    return sorted(found)


def _other_kind(file: Path) -> str | None:
    """What a file of a folder is, if it is not to be read."""
    if not file.is_file():
        return "broken link" if file.is_symlink() else "device"
    suffix = bare_suffix(file)
    if suffix in _FORMS:
        return None
    if _SUFFIX.fullmatch(suffix):
        return suffix + file.suffix.lower() if is_compressed(file) else suffix
    return None if _begins_as_text(file) else "binary file"


def _begins_as_text(file: Path) -> bool:
    try:
        head = next(read_blocks(file), b"")
    except FileFault:
        return False
    except InputError:
        return True  # reading it raises the error
    wide = encoding_of(head, None) != "utf-8" or wide_encoding(head) is not None
    return not_text(str(file), head, wide=wide) is None
