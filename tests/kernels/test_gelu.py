"""The share of the normal distribution and the slope of GELU, in both ways, against the exact functions."""

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
from simd_map import over_lanes

X = np.linspace(-9, 9, 2**16, dtype=np.float32)


def exact_share(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def exact_slope(x: float) -> float:
    return exact_share(x) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


ways = pytest.mark.parametrize(
    ("function", "exact"),
    [
        (gelu.normal_cdf, exact_share),
        (gelu._share_by_bell, exact_share),
        (gelu.gelu_grad, exact_slope),
        (gelu._slope_by_bell, exact_slope),
    ],
)


@ways
def test_right_to_3e_7(function: Any, exact: Callable[[float], float]) -> None:
    wanted = np.array([exact(float(x)) for x in X])
    assert np.abs(over_lanes(function)(X) - wanted).max() < 3e-7


@ways
def test_far_from_zero_and_of_what_is_not_a_number(function: Any, exact: Callable[[float], float]) -> None:
    some = np.array([-np.inf, -1e30, -50, -8, 0, 8, 50, 1e30, np.inf, np.nan] + [0] * 6, np.float32)
    found = over_lanes(function)(some)
    numbers = slice(1, 8)  # GELU itself of -inf is not a number, as torch has it
    assert np.allclose(found[numbers], [0, 0, 0, 0.5, 1, 1, 1], rtol=0, atol=3e-7)
    assert np.isnan(found[9])


@pytest.mark.parametrize("pieces", [gelu.CDF_COEFFICIENTS, gelu.GELU_GRAD_COEFFICIENTS])
def test_pieces_meet(pieces: Any) -> None:
    """Where one polynomial ends and the next begins both are right, so that no step is to be seen."""
    _, step, _ = pieces
    table = gelu.coefficients(*pieces)
    for piece in range(gelu.VECTOR_WIDTH - 1):
        left = np.polynomial.polynomial.polyval(step / 2, table[:, piece])
        right = np.polynomial.polynomial.polyval(-step / 2, table[:, piece + 1])
        assert abs(left - right) < 3e-7, piece
