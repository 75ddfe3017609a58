"""A layer in 8-bit integers in one body, where products of such integers are not the processor's own.

Its inputs are rounded, multiplied, and the sums made what they stand for. Integers are multiplied in pairs of 16
bits, which any processor with AVX2 does, twice as many at a time as numbers in fp32; all sums are exact.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.cpu.compilation import BODY, LOOPS, as_float, how_many, my_number, slots
from bertsmith.kernels.cpu.quantize import KNOWN, ROWS, of_outputs, rounding_with, stood_for_in
from bertsmith.kernels.cpu.simd import WIDTH, put, store_wide_bytes
from bertsmith.kernels.cpu.simd_pairs import every_pair_at, no_sums, pairs_at, with_pairs

WRITTEN_WITH = "68cdd1df115701b4"  # compilation.py, simd.py and quantize.py, see the first
_AT_A_TIME = 4


def room(columns: int) -> int:
    """How many bytes a thread works in."""
    return 2 * ROWS * columns + KNOWN + 4 * columns + 4 * WIDTH


_rounds = rounding_with(store_wide_bytes, 2)


@njit(inline="always", **LOOPS)
def _finished(half, sums, row, rows, knows, to, nowhere, of):
    """A row's sums as what they stand for, if there is such a row."""
    found = stood_for_in(row, sums, knows, of)
    put(half, to if row < rows else nowhere, found)


# Slots: 0 whether x is bf16, 1 x, 2 factors of its columns, 3 weights, see `FastAnswers.integer_weights`, 4 the
# result, 5 to 7 of each output the sum of its weights, scale and bias, 8 rows, 9 columns, 10 outputs, 11 the least
# step by its bits, 12 `room` for each thread, 13 how large it is, 14 whether the result is bf16, 17 the column
# that is kept apart, 18 each output's weight of it.


@cfunc("void(voidptr)", **BODY)
def linear(given):
    s = slots(given)
    half, half_out, columns, outputs, least = s[0], s[14], s[9], s[10], as_float(s[11])
    size, size_out, by = 2 if half else 4, 2 if half_out else 4, 2 * columns
    mine = s[12] + s[13] * np.int64(my_number())
    knows = mine + ROWS * by
    here = knows + KNOWN
    nowhere, blocks = here + 4 * columns, (s[8] + ROWS - 1) // ROWS
    for block in range(np.int64(my_number()), blocks, np.int64(how_many())):
        first = block * ROWS
        x, rows = s[1] + size * first * columns, min(ROWS, s[8] - first)
        _rounds(half, x, rows, s[2], columns, s[17], least, mine, by, knows, here)
        for column in range(0, outputs, WIDTH):
            of = of_outputs(s, column)
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
                _finished(half_out, p, i, rows, knows, to, nowhere, of)
                to += next_one
                _finished(half_out, q, i + 1, rows, knows, to, nowhere, of)
                to += next_one
                _finished(half_out, r, i + 2, rows, knows, to, nowhere, of)
                to += next_one
                _finished(half_out, o, i + 3, rows, knows, to, nowhere, of)
