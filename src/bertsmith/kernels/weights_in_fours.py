"""The body that rounds weights to 8-bit integers and has them in fours, as products of such integers read them.

Each column has a scale of its own, the same on both sides of 0, and is rounded to it. Columns stand 32 to a panel;
in it four terms of a column are neighbours.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.lanes import WIDTH, every, larger, load, store, store_bytes
from bertsmith.kernels.loops import BODY, LOOPS, F, as_float, floats, my_number, my_rows, put_number, slots
from bertsmith.kernels.pairs import (
    as_numbers,
    every_pair_at,
    largest_size,
    no_sums,
    pairs_at,
    sizes_of,
    store_fours,
    turn,
    with_fours,
    with_sizes,
)

WRITTEN_WITH = "aa3739defcb22c36"  # loops.py, lanes.py and pairs.py, see the first
COLUMNS = 2 * WIDTH  # of a panel
TERMS = 64  # are a multiple of it
_RIGHT = 4 * WIDTH  # bytes of a four of 16 columns
_FOUR = 2 * _RIGHT  # of a panel's
ROOM = WIDTH * TERMS  # bytes that a thread works in
_LARGEST = 127


@njit(**LOOPS)
def _scale(column, terms, least):
    """Of a column whose terms lie side by side."""
    sizes = no_sums()
    for place in range(column, column + 4 * terms, 4 * WIDTH):
        sizes = with_sizes(sizes, load(place))
    scale = largest_size(sizes) * F(1 / _LARGEST)
    return scale if not scale < least else least  # what is not a number stays


@njit(**LOOPS)
def _turned(x, column, terms, least, panel, scales, room):
    """Sixteen columns whose terms lie side by side, `column` bytes apart."""
    for j in range(WIDTH):
        put_number(0, scales + 4 * j, _scale(x + j * column, terms, least))
    for term in range(0, terms, TERMS):
        for j in range(WIDTH):
            own, by = x + j * column + 4 * term, every(F(1) / floats(scales + 4 * j, 1)[0])
            for k in range(0, TERMS, WIDTH):
                store_bytes(room + TERMS * j + k, load(own + 4 * k) * by)
        turn(room, TERMS, panel + term // 4 * _FOUR, _FOUR)


@njit(**LOOPS)
def _copied(x, row, terms, least, panel, scales):
    """Sixteen columns that lie side by side, their terms `row` bytes apart."""
    sizes = no_sums()
    for place in range(x, x + terms * row, row):
        sizes = with_sizes(sizes, load(place))
    scale = larger(sizes_of(sizes) * every(F(1 / _LARGEST)), every(least))
    store(scales, scale)
    by = every(F(1)) / scale
    for place in range(x, x + terms * row, 4 * row):
        two = place + 2 * row
        store_fours(panel, load(place) * by, load(place + row) * by, load(two) * by, load(two + row) * by)
        panel += _FOUR


# Slots: 0 weights in fp32, 1 bytes from a term of a column to the next, 2 from a column to the next, 3 terms,
# 4 columns, a multiple of COLUMNS, 5 the fours, 6 of each column the sum of its integers, 7 and its scale, 8 the
# least scale by its bits, 9 ROOM for each thread, 10 fours of ones.


@cfunc("void(voidptr)", **BODY)
def rounded(given):
    s = slots(given)
    terms, least, room = s[3], as_float(s[8]), s[9] + ROOM * np.int64(my_number())
    first, last = my_rows(s[4] // WIDTH)
    for number in range(first, last):
        column = WIDTH * number
        own, scales = s[0] + column * s[2], s[7] + 4 * column
        panel = s[5] + number // 2 * COLUMNS * terms + number % 2 * _RIGHT
        if s[1] == 4:
            _turned(own, s[2], terms, least, panel, scales, room)
        else:
            _copied(own, s[1], terms, least, panel, scales)
        sums, ones = no_sums(), every_pair_at(s[10])
        for place in range(panel, panel + terms // 4 * _FOUR, _FOUR):
            sums = with_fours(sums, ones, pairs_at(place))
        store(s[6] + 4 * column, as_numbers(sums))
