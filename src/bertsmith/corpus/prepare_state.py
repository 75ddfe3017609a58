"""The hidden folder of a preparation under way: whole shards and where they end, so that a killed one goes on.

`.NAME.unfinished` beside the folder to be: `shard-*.arrow`, each whole once `progress.json` names it. The request
(files with sizes and times, tokenizer, all that rules the bytes) must be the same to go on. One preparation at a
time holds it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bertsmith import hardware
from bertsmith.corpus.manifest import PreparationProgress, read_progress
from bertsmith.errors import InputError, MachineError
from bertsmith.formatting import counted
from bertsmith.io import atomic

LAYOUT = atomic.FolderLayout(
    "token shards", "manifest.json", ("manifest.json", "shard-*.arrow", "tokenizer", "rejects.jsonl")
)


class Unfinished:
    """The folder beside `place`, with the progress of an earlier start of the same request, or none."""

    def __init__(self, place: Path, folder: Path, request: Mapping[str, object], tell: Callable[[str], None]):
        """Use `Unfinished.of`."""
        self._place, self.folder, self._replace = place, folder, False
        digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
        self.progress = self._found(digest, tell) or PreparationProgress(request=digest)
        known = {"progress.json", *(entry.name for entry in self.progress.shards)}
        for name in set(os.listdir(self.folder)) - (known if self.progress.shards else set()):
            path = self.folder / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    @classmethod
    @contextmanager
    def of(
        cls, out: Path, request: Mapping[str, object], tell: Callable[[str], None], *, replace: bool = False
    ) -> Iterator[Unfinished]:
        """The folder of the preparation that makes `out`, held against others until the end. After an error its
        whole shards stay to go on from; after a fault in the files, which will be fixed, nothing does.

        Raises `InputError` where another holds it, and for an `out` that `disk.refuse_filled` refuses;
        `MachineError` where the disk is full.
        """
        LAYOUT.is_replaced(out, overwrite=replace)
        place = Path(os.path.realpath(out))
        folder = place.parent / f".{place.name}.unfinished"
        with atomic.locked(folder, "preparation", shown=out):
            LAYOUT.is_replaced(
                out, overwrite=replace
            )  # another one may have finished before the lock was free
            found = cls(place, folder, request, tell)
            found._replace = replace
            try:
                yield found
            except BaseException as error:
                found._close(error, tell)
                if hardware.is_disk_full(error):
                    raise MachineError(
                        f"{out.parent}: the disk is full",
                        "free some space and start again; whole shards are kept",
                    ) from None
                raise

    def record(self, progress: PreparationProgress) -> None:
        """Say on the disk that this progress is made; its shards must be there already."""
        atomic.synchronise(self.folder)
        atomic.write_text(self.folder / "progress.json", progress.model_dump_json())
        self.progress = progress

    def finish(self) -> None:
        """Make the folder the one it was to be."""
        (self.folder / "progress.json").unlink(missing_ok=True)
        atomic.finish_folder(self.folder, self._place, replace=self._replace)

    def _close(self, error: BaseException, tell: Callable[[str], None]) -> None:
        shards = len(self.progress.shards)
        if shards and not isinstance(error, InputError):
            documents = counted(self.progress.counts.get("documents", 0), "document")
            tell(
                f"{documents} in {counted(shards, 'finished shard')} kept; the same command continues after them"
            )
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        if isinstance(error, KeyboardInterrupt | SystemExit):
            tell("nothing is kept: no shard was finished yet; the same command starts over")

    def _found(self, request: str, tell: Callable[[str], None]) -> PreparationProgress | None:
        """The progress of an earlier start; none where it was of another request or its shards are not whole."""
        try:
            progress = read_progress(self.folder / "progress.json")
        except InputError as error:
            tell(f"{error.sentence}; starting over")
            return None
        if progress is None or progress.request != request:
            return None
        for entry in progress.shards:
            path = self.folder / entry.name
            if not path.is_file() or path.stat().st_size != entry.size or atomic.digest(path) != entry.sha256:
                tell(f"{path}: its contents changed since it was written; starting over")
                return None
        return progress
