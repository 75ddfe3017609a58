"""Error analysis for reports: confusion matrix, reliability diagram, scatter plot.

All results are plain JSON of bounded size, and state the number of cases that they are computed from.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bertsmith.metrics.calibration import expected_calibration_error, reliability_bins

_MAX_MATRIX_LABELS = 25
_MAX_CONFUSED_PAIRS = 30
_MAX_POINTS = 1000  # of a scatter plot
_MIN_PROBABILITY = 1e-12  # whose logarithm is taken

ErrorAnalysis = Mapping[str, Any]
"""By name: `confusion`, `reliability`, and `numbers` from the functions below, and `tables`: `MetricTable`s."""


def confusion(
    unit: str, references: Sequence[str], predictions: Sequence[str], labels: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the confusion matrix.

    Args:
        unit: The plural name of the cases, such as "texts".
        references: The reference label of each case.
        predictions: The predicted label of each case.
        labels: The order of labels.

    Returns:
        `counts` with a row for each reference label and a column for each predicted one (None if there are too
        many labels), and `confused`, the most frequent wrong pairs.
    """
    counts = Counter(zip(references, predictions, strict=True))
    names = list(dict.fromkeys([*labels, *references, *predictions]))
    wrong = [(pair, count) for pair, count in counts.most_common() if pair[0] != pair[1]]
    has_matrix = len(names) <= _MAX_MATRIX_LABELS
    return {
        "of": unit,
        "number": len(references),
        "wrong": sum(count for _, count in wrong),
        "labels": names if has_matrix else [],
        "counts": [[counts[row, column] for column in names] for row in names] if has_matrix else None,
        "confused": [
            {"truth": reference, "prediction": prediction, "times": count}
            for (reference, prediction), count in wrong[:_MAX_CONFUSED_PAIRS]
        ],
        "pairs": len(wrong),
    }


def reliability(unit: str, confidences: Sequence[float], is_correct: Sequence[bool]) -> dict[str, Any]:
    """Return the reliability diagram: how often predictions of similar probability are correct.

    Args:
        unit: The plural name of the predictions.
        confidences: The probability of each prediction.
        is_correct: True for each correct prediction.
    """
    bins = reliability_bins(confidences, is_correct)
    return {
        "of": unit,
        "number": len(confidences),
        "error": expected_calibration_error(bins),
        "bins": [one_bin._asdict() for one_bin in bins],
    }


def label_error_analysis(
    unit: str,
    references: Sequence[str],
    predictions: Sequence[str],
    confidences: Sequence[float],
    labels: Sequence[str],
) -> ErrorAnalysis:
    """Return the confusion matrix and the reliability diagram of predicted labels."""
    is_correct = [a == b for a, b in zip(references, predictions, strict=True)]
    return {
        "confusion": confusion(unit, references, predictions, labels),
        "reliability": reliability(unit, confidences, is_correct),
    }


def number_scatter(
    references: Sequence[float],
    predictions: Sequence[float],
    x_name: str = "truth",
    y_name: str = "prediction",
) -> dict[str, Any]:
    """Return a scatter plot of predicted over reference numbers; of very many, every n-th pair."""
    step = math.ceil(len(references) / _MAX_POINTS) or 1
    pairs = list(zip(references, predictions, strict=True))[::step]
    return {
        "across": x_name,
        "up": y_name,
        "number": len(references),
        "pairs": [[float(f"{value:.5g}") for value in pair] for pair in pairs],
    }


def cross_entropy(probability: float) -> float:
    """Return minus the logarithm of the probability of the reference answer."""
    return -math.log(max(probability, _MIN_PROBABILITY))
