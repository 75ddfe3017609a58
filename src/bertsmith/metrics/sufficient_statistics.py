"""Scores as functions of sums over examples (sufficient statistics).

The sums of any number of resamples of the examples, as a bootstrap needs them, are then one matrix product.
Accuracy is a sum divided by a count, F1 a ratio of three sums, and Pearson's correlation a function of six. Scores
that are not such a function (rank correlations, average precision) have no sufficient statistics here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
ScoreFunction = Callable[[FloatArray], dict[str, FloatArray]]


@dataclass(frozen=True)
class SufficientStatistics:
    """Sufficient statistics of scores.

    Attributes:
        per_example: The terms that each example adds to the S sums, [examples, S].
        scores_from_sums: Function from sums [..., S] to scores [...] by name; a score that divides by 0 is 0.
    """

    per_example: FloatArray
    scores_from_sums: ScoreFunction

    def scores(self) -> dict[str, float]:
        """Return the scores over all examples."""
        return {name: float(value) for name, value in self.scores_from_sums(self.per_example.sum(0)).items()}


def mean_statistics(values: Mapping[str, ArrayLike]) -> SufficientStatistics:
    """Return the statistics of scores that are means over examples.

    Args:
        values: The value of each example, [examples], by name of the score.
    """
    names = list(values)
    columns = [np.asarray(values[name], dtype=np.float64) for name in names]
    rows = np.stack([*columns, np.ones(len(columns[0]))], axis=1)

    def means(sums: FloatArray) -> dict[str, FloatArray]:
        return {name: safe_divide(sums[..., i], sums[..., -1]) for i, name in enumerate(names)}

    return SufficientStatistics(rows, means)


_CountScores = Callable[[FloatArray, FloatArray, FloatArray, FloatArray], dict[str, FloatArray]]


def count_statistics(
    correct: ArrayLike, references: ArrayLike, predictions: ArrayLike, extra: ArrayLike, scores: _CountScores
) -> SufficientStatistics:
    """Return the statistics of scores that are functions of counts by class.

    Args:
        correct: [examples, K] for K classes, the number of correct predictions by class.
        references: [examples, K], the number of references by class.
        predictions: [examples, K], the number of predictions by class.
        extra: [examples, M], terms of M other sums that the scores need.
        scores: Function from the sums of the four arrays to scores by name.
    """
    parts = [np.asarray(part) for part in (correct, references, predictions, extra)]
    split_points = np.cumsum([part.shape[1] for part in parts])[:-1]

    def scores_from_sums(sums: FloatArray) -> dict[str, FloatArray]:
        return scores(*np.split(sums, split_points, axis=-1))

    return SufficientStatistics(np.concatenate(parts, axis=1), scores_from_sums)


def safe_divide(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Return the quotient, or 0 where the denominator is 0."""
    shape = np.broadcast(numerator, denominator).shape
    quotient: FloatArray = np.divide(numerator, denominator, out=np.zeros(shape), where=denominator != 0)
    return quotient


def f1(correct: FloatArray, references: FloatArray, predictions: FloatArray) -> FloatArray:
    """Return F1 from counts; 0 without references and predictions."""
    return safe_divide(2 * correct, references + predictions)


def one_hot(ids: Sequence[int], size: int) -> FloatArray:
    """Return one-hot rows [len(ids), size]; all 0 for the id -1."""
    is_id = np.asarray(ids)[:, None] == np.arange(size)
    return np.asarray(is_id, dtype=np.float64)


def matthews_from_sums(correct: FloatArray, references: FloatArray, predictions: FloatArray) -> FloatArray:
    """Return Matthews' correlation from counts of K classes [..., K] (Gorodkin 2004).

    It is 0 if all references or all predictions have the same class.
    """
    total, num_correct = references.sum(-1), correct.sum(-1)
    covariance = num_correct * total - (references * predictions).sum(-1)
    variances = (total**2 - (predictions**2).sum(-1)) * (total**2 - (references**2).sum(-1))
    return safe_divide(covariance, np.sqrt(np.maximum(variances, 0)))


_MIN_RELATIVE_VARIANCE = 1e-12  # relative to the sum of squares; a smaller variance is a rounding error


def regression_statistics(references: ArrayLike, predictions: ArrayLike) -> SufficientStatistics:
    """Return the statistics of Pearson's correlation, mean squared error, and mean absolute error."""
    x, y = (np.asarray(values, dtype=np.float64) for values in (references, predictions))
    error = y - x
    x, y = x - x.mean(), y - y.mean()  # centered, so that the sums of squares lose no digits
    rows = np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y, error**2, np.abs(error)], axis=1)

    def scores(sums: FloatArray) -> dict[str, FloatArray]:
        n, x, y, xx, yy, xy, squared_errors, absolute_errors = np.moveaxis(sums, -1, 0)
        variance_x, variance_y = n * xx - x * x, n * yy - y * y
        threshold = _MIN_RELATIVE_VARIANCE * n
        varies = (variance_x > threshold * xx) & (variance_y > threshold * yy)
        return {
            "pearson": safe_divide(n * xy - x * y, np.sqrt(np.where(varies, variance_x * variance_y, 0))),
            "mean_squared_error": safe_divide(squared_errors, n),
            "mean_absolute_error": safe_divide(absolute_errors, n),
        }

    return SufficientStatistics(rows, scores)


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
        total = self.num_references + self.num_predictions
        return 2 * self.num_correct / total if total else 0.0

    def to_dict(self) -> dict[str, float]:
        """Return precision, recall, F1, and the numbers of references (`support`) and predictions (`found`)."""
        return {
            "precision": self.precision,
            "recall": self.recall,
            "f1": self.f1,
            "support": self.num_references,
            "found": self.num_predictions,
        }


def sum_counts(types: Mapping[str, Counts]) -> Counts:
    """Return the sums of the counts over all types."""
    counts = types.values()
    return Counts(
        sum(c.num_references for c in counts),
        sum(c.num_predictions for c in counts),
        sum(c.num_correct for c in counts),
    )
