"""Test the expected calibration error on small cases and the temperature on synthetic logits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bertsmith.metrics.calibration import expected_calibration_error, fit_temperature, reliability_bins


def test_calibration_error_is_the_distance_between_confidence_and_accuracy() -> None:
    bins = reliability_bins([0.95, 0.95, 0.95, 0.95, 0.6], [True, True, True, False, True])
    assert [bin_.number for bin_ in bins] == [1, 4]
    assert (bins[1].confidence, bins[1].right) == (pytest.approx(0.95), 0.75)
    assert expected_calibration_error(bins) == pytest.approx((4 * 0.2 + 0.4) / 5)
    assert expected_calibration_error([]) == 0


def test_a_bin_includes_its_upper_edge() -> None:
    """Bins are ((m - 1) / M, m / M], as in the paper."""
    assert [bin_.number for bin_ in reliability_bins([0.0, 1 / 15, 1 / 15 + 1e-9, 1.0], [True] * 4)] == [
        2,
        1,
        1,
    ]


def test_temperature_of_an_overconfident_model() -> None:
    """Labels are drawn from softmax(logits / 3), so 3 is the best temperature."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 6, (4000, 4)).astype(np.float32)
    probabilities = np.exp(logits / 3) / np.exp(logits / 3).sum(1, keepdims=True)
    labels = [int(rng.choice(4, p=row / row.sum())) for row in probabilities]
    assert fit_temperature([row[None] for row in logits], labels) == pytest.approx(3, rel=0.1)


def test_probabilities_are_averaged_over_windows() -> None:
    """One window is right and one is wrong; alone, the first would give the lowest temperature."""
    windows = [np.array([[2.0, 0.0], [0.0, 2.0]], dtype=np.float32)]
    assert fit_temperature([windows[0][:1]], [0]) < 0.1
    temperature = fit_temperature([*windows, np.array([[2.0, 0.0]], dtype=np.float32)], [0, 1])
    assert math.isclose(temperature, 20, rel_tol=0.01)
