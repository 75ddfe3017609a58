"""Precision, recall, and F1 from counts of entities or relations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Counts:
    """Counts of references, predictions, and correct predictions."""

    num_references: int
    num_predictions: int
    num_correct: int

    @property
    def precision(self) -> float:
        """Fraction of the predictions that are correct; 0 without predictions."""
        return self.num_correct / self.num_predictions if self.num_predictions else 0.0

    @property
    def recall(self) -> float:
        """Fraction of the references that were predicted; 0 without references."""
        return self.num_correct / self.num_references if self.num_references else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return (
            2 * self.num_correct / (self.num_references + self.num_predictions) if self.num_correct else 0.0
        )

    def to_dict(self) -> dict[str, float]:
        """Return precision, recall, F1, and the numbers of references (`support`) and predictions (`found`)."""
        return {
            "precision": self.precision,
            "recall": self.recall,
            "f1": self.f1,
            "support": self.num_references,
            "found": self.num_predictions,
        }
