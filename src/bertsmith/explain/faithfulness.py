"""The faithfulness of attributions: what the output loses as words are masked in their order.

The curves are those of deletion and insertion (Petsiuk et al. 2018). Their means are comprehensiveness and
sufficiency (DeYoung et al. 2020), each averaged over all numbers of words (AOPC, Samek et al. 2017). What a mean
can be depends on the text and the model, so they are also given between the lowest and the highest that a beam
search over orders finds (Edin et al. 2025).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsmith import rng

_RANDOM_ORDERS = 10
_BEAM_SIZE, _MAX_BEAM_WORDS = 5, 32

Scores = Callable[[NDArray[np.bool_]], NDArray[np.float64]]
"""Returns the output for each row of masked words, bool [rows, W]."""


@dataclass(frozen=True)
class Faithfulness:
    """Curves and their means for an order of W words.

    Attributes:
        deletion: The output with the first k words masked, k = 0 … W.
        insertion: The output with all but the first k words masked.
        random: The mean of the deletion curves of random orders.
        reversed: The deletion curve of the reversed order.
        comprehensiveness: The mean loss of the output as words are deleted, over k = 1 … W - 1; high is good.
        sufficiency: The mean loss with the first k words alone; low is good.
        random_comprehensiveness: The comprehensiveness of random orders.
        normalized_comprehensiveness: 0 for the lowest that a search over orders found, 1 for the highest; None for
            more than 32 words, or if no order changes it.
        normalized_sufficiency: Likewise.
    """

    deletion: list[float]
    insertion: list[float]
    random: list[float]
    reversed: list[float]
    comprehensiveness: float
    sufficiency: float
    random_comprehensiveness: float
    normalized_comprehensiveness: float | None = None
    normalized_sufficiency: float | None = None


def measure_faithfulness(importance: Sequence[float], scores: Scores, seed: int = 0) -> Faithfulness:
    """Measure the order of words by importance, the most important first; of equal ones the first.

    Args:
        importance: The importance of each word, of which there are at least two.
        scores: Computes outputs.
        seed: The seed of the random orders.
    """
    num_words = len(importance)
    order = np.argsort(-np.asarray(importance), kind="stable")
    orders = [order, order[::-1]]
    orders += [rng.permutation(seed, "explain", num_words, i) for i in range(_RANDOM_ORDERS)]
    curves = scores(np.concatenate([_masks(o) for o in orders])).reshape(len(orders), num_words + 1)
    mean_curve, loss = curves[2:].mean(0), _mean_loss(curves)
    normalized: list[float | None] = [None, None]
    if num_words <= _MAX_BEAM_WORDS:
        lowest, highest = (_extreme_loss(scores, num_words, sign, curves[0, 0]) for sign in (-1, 1))
        lowest, highest = min(lowest, *loss), max(highest, *loss)
        if highest > lowest:
            normalized = [float((value - lowest) / (highest - lowest)) for value in loss[:2]]
    return Faithfulness(
        curves[0].tolist(),
        curves[1, ::-1].tolist(),
        mean_curve.tolist(),
        curves[1].tolist(),
        float(loss[0]),
        float(loss[1]),
        float(loss[2:].mean()),
        *normalized,
    )


def _masks(order: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the words that are masked after 0 … W deletions, [W + 1, W]."""
    ranks = np.argsort(order)
    return ranks[None, :] < np.arange(len(order) + 1)[:, None]


def _mean_loss(curves: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean loss of deletion curves [n, W + 1] over 1 … W - 1 deletions, [n]."""
    losses: NDArray[np.float64] = (curves[:, :1] - curves[:, 1:-1]).mean(1)
    return losses


def _extreme_loss(scores: Scores, num_words: int, sign: int, output: float) -> float:
    """Return the lowest (-1) or highest (1) mean loss of an order that a beam search finds."""
    beam = np.zeros((1, num_words), dtype=bool)
    totals = np.zeros(1)
    for _ in range(num_words - 1):
        parents, words = np.nonzero(~beam)
        candidates = beam[parents]
        candidates[np.arange(len(words)), words] = True
        candidates, first = np.unique(candidates, axis=0, return_index=True)
        losses = totals[parents[first]] + sign * (output - scores(candidates))
        best = np.argsort(-losses, kind="stable")[:_BEAM_SIZE]
        beam, totals = candidates[best], losses[best]
    return float(sign * totals[0] / (num_words - 1))
