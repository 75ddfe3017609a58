"""Dropout within kernels: a hash of a seed and an element's index decides whether the element is dropped."""

from __future__ import annotations

from typing import Any, NamedTuple

import llvmlite.ir as ir
from numba import njit, types

from bertsmith.kernels.cpu import simd
from bertsmith.kernels.cpu.arrays import float_from_bits
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, float32, uint32


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
