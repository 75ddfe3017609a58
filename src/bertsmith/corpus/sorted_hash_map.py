"""A hash map in sorted arrays: it takes no more bytes than its keys and values.

Runs are merged as they grow, so that each is more than twice as long as the next: a lookup searches few runs, and
entries move rarely. While two runs are merged they take as much memory again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.tokenized_corpus import HashArray

Column = NDArray[Any]


@dataclass(frozen=True)
class SortedRun:
    """Distinct keys in ascending order, [R], and columns of values by name, [R] each."""

    keys: HashArray
    columns: dict[str, Column]


class SortedHashMap:
    """Map 64-bit keys to one value per column.

    The values of a repeated key are added up in the columns named `summed`; in the others the first value stays.
    """

    def __init__(self, dtypes: Mapping[str, type[np.generic]], summed: tuple[str, ...] = ()) -> None:
        self._dtypes, self._summed = dict(dtypes), frozenset(summed)
        self._runs: list[SortedRun] = []

    def __len__(self) -> int:
        """Return the number of keys in all runs; a key in several runs counts several times."""
        return sum(len(run.keys) for run in self._runs)

    def add(self, keys: HashArray, columns: Mapping[str, Column]) -> None:
        """Add keys [N], in any order, with their values [N] by column."""
        run = self._sort(keys, {name: columns[name].astype(dtype) for name, dtype in self._dtypes.items()})
        while self._runs and len(self._runs[-1].keys) <= 2 * len(run.keys):
            run = self._merge(self._runs.pop(), run)
        self._runs.append(run)

    def lookup(self, keys: HashArray, column: str, missing: int = 0) -> NDArray[np.int64]:
        """Return the value of each key in a column, [N]; `missing` for absent keys and as the start of sums."""
        result = np.full(len(keys), missing, dtype=np.int64)
        for run in reversed(self._runs):  # The earliest run is written last, so that its value stays.
            if len(run.keys):
                index = np.minimum(np.searchsorted(run.keys, keys), len(run.keys) - 1)
                hits = run.keys[index] == keys
                values = run.columns[column][index[hits]].astype(np.int64)
                result[hits] = result[hits] + values if column in self._summed else values
        return result

    def drop_from(self, limit: np.uint64) -> None:
        """Drop the keys that are not below `limit`."""
        ends = [int(np.searchsorted(run.keys, limit)) for run in self._runs]
        self._runs = [
            SortedRun(run.keys[:n].copy(), {name: values[:n].copy() for name, values in run.columns.items()})
            for run, n in zip(self._runs, ends, strict=True)
        ]

    def merged(self) -> SortedRun:
        """Return all keys in one run."""
        result = self._sort(
            np.empty(0, dtype=np.uint64),
            {name: np.empty(0, dtype=dtype) for name, dtype in self._dtypes.items()},
        )
        for run in self._runs:
            result = self._merge(result, run)
        return result

    def _merge(self, earlier: SortedRun, later: SortedRun) -> SortedRun:
        keys = np.concatenate([earlier.keys, later.keys])
        columns = {
            name: np.concatenate([earlier.columns[name], later.columns[name]]) for name in self._dtypes
        }
        return self._sort(keys, columns)

    def _sort(self, keys: HashArray, columns: dict[str, Column]) -> SortedRun:
        if not len(keys):
            return SortedRun(keys, columns)
        order = np.argsort(keys, kind="stable")  # Of equal keys the earlier comes first.
        keys = keys[order]
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        return SortedRun(
            keys[starts],
            {
                name: np.add.reduceat(values[order], starts).astype(self._dtypes[name])
                if name in self._summed
                else values[order[starts]]
                for name, values in columns.items()
            },
        )
