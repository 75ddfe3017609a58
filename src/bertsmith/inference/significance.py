"""Whether two systems that answered the same examples can be told apart: bootstrap and randomization, both paired.

Both resample examples, never answers alone. The bootstrap draws as many examples with replacement and looks how
the difference of the scores varies (Efron 1979; its 2.5 and 97.5 percentiles are the interval). The randomization
asks how often a difference as large arises where, example by example, a coin says whose answer is whose (Noreen
1989; Yeh 2000).

Ours, since `scipy.stats.bootstrap` and `permutation_test` gather the examples of each resample and call the
statistic on them; where a score is a function of sums, a thousand resamples are one matrix product, all scores
share them, and the draws are the house's. Tests hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith import rng
from bertsmith.metrics.sufficient_statistics import SufficientStatistics

LEVEL = 0.95
_MOST_ROUNDS, _FEWEST_ROUNDS = 10_000, 1_000
_DRAWS = 50_000_000  # of one kind: seconds
_AT_ONCE = 4_000_000  # draws in memory
_SLOW_ROUNDS, _FEWEST_SLOW, _SLOW_DRAWS = 1_000, 200, 1_000_000  # where each score is computed anew
_ROUNDING = 1e-12


class Difference(NamedTuple):
    """Of one score. a, b: the systems'; difference: b - a; low, high: its 95 % interval; p: two-sided; rounds: of
    resampling."""

    a: float
    b: float
    difference: float
    low: float
    high: float
    p: float
    rounds: int


def rounds_for(examples: int) -> int:
    """How many rounds take seconds: 10,000, of more than 5,000 examples fewer, 1,000 at least."""
    return min(_MOST_ROUNDS, max(_FEWEST_ROUNDS, _DRAWS // max(1, examples)))


def slow_rounds_for(examples: int) -> int:
    """The same where a round computes the score anew: 1,000, of more than 1,000 examples fewer, 200 at least."""
    return min(_SLOW_ROUNDS, max(_FEWEST_SLOW, _SLOW_DRAWS // max(1, examples)))


def compared(
    a: SufficientStatistics, b: SufficientStatistics, seed: int, rounds: int | None = None
) -> dict[str, Difference]:
    """Each score of two systems that answered the same examples, in the same order. ValueError where they are not
    as many."""
    if a.per_example.shape != b.per_example.shape:
        raise ValueError(
            f"tallies of {a.per_example.shape} and {b.per_example.shape} are not of the same examples"
        )
    number = len(a.per_example)
    rounds = rounds or rounds_for(number)
    of_a, of_b = a.scores(), b.scores()
    drawn: dict[str, list[NDArray[np.float64]]] = {name: [] for name in of_a}
    for times in _resamples(number, rounds, seed):
        left, right = a.scores_from_sums(times @ a.per_example), b.scores_from_sums(times @ b.per_example)
        for name in drawn:
            drawn[name].append(right[name] - left[name])
    exceed = dict.fromkeys(of_a, 0)
    step, whole = b.per_example - a.per_example, (a.per_example.sum(0), b.per_example.sum(0))
    for swapped in _coins(number, rounds, seed):
        moved = swapped @ step
        left, right = a.scores_from_sums(whole[0] + moved), b.scores_from_sums(whole[1] - moved)
        for name in exceed:
            least = abs(of_b[name] - of_a[name]) - _ROUNDING
            exceed[name] += int((np.abs(right[name] - left[name]) >= least).sum())
    return {
        name: _difference(of_a[name], of_b[name], np.concatenate(drawn[name]), exceed[name]) for name in of_a
    }


def compared_slowly(
    score_a: Callable[[NDArray[np.int64]], float],
    score_b: Callable[[NDArray[np.int64]], float],
    score_mixed: Callable[[NDArray[np.bool_]], tuple[float, float]],
    examples: int,
    seed: int,
    rounds: int | None = None,
) -> Difference:
    """The same for any score. score_a, score_b: of the examples with these numbers, some of them repeatedly.
    score_mixed: both systems' where the answers to the examples marked are exchanged."""
    rounds = rounds or slow_rounds_for(examples)
    every = np.arange(examples)
    a, b = score_a(every), score_b(every)
    drawn = []
    for times in _resamples(examples, rounds, seed):
        for row in times:
            some = np.repeat(every, row.astype(np.int64))
            drawn.append(score_b(some) - score_a(some))
    exceed = 0
    for swapped in _coins(examples, rounds, seed):
        for row in swapped:
            left, right = score_mixed(row.astype(np.bool_))
            exceed += abs(right - left) >= abs(b - a) - _ROUNDING
    return _difference(a, b, np.array(drawn), exceed)


def _difference(a: float, b: float, drawn: NDArray[np.float64], exceed: int) -> Difference:
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return Difference(a, b, b - a, low, high, (1 + exceed) / (1 + len(drawn)), len(drawn))


def _resamples(examples: int, rounds: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """How often each example is in each resample, float64 [some rounds, examples]."""
    for some in _some_rounds(examples, rounds):
        taken = rng.integers(seed, "bootstrap", examples, some[:, None], np.arange(examples))
        cells = taken + examples * np.arange(len(some))[:, None]
        times = np.bincount(cells.ravel(), minlength=len(some) * examples)
        yield times.reshape(len(some), examples).astype(np.float64)


def _coins(examples: int, rounds: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Whose answer is whose: 0 or 1, float64 [some rounds, examples]."""
    for some in _some_rounds(examples, rounds):
        drawn = rng.random_bits(seed, "randomization", some[:, None], np.arange(examples)) >> np.uint64(63)
        yield drawn.astype(np.float64)


def _some_rounds(examples: int, rounds: int) -> Iterator[NDArray[np.int64]]:
    """The numbers of all rounds, as many at a time as memory should hold."""
    at_once = max(1, _AT_ONCE // max(1, examples))
    for start in range(0, rounds, at_once):
        yield np.arange(start, min(rounds, start + at_once))
