"""Files and folders that are whole or not there: written beside their place, and on the disk before they get
their name."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write a file as UTF-8 with line ends as they are; until all of it is on the disk the old one stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8", newline="\n")
        synchronise(beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def new_folder(place: Path) -> Iterator[Path]:
    """A hidden folder to write into; without an error in between it becomes `place`, which must not hold anything.

    What a killed writer of the same place left behind is removed.
    """
    beside = place.parent / f".{place.name}.unfinished"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        yield beside
        for path in [*beside.rglob("*"), beside]:
            synchronise(path)
        os.replace(beside, place)
        synchronise(place.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def synchronise(path: Path) -> None:
    """Have the disk hold what was written to a file or a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_full(error: BaseException) -> bool:
    """Whether an error says that the disk, or the user's share of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
