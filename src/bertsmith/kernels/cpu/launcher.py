"""Launch of kernels on PyTorch's threads."""

from __future__ import annotations

import ctypes
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from bertsmith.kernels.cpu.threads import OPENMP_LIBRARY

NUM_SLOTS = 25
_gomp: Any = ctypes.CDLL(str(OPENMP_LIBRARY)).GOMP_parallel
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
