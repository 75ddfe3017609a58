"""exp of 16 numbers that are not above 0, to 2e-7 of its value; 0 where that is less than fp32 holds.

With registers of 16 numbers it is 2 to a multiple of 1/16, the fraction taken from a table that a register holds,
times a polynomial of four terms for the rest. Elsewhere the rest is larger, and the polynomial longer.
"""

from __future__ import annotations

import math
from typing import Any

import llvmlite.ir as ir
from numba import njit
from numba.extending import intrinsic

from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, float32
from bertsmith.kernels.cpu.simd import (
    FLOAT_VECTOR,
    FLOATS,
    HAS_PERMUTE_TABLES,
    VECTOR_WIDTH,
    broadcast_scalar,
    exp2_int,
    floor,
    fma,
    llvm_intrinsic,
    maximum,
    permute_table,
    round_to_int,
    vector_constant,
    zero_below,
)

WRITTEN_WITH = "693f23ba0d5061c2"  # compilation.py and simd.py, see the first
_STEP = math.log(2) / VECTOR_WIDTH
_UPPER = math.floor(_STEP * 2**13) / 2**13  # of a step, so short that few of them are exact in fp32
_LEAST = -200.0  # far below the smallest number of fp32, -103 in logarithms


@intrinsic
def _by_table(typing: Any, x: Any) -> Any:
    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        least = vector_constant(_LEAST)
        x = builder.select(builder.fcmp_ordered("<", values[0], least), least, values[0])
        steps, number = round_to_int(builder, x, _STEP)
        rest = fma(builder, number, vector_constant(-_UPPER), x)
        rest = fma(builder, number, vector_constant(_UPPER - _STEP), rest)
        above = fma(builder, rest, vector_constant(1 / 6), vector_constant(1 / 2))
        above = builder.fmul(fma(builder, above, rest, vector_constant(1.0)), rest)
        root = permute_table(builder, [2 ** (place / VECTOR_WIDTH) for place in range(VECTOR_WIDTH)], steps)
        return llvm_intrinsic(
            builder,
            "llvm.x86.avx512.mask.scalef.ps.512",
            FLOATS,
            fma(builder, above, root, root),
            builder.fmul(number, vector_constant(1 / VECTOR_WIDTH)),  # rounded down
            ir.Constant(FLOATS, [0.0] * VECTOR_WIDTH),
            ir.IntType(16)(2**VECTOR_WIDTH - 1),
            ir.IntType(32)(4),  # rounding as it is
            loosely=(),
        )

    return FLOAT_VECTOR(FLOAT_VECTOR), made


@njit(inline="always", **JIT_OPTIONS)
def _by_one_polynomial(x):
    """2 to a whole number times a polynomial (Cephes)."""
    within = maximum(x, broadcast_scalar(float32(-87)))
    whole = floor(within * broadcast_scalar(float32(1.44269504)) + broadcast_scalar(float32(0.5)))
    r = (
        within
        - whole * broadcast_scalar(float32(0.693359375))
        + whole * broadcast_scalar(float32(2.12194440e-4))
    )
    p = broadcast_scalar(float32(1.9875691500e-4))
    p = p * r + broadcast_scalar(float32(1.3981999507e-3))
    p = p * r + broadcast_scalar(float32(8.3334519073e-3))
    p = p * r + broadcast_scalar(float32(4.1665795894e-2))
    p = p * r + broadcast_scalar(float32(1.6666665459e-1))
    p = p * r + broadcast_scalar(float32(5.0000001201e-1))
    y = (p * r * r + r + broadcast_scalar(float32(1))) * exp2_int(whole)
    return zero_below(x, broadcast_scalar(float32(-87)), y)


exp_nonpositive = _by_table if HAS_PERMUTE_TABLES else _by_one_polynomial
