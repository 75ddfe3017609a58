"""chrF, the F-score of character n-grams of a text and its reference (Popović 2015), as sacreBLEU computes it."""

from __future__ import annotations

from collections import Counter

import numpy as np

from bertsmith.metrics.sufficient_statistics import FloatArray, safe_divide

_ORDERS = range(1, 7)  # lengths of the n-grams
_BETA = 2  # recall weighs more than precision


def chrf_counts(prediction: str, reference: str) -> list[int]:
    """Return for each length the numbers of n-grams in both texts, in the prediction, and in the reference.

    White space is left out.
    """
    texts = ["".join(text.split()) for text in (prediction, reference)]
    counts = []
    for n in _ORDERS:
        predicted, expected = (Counter(text[i : i + n] for i in range(len(text) - n + 1)) for text in texts)
        counts += [(predicted & expected).total(), predicted.total(), expected.total()]
    return counts


def chrf(sums: FloatArray) -> FloatArray:
    """Return the score, 0 to 1, of sums of `chrf_counts`, [..., 18].

    Precision and recall are means over the lengths for which both texts have n-grams.
    """
    matches, predicted, expected = np.moveaxis(sums.reshape(*sums.shape[:-1], len(_ORDERS), 3), -1, 0)
    is_counted = (predicted > 0) & (expected > 0)
    precision, recall = (
        safe_divide((safe_divide(matches, total) * is_counted).sum(-1), is_counted.sum(-1))
        for total in (predicted, expected)
    )
    return safe_divide((1 + _BETA**2) * precision * recall, _BETA**2 * precision + recall)
