"""Products of bf16, or of 8-bit integers, by the processor's own tiles (AMX), for Numba.

There are eight tiles, called by number, of 16 rows of 64 bytes. What a product multiplies from the right has its
rows in pairs, or in fours, see simd_pairs.py.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llvmlite.ir as ir
import torch
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, has_cpu_feature
from bertsmith.kernels.cpu.simd import typed_pointer

_ARCH_PRCTL, _ASK_FOR, _TILES = 158, 0x1023, 18  # Linux: the call, its request, and the part of the state
_BYTE = ir.IntType(8)
_ROWS = 16  # of a tile; the pairs of terms of a product
BLOCK_SIZE = 2 * _ROWS  # rows, columns and terms of the smallest product made: four tiles
TILE_ROW_BYTES = (
    64  # bytes of a row of a tile: from one tile of sums, or of what multiplies, to the one at its right
)


def is_amx_available() -> bool:
    """Whether this processor has tiles, Numba compiles for it, and the system lets this process use them."""
    if not has_cpu_feature("amx-bf16"):
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ASK_FOR, _TILES) == 0)


def _whole() -> torch.Tensor:
    told = torch.zeros(64, dtype=torch.uint8)
    told[0] = 1  # the one layout that there is
    told[16:32:2] = 64  # bytes of a row
    told[48:56] = _ROWS
    return told


TILE_CONFIG = _whole()
"""What `configure` is told: eight tiles of full size."""


def _called(builder: Any, name: str, *given: Any) -> None:
    """A call of one of LLVM's names for the processor's instructions."""
    kind = ir.FunctionType(ir.VoidType(), [value.type for value in given])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), given)


@intrinsic
def configure(typing: Any, address: Any) -> Any:
    """Make ready the tiles of this thread, as told at the address."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _called(builder, "ldtilecfg", typed_pointer(builder, values[0], _BYTE))
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
def zero_tile(typing: Any, tile: Any) -> Any:
    """Set a tile to 0."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _called(builder, "tilezero", _BYTE(tile.literal_value))
        return context.get_dummy_value()

    return types.void(tile), made


def _moved(name: str) -> Any:
    def typed(typing: Any, tile: Any, address: Any, row: Any) -> Any:
        def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            _called(
                builder, name, _BYTE(tile.literal_value), typed_pointer(builder, values[1], _BYTE), values[2]
            )
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


def _added(name: str) -> Any:
    def typed(typing: Any, to: Any, left: Any, right: Any) -> Any:
        def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            _called(builder, name, *(_BYTE(each.literal_value) for each in (to, left, right)))
            return context.get_dummy_value()

        return types.void(to, left, right), made

    return typed


@intrinsic(prefer_literal=True)
def add_product(typing: Any, to: Any, left: Any, right: Any) -> Any:
    """to [16, 16] in fp32 += left [16, 32] · right [32, 16], both bf16, the latter's rows in pairs."""
    return _added("tdpbf16ps")(typing, to, left, right)


@intrinsic(prefer_literal=True)
def add_integers(typing: Any, to: Any, left: Any, right: Any) -> Any:
    """to [16, 16] in 32 bits += left [16, 64] · right [64, 16], integers of 8, the latter's rows in fours."""
    return _added("tdpbssd")(typing, to, left, right)


@njit(**JIT_OPTIONS)
def zero_block():
    """Set the four tiles of a block's sums, 0 to 3, to 0."""
    zero_tile(0)
    zero_tile(1)
    zero_tile(2)
    zero_tile(3)


@njit(**JIT_OPTIONS)
def load_block(place, row):
    """Load a block's sums, 32 rows of 32 columns. row: bytes from one row to the next."""
    below = place + _ROWS * row
    load_tile(0, place, row)
    load_tile(1, place + TILE_ROW_BYTES, row)
    load_tile(2, below, row)
    load_tile(3, below + TILE_ROW_BYTES, row)


@njit(**JIT_OPTIONS)
def store_block(place, row):
    """Put a block's sums there."""
    below = place + _ROWS * row
    store_tile(0, place, row)
    store_tile(1, place + TILE_ROW_BYTES, row)
    store_tile(2, below, row)
    store_tile(3, below + TILE_ROW_BYTES, row)


def _quarters(add: Any) -> tuple[Any, Any, Any, Any]:
    """What adds to a block's sums the products of 16 rows, and of as many below, with 32 columns of b, 64 bytes
    of terms each: four products, made in this order. In bytes: row between two rows, b_row between two of b."""

    # A tile is set to 0 as soon as it has been multiplied, and few are used. While another thread computes on the
    # same core there seem to be hardly more registers for tiles than the eight have names: a load waits for the
    # product that reads what the tile held before. A tile of zeros needs none. The four products take 80 ns then
    # instead of 120, and 30 either way while no other thread does.
    @njit(**JIT_OPTIONS)
    def first(above, row, b, b_row):
        load_tile(4, above, row)
        load_tile(5, b, b_row)
        add(0, 4, 5)

    @njit(**JIT_OPTIONS)
    def second(b, b_row):
        load_tile(6, b + TILE_ROW_BYTES, b_row)
        add(1, 4, 6)

    @njit(**JIT_OPTIONS)
    def third(below, row):
        zero_tile(4)
        load_tile(4, below, row)
        add(3, 4, 6)

    @njit(**JIT_OPTIONS)
    def fourth():
        zero_tile(6)
        add(2, 4, 5)
        zero_tile(4)
        zero_tile(5)

    return first, second, third, fourth


_first, _second, _third, _fourth = _quarters(add_product)
INT8_BLOCK_STEPS = _quarters(add_integers)


@njit(**JIT_OPTIONS)
def accumulate_bf16(above, below, row, b, b_row):
    """All of `_quarters`, in bf16."""
    _first(above, row, b, b_row)
    _second(b, b_row)
    _third(below, row)
    _fourth()


@njit(**JIT_OPTIONS)
def multiply_block(adds, a, a_row, b, out, columns, terms, rows):
    """out [32, columns] in fp32 = a [32, terms] · b [terms, columns], both bf16, b's rows in pairs; or that is
    added to it. Columns and terms are multiples of 32. a_row: bytes from one row of a to the next. rows: all
    are made, whichever are wanted."""
    row = 4 * columns
    for column in range(0, row, 4 * BLOCK_SIZE):
        place = out + column
        if adds:
            load_block(place, row)
        else:
            zero_block()
        left, right = a, b + column
        for _ in range(0, terms, BLOCK_SIZE):
            accumulate_bf16(left, left + _ROWS * a_row, a_row, right, row)
            left += 2 * BLOCK_SIZE
            right += _ROWS * row
        store_block(place, row)


def _fetched(is_written: bool) -> Any:
    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = typed_pointer(builder, values[0], _BYTE)
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        called = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(called, [place, number(int(is_written)), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.int64), made


@intrinsic
def prefetch_write(typing: Any, address: Any) -> Any:
    """Have a line of the cache ready that will be written."""
    return _fetched(is_written=True)


@intrinsic
def prefetch_read(typing: Any, address: Any) -> Any:
    """The same of one that will only be read."""
    return _fetched(is_written=False)
