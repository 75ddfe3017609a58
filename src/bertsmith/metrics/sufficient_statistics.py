"""Scores as functions of sums over examples, so that a score of any resample of them is one matrix product away.

Accuracy is a sum over a number, F1 a fraction of three sums, Pearson's correlation one of six. What is no such
function (a rank correlation, an average precision) has no tallies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Rows = NDArray[np.float64]
Figures = Callable[[Rows], dict[str, Rows]]


@dataclass(frozen=True)
class Tallies:
    """rows: [examples, T], what each example adds to each sum. figures: from sums [..., T] the scores by name,
    each [...]; 0 where a score would be a fraction of nothing."""

    rows: Rows
    figures: Figures

    def scores(self) -> dict[str, float]:
        """Of all examples."""
        return {name: float(value) for name, value in self.figures(self.rows.sum(0)).items()}


def mean_tallies(values: Mapping[str, ArrayLike]) -> Tallies:
    """Scores that are means over the examples. values: of each score one an example."""
    names = list(values)
    columns = [np.asarray(values[name], dtype=np.float64) for name in names]
    rows = np.stack([*columns, np.ones(len(columns[0]))], axis=1)

    def figures(sums: Rows) -> dict[str, Rows]:
        return {name: ratio(sums[..., i], sums[..., -1]) for i, name in enumerate(names)}

    return Tallies(rows, figures)


_OfCounts = Callable[[Rows, Rows, Rows, Rows], dict[str, Rows]]


def count_tallies(
    right: ArrayLike, gold: ArrayLike, found: ArrayLike, more: ArrayLike, figures: _OfCounts
) -> Tallies:
    """Scores of counts by kind. right, gold, found: [examples, K], how many of each kind were right, are there and
    were found; more: [examples, M], other sums. figures: of the sums of the four."""
    parts = [np.asarray(part, dtype=np.float64) for part in (right, gold, found, more)]
    borders = np.cumsum([part.shape[1] for part in parts])[:-1]

    def of_sums(sums: Rows) -> dict[str, Rows]:
        return figures(*np.split(sums, borders, axis=-1))

    return Tallies(np.concatenate(parts, axis=1), of_sums)


def ratio(above: Rows, below: Rows) -> Rows:
    """A fraction, 0 where it would be one of nothing."""
    found: Rows = np.divide(above, below, out=np.zeros(np.broadcast(above, below).shape), where=below != 0)
    return found


def f1(right: Rows, gold: Rows, found: Rows) -> Rows:
    """2 right / (gold + found); 0 where there is neither."""
    return ratio(2 * right, gold + found)


def one_hot(ids: Sequence[int], size: int) -> Rows:
    """[len(ids), size]: 1 in each row's column; all 0 for an id that is none (-1)."""
    found = np.zeros((len(ids), size))
    known = np.flatnonzero(np.asarray(ids) >= 0)
    found[known, np.asarray(ids)[known]] = 1
    return found


def matthews(right: Rows, gold: Rows, found: Rows) -> Rows:
    """Matthews' correlation of K classes, of counts [..., K] (Gorodkin 2004); 0 where one side has one class."""
    whole, hits = gold.sum(-1), right.sum(-1)
    above = hits * whole - (gold * found).sum(-1)
    spread = (whole**2 - (found**2).sum(-1)) * (whole**2 - (gold**2).sum(-1))
    return ratio(above, np.sqrt(np.maximum(spread, 0)))


_FLAT = 1e-12  # of the squares: what rounding leaves of numbers that do not vary


def number_tallies(truth: ArrayLike, guess: ArrayLike) -> Tallies:
    """Pearson's correlation, mean squared and mean absolute error of numbers."""
    x, y = (np.asarray(values, dtype=np.float64) for values in (truth, guess))
    error = y - x
    x, y = x - x.mean(), y - y.mean()  # small numbers keep their digits when squares are summed
    rows = np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y, error**2, np.abs(error)], axis=1)

    def figures(sums: Rows) -> dict[str, Rows]:
        n, x, y, xx, yy, xy, squares, sizes = np.moveaxis(sums, -1, 0)
        of_x, of_y = n * xx - x * x, n * yy - y * y
        varied = (of_x > _FLAT * n * xx) & (of_y > _FLAT * n * yy)
        pearson = ratio(n * xy - x * y, np.sqrt(np.where(varied, of_x * of_y, 0)))
        errors = {"mean_squared_error": ratio(squares, n), "mean_absolute_error": ratio(sizes, n)}
        return {"pearson": pearson, **errors}

    return Tallies(rows, figures)
