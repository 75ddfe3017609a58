"""Panels: how the bodies of products in bf16 read what they multiply by.

Its columns stand 16 or 32 to a panel, its terms in pairs, in the order in which they are read. A matrix may lie in
memory in fp32: it is rounded on the way.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from bertsmith.kernels.cpu.compilation import LOOPS, F, U, floats, half_bits, halves
from bertsmith.kernels.cpu.row_kernels import gelu_of, gelu_slopes_of
from bertsmith.kernels.cpu.simd import WIDTH, every, get, load, store, store_half
from bertsmith.kernels.cpu.simd_pairs import join, join_lanes, turn

COLUMNS = 2 * WIDTH  # of a panel, but for those of 16
RIGHT = 4 * WIDTH  # bytes of 16 pairs of terms
PAIR = 2 * RIGHT  # of a pair of terms of a panel
APART = 64  # bytes between panels: at a power of two they would share a part of the cache
SLICE = 32  # terms that a thread copies before it looks for others
_BLOCK = 2 * WIDTH  # terms of 16 columns that are turned at a time
TURNED = 2 * WIDTH * _BLOCK  # bytes of what is turned


def up(count, of):
    """How many of a size there are in a count, the last one not whole."""
    return (count + of - 1) // of


panels_of = njit(inline="always", **LOOPS)(up)


@njit(inline="always", **LOOPS)
def rounded(half, address):
    """A number of memory as bf16, by its bits."""
    return U(halves(address, 1)[0]) if half else U(half_bits(floats(address, 1)[0]))


@njit(**LOOPS)
def paired(half, x, x_term, x_column, terms, columns, wide, to, row):
    """Pairs of terms as `to` wants them, one number after the other: what the others leave. Behind the last term
    and the last column there are zeros. wide: columns of `to`; row: its bytes from one pair to the next."""
    for term in range(0, terms, 2):
        made = floats(to + term // 2 * row, wide).view(np.uint32)
        for j in range(wide):
            pair = U(0)
            if j < columns:
                own = x + term * x_term + j * x_column
                pair = rounded(half, own)
                if term + 1 < terms:
                    pair = U(pair | U(rounded(half, own + x_term) << U(16)))
            made[j] = pair


@njit(**LOOPS)
def copied_into(half, x, x_term, terms, columns, to, per, apart):
    """Into panels of `per` columns: those of x that lie side by side."""
    size, row = 2 if half else 4, 4 * per
    whole, even = columns // per * per, terms // 2 * 2
    for term in range(0, even, 2):
        own, panel = x + term * x_term, to + term // 2 * row
        for _ in range(0, whole, per):
            for c in range(0, per, WIDTH):
                here = own + size * c
                if half:
                    join(here, here + x_term, panel + 4 * c)
                else:
                    join_lanes(load(here), load(here + x_term), panel + 4 * c)
            own += size * per
            panel += apart
    if even < terms:
        last, place = x + even * x_term, to + even // 2 * row
        for panel in range(whole // per):
            paired(half, last + size * per * panel, x_term, size, 1, per, per, place + panel * apart, row)
    if whole < columns:
        rest = to + whole // per * apart
        paired(half, x + size * whole, x_term, size, terms, columns - whole, per, rest, row)


@njit(**LOOPS)
def turned_into(half, x, x_column, terms, columns, to, apart, kept):
    """Into panels of 32 columns: those of x whose terms lie side by side. kept: where 16 columns lie meanwhile."""
    size, whole = 2 if half else 4, terms // _BLOCK * _BLOCK
    for column in range(0, columns, WIDTH):
        own, count = x + column * x_column, min(WIDTH, columns - column)
        panel = to + column // COLUMNS * apart + column % COLUMNS * 4
        done = whole if count == WIDTH else 0
        for term in range(0, done, _BLOCK):
            if half:
                turn(own + 2 * term, x_column, panel + term // 2 * PAIR, PAIR)
            else:
                for j in range(WIDTH):
                    here, there = own + j * x_column + 4 * term, kept + 2 * _BLOCK * j
                    store_half(there, load(here))
                    store_half(there + 2 * WIDTH, load(here + 4 * WIDTH))
                turn(kept, 2 * _BLOCK, panel + term // 2 * PAIR, PAIR)
        if done < terms:
            rest = panel + done // 2 * PAIR
            paired(half, own + size * done, size, x_column, terms - done, count, WIDTH, rest, PAIR)
    if columns % COLUMNS and columns % COLUMNS <= WIDTH:
        panel = to + columns // COLUMNS * apart + RIGHT
        for pair in range((terms + 1) // 2):
            store(panel + pair * PAIR, every(F(0)))


@njit(**LOOPS)
def summed(half, x, x_term, terms, columns, sums):
    """Over the terms of each column."""
    size, whole = 2 if half else 4, columns // WIDTH * WIDTH
    for j in range(0, whole, WIDTH):
        total = get(half, x + size * j)
        for term in range(1, terms):
            total = total + get(half, x + term * x_term + size * j)
        store(sums + 4 * j, total)
    for j in range(whole, columns):
        rest = F(0)
        for term in range(terms):
            here = x + term * x_term + size * j
            rest += U(rounded(half, here) << U(16)).view(np.float32) if half else floats(here, 1)[0]
        floats(sums + 4 * j, 1)[0] = rest


@njit(**LOOPS)
def finished(out, activated, before, at, width, columns, rows):
    """Rows of out, while they are in the cache: see slots 16 and 17 of `by_rows`. at: where these rows begin."""
    for place in range(0, rows * width, width):
        own = halves(out + place, columns)
        if activated:
            gelu_of(own, halves(activated + at + place, columns))
        elif before:
            gelu_slopes_of(halves(before + at + place, columns), own, own)
