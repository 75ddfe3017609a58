"""An element of an array at a time, in fp32 or bf16; what dropout multiplies it by; and LayerNorm's moments."""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.extending import overload

from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, bf16_bits, float32, uint32


def load_element(row, i):
    """An element as fp32."""


def store_element(row, i, value):
    """Store an element."""


@overload(load_element, inline="always")
def _got(row, i):
    if row.dtype == types.uint16:
        return lambda row, i: uint32(uint32(row[i]) << uint32(16)).view(np.float32)
    return lambda row, i: row[i]


@overload(store_element, inline="always")
def _is_put(row, i, value):
    def rounded(row, i, value):
        row[i] = bf16_bits(value)

    def as_it_is(row, i, value):
        row[i] = value

    return rounded if row.dtype == types.uint16 else as_it_is


@njit(inline="always", **JIT_OPTIONS)
def dropout_scale(number, low, high, dropped, scale):
    """What an element is multiplied by in dropout: 16 bits of a hash of its number decide, of 65,536 values
    `dropped` drop it. The hash is lowbias32 (Wellons 2018), its second half with other bits of the seed."""
    x = uint32(uint32(uint32(number) * uint32(0x9E3779B9)) ^ low)
    x = uint32(uint32(x ^ uint32(x >> uint32(16))) * uint32(0x7FEB352D))
    x = uint32(x ^ high)
    x = uint32(uint32(x ^ uint32(x >> uint32(15))) * uint32(0x846CA68B))
    x = uint32(x ^ uint32(x >> uint32(16)))
    return scale if uint32(x >> uint32(16)) >= dropped else float32(0)


@njit(**JIT_OPTIONS)
def mean_and_rstd(values, epsilon):
    """What LayerNorm takes from each of them, their mean, and multiplies by, 1/deviation."""
    total, square = float32(0), float32(0)
    for j in range(len(values)):
        total += values[j]
    mean = total / float32(len(values))
    for j in range(len(values)):
        apart = values[j] - mean
        square += apart * apart
    return mean, float32(1) / np.sqrt(square / float32(len(values)) + epsilon)
