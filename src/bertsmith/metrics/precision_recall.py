"""Precision, recall, and F1 from counts of entities or relations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Counts:
    """Counts of references, predictions, and correct predictions."""

    gold: int
    found: int
    right: int

    @property
    def precision(self) -> float:
        """Fraction of the predictions that are correct; 0 without predictions."""
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """Fraction of the references that were predicted; 0 without references."""
        return self.right / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * self.right / (self.gold + self.found) if self.right else 0.0
