"""The hidden folder of a preparation under way: whole shards and where they end, so that a killed one goes on.

`.NAME.unfinished` beside the folder to be: `shard-*.arrow`, each whole once `progress.json` names it. The request
(files with sizes and times, tokenizer, all that rules the bytes) must be the same to go on.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertsmith import disk


@dataclass
class PreparationProgress:
    """What is done: how many portions of the corpus stand in the finished shards, their entries, the counts."""

    request: str
    portions: int = 0
    shards: list[dict[str, Any]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def hidden_folder(place: Path) -> Path:
    """The hidden folder beside the folder to be, wherever links lead to that."""
    real = Path(os.path.realpath(place))
    return real.with_name(f".{real.name}.unfinished")


class Unfinished:
    """The folder beside `place`, with the progress of an earlier start of the same request, or none.

    Whoever makes one holds `hidden_folder(place)` locked.
    """

    def __init__(self, place: Path, request: Mapping[str, Any]) -> None:
        self.place = Path(os.path.realpath(place))
        self.folder = hidden_folder(place)
        digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
        self.progress = self._found(digest) or PreparationProgress(digest)
        known = {entry["name"] for entry in self.progress.shards} | {"progress.json"}
        if not self.progress.shards:  # emptied, not removed: the lock is on it
            known = set()
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            if path.name not in known:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def record(self) -> None:
        """Say on the disk that the progress is made; its shards must be there already."""
        disk.synchronise(self.folder)
        disk.write_text(self.folder / "progress.json", json.dumps(vars(self.progress)))

    def finish(self) -> None:
        """Make the folder the one it was to be."""
        (self.folder / "progress.json").unlink(missing_ok=True)
        disk.finish_folder(self.folder, self.place)

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _found(self, request: str) -> PreparationProgress | None:
        """The progress of an earlier start; none where it was of another request or its shards are not whole."""
        try:
            found = json.loads((self.folder / "progress.json").read_text(encoding="utf-8"))
            if found["request"] != request:
                return None
            progress = PreparationProgress(
                request, found["portions"], found["shards"], Counter(found["counts"])
            )
            for entry in progress.shards:
                path = self.folder / entry["name"]
                if path.stat().st_size != entry["size"] or disk.digest(path) != entry["sha256"]:
                    return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return progress
