"""Threads within kernels: their indices, a barrier, and the division of work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as ir
import numpy as np
import torch
from numba import njit, types
from numba.extending import intrinsic

from bertsmith.kernels.cpu.compilation import JIT_OPTIONS

# PyTorch's own OpenMP threads: a second pool would wait for cores on which the first one spins.
OPENMP_LIBRARY = next((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
llvm.load_library_permanently(str(OPENMP_LIBRARY))
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
