"""Calibration: errors by hand, and a temperature that a made-up model needs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bertsmith.metrics.calibration import bins_of, calibration_error, temperature_of


def test_the_error_is_how_far_confidence_is_from_what_is_right() -> None:
    bins = bins_of([0.95, 0.95, 0.95, 0.95, 0.6], [True, True, True, False, True])
    assert [one.number for one in bins] == [1, 4]
    assert (bins[1].confidence, bins[1].right) == (pytest.approx(0.95), 0.75)
    assert calibration_error(bins) == pytest.approx((4 * 0.2 + 0.4) / 5)
    assert calibration_error([]) == 0


def test_edges_belong_to_the_bin_below() -> None:
    """As in the paper, whose bins are ((m - 1) / M, m / M]."""
    assert [one.number for one in bins_of([0.0, 1 / 15, 1 / 15 + 1e-9, 1.0], [True] * 4)] == [2, 1, 1]


def test_the_temperature_of_a_model_that_is_too_sure() -> None:
    """Labels are drawn from softmax(logits / 3): that is what divides them best."""
    draw = np.random.default_rng(0)
    logits = draw.normal(0, 6, (4000, 4)).astype(np.float32)
    shares = np.exp(logits / 3) / np.exp(logits / 3).sum(1, keepdims=True)
    wanted = [int(draw.choice(4, p=row / row.sum())) for row in shares]
    assert temperature_of([row[None] for row in logits], wanted) == pytest.approx(3, rel=0.1)


def test_windows_of_a_text_are_averaged_before_they_are_judged() -> None:
    """One window knows, the other does not: alone the first would ask for the lowest temperature there is."""
    rows = [np.array([[2.0, 0.0], [0.0, 2.0]], dtype=np.float32)]
    alone = temperature_of([rows[0][:1]], [0])
    assert alone < 0.1
    both = temperature_of([*rows, np.array([[2.0, 0.0]], dtype=np.float32)], [0, 1])
    assert math.isclose(both, 20, rel_tol=0.01)
