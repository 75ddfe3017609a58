"""exp of numbers that are not above 0, by a table and by one polynomial, against NumPy's in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bertsmith.kernels import choice

if not choice.are_here():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

from numba import njit

from bertsmith.kernels import exponential
from bertsmith.kernels.lanes import load, store
from bertsmith.kernels.loops import LOOPS

# Numba compiles functions of a module's own names
CHOSEN, BY_ONE_POLYNOMIAL = exponential.exp_below, exponential._by_one_polynomial


@njit(**LOOPS)
def _chosen(x: int, to: int, size: int) -> None:
    for place in range(0, 4 * size, 64):
        store(to + place, CHOSEN(load(x + place)))


@njit(**LOOPS)
def _by_one_polynomial(x: int, to: int, size: int) -> None:
    for place in range(0, 4 * size, 64):
        store(to + place, BY_ONE_POLYNOMIAL(load(x + place)))


def of(way: Any, x: np.ndarray) -> np.ndarray:
    found = np.empty_like(x)
    way(x.ctypes.data, found.ctypes.data, len(x))
    return found


ways = pytest.mark.parametrize("way", [_chosen, _by_one_polynomial])


@ways
def test_right_to_2e_7_of_its_value(way: Any) -> None:
    x = np.linspace(-87, 0, 2**16, dtype=np.float32)
    wanted = np.exp(x.astype(np.float64))
    assert np.abs(of(way, x) / wanted - 1).max() < 2e-7


@ways
def test_at_the_ends(way: Any) -> None:
    x = np.array([0, -0.0, -1e-30, -104, -150, -250, -1e30, -np.inf] * 2, np.float32)
    assert of(way, x)[:8].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]


@ways
def test_what_is_not_a_number_stays_so(way: Any) -> None:
    x = np.array([np.nan, -1] * 8, np.float32)
    assert np.isnan(of(way, x)).tolist() == [True, False] * 8
