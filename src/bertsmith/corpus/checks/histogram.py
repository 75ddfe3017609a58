"""Parts of a report: the distribution of counted integers, the locations of occurrences, and printable text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_NUM_BARS = 40


class Histogram:
    """Count non-negative integers, such as lengths, of which a corpus has few different ones."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, values: Iterable[int]) -> None:
        """Count some values."""
        self._counts.update(values)

    @property
    def count(self) -> int:
        """Return the number of values."""
        return self._counts.total()

    @property
    def total(self) -> int:
        """Return the sum of the values."""
        return sum(value * count for value, count in self._counts.items())

    def quantile(self, q: float) -> int:
        """Return the smallest value that a fraction `q` of the values does not exceed; 0 without values."""
        values = sorted(self._counts)
        if not values:
            return 0
        ranks = np.cumsum([self._counts[value] for value in values])
        return values[int(np.searchsorted(ranks, max(1, np.ceil(q * self.count))))]

    def bars(self) -> tuple[list[float], list[int]]:
        """Return edges and counts of about 40 bars on a logarithmic scale, for a plot."""
        values = np.maximum(1, list(self._counts or [1]))
        edges = np.unique(np.round(np.geomspace(values.min(), max(2, values.max()) + 1, _NUM_BARS + 1)))
        bars, _ = np.histogram(values, bins=edges, weights=list(self._counts.values() or [0]))
        return edges.tolist(), bars.astype(int).tolist()

    def summary(self) -> dict[str, Any]:
        """Return the number, mean, quantiles, and histogram of the values for a report."""
        edges, counts = self.bars()
        return {
            "number": self.count,
            "mean": round(self.total / max(1, self.count), 2),
            "least": min(self._counts, default=0),
            "percentile_5": self.quantile(0.05),
            "median": self.quantile(0.5),
            "percentile_95": self.quantile(0.95),
            "most": max(self._counts, default=0),
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
        if not self.is_full:
            self.locations.append(location)

    @property
    def is_full(self) -> bool:
        """Return True if no further location is stored."""
        return len(self.locations) >= self.limit

    def summary(self) -> dict[str, Any]:
        """Return the count and the locations for a report."""
        return {"number": self.count, "places": self.locations}


def printable(text: str) -> str:
    """Return a text for a report, with "·" for characters that act on a terminal or a page."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "·" for character in text)
