"""Arrays and single numbers at addresses, in fp32 or in bf16, which is stored as uint16."""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic, overload

from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, float32, uint32


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    """Convert an address to a pointer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), codegen


@intrinsic
def slot_address(typing_context: Any, slots: Any, index: Any) -> Any:
    """Return the address of a slot."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(builder.gep(args[0], [args[1]]), ir.IntType(64))

    return types.int64(slots, types.int64), codegen


@njit(**JIT_OPTIONS)
def floats(address, size):
    return carray(_pointer(address), (size,), np.float32)


@njit(**JIT_OPTIONS)
def bf16s(address, size):
    return carray(_pointer(address), (size,), np.uint16)


@njit(**JIT_OPTIONS)
def int64s(address, size):
    return carray(_pointer(address), (size,), np.int64)


@njit(**JIT_OPTIONS)
def float_from_bits(bits):
    return uint32(bits).view(np.float32)


@njit(inline="always", **JIT_OPTIONS)
def bf16_bits(value):
    """Round a float to bf16, ties to even, and return its bits."""
    bits = float32(value).view(np.uint32)
    is_odd = uint32(uint32(bits >> uint32(16)) & uint32(1))
    return np.uint16(uint32(uint32(bits + uint32(0x7FFF)) + is_odd) >> uint32(16))


@njit(inline="always", **JIT_OPTIONS)
def float_from_bf16(bits):
    return uint32(uint32(bits) << uint32(16)).view(np.float32)


@njit(**JIT_OPTIONS)
def load_scalar(is_bf16, address):
    """Load a number in bf16 or fp32 as fp32."""
    return float_from_bf16(bf16s(address, 1)[0]) if is_bf16 else floats(address, 1)[0]


@njit(**JIT_OPTIONS)
def store_scalar(is_bf16, address, value):
    """Store a number in bf16 or fp32.

    This must not be inlined: next to inlined code Numba drops stores to an array that is not read afterwards.
    """
    if is_bf16:
        bf16s(address, 1)[0] = bf16_bits(value)
    else:
        floats(address, 1)[0] = value


def load_element(row, i):
    """Return an element of an array of fp32 or bf16 as fp32."""


def store_element(row, i, value):
    """Store an fp32 value in an array of fp32 or bf16."""


@overload(load_element, inline="always")
def _overload_load_element(row, i):
    if row.dtype == types.uint16:
        return lambda row, i: float_from_bf16(row[i])
    return lambda row, i: row[i]


@overload(store_element, inline="always")
def _overload_store_element(row, i, value):
    def store_bf16(row, i, value):
        row[i] = bf16_bits(value)

    def store_fp32(row, i, value):
        row[i] = value

    return store_bf16 if row.dtype == types.uint16 else store_fp32
