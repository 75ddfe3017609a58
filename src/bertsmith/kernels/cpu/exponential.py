"""exp(x) of 16 values x ≤ 0, with a relative error below 2e-7; 0 where the result is below the range of fp32.

With AVX-512, exp(x) = 2**(n / 16) * exp(r): a permutation of one register selects the fractional power of 2, and
a cubic polynomial of the remainder r gives exp(r). Without it, exp(x) = 2**n * exp(r): the remainder is larger,
and the polynomial is of degree 7.
"""

from __future__ import annotations

import math

from numba import njit

from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, float32
from bertsmith.kernels.cpu.simd import (
    F32X16,
    FLOAT_VECTOR,
    HAS_AVX512F,
    I16,
    I32,
    VECTOR_WIDTH,
    broadcast_scalar,
    exp2_int,
    floor,
    fma,
    llvm_intrinsic,
    maximum,
    permute_table,
    round_to_int,
    typed_intrinsic,
    vector_constant,
    zero_below,
)

_STEP = math.log(2) / VECTOR_WIDTH
_STEP_HIGH = math.floor(_STEP * 2**13) / 2**13  # so few bits that its multiples are exact in fp32
_MIN_INPUT = -200.0  # exp(-104) is below the smallest fp32 number
_CURRENT_ROUNDING = 4  # the value of LLVM's operand that keeps the rounding mode


@typed_intrinsic(FLOAT_VECTOR(FLOAT_VECTOR))
def _exp_by_table(builder, x):
    low = vector_constant(_MIN_INPUT)
    x = builder.select(builder.fcmp_ordered("<", x, low), low, x)
    table_indices, num_steps = round_to_int(builder, x, _STEP)
    # The step is subtracted in two parts (Cody and Waite), since its multiples are not exact in fp32.
    remainder = fma(builder, num_steps, vector_constant(-_STEP_HIGH), x)
    remainder = fma(builder, num_steps, vector_constant(_STEP_HIGH - _STEP), remainder)
    expm1 = fma(builder, remainder, vector_constant(1 / 6), vector_constant(1 / 2))
    expm1 = builder.fmul(fma(builder, expm1, remainder, vector_constant(1.0)), remainder)
    power = permute_table(builder, [2 ** (i / VECTOR_WIDTH) for i in range(VECTOR_WIDTH)], table_indices)
    return llvm_intrinsic(
        builder,
        "llvm.x86.avx512.mask.scalef.ps.512",
        F32X16,
        fma(builder, expm1, power, power),
        builder.fmul(num_steps, vector_constant(1 / VECTOR_WIDTH)),  # the instruction rounds this down
        vector_constant(0.0),
        I16(2**VECTOR_WIDTH - 1),
        I32(_CURRENT_ROUNDING),
        flags=(),
    )


@njit(inline="always", **JIT_OPTIONS)
def _exp_by_polynomial(x):
    """Compute exp(x) by the polynomial of Cephes (expf.c)."""
    clamped = maximum(x, broadcast_scalar(float32(-87)))
    n = floor(clamped * broadcast_scalar(float32(1.44269504)) + broadcast_scalar(float32(0.5)))
    r = clamped - n * broadcast_scalar(float32(0.693359375)) + n * broadcast_scalar(float32(2.12194440e-4))
    p = broadcast_scalar(float32(1.9875691500e-4))
    p = p * r + broadcast_scalar(float32(1.3981999507e-3))
    p = p * r + broadcast_scalar(float32(8.3334519073e-3))
    p = p * r + broadcast_scalar(float32(4.1665795894e-2))
    p = p * r + broadcast_scalar(float32(1.6666665459e-1))
    p = p * r + broadcast_scalar(float32(5.0000001201e-1))
    y = (p * r * r + r + broadcast_scalar(float32(1))) * exp2_int(n)
    return zero_below(x, broadcast_scalar(float32(-87)), y)


exp_nonpositive = _exp_by_table if HAS_AVX512F else _exp_by_polynomial
