"""A histogram of bounded size, and counts of occurrences with the locations of the first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_EXACT_BELOW = 1024  # Smaller values have a bin each; larger ones have 64 bins per octave, 1.1 % wide.
_BINS_PER_OCTAVE = 64
_NUM_BINS = _EXACT_BELOW + _BINS_PER_OCTAVE * 40


class Histogram:
    """Count non-negative integers; quantiles are exact below 1,024 and within 1.1 % above.

    Attributes:
        count: The number of values.
        total: The sum of the values.
        minimum: The smallest value; None without values.
        maximum: The largest value; 0 without values.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(_NUM_BINS, dtype=np.int64)
        self.count = 0
        self.total = 0
        self.minimum: int | None = None
        self.maximum = 0

    def add(self, values: ArrayLike) -> None:
        """Count some values."""
        array = np.asarray(values, dtype=np.int64)
        if not len(array):
            return
        self._counts += np.bincount(_bins(array), minlength=_NUM_BINS)
        self.count += len(array)
        self.total += int(array.sum())
        minimum = int(array.min())
        self.minimum = minimum if self.minimum is None else min(self.minimum, minimum)
        self.maximum = max(self.maximum, int(array.max()))

    def quantile(self, q: float) -> int:
        """Return the smallest value that a fraction `q` of the values does not exceed; 0 without values."""
        if not self.count:
            return 0
        index = int(np.searchsorted(np.cumsum(self._counts), max(1, np.ceil(q * self.count))))
        return min(self.maximum, max(self.minimum or 0, _bin_value(index)))

    def bars(self, num_bars: int = 40) -> tuple[list[float], list[int]]:
        """Return edges and counts of about `num_bars` bars on a logarithmic scale, for a plot."""
        if not self.count:
            return [1.0, 2.0], [0]
        low, high = max(1, self.minimum or 1), max(2, self.maximum)
        edges = np.unique(np.round(np.geomspace(low, high + 1, num_bars + 1)).astype(np.int64))
        nonempty = np.flatnonzero(self._counts)
        values = np.clip([_bin_value(int(index)) for index in nonempty], low, high)
        bars, _ = np.histogram(values, bins=edges, weights=self._counts[nonempty])
        return edges.astype(float).tolist(), bars.astype(int).tolist()

    def summary(self) -> dict[str, Any]:
        """Return the number, mean, quantiles, and histogram of the values for a report."""
        edges, counts = self.bars()
        return {
            "number": self.count,
            "mean": round(self.total / self.count, 2) if self.count else 0.0,
            "least": self.minimum or 0,
            "percentile_5": self.quantile(0.05),
            "median": self.quantile(0.5),
            "percentile_95": self.quantile(0.95),
            "most": self.maximum,
            "histogram": {"edges": edges, "counts": counts},
        }


@dataclass
class Occurrences:
    """Count occurrences and store the locations of the first `limit`: strings, or dicts for the report."""

    limit: int
    count: int = 0
    locations: list[Any] = field(default_factory=list)

    def add(self, location: Any, times: int = 1) -> None:
        """Count an occurrence, and store its location up to the limit."""
        self.count += times
        if len(self.locations) < self.limit:
            self.locations.append(location)

    @property
    def num_free(self) -> int:
        """Return the number of further locations to store."""
        return max(0, self.limit - len(self.locations))

    def summary(self) -> dict[str, Any]:
        """Return the count and the locations for a report."""
        return {"number": self.count, "places": self.locations}


def _bins(values: NDArray[np.int64]) -> NDArray[np.int64]:
    large = np.maximum(values, _EXACT_BELOW)
    index = _EXACT_BELOW + np.floor(_BINS_PER_OCTAVE * np.log2(large / _EXACT_BELOW)).astype(np.int64)
    return np.where(values < _EXACT_BELOW, values, np.minimum(index, _NUM_BINS - 1))


def _bin_value(index: int) -> int:
    if index < _EXACT_BELOW:
        return index
    return round(_EXACT_BELOW * 2 ** ((index - _EXACT_BELOW + 0.5) / _BINS_PER_OCTAVE))
