"""Sixteen pairs of numbers of 16 bits at a time, integers or bf16; or as many fours of 8 bits.

A pair fills 32 bits; what multiplies pairs adds up both products. What a product multiplies by from the right has
its rows in pairs: two numbers of a column, one below the other, stand side by side.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.extending import intrinsic, models, register_model

from bertsmith.kernels.cpu.compilation import has_cpu_feature
from bertsmith.kernels.cpu.simd import (
    FAST_MATH_FLAGS,
    FLOAT_VECTOR,
    FLOATS,
    HAS_AVX512_BF16,
    INTS,
    SHORTS,
    VECTOR_WIDTH,
    broadcast,
    llvm_intrinsic,
    to_bf16,
    typed_pointer,
)

KNOWS_FOURS = has_cpu_feature("avx512vnni")  # whether the processor multiplies such integers
_INT, _SHORT, _WORD = ir.IntType(32), ir.IntType(16), ir.IntType(64)


class _Pairs(types.Type):  # type: ignore[misc]
    """Numba's name for 16 pairs of integers of 16 bits, or as many of 32."""

    def __init__(self) -> None:
        super().__init__("pairs")


INT_VECTOR = _Pairs()


@register_model(_Pairs)
class _PairsModel(models.PrimitiveModel):  # type: ignore[misc]
    """As LLVM has them."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, INTS)


@intrinsic
def zero_ints(typing: Any) -> Any:
    """Sixteen integers that are 0."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return ir.Constant(INTS, [0] * VECTOR_WIDTH)

    return INT_VECTOR(), made


@intrinsic
def load_ints(typing: Any, address: Any) -> Any:
    """Sixteen pairs of integers of 16 bits."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.load(typed_pointer(builder, values[0], INTS), align=4)

    return INT_VECTOR(types.int64), made


@intrinsic
def broadcast_int(typing: Any, address: Any) -> Any:
    """One pair in all lanes."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return broadcast(builder, builder.load(typed_pointer(builder, values[0], _INT), align=4), INTS)

    return INT_VECTOR(types.int64), made


@intrinsic
def dot_int16(typing: Any, sums: Any, x: Any, y: Any) -> Any:
    """sums, and in each lane the two products of the pairs of x and y: an instruction of AVX2 for half of them."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        sums, x, y = values
        half, shorts = ir.VectorType(_INT, VECTOR_WIDTH // 2), ir.VectorType(_SHORT, VECTOR_WIDTH)
        parts = []
        for begin in (0, VECTOR_WIDTH // 2):
            chosen = ir.Constant(
                ir.VectorType(_INT, VECTOR_WIDTH // 2), list(range(begin, begin + VECTOR_WIDTH // 2))
            )
            given = (builder.bitcast(builder.shuffle_vector(z, z, chosen), shorts) for z in (x, y))
            parts.append(llvm_intrinsic(builder, "llvm.x86.avx2.pmadd.wd", half, *given, loosely=()))
        both = builder.shuffle_vector(*parts, ir.Constant(INTS, list(range(VECTOR_WIDTH))))
        return builder.add(sums, both)

    return INT_VECTOR(INT_VECTOR, INT_VECTOR, INT_VECTOR), made


@intrinsic
def dot_bf16(typing: Any, sums: Any, x: Any, y: Any) -> Any:
    """sums in fp32, and in each lane the two products of the pairs of x and y, which hold bf16."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        if HAS_AVX512_BF16:
            kind = ir.FunctionType(FLOATS, [FLOATS, INTS, INTS])
            return builder.call(ir.InlineAsm(kind, "vdpbf16ps $3, $2, $0", "=v,0,v,v"), values)
        sums, *pairs = values
        half, above = (broadcast(builder, _INT(n), INTS) for n in (16, 0xFFFF0000))
        for part in ([builder.shl(z, half) for z in pairs], [builder.and_(z, above) for z in pairs]):
            x, y = (builder.bitcast(z, FLOATS) for z in part)
            sums = builder.fadd(sums, builder.fmul(x, y, flags=FAST_MATH_FLAGS), flags=FAST_MATH_FLAGS)
        return sums

    return FLOAT_VECTOR(FLOAT_VECTOR, INT_VECTOR, INT_VECTOR), made


@intrinsic
def dot_uint8_int8(typing: Any, sums: Any, x: Any, y: Any) -> Any:
    """sums, and in each lane the products of four 8-bit integers of x, which have no sign, with those of y, which
    have one: an instruction of AVX512-VNNI."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        if KNOWS_FOURS:
            kind = ir.FunctionType(INTS, [INTS, INTS, INTS])
            return builder.call(ir.InlineAsm(kind, "vpdpbusd $3, $2, $0", "=v,0,v,v"), values)
        sums, x, y = values
        top, byte = broadcast(builder, _INT(24), INTS), broadcast(builder, _INT(0xFF), INTS)
        for number in range(4):
            right, left = (broadcast(builder, _INT(8 * n), INTS) for n in (number, 3 - number))
            own = builder.and_(builder.lshr(x, right), byte)
            sums = builder.add(sums, builder.mul(own, builder.ashr(builder.shl(y, left), top)))
        return sums

    return INT_VECTOR(INT_VECTOR, INT_VECTOR, INT_VECTOR), made


@intrinsic
def float_to_int(typing: Any, x: Any) -> Any:
    """Numbers in fp32, whole ones, as integers."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.fptosi(values[0], INTS)

    return INT_VECTOR(FLOAT_VECTOR), made


@intrinsic
def int_to_float(typing: Any, x: Any) -> Any:
    """Integers as numbers in fp32."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.sitofp(values[0], FLOATS)

    return FLOAT_VECTOR(INT_VECTOR), made


@intrinsic
def interleave_to_bf16(typing: Any, upper: Any, lower: Any, out: Any) -> Any:
    """16 numbers in fp32 and the 16 below them, in pairs of bf16."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        halves = (to_bf16(builder, value) for value in values[:2])
        in_turn = [n for lane in range(VECTOR_WIDTH) for n in (lane, VECTOR_WIDTH + lane)]
        pairs = builder.shuffle_vector(*halves, ir.Constant(ir.VectorType(_INT, 2 * VECTOR_WIDTH), in_turn))
        builder.store(pairs, typed_pointer(builder, values[2], pairs.type), align=4)
        return context.get_dummy_value()

    return types.void(FLOAT_VECTOR, FLOAT_VECTOR, types.int64), made


@intrinsic
def interleave_bf16(typing: Any, upper: Any, lower: Any, out: Any) -> Any:
    """16 numbers of bf16 and the 16 below them, in pairs."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        above, below = (
            builder.zext(builder.load(typed_pointer(builder, value, SHORTS), align=2), INTS)
            for value in values[:2]
        )
        pairs = builder.or_(above, builder.shl(below, ir.Constant(INTS, [16] * VECTOR_WIDTH)))
        builder.store(pairs, typed_pointer(builder, values[2], INTS), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), made


def _turned(builder: Any, rows: list[Any]) -> list[Any]:
    """16 rows of 16 numbers of 32 bits become columns."""
    apart = 1
    while apart < VECTOR_WIDTH:  # squares of so many rows and columns change places with those across
        upper = [k if not k & apart else VECTOR_WIDTH + k - apart for k in range(VECTOR_WIDTH)]
        lower = [k + apart if not k & apart else VECTOR_WIDTH + k for k in range(VECTOR_WIDTH)]
        for i in range(VECTOR_WIDTH):
            if not i & apart:
                pair = rows[i], rows[i + apart]
                rows[i], rows[i + apart] = (
                    builder.shuffle_vector(*pair, ir.Constant(INTS, mask)) for mask in (upper, lower)
                )
        apart *= 2
    return rows


def _place(builder: Any, of: Any, apart: Any, number: int, kind: Any) -> Any:
    return typed_pointer(builder, builder.add(of, builder.mul(apart, _WORD(number))), kind)


@intrinsic
def transpose_16x16(typing: Any, address: Any, row: Any, out: Any, out_row: Any) -> Any:
    """16 rows of 16 numbers of 32 bits become columns. row, out_row: bytes from one row to the next."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        address, row, out, out_row = values
        rows = [builder.load(_place(builder, address, row, i, INTS), align=4) for i in range(VECTOR_WIDTH)]
        for i, each in enumerate(_turned(builder, rows)):
            builder.store(each, _place(builder, out, out_row, i, INTS), align=4)
        return context.get_dummy_value()

    number = types.int64
    return types.void(number, number, number, number), made


@intrinsic
def transpose_pairs(typing: Any, address: Any, row: Any, out: Any) -> Any:
    """32 rows of 16 numbers of bf16 become 16 rows of 32, which follow each other."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        address, row, out = values
        rows = []
        for i in range(0, 2 * VECTOR_WIDTH, 2):
            above, below = (
                builder.zext(builder.load(_place(builder, address, row, n, SHORTS), align=2), INTS)
                for n in (i, i + 1)
            )
            rows.append(builder.or_(above, builder.shl(below, ir.Constant(INTS, [16] * VECTOR_WIDTH))))
        for i, each in enumerate(_turned(builder, rows)):
            builder.store(each, _place(builder, out, _WORD(4 * VECTOR_WIDTH), i, INTS), align=4)
        return context.get_dummy_value()

    number = types.int64
    return types.void(number, number, number), made
