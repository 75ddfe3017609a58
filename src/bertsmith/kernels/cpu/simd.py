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

from bertsmith.kernels.cpu.compilation import LOOPS, compiles_for

WIDTH = 16
# Whether the processor rounds to bf16, and multiplies it. Its instructions are given as it calls them: by LLVM's
# own names they have a type that llvmlite does not know.
KNOWS_HALF = compiles_for("avx512bf16")
KNOWS_TABLES = compiles_for("avx512f")  # whether it takes each lane's own number from a register
LOOSELY = ("reassoc", "contract", "nsz", "arcp")
_FLOAT, _INT, _SHORT, _BYTE = ir.FloatType(), ir.IntType(32), ir.IntType(16), ir.IntType(8)
FLOATS, INTS, SHORTS, _BYTES = (ir.VectorType(of, WIDTH) for of in (_FLOAT, _INT, _SHORT, _BYTE))


class _Lanes(types.Type):  # type: ignore[misc]
    """Numba's name for 16 numbers in fp32."""

    def __init__(self) -> None:
        super().__init__("lanes")


LANES = _Lanes()


@register_model(_Lanes)
class _Model(models.PrimitiveModel):  # type: ignore[misc]
    """As LLVM has them."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, FLOATS)


def at(builder: Any, address: Any, of: Any) -> Any:
    """A pointer to what is there."""
    return builder.inttoptr(address, of.as_pointer())


def spread(builder: Any, value: Any, of: Any) -> Any:
    """One number in all lanes."""
    nothing = ir.Constant(of, ir.Undefined)
    first = ir.Constant(INTS, [0] * WIDTH)
    return builder.shuffle_vector(builder.insert_element(nothing, value, _INT(0)), nothing, first)


def known(builder: Any, name: str, result: Any, *given: Any, loosely: Any = LOOSELY) -> Any:
    """A call of what LLVM itself provides."""
    kind = ir.FunctionType(result, [value.type for value in given])
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, given, fastmath=loosely)


def each(number: float) -> Any:
    """A constant in fp32 in all lanes."""
    return ir.Constant(FLOATS, [float(np.float32(number))] * WIDTH)


def fused(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """x·y + z, rounded once."""
    return known(builder, f"llvm.fma.v{WIDTH}f32", FLOATS, x, y, z, loosely=())


def to_whole(builder: Any, x: Any, step: float) -> tuple[Any, Any]:
    """How many steps x is, rounded to a whole number of at most 22 bits: in bits of which the lowest are that
    number's, and itself."""
    large = each(1.5 * 2**23)  # what is added to it has no room for a fraction
    found = fused(builder, x, each(1 / step), large)
    return builder.bitcast(found, INTS), builder.fsub(found, large)


def own_of(builder: Any, table: Any, places: Any) -> Any:
    """Of 16 constants each lane's own, by the lowest 4 bits of its place: an instruction of AVX-512."""
    held = ir.Constant(FLOATS, [float(np.float32(number)) for number in table])
    return known(builder, "llvm.x86.avx512.permvar.sf.512", FLOATS, held, places, loosely=())


def as_half(builder: Any, x: Any) -> Any:
    """16 numbers as bf16: the nearest, of two that are as near the even one."""
    if KNOWS_HALF:
        kind = ir.FunctionType(SHORTS, [FLOATS])
        return builder.call(ir.InlineAsm(kind, "vcvtneps2bf16 $1, $0", "=v,v"), [x])
    half, one, most = (spread(builder, _INT(n), INTS) for n in (16, 1, 0x7FFF))
    bits = builder.bitcast(x, INTS)
    odd = builder.and_(builder.lshr(bits, half), one)
    rounded = builder.lshr(builder.add(builder.add(bits, most), odd), half)
    return builder.trunc(rounded, SHORTS)


@intrinsic
def load(typing: Any, address: Any) -> Any:
    """16 numbers of memory."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.load(at(builder, values[0], FLOATS), align=4)

    return LANES(types.int64), made


@intrinsic
def store(typing: Any, address: Any, x: Any) -> Any:
    """Put 16 numbers there."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.store(values[1], at(builder, values[0], FLOATS), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, LANES), made


@intrinsic
def store_past(typing: Any, address: Any, x: Any) -> Any:
    """Put 16 numbers there past the caches, which then keep what is read sooner. A line of these begins there. See
    `are_stored`."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        stored = builder.store(values[1], at(builder, values[0], FLOATS), align=4 * WIDTH)
        stored.set_metadata("nontemporal", builder.module.add_metadata([_INT(1)]))
        return context.get_dummy_value()

    return types.void(types.int64, LANES), made


@intrinsic
def are_stored(typing: Any) -> Any:
    """Wait until other threads see what was put past the caches."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), made


@intrinsic
def load_half(typing: Any, address: Any) -> Any:
    """16 numbers of memory that holds bf16."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kept = builder.zext(builder.load(at(builder, values[0], SHORTS), align=2), INTS)
        return builder.bitcast(builder.shl(kept, spread(builder, _INT(16), INTS)), FLOATS)

    return LANES(types.int64), made


@intrinsic
def store_half(typing: Any, address: Any, x: Any) -> Any:
    """Put 16 numbers there as bf16: the nearest, of two that are as near the even one."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.store(as_half(builder, values[1]), at(builder, values[0], SHORTS), align=2)
        return context.get_dummy_value()

    return types.void(types.int64, LANES), made


@intrinsic
def load_whole(typing: Any, address: Any) -> Any:
    """16 numbers of memory that holds integers of 32 bits."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.sitofp(builder.load(at(builder, values[0], INTS), align=4), FLOATS)

    return LANES(types.int64), made


def as_whole(builder: Any, x: Any) -> Any:
    """As integers of 32 bits, in which numbers fit: of two that are as near the even one."""
    if KNOWS_TABLES:
        return builder.call(ir.InlineAsm(ir.FunctionType(INTS, [FLOATS]), "vcvtps2dq $1, $0", "=v,v"), [x])
    return builder.fptosi(known(builder, f"llvm.rint.v{WIDTH}f32", FLOATS, x), INTS)


def _rounded(builder: Any, x: Any, into: Any) -> Any:
    """As integers of 8 bits, of two that are as near the even one; what is larger on either side as the last.
    Numbers fit in integers of 32 bits."""
    if KNOWS_TABLES and into is _BYTES:
        kind = ir.FunctionType(_BYTES, [INTS])
        return builder.call(ir.InlineAsm(kind, "vpmovsdb $1, $0", "=v,v"), [as_whole(builder, x)])
    whole = known(builder, f"llvm.rint.v{WIDTH}f32", FLOATS, x)
    least, most = (spread(builder, _FLOAT(n), FLOATS) for n in (-128.0, 127.0))
    whole = builder.select(builder.fcmp_ordered("<", whole, most), whole, most)
    whole = builder.select(builder.fcmp_ordered(">", whole, least), whole, least)
    return builder.fptosi(whole, into)


@intrinsic
def store_bytes(typing: Any, address: Any, x: Any) -> Any:
    """Put 16 numbers there, rounded to integers of 8 bits."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kept = _rounded(builder, values[1], _BYTES)
        builder.store(kept, at(builder, values[0], _BYTES), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, LANES), made


@intrinsic
def store_unsigned_bytes(typing: Any, address: Any, x: Any) -> Any:
    """The same, each 128 more."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kept = builder.xor(_rounded(builder, values[1], _BYTES), ir.Constant(_BYTES, [0x80] * WIDTH))
        builder.store(kept, at(builder, values[0], _BYTES), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, LANES), made


@intrinsic
def store_wide_bytes(typing: Any, address: Any, x: Any) -> Any:
    """Put 16 numbers there, rounded to integers of 8 bits, each in 16."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kept = builder.trunc(_rounded(builder, values[1], INTS), SHORTS)
        builder.store(kept, at(builder, values[0], SHORTS), align=2)
        return context.get_dummy_value()

    return types.void(types.int64, LANES), made


@intrinsic
def every(typing: Any, x: Any) -> Any:
    """A number in all lanes."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return spread(builder, values[0], FLOATS)

    return LANES(types.float32), made


@intrinsic
def every_at(typing: Any, address: Any) -> Any:
    """A number of memory in all lanes."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return spread(builder, builder.load(at(builder, values[0], _FLOAT)), FLOATS)

    return LANES(types.int64), made


@intrinsic
def _plus(typing: Any, x: Any, y: Any) -> Any:
    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.fadd(*values, flags=LOOSELY)

    return LANES(LANES, LANES), made


@intrinsic
def _minus(typing: Any, x: Any, y: Any) -> Any:
    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.fsub(*values, flags=LOOSELY)

    return LANES(LANES, LANES), made


@intrinsic
def _times(typing: Any, x: Any, y: Any) -> Any:
    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.fmul(*values, flags=LOOSELY)

    return LANES(LANES, LANES), made


@intrinsic
def _over(typing: Any, x: Any, y: Any) -> Any:
    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.fdiv(*values)

    return LANES(LANES, LANES), made


@overload(operator.add, inline="always")
def _add(x, y):
    return (lambda x, y: _plus(x, y)) if x is LANES and y is LANES else None


@overload(operator.sub, inline="always")
def _subtract(x, y):
    return (lambda x, y: _minus(x, y)) if x is LANES and y is LANES else None


@overload(operator.mul, inline="always")
def _multiply(x, y):
    return (lambda x, y: _times(x, y)) if x is LANES and y is LANES else None


@overload(operator.truediv, inline="always")
def _divide(x, y):
    return (lambda x, y: _over(x, y)) if x is LANES and y is LANES else None


@intrinsic
def larger(typing: Any, x: Any, y: Any) -> Any:
    """Of each lane the larger number; x where one of them is none."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        x, y = values
        return builder.select(builder.fcmp_ordered("<", x, y), y, x)

    return LANES(LANES, LANES), made


@intrinsic
def smaller(typing: Any, x: Any, y: Any) -> Any:
    """Of each lane the smaller number; x where one of them is none."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        x, y = values
        return builder.select(builder.fcmp_ordered(">", x, y), y, x)

    return LANES(LANES, LANES), made


@intrinsic
def unless_below(typing: Any, x: Any, limit: Any, y: Any) -> Any:
    """y, but 0 where x is below the limit."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        x, limit, y = values
        return builder.select(builder.fcmp_ordered("<", x, limit), ir.Constant(FLOATS, [0.0] * WIDTH), y)

    return LANES(LANES, LANES, LANES), made


@intrinsic
def within(typing: Any, x: Any, first: Any, begin: Any, end: Any) -> Any:
    """x in those lanes, numbered from `first` on, that are in range(begin, end); -inf in the others."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        x, first, begin, end = values

        def every_one(value: Any) -> Any:
            return spread(builder, builder.trunc(value, _INT), INTS)

        places = builder.add(ir.Constant(INTS, list(range(WIDTH))), every_one(builder.sub(first, begin)))
        inside = builder.icmp_unsigned("<", places, every_one(builder.sub(end, begin)))
        return builder.select(inside, x, ir.Constant(FLOATS, [float("-inf")] * WIDTH))

    i = types.int64
    return LANES(LANES, i, i, i), made


@intrinsic
def sum_of(typing: Any, x: Any) -> Any:
    """Over the lanes."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return known(builder, f"llvm.vector.reduce.fadd.v{WIDTH}f32", _FLOAT, _FLOAT(0.0), values[0])

    return types.float32(LANES), made


def _one_of(builder: Any, x: Any, takes: str) -> Any:
    """Of the lanes the one that this comparison takes, halves with halves: LLVM's own way minds what is no number
    and compares one lane after the other."""
    width = WIDTH
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
def top_of(typing: Any, x: Any) -> Any:
    """The largest of the lanes, all of them numbers."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _one_of(builder, values[0], ">")

    return types.float32(LANES), made


@intrinsic
def bottom_of(typing: Any, x: Any) -> Any:
    """The smallest of the lanes, all of them numbers."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _one_of(builder, values[0], "<")

    return types.float32(LANES), made


@intrinsic
def floor(typing: Any, x: Any) -> Any:
    """The whole number below, or itself."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return known(builder, f"llvm.floor.v{WIDTH}f32", FLOATS, values[0])

    return LANES(LANES), made


@intrinsic
def power(typing: Any, x: Any) -> Any:
    """2 to a whole number between -126 and 127."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        whole = builder.add(builder.fptosi(values[0], INTS), spread(builder, _INT(127), INTS))
        return builder.bitcast(builder.shl(whole, spread(builder, _INT(23), INTS)), FLOATS)

    return LANES(LANES), made


@intrinsic
def kept(typing: Any, number: Any, low: Any, high: Any, dropped: Any, scale: Any) -> Any:
    """What 16 elements from a number on are multiplied by in dropout: `elements.kept_one` of each."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        number, low, high, dropped, scale = values

        def every_one(value: Any) -> Any:
            return spread(builder, value, INTS)

        def mixed(x: Any, bits: int) -> Any:
            return builder.xor(x, builder.lshr(x, every_one(_INT(bits))))

        x = builder.add(every_one(builder.trunc(number, _INT)), ir.Constant(INTS, list(range(WIDTH))))
        x = builder.xor(builder.mul(x, every_one(_INT(0x9E3779B9))), every_one(low))
        x = builder.mul(mixed(x, 16), every_one(_INT(0x7FEB352D)))
        x = builder.xor(x, every_one(high))
        x = builder.mul(mixed(x, 15), every_one(_INT(0x846CA68B)))
        x = builder.lshr(mixed(x, 16), every_one(_INT(16)))
        stays = builder.icmp_unsigned(">=", x, every_one(dropped))
        return builder.select(stays, spread(builder, scale, FLOATS), ir.Constant(FLOATS, [0.0] * WIDTH))

    u = types.uint32
    return LANES(types.int64, u, u, u, types.float32), made


_EIGHT = ir.VectorType(_FLOAT, 8)
_TURNS = 3  # that bring 8 rows into the places of 8 columns: 8 is 2 to the third


@intrinsic
def copy_eight(typing: Any, address: Any, to: Any) -> Any:
    """Eight numbers of memory, elsewhere."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        source, to = (at(builder, value, _EIGHT) for value in values)
        builder.store(builder.load(source, align=4), to, align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), made


@intrinsic
def turn_eight(typing: Any, address: Any, stride: Any, to: Any, to_stride: Any) -> Any:
    """Eight rows of 8 numbers as 8 columns, elsewhere. Strides, from one row to the next, are in bytes."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        source, stride, to, to_stride = values
        numbers = [ir.IntType(64)(number) for number in range(8)]
        places, wanted = (
            [at(builder, builder.add(first, builder.mul(by, n)), _EIGHT) for n in numbers]
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


@njit(inline="always", **LOOPS)
def get(half, address):
    """16 numbers of memory that holds bf16 or fp32."""
    return load_half(address) if half else load(address)


@njit(inline="always", **LOOPS)
def put(half, address, x):
    """Put 16 numbers there, as bf16 or fp32."""
    if half:
        store_half(address, x)
    else:
        store(address, x)
