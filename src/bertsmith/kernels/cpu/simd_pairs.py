"""SIMD vectors of 16 32-bit integers, each of which may hold a pair of 16-bit or a quad of 8-bit values.

Dot-product instructions multiply two vectors of pairs or quads, and add the products of each element to an
accumulator. The right operand of a matrix product is therefore stored with its rows interleaved: the 2 (4) values
of consecutive rows in one column are adjacent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.extending import models, register_model

from bertsmith.kernels.cpu import simd
from bertsmith.kernels.cpu.compilation import has_cpu_feature

_HAS_AVX512_VNNI = has_cpu_feature("avx512vnni")


class _IntVectorType(types.Type):  # type: ignore[misc]
    """Numba's type of 16 32-bit integers."""

    def __init__(self) -> None:
        super().__init__("int32x16")


@register_model(_IntVectorType)
class _IntVectorModel(models.PrimitiveModel):  # type: ignore[misc]
    """LLVM's representation of `_IntVectorType`."""

    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, simd.I32X16)


INT_VECTOR = _IntVectorType()
_INT_DOT = INT_VECTOR(INT_VECTOR, INT_VECTOR, INT_VECTOR)


@simd.typed_intrinsic(INT_VECTOR())
def zero_ints(builder):
    """Return 16 zeros."""
    return simd.int_constant(0)


@simd.typed_intrinsic(INT_VECTOR(types.int64))
def load_ints(builder, address):
    """Load 16 integers, pairs, or quads."""
    return builder.load(simd.typed_pointer(builder, address, simd.I32X16), align=4)


@simd.typed_intrinsic(INT_VECTOR(types.int64))
def broadcast_int(builder, address):
    """Load one integer, pair, or quad into all 16 elements."""
    return simd.broadcast(
        builder, builder.load(simd.typed_pointer(builder, address, simd.I32), align=4), simd.I32X16
    )


@simd.typed_intrinsic(_INT_DOT)
def dot_int16(builder, sums, x, y):
    """Return sums plus the dot product of the int16 pairs in each element of x and y; two AVX2 instructions."""
    size = simd.VECTOR_WIDTH // 2
    half_type, pairs_type = ir.VectorType(simd.I32, size), ir.VectorType(simd.I16, simd.VECTOR_WIDTH)
    halves = []
    for first in (0, size):
        indices = ir.Constant(half_type, list(range(first, first + size)))
        operands = (builder.bitcast(builder.shuffle_vector(z, z, indices), pairs_type) for z in (x, y))
        halves.append(simd.llvm_intrinsic(builder, "llvm.x86.avx2.pmadd.wd", half_type, *operands, flags=()))
    products = builder.shuffle_vector(*halves, ir.Constant(simd.I32X16, list(range(simd.VECTOR_WIDTH))))
    return builder.add(sums, products)


@simd.typed_intrinsic(simd.FLOAT_VECTOR(simd.FLOAT_VECTOR, INT_VECTOR, INT_VECTOR))
def dot_bf16(builder, sums, x, y):
    """Return the fp32 sums plus the dot product of the bf16 pairs in each element of x and y."""
    if simd.HAS_AVX512_BF16:
        return simd.inline_asm(builder, "vdpbf16ps $3, $2, $0", "=v,0,v,v", simd.F32X16, sums, x, y)
    lower = [builder.shl(z, simd.int_constant(16)) for z in (x, y)]
    upper = [builder.and_(z, simd.int_constant(0xFFFF0000)) for z in (x, y)]
    for pair in (lower, upper):
        product = builder.fmul(*(builder.bitcast(z, simd.F32X16) for z in pair), flags=simd.FAST_MATH_FLAGS)
        sums = builder.fadd(sums, product, flags=simd.FAST_MATH_FLAGS)
    return sums


@simd.typed_intrinsic(_INT_DOT)
def dot_uint8_int8(builder, sums, x, y):
    """Return sums plus the dot product of the uint8 quads of x and the int8 quads of y in each element."""
    if _HAS_AVX512_VNNI:
        return simd.inline_asm(builder, "vpdpbusd $3, $2, $0", "=v,0,v,v", simd.I32X16, sums, x, y)
    for i in range(4):
        unsigned = builder.and_(builder.lshr(x, simd.int_constant(8 * i)), simd.int_constant(0xFF))
        signed = builder.ashr(builder.shl(y, simd.int_constant(8 * (3 - i))), simd.int_constant(24))
        sums = builder.add(sums, builder.mul(unsigned, signed))
    return sums


@simd.typed_intrinsic(INT_VECTOR(simd.FLOAT_VECTOR))
def float_to_int(builder, x):
    """Convert 16 integers in fp32 to 32-bit integers."""
    return builder.fptosi(x, simd.I32X16)


@simd.typed_intrinsic(simd.FLOAT_VECTOR(INT_VECTOR))
def int_to_float(builder, x):
    """Convert 16 integers to fp32."""
    return builder.sitofp(x, simd.F32X16)


@simd.typed_intrinsic(types.void(simd.FLOAT_VECTOR, simd.FLOAT_VECTOR, types.int64))
def interleave_to_bf16(builder, upper, lower, out):
    """Round two rows of 16 fp32 values to bf16, and store them as 16 pairs."""
    indices = [i for column in range(simd.VECTOR_WIDTH) for i in (column, simd.VECTOR_WIDTH + column)]
    pairs = builder.shuffle_vector(
        simd.to_bf16(builder, upper),
        simd.to_bf16(builder, lower),
        ir.Constant(ir.VectorType(simd.I32, 2 * simd.VECTOR_WIDTH), indices),
    )
    builder.store(pairs, simd.typed_pointer(builder, out, pairs.type), align=4)


def _load_pairs(builder: Any, addresses: Iterable[Any]) -> Any:
    """Emit 16 pairs of the 16-bit values at two addresses."""
    low, high = (
        builder.zext(builder.load(simd.typed_pointer(builder, address, simd.I16X16), align=2), simd.I32X16)
        for address in addresses
    )
    return builder.or_(low, builder.shl(high, simd.int_constant(16)))


@simd.typed_intrinsic(types.void(types.int64, types.int64, types.int64))
def interleave_bf16(builder, upper, lower, out):
    """Store two rows of 16 bf16 values as 16 pairs."""
    pairs = _load_pairs(builder, (upper, lower))
    builder.store(pairs, simd.typed_pointer(builder, out, simd.I32X16), align=4)


def _transpose(builder: Any, rows: list[Any]) -> list[Any]:
    """Emit the transposition of 16 vectors of 16 integers: swap off-diagonal blocks of 1, 2, 4, and 8 rows."""
    size = 1
    while size < simd.VECTOR_WIDTH:
        upper = [i if not i & size else simd.VECTOR_WIDTH + i - size for i in range(simd.VECTOR_WIDTH)]
        lower = [i + size if not i & size else simd.VECTOR_WIDTH + i for i in range(simd.VECTOR_WIDTH)]
        for i in range(simd.VECTOR_WIDTH):
            if not i & size:
                pair = rows[i], rows[i + size]
                rows[i], rows[i + size] = (
                    builder.shuffle_vector(*pair, ir.Constant(simd.I32X16, indices))
                    for indices in (upper, lower)
                )
        size *= 2
    return rows


def _row_address(builder: Any, start: Any, stride: Any, row: int) -> Any:
    return builder.add(start, builder.mul(stride, ir.IntType(64)(row)))


def _store_rows(builder: Any, rows: list[Any], start: Any, stride: Any) -> None:
    for i, row in enumerate(rows):
        builder.store(
            row, simd.typed_pointer(builder, _row_address(builder, start, stride, i), simd.I32X16), align=4
        )


@simd.typed_intrinsic(types.void(types.int64, types.int64, types.int64, types.int64))
def transpose_16x16(builder, source, source_stride, target, target_stride):
    """Transpose 16 rows of 16 32-bit values; source and target may be the same."""
    rows = [
        builder.load(
            simd.typed_pointer(builder, _row_address(builder, source, source_stride, i), simd.I32X16), align=4
        )
        for i in range(simd.VECTOR_WIDTH)
    ]
    _store_rows(builder, _transpose(builder, rows), target, target_stride)


@simd.typed_intrinsic(types.void(types.int64, types.int64, types.int64))
def transpose_pairs(builder, source, source_stride, target):
    """Transpose 32 rows of 16 bf16 values to 16 contiguous rows of 32."""
    rows = [
        _load_pairs(builder, (_row_address(builder, source, source_stride, i + j) for j in (0, 1)))
        for i in range(0, 2 * simd.VECTOR_WIDTH, 2)
    ]
    _store_rows(builder, _transpose(builder, rows), target, ir.IntType(64)(4 * simd.VECTOR_WIDTH))
