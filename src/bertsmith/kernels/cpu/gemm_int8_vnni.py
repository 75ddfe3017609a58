"""A layer in 8-bit integers in one body, where the processor multiplies four of them at a time (AVX512-VNNI).

Its inputs are rounded, multiplied, and the sums made what they stand for, before a row leaves the cache. The
instruction wants what it multiplies from the left without a sign: 128 more than it is, which the sums begin with
the contrary of. All sums are exact.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.cpu.compilation import BODY, LOOPS, F, as_float, how_many, my_number, slots
from bertsmith.kernels.cpu.quantize import (
    KNOWN,
    ROWS,
    finish_with,
    loaded,
    of_outputs,
    of_row,
    rounding_with,
    rows_of_a_block,
    stood_for,
)
from bertsmith.kernels.cpu.simd import WIDTH, every, store_unsigned_bytes
from bertsmith.kernels.cpu.simd_pairs import as_integers, as_numbers, every_pair_at, pairs_at, with_fours

WRITTEN_WITH = "68cdd1df115701b4"  # what is imported here, and what these import, see the first
COLUMNS = 2 * WIDTH  # outputs are a multiple of it
TERMS = 4  # and the inputs that weights have of this
_AT_A_TIME = 4
_RIGHT = 4 * WIDTH  # bytes of the weights that a register holds


def room(columns: int) -> int:
    """How many bytes a thread works in."""
    return ROWS * columns + KNOWN + 4 * columns + 4 * COLUMNS


_rounds = rounding_with(store_unsigned_bytes, 1)


@njit(inline="always", **LOOPS)
def _finished(half, activated, sums, others, row, rows, knows, to, nowhere, of, of_right):
    """Both halves of a row's sums as what becomes of what they stand for, if there is such a row."""
    known, right = of_row(row, knows), (2 if half else 4) * WIDTH
    there = to if row < rows else nowhere
    finish_with(half, activated, stood_for(as_numbers(sums), known, of), there)
    finish_with(half, activated, stood_for(as_numbers(others), known, of_right), there + right)


# Slots: those of gemm_int8_avx2.py; 15 whether GELU of the product is wanted.


@cfunc("void(voidptr)", **BODY)
def linear(given):
    s = slots(given)
    half, half_out, columns, outputs, least, activated = s[0], s[14], s[9], s[10], as_float(s[11]), s[15]
    size, size_out = 2 if half else 4, 2 if half_out else 4
    mine = s[12] + s[13] * np.int64(my_number())
    knows = mine + ROWS * columns
    here = knows + KNOWN
    nowhere, next_row = here + 4 * columns, size_out * outputs
    threads = np.int64(how_many())
    most = rows_of_a_block(s[8], threads, _AT_A_TIME)
    for first in range(most * np.int64(my_number()), s[8], most * threads):
        place, rows = s[1] + size * first * columns, min(most, s[8] - first)
        _rounds(half, place, rows, s[2], columns, s[17], least, mine, columns, knows, here)
        for column in range(0, outputs, COLUMNS):
            of, of_right = loaded(of_outputs(s, column)), loaded(of_outputs(s, column + WIDTH))
            below, below_too = as_integers(of[0] * every(F(-128))), as_integers(of_right[0] * every(F(-128)))
            for i in range(0, rows, _AT_A_TIME):
                own, panel = mine + i * columns, s[3] + column * columns
                p = q = r = o = below
                t = u = v = z = below_too
                for _ in range(columns // 4):
                    left, more = pairs_at(panel), pairs_at(panel + _RIGHT)
                    x = every_pair_at(own)
                    p, t = with_fours(p, x, left), with_fours(t, x, more)
                    x = every_pair_at(own + columns)
                    q, u = with_fours(q, x, left), with_fours(u, x, more)
                    x = every_pair_at(own + 2 * columns)
                    r, v = with_fours(r, x, left), with_fours(v, x, more)
                    x = every_pair_at(own + 3 * columns)
                    o, z = with_fours(o, x, left), with_fours(z, x, more)
                    panel += 2 * _RIGHT
                    own += 4
                to = s[4] + size_out * ((first + i) * outputs + column)
                for row, sums, others in ((i, p, t), (i + 1, q, u), (i + 2, r, v), (i + 3, o, z)):
                    _finished(half_out, activated, sums, others, row, rows, knows, to, nowhere, of, of_right)
                    to += next_row
