"""Compilation of kernels: what all kernel modules share.

A kernel is a C function of one pointer, to slots of 64 bits: addresses, integers, and the bits of floats. All
threads run it and divide the work among themselves by `thread_range` or by a counter. bf16 is stored as 16-bit
integers.

Compiled code is cached in a folder of our own, see kernel_cache.py.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import cfunc, config, types
from numba.core.registry import cpu_target

from bertsmith.kernels.kernel_cache import NO_FOLDER, cache_folder

# Vectorized sums need reassociation; NaN and infinity keep their meaning.
JIT_OPTIONS: dict[str, Any] = {
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
    "error_model": "numpy",
    "boundscheck": False,
}
KERNEL_SIGNATURE = types.void(types.CPointer(types.int64))
uint32, float32 = np.uint32, np.float32
_CACHE_FOLDER = cache_folder()
llvm.initialize_native_asmparser()  # for inline assembly


def kernel(function: Any) -> Any:
    """Compile a kernel, or load it from the cache.

    Numba reads the folder from its configuration, which is restored: a user's functions stay in their folder.
    """
    if _CACHE_FOLDER is None:
        raise OSError(NO_FOLDER)
    user_folder, config.CACHE_DIR = config.CACHE_DIR, str(_CACHE_FOLDER)
    try:
        return cfunc(KERNEL_SIGNATURE, cache=True, **JIT_OPTIONS)(function)
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
