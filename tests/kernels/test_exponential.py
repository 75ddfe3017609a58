"""exp of numbers that are not above 0, by a table and by one polynomial, against NumPy's in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bertsmith.kernels import backend_selection

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

from bertsmith.kernels.cpu import exponential
from simd_map import over_lanes

ways = pytest.mark.parametrize("function", [exponential.exp_nonpositive, exponential._by_one_polynomial])


@ways
def test_right_to_2e_7_of_its_value(function: Any) -> None:
    x = np.linspace(-87, 0, 2**16, dtype=np.float32)
    wanted = np.exp(x.astype(np.float64))
    assert np.abs(over_lanes(function)(x) / wanted - 1).max() < 2e-7


@ways
def test_at_the_ends(function: Any) -> None:
    x = np.array([0, -0.0, -1e-30, -104, -150, -250, -1e30, -np.inf] * 2, np.float32)
    assert over_lanes(function)(x)[:8].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]


@ways
def test_what_is_not_a_number_stays_so(function: Any) -> None:
    x = np.array([np.nan, -1] * 8, np.float32)
    assert np.isnan(over_lanes(function)(x)).tolist() == [True, False] * 8
