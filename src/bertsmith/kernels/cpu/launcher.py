"""Launch of kernels on PyTorch's threads, at once or in sequences, and what kernels know of their threads.

Threads do not sleep between the kernels of a sequence, and Python prepares all of them in one go, while its data
is in the processor's caches. Between two matrix products of some megabytes the preparation takes about six times
as long.
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
from numba import njit, types
from numba.extending import intrinsic
from torch import Tensor

from bertsmith.kernels.cpu.arrays import int64s
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, kernel

# PyTorch's own OpenMP threads: a second pool would wait for cores on which the first one spins.
_OPENMP_LIBRARY = str(next((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")))
llvm.load_library_permanently(_OPENMP_LIBRARY)
_get_thread_num = types.ExternalFunction("omp_get_thread_num", types.int32())
_get_num_threads = types.ExternalFunction("omp_get_num_threads", types.int32())
barrier = types.ExternalFunction("GOMP_barrier", types.void())


@njit(**JIT_OPTIONS)
def thread_index():
    return np.int64(_get_thread_num())


@njit(**JIT_OPTIONS)
def num_threads():
    return np.int64(_get_num_threads())


@njit(**JIT_OPTIONS)
def thread_range(size):
    """Return the start and end of this thread's part of range(size)."""
    index, count = thread_index(), num_threads()
    return size * index // count, size * (index + 1) // count


@intrinsic
def atomic_increment(typing_context: Any, address: Any) -> Any:
    """Increment the int64 at an address atomically and return its previous value."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        int64 = ir.IntType(64)
        pointer = builder.inttoptr(args[0], int64.as_pointer())
        return builder.atomic_rmw("add", pointer, int64(1), "monotonic")

    return types.int64(types.int64), codegen


_NUM_SLOTS = 25
_gomp: Any = ctypes.CDLL(_OPENMP_LIBRARY).GOMP_parallel
_gomp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
_gomp.restype = None


def slot_values(arguments: Sequence[int | Tensor]) -> list[int]:
    """Return the slots of a kernel, for a tensor its address."""
    values = [value if isinstance(value, int) else value.data_ptr() for value in arguments]
    return values + [0] * (_NUM_SLOTS - len(values))


def is_bf16(x: Tensor) -> int:
    """Return the slot of a kernel that tells bf16 (1) from fp32 (0)."""
    return int(x.dtype == torch.bfloat16)


def float_bits(value: float) -> int:
    """Return the bits of a float in fp32."""
    return int.from_bytes(struct.pack("=f", value), sys.byteorder)


class Launcher(Protocol):
    """Runs kernels: `launch` at once, a `KernelSequence` later as part of a sequence."""

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


@intrinsic
def _call(typing_context: Any, kernel: Any, slots: Any) -> Any:
    """Call the kernel at an address with the slots at another address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        function_type = ir.FunctionType(ir.VoidType(), [pointer])
        function = builder.inttoptr(args[0], function_type.as_pointer())
        builder.call(function, [builder.inttoptr(args[1], pointer)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


# Slots: 0 number of kernels, 1 their addresses, 2 the slots of all kernels.
@kernel
def run_sequence(s):
    kernels = int64s(s[1], s[0])
    for i in range(s[0]):
        _call(kernels[i], s[2] + 8 * _NUM_SLOTS * i)
        barrier()


class KernelSequence:
    """Kernels that run one after the other, each when all threads have finished the previous one.

    They share one workspace, so that it stays in the processor's caches.
    """

    def __init__(self) -> None:
        self._kernels: list[int] = []
        self._slots = array("q")
        self._arguments: list[Any] = []  # keeps tensors alive
        self._workspace = torch.empty(0, dtype=torch.uint8)

    def __call__(self, kernel: Any, *arguments: int | Tensor) -> None:
        """Append a kernel. Its tensors stay alive as long as the sequence."""
        self._kernels.append(kernel.address)
        self._slots.fromlist(slot_values(arguments))
        self._arguments.append(arguments)

    def workspace(self, size: int) -> Tensor:
        """Return the shared workspace, enlarged if necessary."""
        if size > len(self._workspace):
            self._workspace = torch.empty(size, dtype=torch.uint8)
        return self._workspace

    def run(self) -> None:
        """Run all kernels; to be called once, since kernels count in tensors that they are passed."""
        addresses = array("q", self._kernels)
        launch(run_sequence, len(addresses), addresses.buffer_info()[0], self._slots.buffer_info()[0])
