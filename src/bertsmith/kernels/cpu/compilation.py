"""What the compiled kernels are written with, and how they are called.

A body reads its arguments from slots of 64 bits: addresses, sizes, and floats by their bits. Threads that enter it
together share out the work. bf16 is held as 16-bit integers. Compiled code is kept beside these files or in
NUMBA_CACHE_DIR. Numba compiles anew where the file of a body has changed, and looks at no other: each says which
compilation.py and simd.py it was written with, and a test that these are they.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import llvmlite.binding as llvm
import llvmlite.ir as ir
import numpy as np
import torch
from numba import carray, njit, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from torch import Tensor

NUM_SLOTS = 25
# The threads of torch's own operations: a second set would wait for cores that the first one spins on.
LIBRARY = next((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
llvm.load_library_permanently(str(LIBRARY))
llvm.initialize_native_asmparser()  # for instructions that LLVM is given by name
thread_index = types.ExternalFunction("omp_get_thread_num", types.int32())
num_threads = types.ExternalFunction("omp_get_num_threads", types.int32())
barrier = types.ExternalFunction("GOMP_barrier", types.void())

# Sums may be added in another order, as vectors need it; what is not a number stays one.
JIT_OPTIONS: dict[str, Any] = {
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
    "error_model": "numpy",
    "boundscheck": False,
}
KERNEL_OPTIONS = {**JIT_OPTIONS, "cache": True}
uint32, float32 = np.uint32, np.float32


def target_cpu() -> str:
    """Which one Numba compiles for, as LLVM calls it."""
    return str(cpu_target.target_context.codegen().magic_tuple()[1])


def has_cpu_feature(unit: str) -> bool:
    """Whether Numba compiles for a processor with this unit, as LLVM calls it."""
    return f"+{unit}" in cpu_target.target_context.codegen().magic_tuple()[2].split(",")


def has_avx512_bf16() -> bool:
    """Whether Numba compiles for a processor that multiplies bf16 in registers, and not in tiles, which are
    quicker."""
    return has_cpu_feature("avx512bf16") and not has_cpu_feature("amx-bf16")


@intrinsic
def _pointer(typing: Any, address: Any) -> Any:
    """An address as a pointer."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), made


@intrinsic
def fetch_and_increment(typing: Any, address: Any) -> Any:
    """The integer of memory, which becomes one more: no two threads are given the same."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        whole = ir.IntType(64)
        place = builder.inttoptr(values[0], whole.as_pointer())
        return builder.atomic_rmw("add", place, whole(1), "monotonic")

    return types.int64(types.int64), made


@njit(**JIT_OPTIONS)
def load_slots(given):
    return carray(given, (NUM_SLOTS,), np.int64)


@njit(**JIT_OPTIONS)
def float_array(address, size):
    return carray(_pointer(address), (size,), np.float32)


@njit(**JIT_OPTIONS)
def bf16_array(address, size):
    return carray(_pointer(address), (size,), np.uint16)


@njit(**JIT_OPTIONS)
def int64_array(address, size):
    return carray(_pointer(address), (size,), np.int64)


@njit(**JIT_OPTIONS)
def float_from_bits(bits):
    return uint32(bits).view(np.float32)


@njit(inline="always", **JIT_OPTIONS)
def bf16_bits(value):
    """Of a float in bf16: the nearest, of two that are as near the even one."""
    bits = float32(value).view(np.uint32)
    odd = uint32(uint32(bits >> uint32(16)) & uint32(1))
    return np.uint16(uint32(uint32(bits + uint32(0x7FFF)) + odd) >> uint32(16))


@njit(**JIT_OPTIONS)
def load_scalar(half, address):
    """A number of memory that holds bf16 or fp32, in fp32."""
    return (
        uint32(uint32(bf16_array(address, 1)[0]) << uint32(16)).view(np.float32)
        if half
        else float_array(address, 1)[0]
    )


@njit(**JIT_OPTIONS)
def store_scalar(half, address, value):
    """Put a number there. By a function of its own: beside what is inlined, Numba takes an array that is not read
    afterwards for one that is not read at all, and leaves out what is put there."""
    if half:
        bf16_array(address, 1)[0] = bf16_bits(value)
    else:
        float_array(address, 1)[0] = value


@njit(**JIT_OPTIONS)
def thread_range(rows):
    mine, of = np.int64(thread_index()), np.int64(num_threads())
    return rows * mine // of, rows * (mine + 1) // of


_gomp: Any = ctypes.CDLL(str(LIBRARY)).GOMP_parallel
_gomp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
_gomp.restype = None
_NONE = [0] * NUM_SLOTS


def slot_values(arguments: Sequence[int | Tensor]) -> list[int]:
    """What a body finds in its slots; of a tensor it is told where it lies."""
    given = [value if isinstance(value, int) else value.data_ptr() for value in arguments]
    return given + _NONE[len(given) :]


class Launcher(Protocol):
    """What runs a body with these arguments: at once, or together with others, see program.py."""

    def __call__(self, body: Any, *arguments: int | Tensor) -> None:
        """Have the body run."""
        ...

    def workspace(self, size: int) -> Tensor:
        """Bytes for the next body to work in, so many or more: what it leaves there may be written over."""
        ...


class _Launch:
    """Runs a body at once, on as many threads as torch computes on."""

    def __call__(self, body: Any, *arguments: int | Tensor) -> None:
        """See `Run`."""
        values = array("q", slot_values(arguments))
        _gomp(body.address, values.buffer_info()[0], torch.get_num_threads(), 0)

    def workspace(self, size: int) -> Tensor:
        """See `Run`."""
        return torch.empty(size, dtype=torch.uint8)


launch = _Launch()


def float_bits(value: float) -> int:
    """Of a float in fp32."""
    return int.from_bytes(struct.pack("=f", value), sys.byteorder)
