"""Whether probabilities are what they say: expected calibration error, and the temperature that corrects them.

As in Guo et al. 2017, "On Calibration of Modern Neural Networks", sections 2 and 4.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_BINS = 15
_COLDEST, _HOTTEST = math.log(0.05), math.log(20)
_LEAST = 1e-12  # a probability whose logarithm is taken


class Bin(NamedTuple):
    """Answers of about the same confidence: how many there are, their mean confidence, and the share that is
    right."""

    number: int
    confidence: float
    right: float


def bins_of(confidence: Sequence[float], right: Sequence[bool]) -> list[Bin]:
    """The answers by their confidence, 0 to 1, in 15 bins of one width, those that are not empty."""
    sure, correct = np.asarray(confidence), np.asarray(right, dtype=np.float64)
    numbers = np.clip(np.ceil(sure * _BINS).astype(np.int64) - 1, 0, _BINS - 1)
    return [
        Bin(int(held.sum()), float(sure[held].mean()), float(correct[held].mean()))
        for held in (numbers == i for i in range(_BINS))
        if held.any()
    ]


def calibration_error(bins: Sequence[Bin]) -> float:
    """The mean over all answers of how far the confidence of their bin is from the share that is right, 0 to 1."""
    total = sum(one.number for one in bins)
    return sum(one.number * abs(one.confidence - one.right) for one in bins) / max(1, total)


def temperature_of(logits: Sequence[NDArray[np.float32]], wanted: Sequence[int]) -> float:
    """What to divide logits by so that the right classes are the likeliest, 0.05 to 20.

    logits: [windows, K] of each example, whose probabilities are the mean over its windows; wanted: its class.
    """
    from scipy.optimize import minimize_scalar

    rows = np.concatenate(logits).astype(np.float64)
    starts = np.cumsum([0, *(len(one) for one in logits[:-1])])
    sizes = np.array([len(one) for one in logits])
    targets = np.repeat(wanted, sizes)

    def cost(log: float) -> float:
        scaled = rows / math.exp(log)
        scaled -= scaled.max(1, keepdims=True)
        shares = np.exp(scaled[np.arange(len(rows)), targets]) / np.exp(scaled).sum(1)
        return float(-np.log(np.maximum(np.add.reduceat(shares, starts) / sizes, _LEAST)).mean())

    found = minimize_scalar(cost, bounds=(_COLDEST, _HOTTEST), method="bounded", options={"xatol": 1e-4})
    return math.exp(found.x)
