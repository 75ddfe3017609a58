"""Functions of 16 values in kernels: exp, the normal CDF and the gradient of GELU, and dropout.

With AVX-512, a permutation of one register looks up one of 16 values. exp(x) = 2**(n / 16) * exp(r) looks up the
fractional power of 2, and a cubic polynomial of the remainder r gives exp(r). The normal CDF and the gradient of
GELU are piecewise polynomials whose coefficients are looked up.

Without it, exp(x) = 2**n * exp(r): the remainder is larger, and the polynomial is of degree 7. The normal CDF and
the gradient of GELU are computed from exp(-x² / 2) and a division (Abramowitz and Stegun, 7.1.26), which takes
more than twice as long.

exp(x) is defined for x ≤ 0, with a relative error below 2e-7; it is 0 where the result is below the range of fp32.
The error of the other two functions is below 3e-7 either way.

A hash of a seed and an element's index decides whether dropout drops the element.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import llvmlite.ir as ir
import numpy as np
from numba import njit, types

from bertsmith.kernels.cpu import simd
from bertsmith.kernels.cpu.arrays import float_from_bits
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, float32, uint32
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


_SIGN_BIT = 1 << 31


def _normal_cdf_minus_half(x: float) -> float:
    return math.erf(x / math.sqrt(2)) / 2


def _gelu_grad_minus_half(x: float) -> float:
    return _normal_cdf_minus_half(x) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


# A function minus 1/2, the distance of two pieces' centers (exact in fp32), and the degree of the polynomials.
CDF_COEFFICIENTS = _normal_cdf_minus_half, 0.375, 4
GELU_GRAD_COEFFICIENTS = _gelu_grad_minus_half, 0.40625, 5


def coefficients(function: Callable[[float], float], step: float, degree: int) -> Any:
    """Return the coefficients [degree + 1, 16] of polynomials centered at 0, step, … 14 * step.

    They interpolate an odd function at the Chebyshev nodes of each piece. The last piece is the constant 1/2.
    """
    nodes = np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1)) * step / 2
    values = [[function(piece * step + node) for piece in range(VECTOR_WIDTH - 1)] for node in nodes]
    result = np.zeros((degree + 1, VECTOR_WIDTH))
    result[:, :-1] = np.linalg.solve(np.vander(nodes, increasing=True), np.array(values))
    result[::2, 0] = 0.0  # an odd function has no even powers at 0, only rounding errors
    result[0, -1] = 0.5
    return result


def _piecewise_polynomial(function: Callable[[float], float], step: float, degree: int) -> Any:
    """Return an intrinsic of 1/2 + function(x), where function is odd and 1/2 from 14.5 * step on."""
    table = coefficients(function, step, degree)

    @simd.typed_intrinsic(FLOAT_VECTOR(FLOAT_VECTOR))
    def evaluate(builder, x):
        bits = builder.bitcast(x, simd.I32X16)
        sign = builder.and_(bits, simd.int_constant(_SIGN_BIT))
        magnitude = builder.bitcast(builder.xor(bits, sign), simd.F32X16)
        high = simd.vector_constant((VECTOR_WIDTH - 1) * step)
        magnitude = builder.select(builder.fcmp_ordered(">", magnitude, high), high, magnitude)  # keeps NaN
        piece, num_steps = simd.round_to_int(builder, magnitude, step)
        offset = simd.fma(builder, num_steps, simd.vector_constant(-step), magnitude)
        value = simd.permute_table(builder, table[degree], piece)
        for row in table[degree - 1 :: -1]:
            value = simd.fma(builder, value, offset, simd.permute_table(builder, row, piece))
        value = builder.bitcast(builder.or_(builder.bitcast(value, simd.I32X16), sign), simd.F32X16)
        return builder.fadd(value, simd.vector_constant(0.5))

    return evaluate


@njit(inline="always", **JIT_OPTIONS)
def _normal_cdf_and_exp(x):
    """Compute the CDF, and exp(-x² / 2)."""
    a = simd.maximum(x, 0.0 - x) * 0.70710678
    t = 1.0 / (1.0 + 0.3275911 * a)
    exp = exp_nonpositive(0.0 - a * a)
    p = 1.061405429 * t - 1.453152027
    p = p * t + 1.421413741
    p = p * t - 0.284496736
    p = p * t + 0.254829592
    tail = 0.5 * p * t * exp
    return simd.zero_below(x, simd.splat(0.0), 1.0 - tail - tail) + tail, exp


@njit(inline="always", **JIT_OPTIONS)
def _normal_cdf_by_exp(x):
    cdf, _ = _normal_cdf_and_exp(x)
    return cdf


@njit(inline="always", **JIT_OPTIONS)
def _gelu_grad_by_exp(x):
    cdf, exp = _normal_cdf_and_exp(x)
    return cdf + x * exp * 0.39894228


normal_cdf = _piecewise_polynomial(*CDF_COEFFICIENTS) if simd.HAS_AVX512F else _normal_cdf_by_exp
gelu_grad = _piecewise_polynomial(*GELU_GRAD_COEFFICIENTS) if simd.HAS_AVX512F else _gelu_grad_by_exp


class DropoutParams(NamedTuple):
    """Two words of the seed, the number of 65,536 elements that are dropped, and the scale of the others."""

    seed_low: int
    seed_high: int
    threshold: int
    scale: float


@njit(**JIT_OPTIONS)
def load_dropout(s, first):
    """Return the `DropoutParams` in four slots."""
    return DropoutParams(
        uint32(s[first]), uint32(s[first + 1]), uint32(s[first + 2]), float_from_bits(s[first + 3])
    )


@njit(inline="always", **JIT_OPTIONS)
def dropout_scale(index, dropout):
    """Return the factor of an element: 0 with probability threshold / 65,536, and the scale otherwise.

    The upper 16 bits of a hash of its index are compared with the threshold. The hash is lowbias32 (Wellons 2018),
    with a second word of the seed mixed in halfway. `dropout_mask` computes the same for 16 elements.
    """
    x = uint32(uint32(uint32(index) * uint32(0x9E3779B9)) ^ dropout.seed_low)
    x = uint32(uint32(x ^ uint32(x >> uint32(16))) * uint32(0x7FEB352D))
    x = uint32(x ^ dropout.seed_high)
    x = uint32(uint32(x ^ uint32(x >> uint32(15))) * uint32(0x846CA68B))
    x = uint32(x ^ uint32(x >> uint32(16)))
    return dropout.scale if uint32(x >> uint32(16)) >= dropout.threshold else float32(0)


@simd.typed_intrinsic(simd.FLOAT_VECTOR(types.int64, types.uint32, types.uint32, types.uint32, types.float32))
def _hash_mask(builder, index, seed_low, seed_high, threshold, scale):
    def splat(value: Any) -> Any:
        return simd.broadcast(builder, value, simd.I32X16)

    def xor_shift(x: Any, bits: int) -> Any:
        return builder.xor(x, builder.lshr(x, simd.int_constant(bits)))

    x = builder.add(
        splat(builder.trunc(index, simd.I32)), ir.Constant(simd.I32X16, list(range(simd.VECTOR_WIDTH)))
    )
    x = builder.xor(builder.mul(x, simd.int_constant(0x9E3779B9)), splat(seed_low))
    x = builder.mul(xor_shift(x, 16), simd.int_constant(0x7FEB352D))
    x = builder.xor(x, splat(seed_high))
    x = builder.mul(xor_shift(x, 15), simd.int_constant(0x846CA68B))
    x = builder.lshr(xor_shift(x, 16), simd.int_constant(16))
    is_kept = builder.icmp_unsigned(">=", x, splat(threshold))
    return builder.select(is_kept, simd.broadcast(builder, scale, simd.F32X16), simd.vector_constant(0.0))


@njit(inline="always", **JIT_OPTIONS)
def dropout_mask(index, dropout):
    """Return the factors of 16 elements from `index` on: `dropout_scale` of each."""
    return _hash_mask(index, dropout.seed_low, dropout.seed_high, dropout.threshold, dropout.scale)
