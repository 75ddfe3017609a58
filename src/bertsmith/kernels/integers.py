"""A layer in 8-bit integers in one body, where products of such integers are not the processor's own.

Its inputs are rounded, multiplied, and the sums made what they stand for. Integers are multiplied in pairs of 16
bits, which any processor with AVX2 does, twice as many at a time as numbers in fp32; all sums are exact.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.lanes import WIDTH, every, load, put, store_wide_bytes
from bertsmith.kernels.loops import BODY, LOOPS, as_float, floats, how_many, my_number, slots
from bertsmith.kernels.pairs import as_numbers, every_pair_at, no_sums, pairs_at, with_pairs
from bertsmith.kernels.rounding import spanned, stood_for

WRITTEN_WITH = "08c03b42382b9fd7"  # loops.py, lanes.py and rounding.py, see the first
_ROWS = 64  # whose integers a thread keeps
_AT_A_TIME = 4


def room(columns: int) -> int:
    """How many bytes a thread works in."""
    return 2 * _ROWS * columns + 8 * _ROWS + 4 * columns + 4 * WIDTH


@njit(inline="always", **LOOPS)
def _finished(half, sums, row, rows, knows, to, nowhere, weights, scale, bias):
    """A row's sums as what they stand for, if there is such a row. knows: where its step is, the middle behind."""
    step, middle = every(knows[row]), every(knows[_ROWS + row])
    put(half, to if row < rows else nowhere, stood_for(as_numbers(sums), step, middle, weights, scale, bias))


# Slots: 0 whether x is bf16, 1 x, 2 factors of its columns, 3 weights, see `FastAnswers.integer_weights`, 4 the
# result, 5 to 7 of each output the sum of its weights, scale and bias, 8 rows, 9 columns, 10 outputs, 11 the least
# step by its bits, 12 `room` for each thread, 13 how large it is, 14 whether the result is bf16.


@cfunc("void(voidptr)", **BODY)
def linear(given):
    s = slots(given)
    half, half_out, columns, outputs, least = s[0], s[14], s[9], s[10], as_float(s[11])
    size, size_out, by = 2 if half else 4, 2 if half_out else 4, 2 * columns
    mine = s[12] + s[13] * np.int64(my_number())
    here = mine + _ROWS * by + 8 * _ROWS
    nowhere, knows = here + 4 * columns, floats(mine + _ROWS * by, 2 * _ROWS)
    blocks = (s[8] + _ROWS - 1) // _ROWS
    for block in range(np.int64(my_number()), blocks, np.int64(how_many())):
        first = block * _ROWS
        rows = min(_ROWS, s[8] - first)
        for i in range(rows):
            step, middle = spanned(half, s[1] + size * (first + i) * columns, s[2], columns, least, here)
            knows[i], knows[_ROWS + i] = step, middle
            for j in range(0, columns, WIDTH):
                value = (load(here + 4 * j) - every(middle)) / every(step)
                store_wide_bytes(mine + i * by + 2 * j, value)
        for column in range(0, outputs, WIDTH):
            w, scale, bias = s[5] + 4 * column, s[6] + 4 * column, s[7] + 4 * column
            for i in range(0, rows, _AT_A_TIME):
                own, panel = mine + i * by, s[3] + column * by
                p = q = r = o = no_sums()
                for _ in range(columns // 2):
                    pairs = pairs_at(panel)
                    p = with_pairs(p, every_pair_at(own), pairs)
                    q = with_pairs(q, every_pair_at(own + by), pairs)
                    r = with_pairs(r, every_pair_at(own + 2 * by), pairs)
                    o = with_pairs(o, every_pair_at(own + 3 * by), pairs)
                    panel += 4 * WIDTH
                    own += 4
                to, next_one = s[4] + size_out * ((first + i) * outputs + column), size_out * outputs
                _finished(half_out, p, i, rows, knows, to, nowhere, w, scale, bias)
                _finished(half_out, q, i + 1, rows, knows, to + next_one, nowhere, w, scale, bias)
                _finished(half_out, r, i + 2, rows, knows, to + 2 * next_one, nowhere, w, scale, bias)
                _finished(half_out, o, i + 3, rows, knows, to + 3 * next_one, nowhere, w, scale, bias)
