"""Compilation and launch of kernels: what all kernel modules share.

A kernel is a C function of one pointer, to slots of 64 bits: addresses, integers, and the bits of floats. All
threads run it and divide the work among themselves by `thread_range` or by a counter. bf16 is stored as 16-bit
integers.

Compiled code is cached in a folder of our own, see kernel_cache.py.
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
from numba import carray, cfunc, config, njit, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from torch import Tensor

from bertsmith.kernels.kernel_cache import cache_folder

NUM_SLOTS = 25
# PyTorch's own OpenMP threads: a second pool would wait for cores on which the first one spins.
LIBRARY = next((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
llvm.load_library_permanently(str(LIBRARY))
llvm.initialize_native_asmparser()  # for inline assembly
thread_index = types.ExternalFunction("omp_get_thread_num", types.int32())
num_threads = types.ExternalFunction("omp_get_num_threads", types.int32())
barrier = types.ExternalFunction("GOMP_barrier", types.void())

# Vectorized sums need reassociation; NaN and infinity keep their meaning.
JIT_OPTIONS: dict[str, Any] = {
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
    "error_model": "numpy",
    "boundscheck": False,
}
uint32, float32 = np.uint32, np.float32
_CACHE_FOLDER = cache_folder()


def kernel(function: Any) -> Any:
    """Compile a kernel, or load it from the cache.

    Numba reads the folder from its configuration, which is restored: a user's functions stay in their folder.
    """
    if _CACHE_FOLDER is None:
        raise OSError("no folder for compiled kernels can be written to")
    user_folder, config.CACHE_DIR = config.CACHE_DIR, str(_CACHE_FOLDER)
    try:
        return cfunc("void(voidptr)", cache=True, **JIT_OPTIONS)(function)
    finally:
        config.CACHE_DIR = user_folder


def target_cpu() -> str:
    """Return LLVM's name of the processor for which Numba compiles."""
    return str(cpu_target.target_context.codegen().magic_tuple()[1])


def has_cpu_feature(feature: str) -> bool:
    """Return True if Numba compiles for a processor with a feature, by LLVM's name."""
    return f"+{feature}" in cpu_target.target_context.codegen().magic_tuple()[2].split(",")


def has_avx512_bf16() -> bool:
    """Return True if Numba compiles for a processor with AVX-512 BF16 and without AMX, which is faster."""
    return has_cpu_feature("avx512bf16") and not has_cpu_feature("amx-bf16")


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    """Convert an address to a pointer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), codegen


@intrinsic
def fetch_and_increment(typing_context: Any, address: Any) -> Any:
    """Increment the int64 at an address atomically and return its previous value."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        int64 = ir.IntType(64)
        pointer = builder.inttoptr(args[0], int64.as_pointer())
        return builder.atomic_rmw("add", pointer, int64(1), "monotonic")

    return types.int64(types.int64), codegen


@njit(**JIT_OPTIONS)
def load_slots(pointer):
    return carray(pointer, (NUM_SLOTS,), np.int64)


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
    """Round a float to bf16, ties to even, and return its bits."""
    bits = float32(value).view(np.uint32)
    is_odd = uint32(uint32(bits >> uint32(16)) & uint32(1))
    return np.uint16(uint32(uint32(bits + uint32(0x7FFF)) + is_odd) >> uint32(16))


@njit(**JIT_OPTIONS)
def load_scalar(is_bf16, address):
    """Load a number in bf16 or fp32 as fp32."""
    return (
        uint32(uint32(bf16_array(address, 1)[0]) << uint32(16)).view(np.float32)
        if is_bf16
        else float_array(address, 1)[0]
    )


@njit(**JIT_OPTIONS)
def store_scalar(is_bf16, address, value):
    """Store a number in bf16 or fp32.

    This must not be inlined: next to inlined code Numba drops stores to an array that is not read afterwards.
    """
    if is_bf16:
        bf16_array(address, 1)[0] = bf16_bits(value)
    else:
        float_array(address, 1)[0] = value


@njit(**JIT_OPTIONS)
def thread_range(size):
    """Return the start and end of this thread's part of range(size)."""
    index, count = np.int64(thread_index()), np.int64(num_threads())
    return size * index // count, size * (index + 1) // count


_gomp: Any = ctypes.CDLL(str(LIBRARY)).GOMP_parallel
_gomp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
_gomp.restype = None


def slot_values(arguments: Sequence[int | Tensor]) -> list[int]:
    """Return the slots of a kernel, for a tensor its address."""
    values = [value if isinstance(value, int) else value.data_ptr() for value in arguments]
    return values + [0] * (NUM_SLOTS - len(values))


def float_bits(value: float) -> int:
    """Return the bits of a float in fp32."""
    return int.from_bytes(struct.pack("=f", value), sys.byteorder)


class Launcher(Protocol):
    """Runs kernels: `launch` at once, a `KernelSequence` (program.py) later as part of a sequence."""

    def __call__(self, kernel: Any, *arguments: int | Tensor) -> None:
        """Run a kernel with these slots."""
        ...

    def workspace(self, size: int) -> Tensor:
        """Return at least `size` bytes of memory for the next kernel; later kernels may overwrite it."""
        ...


class _ImmediateLauncher:
    """Runs a kernel at once, on as many threads as PyTorch uses."""

    def __call__(self, kernel: Any, *arguments: int | Tensor) -> None:
        slots = array("q", slot_values(arguments))
        _gomp(kernel.address, slots.buffer_info()[0], torch.get_num_threads(), 0)

    def workspace(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8)


launch = _ImmediateLauncher()
