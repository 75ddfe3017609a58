"""Which file of a corpus has which faults, how many, and where the first of each are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bertsmith.corpus.checks.histogram import Found

PLACES = 5  # of each fault in each file
_MOST_FILES = 10_000  # that are told apart; all others are only counted


@dataclass
class FaultsByFile:
    """Counts faults by file; `limit` places are kept of each fault in each file."""

    limit: int
    _files: dict[str, dict[str, Found]] = field(default_factory=dict)
    _others: set[int] = field(default_factory=set)  # hashes of files beyond those that are told apart

    def add(self, file: str, what: str, place: str, times: int = 1, told: str = "") -> None:
        """Count a fault. place: as in all findings, `file:line:column`; told: more about this one."""
        found = self._of(file, what)
        if found is not None:
            found.add({"at": place.removeprefix(file).removeprefix(":"), "told": told}, times)

    def room(self, file: str, what: str) -> int:
        """How many more places of this fault are kept."""
        found = self._of(file, what)
        return 0 if found is None else found.room

    def _of(self, file: str, what: str) -> Found | None:
        if file not in self._files and len(self._files) >= _MOST_FILES:
            self._others.add(hash(file))
            return None
        return self._files.setdefault(file, {}).setdefault(what, Found(self.limit))

    def summary(self) -> dict[str, Any]:
        """As a report holds it: `files` in the order in which they were read, each with its faults."""
        return {
            "files": [
                {
                    "file": file,
                    "faults": [{"what": what, **found.summary()} for what, found in faults.items()],
                }
                for file, faults in self._files.items()
            ],
            "files_not_listed": len(self._others),
        }
