"""Sixteen numbers at a time: a type of Numba's for what one register of the processor holds, or two narrower ones.

Numba itself computes so in loops that are long; of short ones it makes single steps. Numbers are in fp32; a sum of
products may be rounded once, and sums be added up in another order.
"""

from __future__ import annotations

import operator
from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, has_cpu_feature

VECTOR_WIDTH = 16
# Whether the processor rounds to bf16, and multiplies it. Its instructions are given as it calls them: by LLVM's
# own names they have a type that llvmlite does not know.
HAS_AVX512_BF16 = has_cpu_feature("avx512bf16")
HAS_PERMUTE_TABLES = has_cpu_feature("avx512f")  # whether it takes each lane's own number from a register
FAST_MATH_FLAGS = ("reassoc", "contract", "nsz", "arcp")
_FLOAT, _INT, _SHORT, _BYTE = ir.FloatType(), ir.IntType(32), ir.IntType(16), ir.IntType(8)
FLOATS, INTS, SHORTS, _BYTES = (ir.VectorType(of, VECTOR_WIDTH) for of in (_FLOAT, _INT, _SHORT, _BYTE))


class _Lanes(types.Type):  # type: ignore[misc]
    """Numba's name for 16 numbers in fp32."""

    def __init__(self) -> None:
        super().__init__("lanes")


FLOAT_VECTOR = _Lanes()


@register_model(_Lanes)
class _Model(models.PrimitiveModel):  # type: ignore[misc]
    """As LLVM has them."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, FLOATS)


def typed_pointer(builder: Any, address: Any, of: Any) -> Any:
    """A pointer to what is there."""
    return builder.inttoptr(address, of.as_pointer())


def broadcast(builder: Any, value: Any, of: Any) -> Any:
    """One number in all lanes."""
    nothing = ir.Constant(of, ir.Undefined)
    first = ir.Constant(INTS, [0] * VECTOR_WIDTH)
    return builder.shuffle_vector(builder.insert_element(nothing, value, _INT(0)), nothing, first)


def llvm_intrinsic(builder: Any, name: str, result: Any, *given: Any, loosely: Any = FAST_MATH_FLAGS) -> Any:
    """A call of what LLVM itself provides."""
    kind = ir.FunctionType(result, [value.type for value in given])
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, given, fastmath=loosely)


def vector_constant(number: float) -> Any:
    """A constant in fp32 in all lanes."""
    return ir.Constant(FLOATS, [float(np.float32(number))] * VECTOR_WIDTH)


def fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """x·y + z, rounded once."""
    return llvm_intrinsic(builder, f"llvm.fma.v{VECTOR_WIDTH}f32", FLOATS, x, y, z, loosely=())


def round_to_int(builder: Any, x: Any, step: float) -> tuple[Any, Any]:
    """How many steps x is, rounded to a whole number of at most 22 bits: in bits of which the lowest are that
    number's, and itself."""
    large = vector_constant(1.5 * 2**23)  # what is added to it has no room for a fraction
    found = fma(builder, x, vector_constant(1 / step), large)
    return builder.bitcast(found, INTS), builder.fsub(found, large)


def permute_table(builder: Any, table: Any, places: Any) -> Any:
    """Of 16 constants each lane's own, by the lowest 4 bits of its place: an instruction of AVX-512."""
    held = ir.Constant(FLOATS, [float(np.float32(number)) for number in table])
    return llvm_intrinsic(builder, "llvm.x86.avx512.permvar.sf.512", FLOATS, held, places, loosely=())


def to_bf16(builder: Any, x: Any) -> Any:
    """16 numbers as bf16: the nearest, of two that are as near the even one."""
    if HAS_AVX512_BF16:
        kind = ir.FunctionType(SHORTS, [FLOATS])
        return builder.call(ir.InlineAsm(kind, "vcvtneps2bf16 $1, $0", "=v,v"), [x])
    half, one, most = (broadcast(builder, _INT(n), INTS) for n in (16, 1, 0x7FFF))
    bits = builder.bitcast(x, INTS)
    odd = builder.and_(builder.lshr(bits, half), one)
    rounded = builder.lshr(builder.add(builder.add(bits, most), odd), half)
    return builder.trunc(rounded, SHORTS)


@intrinsic
def load(typing: Any, address: Any) -> Any:
    """16 numbers of memory."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.load(typed_pointer(builder, values[0], FLOATS), align=4)

    return FLOAT_VECTOR(types.int64), made


@intrinsic
def store(typing: Any, address: Any, x: Any) -> Any:
    """Put 16 numbers there."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.store(values[1], typed_pointer(builder, values[0], FLOATS), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, FLOAT_VECTOR), made


@intrinsic
def store_non_temporal(typing: Any, address: Any, x: Any) -> Any:
    """Put 16 numbers there past the caches, which then keep what is read sooner. A line of these begins there. See
    `are_stored`."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        stored = builder.store(values[1], typed_pointer(builder, values[0], FLOATS), align=4 * VECTOR_WIDTH)
        stored.set_metadata("nontemporal", builder.module.add_metadata([_INT(1)]))
        return context.get_dummy_value()

    return types.void(types.int64, FLOAT_VECTOR), made


@intrinsic
def store_fence(typing: Any) -> Any:
    """Wait until other threads see what was put past the caches."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), made


@intrinsic
def load_half(typing: Any, address: Any) -> Any:
    """16 numbers of memory that holds bf16."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kept = builder.zext(builder.load(typed_pointer(builder, values[0], SHORTS), align=2), INTS)
        return builder.bitcast(builder.shl(kept, broadcast(builder, _INT(16), INTS)), FLOATS)

    return FLOAT_VECTOR(types.int64), made


@intrinsic
def store_bf16(typing: Any, address: Any, x: Any) -> Any:
    """Put 16 numbers there as bf16: the nearest, of two that are as near the even one."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.store(to_bf16(builder, values[1]), typed_pointer(builder, values[0], SHORTS), align=2)
        return context.get_dummy_value()

    return types.void(types.int64, FLOAT_VECTOR), made


@intrinsic
def load_int32_as_float(typing: Any, address: Any) -> Any:
    """16 numbers of memory that holds integers of 32 bits."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.sitofp(builder.load(typed_pointer(builder, values[0], INTS), align=4), FLOATS)

    return FLOAT_VECTOR(types.int64), made


def as_whole(builder: Any, x: Any) -> Any:
    """As integers of 32 bits, in which numbers fit: of two that are as near the even one."""
    if HAS_PERMUTE_TABLES:
        return builder.call(ir.InlineAsm(ir.FunctionType(INTS, [FLOATS]), "vcvtps2dq $1, $0", "=v,v"), [x])
    return builder.fptosi(llvm_intrinsic(builder, f"llvm.rint.v{VECTOR_WIDTH}f32", FLOATS, x), INTS)


def _rounded(builder: Any, x: Any, into: Any) -> Any:
    """As integers of 8 bits, of two that are as near the even one; what is larger on either side as the last.
    Numbers fit in integers of 32 bits."""
    if HAS_PERMUTE_TABLES and into is _BYTES:
        kind = ir.FunctionType(_BYTES, [INTS])
        return builder.call(ir.InlineAsm(kind, "vpmovsdb $1, $0", "=v,v"), [as_whole(builder, x)])
    whole = llvm_intrinsic(builder, f"llvm.rint.v{VECTOR_WIDTH}f32", FLOATS, x)
    least, most = (broadcast(builder, _FLOAT(n), FLOATS) for n in (-128.0, 127.0))
    whole = builder.select(builder.fcmp_ordered("<", whole, most), whole, most)
    whole = builder.select(builder.fcmp_ordered(">", whole, least), whole, least)
    return builder.fptosi(whole, into)


@intrinsic
def store_int8(typing: Any, address: Any, x: Any) -> Any:
    """Put 16 numbers there, rounded to integers of 8 bits."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kept = _rounded(builder, values[1], _BYTES)
        builder.store(kept, typed_pointer(builder, values[0], _BYTES), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, FLOAT_VECTOR), made


@intrinsic
def store_uint8(typing: Any, address: Any, x: Any) -> Any:
    """The same, each 128 more."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kept = builder.xor(_rounded(builder, values[1], _BYTES), ir.Constant(_BYTES, [0x80] * VECTOR_WIDTH))
        builder.store(kept, typed_pointer(builder, values[0], _BYTES), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, FLOAT_VECTOR), made


@intrinsic
def store_int16(typing: Any, address: Any, x: Any) -> Any:
    """Put 16 numbers there, rounded to integers of 8 bits, each in 16."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kept = builder.trunc(_rounded(builder, values[1], INTS), SHORTS)
        builder.store(kept, typed_pointer(builder, values[0], SHORTS), align=2)
        return context.get_dummy_value()

    return types.void(types.int64, FLOAT_VECTOR), made


@intrinsic
def broadcast_scalar(typing: Any, x: Any) -> Any:
    """A number in all lanes."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return broadcast(builder, values[0], FLOATS)

    return FLOAT_VECTOR(types.float32), made


@intrinsic
def broadcast_load(typing: Any, address: Any) -> Any:
    """A number of memory in all lanes."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return broadcast(builder, builder.load(typed_pointer(builder, values[0], _FLOAT)), FLOATS)

    return FLOAT_VECTOR(types.int64), made


@intrinsic
def _plus(typing: Any, x: Any, y: Any) -> Any:
    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.fadd(*values, flags=FAST_MATH_FLAGS)

    return FLOAT_VECTOR(FLOAT_VECTOR, FLOAT_VECTOR), made


@intrinsic
def _minus(typing: Any, x: Any, y: Any) -> Any:
    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.fsub(*values, flags=FAST_MATH_FLAGS)

    return FLOAT_VECTOR(FLOAT_VECTOR, FLOAT_VECTOR), made


@intrinsic
def _times(typing: Any, x: Any, y: Any) -> Any:
    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.fmul(*values, flags=FAST_MATH_FLAGS)

    return FLOAT_VECTOR(FLOAT_VECTOR, FLOAT_VECTOR), made


@intrinsic
def _over(typing: Any, x: Any, y: Any) -> Any:
    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.fdiv(*values)

    return FLOAT_VECTOR(FLOAT_VECTOR, FLOAT_VECTOR), made


@overload(operator.add, inline="always")
def _add(x, y):
    return (lambda x, y: _plus(x, y)) if x is FLOAT_VECTOR and y is FLOAT_VECTOR else None


@overload(operator.sub, inline="always")
def _subtract(x, y):
    return (lambda x, y: _minus(x, y)) if x is FLOAT_VECTOR and y is FLOAT_VECTOR else None


@overload(operator.mul, inline="always")
def _multiply(x, y):
    return (lambda x, y: _times(x, y)) if x is FLOAT_VECTOR and y is FLOAT_VECTOR else None


@overload(operator.truediv, inline="always")
def _divide(x, y):
    return (lambda x, y: _over(x, y)) if x is FLOAT_VECTOR and y is FLOAT_VECTOR else None


@intrinsic
def maximum(typing: Any, x: Any, y: Any) -> Any:
    """Of each lane the larger number; x where one of them is none."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        x, y = values
        return builder.select(builder.fcmp_ordered("<", x, y), y, x)

    return FLOAT_VECTOR(FLOAT_VECTOR, FLOAT_VECTOR), made


@intrinsic
def minimum(typing: Any, x: Any, y: Any) -> Any:
    """Of each lane the smaller number; x where one of them is none."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        x, y = values
        return builder.select(builder.fcmp_ordered(">", x, y), y, x)

    return FLOAT_VECTOR(FLOAT_VECTOR, FLOAT_VECTOR), made


@intrinsic
def zero_below(typing: Any, x: Any, limit: Any, y: Any) -> Any:
    """y, but 0 where x is below the limit."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        x, limit, y = values
        return builder.select(
            builder.fcmp_ordered("<", x, limit), ir.Constant(FLOATS, [0.0] * VECTOR_WIDTH), y
        )

    return FLOAT_VECTOR(FLOAT_VECTOR, FLOAT_VECTOR, FLOAT_VECTOR), made


@intrinsic
def mask_lanes(typing: Any, x: Any, first: Any, begin: Any, end: Any) -> Any:
    """x in those lanes, numbered from `first` on, that are in range(begin, end); -inf in the others."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        x, first, begin, end = values

        def every_one(value: Any) -> Any:
            return broadcast(builder, builder.trunc(value, _INT), INTS)

        places = builder.add(
            ir.Constant(INTS, list(range(VECTOR_WIDTH))), every_one(builder.sub(first, begin))
        )
        inside = builder.icmp_unsigned("<", places, every_one(builder.sub(end, begin)))
        return builder.select(inside, x, ir.Constant(FLOATS, [float("-inf")] * VECTOR_WIDTH))

    i = types.int64
    return FLOAT_VECTOR(FLOAT_VECTOR, i, i, i), made


@intrinsic
def reduce_sum(typing: Any, x: Any) -> Any:
    """Over the lanes."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return llvm_intrinsic(
            builder, f"llvm.vector.reduce.fadd.v{VECTOR_WIDTH}f32", _FLOAT, _FLOAT(0.0), values[0]
        )

    return types.float32(FLOAT_VECTOR), made


def _one_of(builder: Any, x: Any, takes: str) -> Any:
    """Of the lanes the one that this comparison takes, halves with halves: LLVM's own way minds what is no number
    and compares one lane after the other."""
    width = VECTOR_WIDTH
    while width > 1:
        width //= 2
        low, high = (
            builder.shuffle_vector(
                x, x, ir.Constant(ir.VectorType(_INT, width), list(range(first, first + width)))
            )
            for first in (0, width)
        )
        x = builder.select(builder.fcmp_ordered(takes, high, low), high, low)
    return builder.extract_element(x, _INT(0))


@intrinsic
def reduce_max(typing: Any, x: Any) -> Any:
    """The largest of the lanes, all of them numbers."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _one_of(builder, values[0], ">")

    return types.float32(FLOAT_VECTOR), made


@intrinsic
def reduce_min(typing: Any, x: Any) -> Any:
    """The smallest of the lanes, all of them numbers."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _one_of(builder, values[0], "<")

    return types.float32(FLOAT_VECTOR), made


@intrinsic
def floor(typing: Any, x: Any) -> Any:
    """The whole number below, or itself."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return llvm_intrinsic(builder, f"llvm.floor.v{VECTOR_WIDTH}f32", FLOATS, values[0])

    return FLOAT_VECTOR(FLOAT_VECTOR), made


@intrinsic
def exp2_int(typing: Any, x: Any) -> Any:
    """2 to a whole number between -126 and 127."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        whole = builder.add(builder.fptosi(values[0], INTS), broadcast(builder, _INT(127), INTS))
        return builder.bitcast(builder.shl(whole, broadcast(builder, _INT(23), INTS)), FLOATS)

    return FLOAT_VECTOR(FLOAT_VECTOR), made


@intrinsic
def dropout_mask(typing: Any, number: Any, low: Any, high: Any, dropped: Any, scale: Any) -> Any:
    """What 16 elements from a number on are multiplied by in dropout: `elements.kept_one` of each."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        number, low, high, dropped, scale = values

        def every_one(value: Any) -> Any:
            return broadcast(builder, value, INTS)

        def mixed(x: Any, bits: int) -> Any:
            return builder.xor(x, builder.lshr(x, every_one(_INT(bits))))

        x = builder.add(every_one(builder.trunc(number, _INT)), ir.Constant(INTS, list(range(VECTOR_WIDTH))))
        x = builder.xor(builder.mul(x, every_one(_INT(0x9E3779B9))), every_one(low))
        x = builder.mul(mixed(x, 16), every_one(_INT(0x7FEB352D)))
        x = builder.xor(x, every_one(high))
        x = builder.mul(mixed(x, 15), every_one(_INT(0x846CA68B)))
        x = builder.lshr(mixed(x, 16), every_one(_INT(16)))
        stays = builder.icmp_unsigned(">=", x, every_one(dropped))
        return builder.select(
            stays, broadcast(builder, scale, FLOATS), ir.Constant(FLOATS, [0.0] * VECTOR_WIDTH)
        )

    u = types.uint32
    return FLOAT_VECTOR(types.int64, u, u, u, types.float32), made


_EIGHT = ir.VectorType(_FLOAT, 8)
_TURNS = 3  # that bring 8 rows into the places of 8 columns: 8 is 2 to the third


@intrinsic
def copy_8(typing: Any, address: Any, to: Any) -> Any:
    """Eight numbers of memory, elsewhere."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        source, to = (typed_pointer(builder, value, _EIGHT) for value in values)
        builder.store(builder.load(source, align=4), to, align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), made


@intrinsic
def transpose_8x8(typing: Any, address: Any, stride: Any, to: Any, to_stride: Any) -> Any:
    """Eight rows of 8 numbers as 8 columns, elsewhere. Strides, from one row to the next, are in bytes."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        source, stride, to, to_stride = values
        numbers = [ir.IntType(64)(number) for number in range(8)]
        places, wanted = (
            [typed_pointer(builder, builder.add(first, builder.mul(by, n)), _EIGHT) for n in numbers]
            for first, by in ((source, stride), (to, to_stride))
        )
        rows = [builder.load(place, align=4) for place in places]
        eight = ir.VectorType(_INT, 8)
        halves = [  # of two rows the first 4 numbers in turn, and the last
            ir.Constant(eight, [n for column in range(begin, begin + 4) for n in (column, 8 + column)])
            for begin in (0, 4)
        ]
        for _ in range(_TURNS):
            rows = [builder.shuffle_vector(rows[n // 2], rows[n // 2 + 4], halves[n % 2]) for n in range(8)]
        for place, row in zip(wanted, rows, strict=True):
            builder.store(row, place, align=4)
        return context.get_dummy_value()

    i = types.int64
    return types.void(i, i, i, i), made


@njit(inline="always", **JIT_OPTIONS)
def load_as_float(half, address):
    """16 numbers of memory that holds bf16 or fp32."""
    return load_half(address) if half else load(address)


@njit(inline="always", **JIT_OPTIONS)
def store_as_dtype(half, address, x):
    """Put 16 numbers there, as bf16 or fp32."""
    if half:
        store_bf16(address, x)
    else:
        store(address, x)
