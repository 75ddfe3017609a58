"""The hidden folder of a preparation in progress, from which an interrupted one resumes.

`.NAME.unfinished` beside the output folder holds `encoded-*.arrow`, each complete once `progress.json` lists it. A
preparation resumes only if its request (files with sizes and times, tokenizer, settings that determine the bytes)
is the same. A lock admits one preparation at a time. `rejects.jsonl` lists the lines and rows that were skipped.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertsmith import hardware
from bertsmith.corpus.manifest import PreparationProgress, read_progress
from bertsmith.errors import InputError, MachineError, command, option
from bertsmith.formatting import pluralize
from bertsmith.io import atomic
from bertsmith.io.folder_layout import FolderLayout, in_folder
from bertsmith.io.text_io import RejectedRow
from bertsmith.tokenizer.folder import TOKENIZER_FILES

logger = logging.getLogger(__name__)

LAYOUT = FolderLayout(
    "token shards",
    "manifest.json",
    ("manifest.json", "shard-*.arrow", "rejects.jsonl", *in_folder("tokenizer", TOKENIZER_FILES)),
)
_UNFINISHED_LAYOUT = FolderLayout(
    "an unfinished preparation", "progress.json", (*LAYOUT.patterns, "progress.json", "encoded-*.arrow")
)


class PrepareState:
    """The hidden folder of a preparation and its progress.

    The progress is empty unless a preparation with the same request was interrupted.

    Attributes:
        folder: The hidden folder.
        progress: The finished shards and their counts.
    """

    def __init__(self, out: Path, folder: Path, request: Mapping[str, Any], *, replace: bool) -> None:
        """Load the progress; use `PrepareState.open`."""
        self._out, self.folder, self._replace = out, folder, replace
        digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
        self.progress = self._load(digest) or PreparationProgress(request=digest)
        finished = {"progress.json", *(entry.name for entry in self.progress.shards)}
        for name in set(os.listdir(self.folder)) - (finished if self.progress.shards else set()):
            path = self.folder / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    @classmethod
    @contextmanager
    def open(cls, out: Path, request: Mapping[str, Any], *, replace: bool = False) -> Iterator[PrepareState]:
        """Open and lock the hidden folder of the preparation of `out`.

        After an error the finished shards stay, so that the preparation can resume; after an `InputError`, which
        changes the files, nothing stays.

        Raises:
            InputError: Another preparation holds the lock, or `out` is not empty and must not be replaced.
            MachineError: The disk is full.
        """
        LAYOUT.check_replaceable(out, overwrite=replace)
        target = Path(os.path.realpath(out))
        folder = target.parent / f".{target.name}.unfinished"
        with atomic.folder_lock(folder, "preparation", display_path=out):
            # Another preparation may have finished before the lock was free.
            LAYOUT.check_replaceable(out, overwrite=replace)
            _UNFINISHED_LAYOUT.check_only(folder)
            state = cls(target, folder, request, replace=replace)
            try:
                yield state
            except BaseException as error:
                state._close(error)
                if hardware.is_disk_full(error):
                    message = "the disk is full"
                    hint = "free some space and start again; finished shards are kept"
                    raise MachineError("disk_full", message, location=out.parent, hint=hint) from None
                raise

    def save(self, progress: PreparationProgress) -> None:
        """Write the progress to the disk; its shards must be complete."""
        atomic.fsync(self.folder)
        atomic.write_text(self.folder / "progress.json", progress.model_dump_json())
        self.progress = progress

    def finish(self) -> None:
        """Delete the files that only resuming needs, and rename the hidden folder to the output folder."""
        (self.folder / "progress.json").unlink(missing_ok=True)
        for entry in self.progress.shards:
            (self.folder / entry.name).unlink()
        atomic.commit_folder(self.folder, self._out, replace=self._replace)

    def _close(self, error: BaseException) -> None:
        num_shards = len(self.progress.shards)
        if num_shards and not isinstance(error, InputError):
            documents = pluralize(self.progress.counts.get("documents", 0), "document")
            shards = pluralize(num_shards, "finished shard")
            logger.info("%s in %s are kept; the same command resumes after them", documents, shards)
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        if isinstance(error, KeyboardInterrupt | SystemExit):
            logger.info("nothing is kept, since no shard was finished; the same command starts over")

    def _load(self, request: str) -> PreparationProgress | None:
        """Return the saved progress; None if it belongs to another request or its shards are damaged."""
        try:
            progress = read_progress(self.folder / "progress.json")
        except InputError as error:
            logger.warning("%s; starting over", error.sentence_for("python"))
            return None
        if progress is None or progress.request != request:
            return None
        for entry in progress.shards:
            path = self.folder / entry.name
            if not path.is_file() or atomic.sha256_of_file(path) != entry.sha256:
                logger.warning("%s: its contents changed since it was written; starting over", path)
                return None
        return progress


class RejectFile:
    """Write each reject: file, line (from 1), byte (from 0, of the decompressed file), reason, and raw bytes.

    The bytes are text under the key `raw` if they are UTF-8, else base64 under `raw_base64`.
    """

    def __init__(self, path: Path, max_rejects: int) -> None:
        """Create the file; more than `max_rejects` rejects raise `InputError`."""
        self.count, self._max_rejects = 0, max_rejects
        self.first: RejectedRow | None = None
        self._path = path
        self._file = path.open("w", encoding="utf-8", newline="\n")

    def __call__(self, reject: RejectedRow) -> None:
        """Write one reject."""
        self.count += 1
        self.first = self.first or reject
        if self.count > self._max_rejects:
            raise InputError(
                "too_many_rejects",
                f"more than {self._max_rejects:,} lines or rows cannot be read; this one: {reject.reason}",
                location=reject.file if reject.line is None else f"{reject.file}:{reject.line}",
                argument="max_rejects",
                hint=f"check the files with {command('data check')}, or raise {option('max_rejects')}",
            )
        entry: dict[str, object] = {
            "file": reject.file,
            "line": reject.line,
            "byte": reject.byte,
            "reason": reject.reason,
        }
        try:
            entry["raw"] = reject.raw.decode("utf-8")
        except UnicodeDecodeError:
            entry["raw_base64"] = base64.b64encode(reject.raw).decode("ascii")
        self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def close(self) -> None:
        """Close the file, and remove it if it is empty."""
        self._file.close()
        if not self.count:
            self._path.unlink(missing_ok=True)
