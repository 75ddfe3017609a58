"""Precision, recall and F1 of what was to be found: entities, relations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Counts:
    """How many there are (gold), how many were found, and how many of these are right."""

    gold: int
    found: int
    right: int

    @property
    def precision(self) -> float:
        """Share of those found that are right; 0 where none was found."""
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """Share of the gold ones that were found; 0 where there is none."""
        return self.right / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of both."""
        return 2 * self.right / (self.gold + self.found) if self.right else 0.0
