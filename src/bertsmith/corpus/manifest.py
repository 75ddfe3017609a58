"""The schemas of `manifest.json` in a data folder and of `progress.json` in an unfinished one.

A manifest may come from somebody else: names of files stay inside the folder, numbers are in range, and everything
else is an error that names the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from bertsmith.errors import InputError, command
from bertsmith.io import atomic
from bertsmith.io.compression import check_name
from bertsmith.suggestions import not_found_error

FORMAT: Final = 2
MANIFEST_FILE = "manifest.json"
damaged_data_error = partial(InputError, hint="prepare the data again, or copy the folder again")
"""Create the error of a file in a data folder that is missing, damaged, or contradicts the manifest."""
_MAX_INT = 1 << 62  # bytes, tokens: NumPy counts in int64
_FILE_NAME = re.compile(r"(?:tokenizer/)?[^/\\\x00-\x1f\x7f]{1,255}")


def _check_file_name(name: str) -> str:
    if not _FILE_NAME.fullmatch(name) or name.rpartition("/")[2] in (".", ".."):
        raise ValueError("is no plain file name")
    return name


_NonNegativeInt = Annotated[int, Field(ge=0, le=_MAX_INT)]
_PositiveInt = Annotated[int, Field(ge=1, le=_MAX_INT)]


class _Schema(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class FileEntry(_Schema):
    """A file of the folder: its name, its size in bytes, and its SHA-256."""

    name: Annotated[str, AfterValidator(_check_file_name)]
    size: _NonNegativeInt
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ShardEntry(FileEntry):
    """A shard and its numbers of documents, sentences, and tokens."""

    documents: _PositiveInt
    sentences: _PositiveInt
    tokens: _PositiveInt


class Manifest(_Schema):
    """The contents of a data folder; `skipped` counts the files that were skipped in input folders, by suffix."""

    format: Literal[2] = FORMAT
    vocab_size: Annotated[int, Field(ge=1, le=1 << 32)]
    tokenizer_digest: str
    language: str
    near_duplicate_threshold: Annotated[float, Field(gt=0, le=1)]
    counts: dict[str, _NonNegativeInt]
    skipped: dict[str, _NonNegativeInt] = {}
    files: list[ShardEntry | FileEntry]

    @property
    def shards(self) -> list[ShardEntry]:
        """Return the entries of the shards, in order."""
        return [entry for entry in self.files if isinstance(entry, ShardEntry)]


class PreparationProgress(_Schema):
    """The progress of a preparation: the number of portions in the finished shards, and their counts.

    `request` is a digest of everything that determines the bytes.
    """

    request: str
    portions: _NonNegativeInt = 0
    shards: tuple[ShardEntry, ...] = ()
    counts: dict[str, _NonNegativeInt] = {}


_AnySchema = TypeVar("_AnySchema", bound=_Schema)


def file_entry(path: Path, name: str | None = None) -> FileEntry:
    """Return the manifest entry of a file."""
    return FileEntry(name=name or path.name, size=path.stat().st_size, sha256=atomic.sha256_of_file(path))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json` atomically; it is the last file of a data folder."""
    atomic.write_text(folder / MANIFEST_FILE, manifest.model_dump_json(indent=1) + "\n")


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a data folder.

    Raises:
        InputError: There is no manifest, or it is invalid.
    """
    check_name(folder)
    path = folder / MANIFEST_FILE
    content = _read_file(path)
    if content is None:
        hint = f"make it with {command('data prepare')}"
        if not os.path.lexists(folder):
            raise not_found_error(folder, "folder", hint)
        message = "there is no manifest.json, so this is no prepared data"
        raise InputError("not_prepared_data", message, location=folder, hint=hint)
    manifest = _parse(Manifest, content, path)
    names = [entry.name for entry in manifest.files]
    if len(set(names)) < len(names):
        raise damaged_data_error("manifest_duplicate_file", "a file is listed twice", location=path)
    if not manifest.shards or any("/" in entry.name for entry in manifest.shards):
        message = "lists no shards, or some outside of the folder"
        raise damaged_data_error("manifest_without_shards", message, location=path)
    return manifest


def read_progress(path: Path) -> PreparationProgress | None:
    """Read the progress of a preparation; None if there is no such file.

    Raises:
        InputError: The file is invalid.
    """
    content = _read_file(path)
    return None if content is None else _parse(PreparationProgress, content, path)


def _read_file(path: Path) -> bytes | None:
    """Return the contents of a file; None if there is no such file."""
    try:
        return atomic.read_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        message = f"cannot be read ({error.strerror})"
        raise InputError("file_unreadable", message, location=path, hint="check its permissions") from None


def _parse(schema: type[_AnySchema], content: bytes, path: Path) -> _AnySchema:
    try:
        return schema.model_validate_json(content)
    except ValidationError as error:
        first_error = error.errors(include_url=False)[0]
    if first_error["loc"] == ("format",) and isinstance(first_error["input"], int):
        message = f"the data has format {first_error['input']}, and this version reads format {FORMAT}"
        hint = f"prepare it again with {command('data prepare')}, or use the version of bertsmith that did"
        raise InputError("unknown_format", message, location=path, hint=hint)
    raise damaged_data_error("invalid_metadata", _describe(first_error), location=path)


def _describe(error: Mapping[str, Any]) -> str:
    if error["type"] == "json_invalid":
        return "this is not complete JSON"
    if not error["loc"]:
        return "this is not a JSON object"
    # The location of a file's entry includes the name of the schema that was tried.
    field = ".".join(str(part) for part in error["loc"] if part not in ("ShardEntry", "FileEntry"))
    reason = error["msg"].removeprefix("Value error, ")
    return f"'{field}' is invalid ({reason[0].lower()}{reason[1:]})"
