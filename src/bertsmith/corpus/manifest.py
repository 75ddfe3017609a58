"""What `manifest.json` of a data folder and `progress.json` of an unfinished one hold: typed, read at one place.

Whoever sends a folder writes its manifest: a file's name leads nowhere out of the folder, numbers are numbers and
in their ranges, and whatever is not so is one sentence with the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from bertsmith.errors import InputError
from bertsmith.io import atomic
from bertsmith.suggestions import absent

FORMAT = 1
MANIFEST = "manifest.json"
AGAIN = "prepare the data again, or copy the folder from its source again"
_LARGEST = 1 << 62  # bytes, tokens: what NumPy counts in
_NAME = re.compile(r"(?:tokenizer/)?[^/\\\x00-\x1f\x7f]{1,255}")


def _inside(name: str) -> str:
    if not _NAME.fullmatch(name) or name.rpartition("/")[2] in (".", ".."):
        raise ValueError("is no plain file name")
    return name


_Number = Annotated[int, Field(ge=0, le=_LARGEST)]
_Some = Annotated[int, Field(ge=1, le=_LARGEST)]


class _Typed(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class FileEntry(_Typed):
    """A file of the folder: its name in it, its size in bytes, its sha256."""

    name: Annotated[str, AfterValidator(_inside)]
    size: _Number
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ShardEntry(FileEntry):
    """A shard, and how much is in it."""

    documents: _Some
    sentences: _Some
    tokens: _Some


class Manifest(_Typed):
    """All that vouches for a data folder. skipped: files that were passed over in the folders read, by suffix."""

    format: int = FORMAT
    vocab_size: Annotated[int, Field(ge=1, le=1 << 32)]
    tokenizer_digest: str
    language: str
    counts: dict[str, _Number]
    skipped: dict[str, _Number] = {}
    files: list[ShardEntry | FileEntry]

    @property
    def shards(self) -> list[ShardEntry]:
        """The entries of the shards, in order."""
        return [entry for entry in self.files if isinstance(entry, ShardEntry)]


class PreparationProgress(_Typed):
    """How far a preparation has come: portions of the corpus that stand in the finished shards, and their counts.

    request: a digest of all that rules the bytes. last: the last document, as the place that it begins at and its
    hash, which its further parts share.
    """

    request: str
    portions: _Number = 0
    shards: tuple[ShardEntry, ...] = ()
    counts: dict[str, _Number] = {}
    last: tuple[str, Annotated[int, Field(ge=0, lt=1 << 64)]] | None = None


_Kind = TypeVar("_Kind", bound=_Typed)


def file_entry(path: Path, name: str | None = None) -> FileEntry:
    """A file's entry for the manifest."""
    return FileEntry(name=name or path.name, size=path.stat().st_size, sha256=atomic.digest(path))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json`, whole or not at all. The last file of a data folder."""
    atomic.write_text(folder / MANIFEST, manifest.model_dump_json(indent=1) + "\n")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a data folder. Raises `InputError` where there is none, or none that can be right."""
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if not os.path.lexists(folder):
            raise absent(folder, "folder", "make it with bertsmith data prepare") from None
        raise InputError(
            f"{folder}: there is no manifest.json, so this is no prepared data",
            "make it with bertsmith data prepare",
        ) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", "check its permissions") from None
    manifest = _parsed(Manifest, content, path)
    names = [entry.name for entry in manifest.files]
    if len(set(names)) < len(names):
        raise InputError(f"{path}: a file is listed twice", AGAIN)
    if not manifest.shards or any("/" in entry.name for entry in manifest.shards):
        raise InputError(f"{path}: lists no shards, or some outside of the folder", AGAIN)
    return manifest


def read_progress(path: Path) -> PreparationProgress | None:
    """The progress of a preparation, None where none was written. Raises `InputError` for what cannot be right."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    return _parsed(PreparationProgress, content, path)


def _parsed(kind: type[_Kind], content: bytes, path: Path) -> _Kind:
    try:
        found = kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InputError(f"{path}: {_said(first)}", AGAIN) from None
    if isinstance(found, Manifest) and found.format != FORMAT:
        raise InputError(
            f"{path}: format {found.format} is not known here",
            "prepare the data again, or use the version of bertsmith that did",
        )
    return found


def _said(error: Mapping[str, Any]) -> str:
    if error["type"] == "json_invalid":
        return "this is not whole JSON"
    if not error["loc"]:
        return "this is not a JSON object"
    # Of a file's entry the kinds that it may have stand in the place, too.
    place = ".".join(str(part) for part in error["loc"] if part not in ("ShardEntry", "FileEntry"))
    said = error["msg"].removeprefix("Value error, ")
    return f"'{place}' cannot be right ({said[0].lower()}{said[1:]})"
