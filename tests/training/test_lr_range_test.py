"""What is read off the curve of a range test: where the loss is lowest, and whether that says anything."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bertsmith.training.lr_range_test import LRCurve, suggest_learning_rate

RATES = np.geomspace(1e-7, 1.0, 100).tolist()


def curve(
    lowest: float,
    *,
    begin: float = 0.7,
    fall: float = 0.5,
    rise: float = 2.0,
    noise: float = 0.0,
    seed: int = 0,
) -> list[float]:
    """Flat, then down over a decade and a half to `lowest`, then up by `rise` in a decade."""
    draw = np.random.default_rng(seed)
    found = []
    for rate in RATES:
        decades = math.log10(rate / lowest)
        level = begin - fall * max(0.0, 1 - max(0.0, -decades) / 1.5)
        found.append(level + rise * max(0.0, decades) + noise * float(draw.standard_normal()))
    return found


@given(st.floats(-4.5, -1.5), st.floats(0.3, 5.0), st.integers(0, 2**31))
def test_the_lowest_rate_is_found_through_noise_and_a_tenth_of_it_suggested(
    lowest: float, begin: float, seed: int
) -> None:
    shape = {"begin": begin, "fall": 0.7 * begin, "rise": 3 * begin, "noise": 0.05 * begin}
    readings = [LRCurve.from_losses(RATES, curve(10**lowest, **shape, seed=seed + n)) for n in range(3)]
    for reading in readings:
        assert reading.clear
        assert math.log10(reading.lowest) == pytest.approx(lowest, abs=0.35)
        assert reading.diverges is not None
        assert reading.lowest < reading.diverges < 10 * reading.lowest
    suggestion = suggest_learning_rate(readings, 1.0)
    assert suggestion.rate is not None
    assert suggestion.steepest is not None
    assert math.log10(suggestion.rate) == pytest.approx(lowest - 1, abs=0.35)
    # The loss falls over the decade and a half below the lowest rate.
    assert 10 ** (lowest - 1.7) < suggestion.steepest < 10 ** (lowest + 0.1)
    assert suggestion.message.startswith(f"suggestion: train.learning_rate={suggestion.rate:g}, ")
    assert f"or {suggestion.steepest:g}, where it falls fastest" in suggestion.message


@example(begin=1.0, noise=0.25, ends_in_fire=False, seed=43774)
@given(
    begin=st.floats(0.1, 5.0),
    noise=st.floats(0.0, 0.3, allow_subnormal=False),
    ends_in_fire=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_noise_alone_suggests_nothing(begin: float, noise: float, ends_in_fire: bool, seed: int) -> None:
    losses = curve(1e-2, begin=begin, fall=0, rise=3.0 * ends_in_fire, noise=noise * begin, seed=seed)
    suggestion = suggest_learning_rate([LRCurve.from_losses(RATES, losses)], 1.0)
    assert (suggestion.rate, suggestion.steepest) == (None, None)
    assert suggestion.message.startswith("no suggestion: the loss does not fall clearly at any rate")


def test_a_fall_without_an_end_suggests_nothing() -> None:
    reading = LRCurve.from_losses(RATES, curve(1e-3, rise=0))
    assert (reading.clear, reading.diverges) == (True, None)
    suggestion = suggest_learning_rate([reading, LRCurve.from_losses(RATES, curve(1e-3))], 1.0)
    assert suggestion.rate is None
    assert suggestion.message.startswith("no suggestion: the loss does not rise again up to the highest rate")


def test_seeds_that_disagree_suggest_nothing() -> None:
    near = [LRCurve.from_losses(RATES, curve(lowest)) for lowest in (1e-3, 1.5e-3, 2e-3)]
    assert suggest_learning_rate(near, 1.0).rate is not None
    apart = suggest_learning_rate([*near, LRCurve.from_losses(RATES, curve(2e-2))], 1.0)
    assert apart.rate is None
    assert apart.message.startswith(
        "no suggestion: the seeds do not agree, their losses are lowest at rates from "
    )
    unclear = suggest_learning_rate([*near, LRCurve.from_losses(RATES, curve(1e-3, fall=0, rise=0))], 1.0)
    assert unclear.message.startswith("no suggestion: with 1 seed the loss does not fall clearly at any rate")


@pytest.mark.parametrize("ended", [0, 1, 19, 20, 21, 60, 99])
def test_a_curve_that_ended_before_the_last_rate_diverges_there_at_the_latest(ended: int) -> None:
    reading = LRCurve.from_losses(RATES, curve(RATES[55])[:ended])
    assert reading.diverges is not None
    assert reading.diverges <= RATES[ended]
    assert reading.clear == (ended > 45)
    assert len(reading.smoothed) == ended


def test_what_explodes_does_not_move_the_lowest() -> None:
    losses = curve(1e-3)
    exploded = [loss if loss < 0.9 else 1e9 for loss in losses]
    assert LRCurve.from_losses(RATES, exploded).lowest == pytest.approx(
        LRCurve.from_losses(RATES, losses).lowest, rel=0.5
    )


def test_the_steepest_rate_of_a_logistic_fall_is_its_middle() -> None:
    """By hand: the loss 1 / (1 + 10^(2·(x + 4))) falls fastest at the rate 10^-4, and rises from 10^-2 on."""
    decades = np.log10(RATES)
    losses = 1 / (1 + 10 ** (2 * (decades + 4))) + np.maximum(0, decades + 2)
    assert math.log10(LRCurve.from_losses(RATES, losses.tolist()).steepest) == pytest.approx(-4, abs=0.1)
