"""An element of an array at a time, in fp32 or bf16; what dropout multiplies it by; and LayerNorm's moments."""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.extending import overload

from bertsmith.kernels.cpu.compilation import LOOPS, F, U, half_bits


def get_one(row, i):
    """An element as fp32."""


def put_one(row, i, value):
    """Store an element."""


@overload(get_one, inline="always")
def _got(row, i):
    if row.dtype == types.uint16:
        return lambda row, i: U(U(row[i]) << U(16)).view(np.float32)
    return lambda row, i: row[i]


@overload(put_one, inline="always")
def _is_put(row, i, value):
    def rounded(row, i, value):
        row[i] = half_bits(value)

    def as_it_is(row, i, value):
        row[i] = value

    return rounded if row.dtype == types.uint16 else as_it_is


@njit(inline="always", **LOOPS)
def kept_one(number, low, high, dropped, scale):
    """What an element is multiplied by in dropout: 16 bits of a hash of its number decide, of 65,536 values
    `dropped` drop it. The hash is lowbias32 (Wellons 2018), its second half with other bits of the seed."""
    x = U(U(U(number) * U(0x9E3779B9)) ^ low)
    x = U(U(x ^ U(x >> U(16))) * U(0x7FEB352D))
    x = U(x ^ high)
    x = U(U(x ^ U(x >> U(15))) * U(0x846CA68B))
    x = U(x ^ U(x >> U(16)))
    return scale if U(x >> U(16)) >= dropped else F(0)


@njit(**LOOPS)
def moments(values, epsilon):
    """What LayerNorm takes from each of them, their mean, and multiplies by, 1/deviation."""
    total, square = F(0), F(0)
    for j in range(len(values)):
        total += values[j]
    mean = total / F(len(values))
    for j in range(len(values)):
        apart = values[j] - mean
        square += apart * apart
    return mean, F(1) / np.sqrt(square / F(len(values)) + epsilon)
