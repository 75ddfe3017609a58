"""Products of bf16 by the processor's own tiles (AMX), for Numba: a tile holds 16 rows of 64 bytes.

There are eight tiles, called by number. What a product multiplies from the right has its rows in pairs: two
numbers of a column, one below the other, stand side by side in 32 bits.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llvmlite.ir as ir
import torch
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from bertsmith.kernels.lanes import WIDTH, at
from bertsmith.kernels.loops import compiles_for

_ARCH_PRCTL, _ASK_FOR, _TILES = 158, 0x1023, 18  # Linux: the call, its request, and the part of the state
_SHORT, _INT, _BYTE, _WORD = ir.IntType(16), ir.IntType(32), ir.IntType(8), ir.IntType(64)
_SHORTS, _INTS = ir.VectorType(_SHORT, WIDTH), ir.VectorType(_INT, WIDTH)


def are_here() -> bool:
    """Whether this processor has tiles, Numba compiles for it, and the system lets this process use them."""
    if not compiles_for("amx-bf16"):
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ASK_FOR, _TILES) == 0)


def _whole() -> torch.Tensor:
    told = torch.zeros(64, dtype=torch.uint8)
    told[0] = 1  # the one layout that there is
    told[16:32:2] = 64  # bytes of a row
    told[48:56] = 16  # rows
    return told


WHOLE = _whole()
"""What `configure` is told: eight tiles of full size."""


def _called(builder: Any, name: str, *given: Any) -> None:
    """A call of one of LLVM's names for the processor's instructions."""
    kind = ir.FunctionType(ir.VoidType(), [value.type for value in given])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), given)


@intrinsic
def configure(typing: Any, address: Any) -> Any:
    """Make ready the tiles of this thread, as told at the address."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _called(builder, "ldtilecfg", at(builder, values[0], _BYTE))
        return context.get_dummy_value()

    return types.void(types.int64), made


@intrinsic
def release(typing: Any) -> Any:
    """Leave them to whoever is next."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _called(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), made


@intrinsic(prefer_literal=True)
def zero(typing: Any, tile: Any) -> Any:
    """Set a tile to 0."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _called(builder, "tilezero", _BYTE(tile.literal_value))
        return context.get_dummy_value()

    return types.void(tile), made


def _moved(name: str) -> Any:
    def typed(typing: Any, tile: Any, address: Any, row: Any) -> Any:
        def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            _called(builder, name, _BYTE(tile.literal_value), at(builder, values[1], _BYTE), values[2])
            return context.get_dummy_value()

        return types.void(tile, types.int64, types.int64), made

    return typed


@intrinsic(prefer_literal=True)
def load_tile(typing: Any, tile: Any, address: Any, row: Any) -> Any:
    """A tile of memory in which its rows lie so many bytes apart."""
    return _moved("tileloadd64")(typing, tile, address, row)


@intrinsic(prefer_literal=True)
def store_tile(typing: Any, tile: Any, address: Any, row: Any) -> Any:
    """Put a tile there."""
    return _moved("tilestored64")(typing, tile, address, row)


@intrinsic(prefer_literal=True)
def add_product(typing: Any, to: Any, left: Any, right: Any) -> Any:
    """to [16, 16] in fp32 += left [16, 32] · right [32, 16], both bf16, the latter's rows in pairs."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _called(builder, "tdpbf16ps", *(_BYTE(each.literal_value) for each in (to, left, right)))
        return context.get_dummy_value()

    return types.void(to, left, right), made


@intrinsic
def join(typing: Any, upper: Any, lower: Any, out: Any) -> Any:
    """16 numbers of bf16 and the 16 below them, in pairs."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        above, below = (
            builder.zext(builder.load(at(builder, value, _SHORTS), align=2), _INTS) for value in values[:2]
        )
        pairs = builder.or_(above, builder.shl(below, ir.Constant(_INTS, [16] * WIDTH)))
        builder.store(pairs, at(builder, values[2], _INTS), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), made


@intrinsic
def turn(typing: Any, address: Any, row: Any, out: Any, out_row: Any) -> Any:
    """16 rows of 16 numbers of 32 bits become columns. row, out_row: bytes from one row to the next."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        address, row, out, out_row = values

        def place(of: Any, apart: Any, number: int) -> Any:
            return at(builder, builder.add(of, builder.mul(apart, _WORD(number))), _INTS)

        rows = [builder.load(place(address, row, i), align=4) for i in range(WIDTH)]
        apart = 1
        while apart < WIDTH:  # squares of so many rows and columns change places with those across
            upper = [k if not k & apart else WIDTH + k - apart for k in range(WIDTH)]
            lower = [k + apart if not k & apart else WIDTH + k for k in range(WIDTH)]
            for i in range(WIDTH):
                if not i & apart:
                    pair = rows[i], rows[i + apart]
                    rows[i], rows[i + apart] = (
                        builder.shuffle_vector(*pair, ir.Constant(_INTS, mask)) for mask in (upper, lower)
                    )
            apart *= 2
        for i, each in enumerate(rows):
            builder.store(each, place(out, out_row, i), align=4)
        return context.get_dummy_value()

    number = types.int64
    return types.void(number, number, number, number), made
