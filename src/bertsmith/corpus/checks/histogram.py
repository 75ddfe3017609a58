"""How lengths are spread, in a histogram of bounded size; how often something was found, and where first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_EXACT = 1024  # lengths below are counted one by one, above in 64 steps an octave: 1.1 % wide
_STEPS = 64
_BINS = _EXACT + _STEPS * 40


class Distribution:
    """Counts of non-negative integers; its quantiles are exact below 1,024 and within 1.1 % above."""

    def __init__(self) -> None:
        self._counts = np.zeros(_BINS, dtype=np.int64)
        self.number = 0
        self.total = 0
        self.least: int | None = None
        self.most = 0

    def add(self, values: ArrayLike) -> None:
        """Count some values."""
        found = np.asarray(values, dtype=np.int64)
        if not len(found):
            return
        self._counts += np.bincount(_bin(found), minlength=_BINS)
        self.number += len(found)
        self.total += int(found.sum())
        least = int(found.min())
        self.least = least if self.least is None else min(self.least, least)
        self.most = max(self.most, int(found.max()))

    def quantile(self, share: float) -> int:
        """The value that `share` of the values do not exceed; 0 without values."""
        if not self.number:
            return 0
        at = int(np.searchsorted(np.cumsum(self._counts), max(1, np.ceil(share * self.number))))
        return min(self.most, max(self.least or 0, _value(at)))

    def histogram(self, parts: int = 40) -> tuple[list[float], list[int]]:
        """Edges and counts on a scale of logarithms, for a plot: about `parts` bars from the least value on."""
        if not self.number:
            return [1.0, 2.0], [0]
        low, high = max(1, self.least or 1), max(2, self.most)
        edges = np.unique(np.round(np.geomspace(low, high + 1, parts + 1)).astype(np.int64))
        filled = np.flatnonzero(self._counts)
        values = np.clip([_value(int(at)) for at in filled], low, high)
        bars, _ = np.histogram(values, bins=edges, weights=self._counts[filled])
        return edges.astype(float).tolist(), bars.astype(int).tolist()

    def summary(self) -> dict[str, Any]:
        """Number, mean and quantiles, and the histogram, as a report holds them."""
        edges, counts = self.histogram()
        return {
            "number": self.number,
            "mean": round(self.total / self.number, 2) if self.number else 0.0,
            "least": self.least or 0,
            "percentile_5": self.quantile(0.05),
            "median": self.quantile(0.5),
            "percentile_95": self.quantile(0.95),
            "most": self.most,
            "histogram": {"edges": edges, "counts": counts},
        }


@dataclass
class Found:
    """How often something was found, and where first."""

    limit: int
    number: int = 0
    places: list[Any] = field(default_factory=list)

    def add(self, place: Any, times: int = 1) -> None:
        """Count it; the place is kept while there is room."""
        self.number += times
        if len(self.places) < self.limit:
            self.places.append(place)

    @property
    def room(self) -> int:
        """How many more places are kept."""
        return max(0, self.limit - len(self.places))

    def summary(self) -> dict[str, Any]:
        """As a report holds it."""
        return {"number": self.number, "places": self.places}


def _bin(values: NDArray[np.int64]) -> NDArray[np.int64]:
    large = np.maximum(values, _EXACT)
    at = _EXACT + np.floor(_STEPS * np.log2(large / _EXACT)).astype(np.int64)
    return np.where(values < _EXACT, values, np.minimum(at, _BINS - 1))


def _value(at: int) -> int:
    return at if at < _EXACT else round(_EXACT * 2 ** ((at - _EXACT + 0.5) / _STEPS))
