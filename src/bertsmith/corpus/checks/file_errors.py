"""Count the errors of each file of a corpus, with the locations of the first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bertsmith.corpus.checks.histogram import Occurrences

MAX_LOCATIONS = 5  # per error and file
_MAX_FILES = 10_000  # Further files are only counted.


@dataclass
class FileErrors:
    """Count errors by file; store `limit` locations per error and file."""

    limit: int
    _files: dict[str, dict[str, Occurrences]] = field(default_factory=dict)
    _others: set[int] = field(default_factory=set)  # hashes of the files beyond _MAX_FILES

    def add(self, file: str, error: str, location: str, times: int = 1, detail: str = "") -> None:
        """Count an error at a location `file:line:column`."""
        occurrences = self._occurrences(file, error)
        if occurrences is not None:
            position = location.removeprefix(file).removeprefix(":")
            occurrences.add({"at": position, "told": detail}, times)

    def num_free(self, file: str, error: str) -> int:
        """Return the number of further locations to store for an error."""
        occurrences = self._occurrences(file, error)
        return 0 if occurrences is None else occurrences.num_free

    def _occurrences(self, file: str, error: str) -> Occurrences | None:
        if file not in self._files and len(self._files) >= _MAX_FILES:
            self._others.add(hash(file))
            return None
        return self._files.setdefault(file, {}).setdefault(error, Occurrences(self.limit))

    def summary(self) -> dict[str, Any]:
        """Return the files in the order of reading, each with its errors, for a report."""
        return {
            "files": [
                {
                    "file": file,
                    "faults": [
                        {"what": error, **occurrences.summary()} for error, occurrences in errors.items()
                    ],
                }
                for file, errors in self._files.items()
            ],
            "files_not_listed": len(self._others),
        }
