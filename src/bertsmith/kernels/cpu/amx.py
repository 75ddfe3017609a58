"""Matrix products of bf16 or int8 by the processor's tile registers (Intel AMX), as Numba intrinsics.

There are eight tiles, numbered 0 to 7, of 16 rows of 64 bytes. Strides are in bytes. The rows of a right operand
are interleaved in pairs (bf16) or quads (int8), see simd_pairs.py.
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
from bertsmith.kernels.cpu.simd import I8, I32, typed_intrinsic, typed_pointer

_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18  # Linux
_NUM_TILES = 8
_TILE_ROWS = 16
BLOCK_SIZE = 2 * _TILE_ROWS  # rows and columns of four tiles of sums, and bf16 values in a row of a tile
TILE_ROW_BYTES = 64


def is_amx_available() -> bool:
    """Return True if Numba compiles for AMX, and the operating system lets this process use it."""
    if not has_cpu_feature("amx-bf16"):
        return False
    return bool(ctypes.CDLL(None).syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0)


def _tile_config() -> torch.Tensor:
    config = torch.zeros(64, dtype=torch.uint8)
    config[0] = 1  # the palette; there is no other
    config[16 : 16 + 2 * _NUM_TILES : 2] = TILE_ROW_BYTES
    config[48 : 48 + _NUM_TILES] = _TILE_ROWS
    return config


TILE_CONFIG = _tile_config()
"""The operand of `configure`: eight tiles of full size."""


def _call(builder: Any, name: str, *operands: Any) -> None:
    """Emit a call of an LLVM intrinsic that returns nothing."""
    function_type = ir.FunctionType(ir.VoidType(), [operand.type for operand in operands])
    builder.call(cgutils.get_or_insert_function(builder.module, function_type, f"llvm.{name}"), operands)


@typed_intrinsic(types.void(types.int64))
def configure(builder, address):
    """Configure this thread's tiles by the `TILE_CONFIG` at an address."""
    _call(builder, "x86.ldtilecfg", typed_pointer(builder, address, I8))


@typed_intrinsic(types.void())
def release(builder):
    """Reset this thread's tiles."""
    _call(builder, "x86.tilerelease")


@intrinsic(prefer_literal=True)
def zero_tile(typing_context: Any, tile: Any) -> Any:
    """Set a tile to 0."""

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        _call(builder, "x86.tilezero", I8(tile.literal_value))
        return context.get_dummy_value()

    return types.void(tile), generate


def _memory_intrinsic(name: str) -> Any:
    """Return an intrinsic that moves a tile from or to memory whose rows are `stride` bytes apart."""

    @intrinsic(prefer_literal=True)
    def move(typing_context: Any, tile: Any, address: Any, stride: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
            _, pointer, step = operands
            _call(builder, name, I8(tile.literal_value), typed_pointer(builder, pointer, I8), step)
            return context.get_dummy_value()

        return types.void(tile, types.int64, types.int64), generate

    return move


def _dot_intrinsic(name: str) -> Any:
    """Return an intrinsic that adds the product of the tiles a and b to the tile `sums`."""

    @intrinsic(prefer_literal=True)
    def dot(typing_context: Any, sums: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
            _call(builder, name, *(I8(tile.literal_value) for tile in (sums, a, b)))
            return context.get_dummy_value()

        return types.void(sums, a, b), generate

    return dot


_load_tile = _memory_intrinsic("x86.tileloadd64")
_store_tile = _memory_intrinsic("x86.tilestored64")
_dot_bf16 = _dot_intrinsic("x86.tdpbf16ps")  # fp32 [16, 16] += bf16 [16, 32] · [32, 16]
_dot_int8 = _dot_intrinsic("x86.tdpbssd")  # int32 [16, 16] += int8 [16, 64] · [64, 16]


@njit(**JIT_OPTIONS)
def zero_block():
    """Set the tiles 0 to 3, which hold a block of sums [32, 32], to 0."""
    zero_tile(0)
    zero_tile(1)
    zero_tile(2)
    zero_tile(3)


@njit(**JIT_OPTIONS)
def load_block(address, stride):
    """Load a block of sums [32, 32]."""
    lower = address + _TILE_ROWS * stride
    _load_tile(0, address, stride)
    _load_tile(1, address + TILE_ROW_BYTES, stride)
    _load_tile(2, lower, stride)
    _load_tile(3, lower + TILE_ROW_BYTES, stride)


@njit(**JIT_OPTIONS)
def store_block(address, stride):
    """Store a block of sums [32, 32]."""
    lower = address + _TILE_ROWS * stride
    _store_tile(0, address, stride)
    _store_tile(1, address + TILE_ROW_BYTES, stride)
    _store_tile(2, lower, stride)
    _store_tile(3, lower + TILE_ROW_BYTES, stride)


def _block_steps(dot: Any) -> tuple[Any, Any, Any, Any]:
    """Return the four functions that add the product of 32 rows of a and 32 columns of b to a block of sums.

    They are called in this order, and multiply 64 bytes of each row of a. `upper` and `lower` are the addresses of
    the first and the last 16 rows.
    """

    # A tile is zeroed as soon as it has been multiplied, and few tiles are used. While another thread computes on
    # the same core, there seem to be hardly more physical tile registers than names: a load waits for the product
    # that reads the tile's previous contents. A zeroed tile needs no register. The four products then take 80 ns
    # instead of 120 ns; without such a thread, they take 30 ns either way.
    @njit(**JIT_OPTIONS)
    def first(upper, a_stride, b, b_stride):
        _load_tile(4, upper, a_stride)
        _load_tile(5, b, b_stride)
        dot(0, 4, 5)

    @njit(**JIT_OPTIONS)
    def second(b, b_stride):
        _load_tile(6, b + TILE_ROW_BYTES, b_stride)
        dot(1, 4, 6)

    @njit(**JIT_OPTIONS)
    def third(lower, a_stride):
        zero_tile(4)
        _load_tile(4, lower, a_stride)
        dot(3, 4, 6)

    @njit(**JIT_OPTIONS)
    def fourth():
        zero_tile(6)
        dot(2, 4, 5)
        zero_tile(4)
        zero_tile(5)

    return first, second, third, fourth


_first, _second, _third, _fourth = _block_steps(_dot_bf16)
INT8_BLOCK_STEPS = _block_steps(_dot_int8)


@njit(**JIT_OPTIONS)
def accumulate_bf16(upper, lower, a_stride, b, b_stride):
    """Add the product of bf16 a [32, 32] and b [32, 32] to a block of sums; see `_block_steps`."""
    _first(upper, a_stride, b, b_stride)
    _second(b, b_stride)
    _third(lower, a_stride)
    _fourth()


@njit(**JIT_OPTIONS)
def multiply_block(accumulate, a, a_stride, b, out, num_columns, k, num_rows):
    """Compute out [32, num_columns] = a [32, k] · b [k, num_columns], or add the product to out.

    a and b are bf16, out is fp32. k and num_columns are multiples of 32. All 32 rows are computed: num_rows is for
    the function of the same name in microkernels.py.
    """
    stride = 4 * num_columns
    for column in range(0, stride, 4 * BLOCK_SIZE):
        block = out + column
        if accumulate:
            load_block(block, stride)
        else:
            zero_block()
        a_block, b_block = a, b + column
        for _ in range(0, k, BLOCK_SIZE):
            accumulate_bf16(a_block, a_block + _TILE_ROWS * a_stride, a_stride, b_block, stride)
            a_block += 2 * BLOCK_SIZE
            b_block += _TILE_ROWS * stride
        store_block(block, stride)


def _prefetch(builder: Any, address: Any, is_write: bool) -> None:
    """Emit a prefetch into all levels of the data cache."""
    _call(builder, "prefetch.p0", typed_pointer(builder, address, I8), I32(int(is_write)), I32(3), I32(1))


@typed_intrinsic(types.void(types.int64))
def prefetch_write(builder, address):
    """Prefetch a cache line that will be written."""
    _prefetch(builder, address, is_write=True)


@typed_intrinsic(types.void(types.int64))
def prefetch_read(builder, address):
    """Prefetch a cache line that will be read."""
    _prefetch(builder, address, is_write=False)
