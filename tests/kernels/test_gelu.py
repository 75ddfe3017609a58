"""Compare both implementations of the normal CDF and of the gradient of GELU with the exact functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bertsmith.kernels import backend_selection

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

from bertsmith.kernels.cpu import gelu
from simd_map import map_vectors

X = np.linspace(-9, 9, 2**16, dtype=np.float32)


def exact_cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def exact_gelu_grad(x: float) -> float:
    return exact_cdf(x) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


each_implementation = pytest.mark.parametrize(
    ("function", "exact"),
    [
        (gelu.normal_cdf, exact_cdf),
        (gelu._normal_cdf_by_exp, exact_cdf),
        (gelu.gelu_grad, exact_gelu_grad),
        (gelu._gelu_grad_by_exp, exact_gelu_grad),
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


@pytest.mark.parametrize("pieces", [gelu.CDF_COEFFICIENTS, gelu.GELU_GRAD_COEFFICIENTS])
def test_pieces_are_continuous(pieces: Any) -> None:
    """Adjacent polynomials agree where one piece ends and the next starts."""
    _, step, _ = pieces
    table = gelu.coefficients(*pieces)
    for piece in range(gelu.VECTOR_WIDTH - 1):
        end = np.polynomial.polynomial.polyval(step / 2, table[:, piece])
        start = np.polynomial.polynomial.polyval(-step / 2, table[:, piece + 1])
        assert abs(end - start) < 3e-7, piece
