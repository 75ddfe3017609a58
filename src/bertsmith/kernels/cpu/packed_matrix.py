"""Panels: how the bodies of products in bf16 read what they multiply by.

Its columns stand 16 or 32 to a panel, its terms in pairs, in the order in which they are read. A matrix may lie in
memory in fp32: it is rounded on the way.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numba.extending import register_jitable

from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, bf16_array, bf16_bits, float32, float_array, uint32
from bertsmith.kernels.cpu.row_kernels import gelu_backward_into, gelu_into
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH, broadcast_scalar, load, load_as_float, store, store_bf16
from bertsmith.kernels.cpu.simd_pairs import interleave_bf16, interleave_to_bf16, transpose_16x16

COLUMNS = 2 * VECTOR_WIDTH  # of a panel, but for those of 16
HALF_PANEL_BYTES = 4 * VECTOR_WIDTH  # bytes of 16 pairs of terms
PAIR_BYTES = 2 * HALF_PANEL_BYTES  # of a pair of terms of a panel
PANEL_PADDING_BYTES = 64  # bytes between panels: at a power of two they would share a part of the cache
PACK_ROWS = 32  # terms that a thread copies before it looks for others
_BLOCK = 2 * VECTOR_WIDTH  # terms of 16 columns that are turned at a time
TRANSPOSE_BYTES = 2 * VECTOR_WIDTH * _BLOCK  # bytes of what is turned


@register_jitable(inline="always", **JIT_OPTIONS)
def ceil_div(count, size):
    """Return the integer count / size, rounded up; callable from Python and from kernels."""
    return (count + size - 1) // size


@njit(inline="always", **JIT_OPTIONS)
def bf16_bits_at(half, address):
    """A number of memory as bf16, by its bits."""
    return uint32(bf16_array(address, 1)[0]) if half else uint32(bf16_bits(float_array(address, 1)[0]))


@njit(**JIT_OPTIONS)
def pack_remainder(half, x, x_term, x_column, terms, columns, wide, to, row):
    """Pairs of terms as `to` wants them, one number after the other: what the others leave. Behind the last term
    and the last column there are zeros. wide: columns of `to`; row: its bytes from one pair to the next."""
    for term in range(0, terms, 2):
        made = float_array(to + term // 2 * row, wide).view(np.uint32)
        for j in range(wide):
            pair = uint32(0)
            if j < columns:
                own = x + term * x_term + j * x_column
                pair = bf16_bits_at(half, own)
                if term + 1 < terms:
                    pair = uint32(pair | uint32(bf16_bits_at(half, own + x_term) << uint32(16)))
            made[j] = pair


@njit(**JIT_OPTIONS)
def pack_row_major(half, x, x_term, terms, columns, to, per, apart):
    """Into panels of `per` columns: those of x that lie side by side."""
    size, row = 2 if half else 4, 4 * per
    whole, even = columns // per * per, terms // 2 * 2
    for term in range(0, even, 2):
        own, panel = x + term * x_term, to + term // 2 * row
        for _ in range(0, whole, per):
            for c in range(0, per, VECTOR_WIDTH):
                here = own + size * c
                if half:
                    interleave_bf16(here, here + x_term, panel + 4 * c)
                else:
                    interleave_to_bf16(load(here), load(here + x_term), panel + 4 * c)
            own += size * per
            panel += apart
    if even < terms:
        last, place = x + even * x_term, to + even // 2 * row
        for panel in range(whole // per):
            pack_remainder(
                half, last + size * per * panel, x_term, size, 1, per, per, place + panel * apart, row
            )
    if whole < columns:
        rest = to + whole // per * apart
        pack_remainder(half, x + size * whole, x_term, size, terms, columns - whole, per, rest, row)


@njit(**JIT_OPTIONS)
def pack_column_major(half, x, x_column, terms, columns, to, apart, kept):
    """Into panels of 32 columns: those of x whose terms lie side by side. kept: where 16 columns lie meanwhile."""
    size, whole = 2 if half else 4, terms // _BLOCK * _BLOCK
    for column in range(0, columns, VECTOR_WIDTH):
        own, count = x + column * x_column, min(VECTOR_WIDTH, columns - column)
        panel = to + column // COLUMNS * apart + column % COLUMNS * 4
        done = whole if count == VECTOR_WIDTH else 0
        for term in range(0, done, _BLOCK):
            if half:
                transpose_16x16(own + 2 * term, x_column, panel + term // 2 * PAIR_BYTES, PAIR_BYTES)
            else:
                for j in range(VECTOR_WIDTH):
                    here, there = own + j * x_column + 4 * term, kept + 2 * _BLOCK * j
                    store_bf16(there, load(here))
                    store_bf16(there + 2 * VECTOR_WIDTH, load(here + 4 * VECTOR_WIDTH))
                transpose_16x16(kept, 2 * _BLOCK, panel + term // 2 * PAIR_BYTES, PAIR_BYTES)
        if done < terms:
            rest = panel + done // 2 * PAIR_BYTES
            pack_remainder(
                half, own + size * done, size, x_column, terms - done, count, VECTOR_WIDTH, rest, PAIR_BYTES
            )
    if columns % COLUMNS and columns % COLUMNS <= VECTOR_WIDTH:
        panel = to + columns // COLUMNS * apart + HALF_PANEL_BYTES
        for pair in range((terms + 1) // 2):
            store(panel + pair * PAIR_BYTES, broadcast_scalar(float32(0)))


@njit(**JIT_OPTIONS)
def column_sums(half, x, x_term, terms, columns, sums):
    """Over the terms of each column."""
    size, whole = 2 if half else 4, columns // VECTOR_WIDTH * VECTOR_WIDTH
    for j in range(0, whole, VECTOR_WIDTH):
        total = load_as_float(half, x + size * j)
        for term in range(1, terms):
            total = total + load_as_float(half, x + term * x_term + size * j)
        store(sums + 4 * j, total)
    for j in range(whole, columns):
        rest = float32(0)
        for term in range(terms):
            here = x + term * x_term + size * j
            rest += (
                uint32(bf16_bits_at(half, here) << uint32(16)).view(np.float32)
                if half
                else float_array(here, 1)[0]
            )
        float_array(sums + 4 * j, 1)[0] = rest


@njit(**JIT_OPTIONS)
def apply_epilogue(out, activated, before, at, width, columns, rows):
    """Rows of out, while they are in the cache: see slots 16 and 17 of `by_rows`. at: where these rows begin."""
    for place in range(0, rows * width, width):
        own = bf16_array(out + place, columns)
        if activated:
            gelu_into(own, bf16_array(activated + at + place, columns))
        elif before:
            gelu_backward_into(bf16_array(before + at + place, columns), own, own)
