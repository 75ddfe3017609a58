"""Compare both implementations of exp, the normal CDF, and the gradient of GELU with the exact functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bertsmith.kernels import backend_selection

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

from bertsmith.kernels.cpu import vector_functions
from simd_map import map_vectors

each_exp = pytest.mark.parametrize(
    "function", [vector_functions.exp_nonpositive, vector_functions._exp_by_polynomial]
)


@each_exp
def test_relative_error_of_exp_is_below_2e_7(function: Any) -> None:
    x = np.linspace(-87, 0, 2**16, dtype=np.float32)
    expected = np.exp(x.astype(np.float64))
    assert np.abs(map_vectors(function)(x) / expected - 1).max() < 2e-7


@each_exp
def test_extreme_inputs_of_exp(function: Any) -> None:
    x = np.array([0, -0.0, -1e-30, -104, -150, -250, -1e30, -np.inf] * 2, np.float32)
    assert map_vectors(function)(x)[:8].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]


@each_exp
def test_exp_of_nan_is_nan(function: Any) -> None:
    x = np.array([np.nan, -1] * 8, np.float32)
    assert np.isnan(map_vectors(function)(x)).tolist() == [True, False] * 8


X = np.linspace(-9, 9, 2**16, dtype=np.float32)


def exact_cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def exact_gelu_grad(x: float) -> float:
    return exact_cdf(x) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


each_implementation = pytest.mark.parametrize(
    ("function", "exact"),
    [
        (vector_functions.normal_cdf, exact_cdf),
        (vector_functions._normal_cdf_by_exp, exact_cdf),
        (vector_functions.gelu_grad, exact_gelu_grad),
        (vector_functions._gelu_grad_by_exp, exact_gelu_grad),
    ],
)


@each_implementation
def test_error_is_below_3e_7(function: Any, exact: Callable[[float], float]) -> None:
    expected = np.array([exact(float(x)) for x in X])
    assert np.abs(map_vectors(function)(X) - expected).max() < 3e-7


@each_implementation
def test_extreme_inputs_and_nan(function: Any, exact: Callable[[float], float]) -> None:
    x = np.array([-np.inf, -1e30, -50, -8, 0, 8, 50, 1e30, np.inf, np.nan] + [0] * 6, np.float32)
    result = map_vectors(function)(x)
    finite = slice(1, 8)  # PyTorch's GELU of -inf is NaN
    assert np.allclose(result[finite], [0, 0, 0, 0.5, 1, 1, 1], rtol=0, atol=3e-7)
    assert np.isnan(result[9])


@pytest.mark.parametrize(
    "pieces", [vector_functions.CDF_COEFFICIENTS, vector_functions.GELU_GRAD_COEFFICIENTS]
)
def test_pieces_are_continuous(pieces: Any) -> None:
    """Adjacent polynomials agree where one piece ends and the next starts."""
    _, step, _ = pieces
    table = vector_functions.coefficients(*pieces)
    for piece in range(vector_functions.VECTOR_WIDTH - 1):
        end = np.polynomial.polynomial.polyval(step / 2, table[:, piece])
        start = np.polynomial.polynomial.polyval(-step / 2, table[:, piece + 1])
        assert abs(end - start) < 3e-7, piece
