"""Compare exp of nonpositive numbers, by the table and by the polynomial, with NumPy in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bertsmith.kernels import backend_selection

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

from bertsmith.kernels.cpu import exponential
from simd_map import map_vectors

each_implementation = pytest.mark.parametrize(
    "function", [exponential.exp_nonpositive, exponential._exp_by_polynomial]
)


@each_implementation
def test_relative_error_is_below_2e_7(function: Any) -> None:
    x = np.linspace(-87, 0, 2**16, dtype=np.float32)
    expected = np.exp(x.astype(np.float64))
    assert np.abs(map_vectors(function)(x) / expected - 1).max() < 2e-7


@each_implementation
def test_extreme_inputs(function: Any) -> None:
    x = np.array([0, -0.0, -1e-30, -104, -150, -250, -1e30, -np.inf] * 2, np.float32)
    assert map_vectors(function)(x)[:8].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]


@each_implementation
def test_nan_stays_nan(function: Any) -> None:
    x = np.array([np.nan, -1] * 8, np.float32)
    assert np.isnan(map_vectors(function)(x)).tolist() == [True, False] * 8
