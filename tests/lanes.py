"""A function of 16 numbers at a time, as the compiled kernels have them, over an array; needs Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from bertsmith.kernels.cpu.compilation import LOOPS
from bertsmith.kernels.cpu.simd import load, store


def over_lanes(function: Any) -> Callable[[np.ndarray], np.ndarray]:
    """From an array in fp32, of a multiple of 16 numbers, to what the function gives of each."""

    @njit(**LOOPS)
    def compute(x: int, to: int, size: int) -> None:
        for place in range(0, 4 * size, 64):
            store(to + place, function(load(x + place)))

    def found(x: np.ndarray) -> np.ndarray:
        made = np.empty_like(x)
        compute(x.ctypes.data, made.ctypes.data, len(x))
        return made

    return found
