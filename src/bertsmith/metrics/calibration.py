"""Expected calibration error and temperature scaling.

Source: Guo et al. 2017, "On Calibration of Modern Neural Networks", sections 2 and 4.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_NUM_BINS = 15
_MIN_LOG_TEMPERATURE, _MAX_LOG_TEMPERATURE = math.log(0.05), math.log(20)
_MIN_PROBABILITY = 1e-12  # keeps the logarithm finite


class Bin(NamedTuple):
    """Predictions of similar confidence. The field names are keys in reports.

    Attributes:
        number: The number of predictions.
        confidence: Their mean confidence, 0 to 1.
        right: Their accuracy, 0 to 1.
    """

    number: int
    confidence: float
    right: float


def reliability_bins(confidence: ArrayLike, correct: ArrayLike) -> list[Bin]:
    """Group predictions into 15 bins of equal width by confidence, and return the bins that are not empty.

    Args:
        confidence: The probability of each predicted class, 0 to 1. Bin i of m contains (i / m, (i + 1) / m].
        correct: True for each prediction that is correct.
    """
    confidences, correctness = np.asarray(confidence), np.asarray(correct, dtype=np.float64)
    bin_ids = np.clip(np.ceil(confidences * _NUM_BINS).astype(np.int64) - 1, 0, _NUM_BINS - 1)
    return [
        Bin(int(in_bin.sum()), float(confidences[in_bin].mean()), float(correctness[in_bin].mean()))
        for in_bin in (bin_ids == i for i in range(_NUM_BINS))
        if in_bin.any()
    ]


def expected_calibration_error(bins: Sequence[Bin]) -> float:
    """Return the mean of |accuracy - confidence| over the bins, weighted by their size, 0 to 1."""
    total = sum(bin_.number for bin_ in bins)
    return sum(bin_.number * abs(bin_.confidence - bin_.right) for bin_ in bins) / max(1, total)


def fit_temperature(logits: Sequence[NDArray[np.float32]], labels: Sequence[int]) -> float:
    """Return the temperature, 0.05 to 20, by which dividing logits minimizes the negative log-likelihood.

    Args:
        logits: The logits [W, K] of each example, for K classes. A long text is read in W windows,
            and its probabilities are the mean over the windows.
        labels: The index of each example's class.
    """
    from scipy.optimize import minimize_scalar

    window_logits = np.concatenate(logits).astype(np.float64)
    first_windows = np.cumsum([0, *(len(windows) for windows in logits[:-1])])
    num_windows = np.array([len(windows) for windows in logits])
    targets = np.repeat(labels, num_windows)

    def mean_nll(log_temperature: float) -> float:
        scaled = window_logits / math.exp(log_temperature)
        scaled -= scaled.max(1, keepdims=True)
        label_probabilities = np.exp(scaled[np.arange(len(scaled)), targets]) / np.exp(scaled).sum(1)
        means = np.add.reduceat(label_probabilities, first_windows) / num_windows
        return float(-np.log(np.maximum(means, _MIN_PROBABILITY)).mean())

    bounds = (_MIN_LOG_TEMPERATURE, _MAX_LOG_TEMPERATURE)
    minimum = minimize_scalar(mean_nll, bounds=bounds, method="bounded", options={"xatol": 1e-4})
    return math.exp(minimum.x)
