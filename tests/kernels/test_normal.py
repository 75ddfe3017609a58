"""The share of the normal distribution and the slope of GELU, in both ways, against the exact functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bertsmith.kernels import choice

if not choice.are_here():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

from numba import njit

from bertsmith.kernels import normal
from bertsmith.kernels.lanes import load, store
from bertsmith.kernels.loops import LOOPS

# Numba compiles functions of a module's own names
SHARE, SLOPE = normal.share_below, normal.gelu_slope
SHARE_BY_BELL, SLOPE_BY_BELL = normal._share_by_bell, normal._slope_by_bell
X = np.linspace(-9, 9, 2**16, dtype=np.float32)


@njit(**LOOPS)
def _shares(x: int, to: int, size: int) -> None:
    for place in range(0, 4 * size, 64):
        store(to + place, SHARE(load(x + place)))


@njit(**LOOPS)
def _slopes(x: int, to: int, size: int) -> None:
    for place in range(0, 4 * size, 64):
        store(to + place, SLOPE(load(x + place)))


@njit(**LOOPS)
def _shares_by_bell(x: int, to: int, size: int) -> None:
    for place in range(0, 4 * size, 64):
        store(to + place, SHARE_BY_BELL(load(x + place)))


@njit(**LOOPS)
def _slopes_by_bell(x: int, to: int, size: int) -> None:
    for place in range(0, 4 * size, 64):
        store(to + place, SLOPE_BY_BELL(load(x + place)))


def exact_share(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def exact_slope(x: float) -> float:
    return exact_share(x) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


WAYS = [
    (_shares, exact_share),
    (_shares_by_bell, exact_share),
    (_slopes, exact_slope),
    (_slopes_by_bell, exact_slope),
]


def of(way: Any, x: np.ndarray) -> np.ndarray:
    found = np.empty_like(x)
    way(x.ctypes.data, found.ctypes.data, len(x))
    return found


@pytest.mark.parametrize(("way", "exact"), WAYS)
def test_right_to_3e_7(way: Any, exact: Callable[[float], float]) -> None:
    wanted = np.array([exact(float(x)) for x in X])
    assert np.abs(of(way, X) - wanted).max() < 3e-7


@pytest.mark.parametrize(("way", "exact"), WAYS)
def test_far_from_zero_and_of_what_is_not_a_number(way: Any, exact: Callable[[float], float]) -> None:
    some = np.array([-np.inf, -1e30, -50, -8, 0, 8, 50, 1e30, np.inf, np.nan] + [0] * 6, np.float32)
    found = of(way, some)
    numbers = slice(1, 8)  # GELU itself of -inf is not a number, as torch has it
    assert np.allclose(found[numbers], [0, 0, 0, 0.5, 1, 1, 1], rtol=0, atol=3e-7)
    assert np.isnan(found[9])


@pytest.mark.parametrize("pieces", [normal.SHARE, normal.SLOPE])
def test_pieces_meet(pieces: Any) -> None:
    """Where one polynomial ends and the next begins both are right, so that no step is to be seen."""
    _, step, _ = pieces
    table = normal.coefficients(*pieces)
    for piece in range(normal.WIDTH - 1):
        left = np.polynomial.polynomial.polyval(step / 2, table[:, piece])
        right = np.polynomial.polynomial.polyval(-step / 2, table[:, piece + 1])
        assert abs(left - right) < 3e-7, piece
