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

from bertsmith.kernels.cpu.compilation import LOOPS, F
from bertsmith.kernels.cpu.simd import (
    FLOATS,
    KNOWS_TABLES,
    LANES,
    WIDTH,
    each,
    every,
    floor,
    fused,
    known,
    larger,
    own_of,
    power,
    to_whole,
    unless_below,
)

WRITTEN_WITH = "693f23ba0d5061c2"  # compilation.py and simd.py, see the first
_STEP = math.log(2) / WIDTH
_UPPER = math.floor(_STEP * 2**13) / 2**13  # of a step, so short that few of them are exact in fp32
_LEAST = -200.0  # far below the smallest number of fp32, -103 in logarithms


@intrinsic
def _by_table(typing: Any, x: Any) -> Any:
    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        least = each(_LEAST)
        x = builder.select(builder.fcmp_ordered("<", values[0], least), least, values[0])
        steps, number = to_whole(builder, x, _STEP)
        rest = fused(builder, number, each(-_UPPER), x)
        rest = fused(builder, number, each(_UPPER - _STEP), rest)
        above = fused(builder, rest, each(1 / 6), each(1 / 2))
        above = builder.fmul(fused(builder, above, rest, each(1.0)), rest)
        root = own_of(builder, [2 ** (place / WIDTH) for place in range(WIDTH)], steps)
        return known(
            builder,
            "llvm.x86.avx512.mask.scalef.ps.512",
            FLOATS,
            fused(builder, above, root, root),
            builder.fmul(number, each(1 / WIDTH)),  # rounded down
            ir.Constant(FLOATS, [0.0] * WIDTH),
            ir.IntType(16)(2**WIDTH - 1),
            ir.IntType(32)(4),  # rounding as it is
            loosely=(),
        )

    return LANES(LANES), made


@njit(inline="always", **LOOPS)
def _by_one_polynomial(x):
    """2 to a whole number times a polynomial (Cephes)."""
    within = larger(x, every(F(-87)))
    whole = floor(within * every(F(1.44269504)) + every(F(0.5)))
    r = within - whole * every(F(0.693359375)) + whole * every(F(2.12194440e-4))
    p = every(F(1.9875691500e-4))
    p = p * r + every(F(1.3981999507e-3))
    p = p * r + every(F(8.3334519073e-3))
    p = p * r + every(F(4.1665795894e-2))
    p = p * r + every(F(1.6666665459e-1))
    p = p * r + every(F(5.0000001201e-1))
    y = (p * r * r + r + every(F(1))) * power(whole)
    return unless_below(x, every(F(-87)), y)


exp_below = _by_table if KNOWS_TABLES else _by_one_polynomial
