"""The normal distribution's share below a number, which GELU takes, and GELU's slope; 16 numbers at a time.

With registers of 16 numbers both are polynomials, one for each piece of the line: a register holds a coefficient
of 16 pieces, from which one instruction takes each number's own. Elsewhere they are made of an exponential and a
division (Abramowitz and Stegun, 7.1.26), which take more than twice as long. Either way both are right to 3e-7.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import njit
from numba.extending import intrinsic

from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, float32
from bertsmith.kernels.cpu.exponential import exp_nonpositive
from bertsmith.kernels.cpu.simd import (
    FLOAT_VECTOR,
    FLOATS,
    HAS_PERMUTE_TABLES,
    INTS,
    VECTOR_WIDTH,
    broadcast_scalar,
    fma,
    maximum,
    permute_table,
    round_to_int,
    vector_constant,
    zero_below,
)

WRITTEN_WITH = "a93b17b5f620b7e6"  # exponential.py, compilation.py and simd.py, see the second
_SIGN = 1 << 31


def _share(x: float) -> float:
    return math.erf(x / math.sqrt(2)) / 2


def _slope(x: float) -> float:
    return _share(x) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


CDF_COEFFICIENTS = (
    _share,
    0.375,
    4,
)  # less 1/2: the function, what lies between two pieces' middles, the degree
GELU_GRAD_COEFFICIENTS = _slope, 0.40625, 5


def coefficients(of: Callable[[float], float], step: float, degree: int) -> Any:
    """[degree + 1, 16]: of the polynomials around 0, step, … 14 · step, each right at the Chebyshev nodes of its
    piece; the last is 1/2 everywhere."""
    nodes = np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1)) * step / 2
    wanted = [[of(number * step + node) for number in range(VECTOR_WIDTH - 1)] for node in nodes]
    found = np.zeros((degree + 1, VECTOR_WIDTH))
    found[:, :-1] = np.linalg.solve(np.vander(nodes, increasing=True), np.array(wanted))
    found[::2, 0] = 0.0  # both functions are odd: even powers are rounding errors there
    found[0, -1] = 0.5
    return found


def _by_pieces(of: Callable[[float], float], step: float, degree: int) -> Any:
    """1/2 more than an odd function which is 1/2 from 14.5 steps on, as what Numba compiles. step: a fraction that
    fp32 has exactly."""
    table = coefficients(of, step, degree)

    @intrinsic
    def found(typing: Any, x: Any) -> Any:
        def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            given = builder.bitcast(values[0], INTS)
            sign = builder.and_(given, ir.Constant(INTS, [_SIGN] * VECTOR_WIDTH))
            size = builder.bitcast(builder.xor(given, sign), FLOATS)
            most = vector_constant((VECTOR_WIDTH - 1) * step)
            size = builder.select(builder.fcmp_ordered(">", size, most), most, size)  # what is none stays so
            piece, number = round_to_int(builder, size, step)
            apart = fma(builder, number, vector_constant(-step), size)
            value = permute_table(builder, table[degree], piece)
            for row in table[degree - 1 :: -1]:
                value = fma(builder, value, apart, permute_table(builder, row, piece))
            value = builder.bitcast(builder.or_(builder.bitcast(value, INTS), sign), FLOATS)
            return builder.fadd(value, vector_constant(0.5))

        return FLOAT_VECTOR(FLOAT_VECTOR), made

    return found


@njit(inline="always", **JIT_OPTIONS)
def _by_bell(x):
    """The share below x, and exp(-x²/2)."""
    a = maximum(x, broadcast_scalar(float32(0)) - x) * broadcast_scalar(float32(0.70710678))
    t = broadcast_scalar(float32(1)) / (
        broadcast_scalar(float32(1)) + broadcast_scalar(float32(0.3275911)) * a
    )
    bell = exp_nonpositive(broadcast_scalar(float32(0)) - a * a)
    p = broadcast_scalar(float32(1.061405429)) * t - broadcast_scalar(float32(1.453152027))
    p = p * t + broadcast_scalar(float32(1.421413741))
    p = p * t - broadcast_scalar(float32(0.284496736))
    p = p * t + broadcast_scalar(float32(0.254829592))
    tail = broadcast_scalar(float32(0.5)) * p * t * bell
    return zero_below(
        x, broadcast_scalar(float32(0)), broadcast_scalar(float32(1)) - tail - tail
    ) + tail, bell


@njit(inline="always", **JIT_OPTIONS)
def _share_by_bell(x):
    share, _ = _by_bell(x)
    return share


@njit(inline="always", **JIT_OPTIONS)
def _slope_by_bell(x):
    share, bell = _by_bell(x)
    return share + x * bell * broadcast_scalar(float32(0.39894228))


normal_cdf = _by_pieces(*CDF_COEFFICIENTS) if HAS_PERMUTE_TABLES else _share_by_bell
gelu_grad = _by_pieces(*GELU_GRAD_COEFFICIENTS) if HAS_PERMUTE_TABLES else _slope_by_bell
