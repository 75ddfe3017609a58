"""A layer in 8-bit integers in one body, where the processor multiplies four of them at a time (AVX512-VNNI).

Its inputs are rounded, multiplied, and the sums made what they stand for, before a row leaves the cache. The
instruction wants what it multiplies from the left without a sign: 128 more than it is, which the sums begin with
the contrary of. All sums are exact.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.compiled import gelu_lanes
from bertsmith.kernels.lanes import WIDTH, every, load, put, store_unsigned_bytes
from bertsmith.kernels.loops import BODY, LOOPS, F, as_float, floats, how_many, my_number, slots
from bertsmith.kernels.pairs import as_integers, as_numbers, every_pair_at, pairs_at, with_fours
from bertsmith.kernels.rounding import spanned, stood_for

WRITTEN_WITH = "28b76868c4798917"  # what is imported here, and what these import, see the first
COLUMNS = 2 * WIDTH  # outputs are a multiple of it
TERMS = 4  # and the inputs that weights have of this
_ROWS = 64  # whose integers a thread keeps
_AT_A_TIME = 4
_RIGHT = 4 * WIDTH  # bytes of the weights that a register holds


def room(columns: int) -> int:
    """How many bytes a thread works in."""
    return _ROWS * columns + 8 * _ROWS + 4 * columns + 4 * WIDTH


@njit(inline="always", **LOOPS)
def _finished(half, activated, sums, row, rows, knows, to, nowhere, weights, scale, bias):
    """A row's sums as what they stand for, if there is such a row; or GELU of that. knows: where its step is, the
    middle behind."""
    step, middle = every(knows[row]), every(knows[_ROWS + row])
    value = stood_for(as_numbers(sums), step, middle, weights, scale, bias)
    put(half, to if row < rows else nowhere, gelu_lanes(value) if activated else value)


# Slots: those of integers.py; 15 whether GELU of the result is wanted.


@cfunc("void(voidptr)", **BODY)
def linear(given):
    s = slots(given)
    half, half_out, columns, outputs, least, activated = s[0], s[14], s[9], s[10], as_float(s[11]), s[15]
    size, size_out = 2 if half else 4, 2 if half_out else 4
    mine = s[12] + s[13] * np.int64(my_number())
    here = mine + _ROWS * columns + 8 * _ROWS
    nowhere, knows = here + 4 * columns, floats(mine + _ROWS * columns, 2 * _ROWS)
    next_row, right = size_out * outputs, size_out * WIDTH
    blocks = (s[8] + _ROWS - 1) // _ROWS
    for block in range(np.int64(my_number()), blocks, np.int64(how_many())):
        first = block * _ROWS
        rows = min(_ROWS, s[8] - first)
        for i in range(rows):
            step, middle = spanned(half, s[1] + size * (first + i) * columns, s[2], columns, least, here)
            knows[i], knows[_ROWS + i] = step, middle
            for j in range(0, columns, WIDTH):
                store_unsigned_bytes(
                    mine + i * columns + j, (load(here + 4 * j) - every(middle)) / every(step)
                )
        for column in range(0, outputs, COLUMNS):
            w, scale, bias = s[5] + 4 * column, s[6] + 4 * column, s[7] + 4 * column
            below = as_integers(load(w) * every(F(-128)))
            below_too = as_integers(load(w + _RIGHT) * every(F(-128)))
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
                    _finished(half_out, activated, sums, row, rows, knows, to, nowhere, w, scale, bias)
                    _finished(
                        half_out,
                        activated,
                        others,
                        row,
                        rows,
                        knows,
                        to + right,
                        nowhere,
                        w + _RIGHT,
                        scale + _RIGHT,
                        bias + _RIGHT,
                    )
                    to += next_row
