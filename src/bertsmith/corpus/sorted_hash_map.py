"""Hashes with numbers beside them in sorted runs: a dictionary in as few bytes as its keys and numbers have.

Runs are merged as they grow, so that each is more than twice as long as the next: a key is looked for in few of
them, and moved rarely. While two are merged they take as much memory again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
Column = NDArray[Any]


@dataclass(frozen=True)
class SortedRun:
    """Distinct keys, rising [R], and columns of numbers by name, each [R]."""

    keys: Hashes
    columns: dict[str, Column]


class SortedRuns:
    """64-bit keys, each with one number a column. What comes again under a known key is added to the number in
    the columns named `summed`; in the others the first one stays."""

    def __init__(self, kinds: Mapping[str, type[np.generic]], summed: tuple[str, ...] = ()) -> None:
        """kinds: the columns by name, with their types."""
        self._kinds, self._summed = dict(kinds), frozenset(summed)
        self._runs: list[SortedRun] = []

    def __len__(self) -> int:
        """Keys in all runs; one that stands in several counts as often."""
        return sum(len(run.keys) for run in self._runs)

    def add(self, keys: Hashes, columns: Mapping[str, Column]) -> None:
        """Take in some keys [N], in any order, and their numbers [N] by column."""
        run = self._run(keys, {name: columns[name].astype(kind) for name, kind in self._kinds.items()})
        while self._runs and len(self._runs[-1].keys) <= 2 * len(run.keys):
            run = self._merged(self._runs.pop(), run)
        self._runs.append(run)

    def look_up(self, keys: Hashes, column: str, missing: int = 0) -> NDArray[np.int64]:
        """The number of each key in a column; `missing` for a key that is not there, and the base of a sum."""
        found = np.full(len(keys), missing, dtype=np.int64)
        for run in reversed(self._runs):  # the earliest has the last word
            if len(run.keys):
                at = np.minimum(np.searchsorted(run.keys, keys), len(run.keys) - 1)
                same = run.keys[at] == keys
                numbers = run.columns[column][at[same]].astype(np.int64)
                found[same] = found[same] + numbers if column in self._summed else numbers
        return found

    def keep_below(self, limit: np.uint64) -> None:
        """Forget the keys from `limit` on."""
        ends = [int(np.searchsorted(run.keys, limit)) for run in self._runs]
        self._runs = [
            SortedRun(run.keys[:n].copy(), {name: values[:n].copy() for name, values in run.columns.items()})
            for run, n in zip(self._runs, ends, strict=True)
        ]

    def whole(self) -> SortedRun:
        """All keys in one run."""
        run = self._run(
            np.empty(0, dtype=np.uint64),
            {name: np.empty(0, dtype=kind) for name, kind in self._kinds.items()},
        )
        for known in self._runs:
            run = self._merged(run, known)
        return run

    def _merged(self, earlier: SortedRun, later: SortedRun) -> SortedRun:
        keys = np.concatenate([earlier.keys, later.keys])
        columns = {name: np.concatenate([earlier.columns[name], later.columns[name]]) for name in self._kinds}
        return self._run(keys, columns)

    def _run(self, keys: Hashes, columns: dict[str, Column]) -> SortedRun:
        if not len(keys):
            return SortedRun(keys, columns)
        order = np.argsort(keys, kind="stable")  # of equal keys the earlier stands first
        keys = keys[order]
        begins = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        return SortedRun(
            keys[begins],
            {
                name: np.add.reduceat(values[order], begins).astype(self._kinds[name])
                if name in self._summed
                else values[order[begins]]
                for name, values in columns.items()
            },
        )
