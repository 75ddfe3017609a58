"""Scalar helpers of the kernels: elements of arrays in fp32 or bf16, dropout, and LayerNorm's statistics."""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.extending import overload

from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, bf16_bits, float32, uint32


def load_element(row, i):
    """Return an element of an array of fp32, or of uint16 that holds bf16, as fp32."""


def store_element(row, i, value):
    """Store an fp32 value in an array of fp32, or of uint16 that holds bf16."""


@overload(load_element, inline="always")
def _overload_load_element(row, i):
    if row.dtype == types.uint16:
        return lambda row, i: uint32(uint32(row[i]) << uint32(16)).view(np.float32)
    return lambda row, i: row[i]


@overload(store_element, inline="always")
def _overload_store_element(row, i, value):
    def store_bf16(row, i, value):
        row[i] = bf16_bits(value)

    def store_fp32(row, i, value):
        row[i] = value

    return store_bf16 if row.dtype == types.uint16 else store_fp32


@njit(inline="always", **JIT_OPTIONS)
def dropout_scale(index, seed_low, seed_high, threshold, scale):
    """Return the dropout factor of an element: 0 with probability threshold / 65,536, and `scale` otherwise.

    The upper 16 bits of a hash of its index are compared with the threshold. The hash is lowbias32 (Wellons 2018),
    with a second word of the seed mixed in halfway. `simd.dropout_mask` computes the same for 16 elements.
    """
    x = uint32(uint32(uint32(index) * uint32(0x9E3779B9)) ^ seed_low)
    x = uint32(uint32(x ^ uint32(x >> uint32(16))) * uint32(0x7FEB352D))
    x = uint32(x ^ seed_high)
    x = uint32(uint32(x ^ uint32(x >> uint32(15))) * uint32(0x846CA68B))
    x = uint32(x ^ uint32(x >> uint32(16)))
    return scale if uint32(x >> uint32(16)) >= threshold else float32(0)


@njit(**JIT_OPTIONS)
def mean_and_rstd(values, epsilon):
    """Return the mean, and 1 / sqrt(variance + epsilon), of an fp32 array."""
    total, squares = float32(0), float32(0)
    for j in range(len(values)):
        total += values[j]
    mean = total / float32(len(values))
    for j in range(len(values)):
        centered = values[j] - mean
        squares += centered * centered
    return mean, float32(1) / np.sqrt(squares / float32(len(values)) + epsilon)
