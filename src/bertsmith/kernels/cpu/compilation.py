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

SLOTS = 25
# The threads of torch's own operations: a second set would wait for cores that the first one spins on.
LIBRARY = next((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
llvm.load_library_permanently(str(LIBRARY))
llvm.initialize_native_asmparser()  # for instructions that LLVM is given by name
my_number = types.ExternalFunction("omp_get_thread_num", types.int32())
how_many = types.ExternalFunction("omp_get_num_threads", types.int32())
wait_for_all = types.ExternalFunction("GOMP_barrier", types.void())

# Sums may be added in another order, as vectors need it; what is not a number stays one.
LOOPS: dict[str, Any] = {
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
    "error_model": "numpy",
    "boundscheck": False,
}
BODY = {**LOOPS, "cache": True}
U, F = np.uint32, np.float32


def processor() -> str:
    """Which one Numba compiles for, as LLVM calls it."""
    return str(cpu_target.target_context.codegen().magic_tuple()[1])


def compiles_for(unit: str) -> bool:
    """Whether Numba compiles for a processor with this unit, as LLVM calls it."""
    return f"+{unit}" in cpu_target.target_context.codegen().magic_tuple()[2].split(",")


def multiplies_half() -> bool:
    """Whether Numba compiles for a processor that multiplies bf16 in registers, and not in tiles, which are
    quicker."""
    return compiles_for("avx512bf16") and not compiles_for("amx-bf16")


@intrinsic
def _pointer(typing: Any, address: Any) -> Any:
    """An address as a pointer."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), made


@intrinsic
def next_number(typing: Any, address: Any) -> Any:
    """The integer of memory, which becomes one more: no two threads are given the same."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        whole = ir.IntType(64)
        place = builder.inttoptr(values[0], whole.as_pointer())
        return builder.atomic_rmw("add", place, whole(1), "monotonic")

    return types.int64(types.int64), made


@njit(**LOOPS)
def slots(given):
    return carray(given, (SLOTS,), np.int64)


@njit(**LOOPS)
def floats(address, size):
    return carray(_pointer(address), (size,), np.float32)


@njit(**LOOPS)
def halves(address, size):
    return carray(_pointer(address), (size,), np.uint16)


@njit(**LOOPS)
def integers(address, size):
    return carray(_pointer(address), (size,), np.int64)


@njit(**LOOPS)
def as_float(bits):
    return U(bits).view(np.float32)


@njit(inline="always", **LOOPS)
def half_bits(value):
    """Of a float in bf16: the nearest, of two that are as near the even one."""
    bits = F(value).view(np.uint32)
    odd = U(U(bits >> U(16)) & U(1))
    return np.uint16(U(U(bits + U(0x7FFF)) + odd) >> U(16))


@njit(**LOOPS)
def number_at(half, address):
    """A number of memory that holds bf16 or fp32, in fp32."""
    return U(U(halves(address, 1)[0]) << U(16)).view(np.float32) if half else floats(address, 1)[0]


@njit(**LOOPS)
def put_number(half, address, value):
    """Put a number there. By a function of its own: beside what is inlined, Numba takes an array that is not read
    afterwards for one that is not read at all, and leaves out what is put there."""
    if half:
        halves(address, 1)[0] = half_bits(value)
    else:
        floats(address, 1)[0] = value


@njit(**LOOPS)
def my_rows(rows):
    mine, of = np.int64(my_number()), np.int64(how_many())
    return rows * mine // of, rows * (mine + 1) // of


_gomp: Any = ctypes.CDLL(str(LIBRARY)).GOMP_parallel
_gomp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
_gomp.restype = None
_NONE = [0] * SLOTS


def values_of(arguments: Sequence[int | Tensor]) -> list[int]:
    """What a body finds in its slots; of a tensor it is told where it lies."""
    given = [value if isinstance(value, int) else value.data_ptr() for value in arguments]
    return given + _NONE[len(given) :]


class Run(Protocol):
    """What runs a body with these arguments: at once, or together with others, see program.py."""

    def __call__(self, body: Any, *arguments: int | Tensor) -> None:
        """Have the body run."""
        ...

    def room(self, size: int) -> Tensor:
        """Bytes for the next body to work in, so many or more: what it leaves there may be written over."""
        ...


class _Launch:
    """Runs a body at once, on as many threads as torch computes on."""

    def __call__(self, body: Any, *arguments: int | Tensor) -> None:
        """See `Run`."""
        values = array("q", values_of(arguments))
        _gomp(body.address, values.buffer_info()[0], torch.get_num_threads(), 0)

    def room(self, size: int) -> Tensor:
        """See `Run`."""
        return torch.empty(size, dtype=torch.uint8)


launch = _Launch()


def bits(value: float) -> int:
    """Of a float in fp32."""
    return int.from_bytes(struct.pack("=f", value), sys.byteorder)
