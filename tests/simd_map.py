"""Apply a SIMD function of the compiled kernels to an array; needs Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from bertsmith.kernels.cpu.compilation import JIT_OPTIONS
from bertsmith.kernels.cpu.simd import load, store


def map_vectors(function: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function of an fp32 array whose size is a multiple of 16, computed 16 numbers at a time."""

    @njit(**JIT_OPTIONS)
    def compute(source: int, target: int, size: int) -> None:
        for offset in range(0, 4 * size, 64):
            store(target + offset, function(load(source + offset)))

    def apply(x: np.ndarray) -> np.ndarray:
        result = np.empty_like(x)
        compute(x.ctypes.data, result.ctypes.data, len(x))
        return result

    return apply
