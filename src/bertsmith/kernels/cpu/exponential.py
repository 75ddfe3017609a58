"""exp(x) of 16 values x ≤ 0, with a relative error below 2e-7; 0 where the result is below the range of fp32.

With AVX-512, exp(x) = 2**(n / 16) * exp(r): a permutation of one register selects the fractional power of 2, and
a cubic polynomial of the remainder r gives exp(r). Without it, exp(x) = 2**n * exp(r): the remainder is larger,
and the polynomial is of degree 7.
"""

from __future__ import annotations

import math

from numba import njit

from bertsmith.kernels.cpu import simd
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS
from bertsmith.kernels.cpu.simd import FLOAT_VECTOR, VECTOR_WIDTH

_STEP = math.log(2) / VECTOR_WIDTH
_STEP_HIGH = math.floor(_STEP * 2**13) / 2**13  # so few bits that its multiples are exact in fp32
_MIN_INPUT = -200.0  # exp(-104) is below the smallest fp32 number
_CURRENT_ROUNDING = 4  # the value of LLVM's operand that keeps the rounding mode


@simd.typed_intrinsic(FLOAT_VECTOR(FLOAT_VECTOR))
def _exp_by_table(builder, x):
    low = simd.vector_constant(_MIN_INPUT)
    x = builder.select(builder.fcmp_ordered("<", x, low), low, x)
    table_indices, num_steps = simd.round_to_int(builder, x, _STEP)
    # The step is subtracted in two parts (Cody and Waite), since its multiples are not exact in fp32.
    remainder = simd.fma(builder, num_steps, simd.vector_constant(-_STEP_HIGH), x)
    remainder = simd.fma(builder, num_steps, simd.vector_constant(_STEP_HIGH - _STEP), remainder)
    expm1 = simd.fma(builder, remainder, simd.vector_constant(1 / 6), simd.vector_constant(1 / 2))
    expm1 = builder.fmul(simd.fma(builder, expm1, remainder, simd.vector_constant(1.0)), remainder)
    power = simd.permute_table(builder, [2 ** (i / VECTOR_WIDTH) for i in range(VECTOR_WIDTH)], table_indices)
    exponent = builder.fmul(num_steps, simd.vector_constant(1 / VECTOR_WIDTH))
    return simd.llvm_intrinsic(
        builder,
        "llvm.x86.avx512.mask.scalef.ps.512",
        simd.F32X16,
        simd.fma(builder, expm1, power, power),
        exponent,  # the instruction rounds it down
        simd.vector_constant(0.0),
        simd.I16(2**VECTOR_WIDTH - 1),
        simd.I32(_CURRENT_ROUNDING),
        flags=(),
    )


@njit(inline="always", **JIT_OPTIONS)
def _exp_by_polynomial(x):
    """Compute exp(x) by the polynomial of Cephes (expf.c)."""
    clamped = simd.maximum(x, simd.splat(-87.0))
    n = simd.floor(clamped * 1.44269504 + 0.5)
    r = clamped - n * 0.693359375 + n * 2.12194440e-4
    p = simd.splat(1.9875691500e-4)
    p = p * r + 1.3981999507e-3
    p = p * r + 8.3334519073e-3
    p = p * r + 4.1665795894e-2
    p = p * r + 1.6666665459e-1
    p = p * r + 5.0000001201e-1
    y = (p * r * r + r + 1.0) * simd.exp2_int(n)
    return simd.zero_below(x, simd.splat(-87.0), y)


exp_nonpositive = _exp_by_table if simd.HAS_AVX512F else _exp_by_polynomial
