"""A layer in 8-bit integers in one body, where the processor multiplies them in tiles (AMX).

Its inputs are rounded, multiplied 32 rows and as many outputs at a time, and the sums made what they stand for,
before they leave the cache: those of a block between the products of the next one. All sums are exact.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.compiled import gelu_lanes
from bertsmith.kernels.lanes import WIDTH, every, load, put, store_bytes
from bertsmith.kernels.loops import BODY, LOOPS, as_float, floats, how_many, my_number, slots
from bertsmith.kernels.pairs import as_numbers, pairs_at
from bertsmith.kernels.rounding import spanned, stood_for
from bertsmith.kernels.tiles import (
    INTEGER_QUARTERS,
    RIGHT,
    SIDE,
    begin_at_zero,
    configure,
    release,
    store_block,
)

WRITTEN_WITH = "ffc580d3ffd7a516"  # what is imported here, and what these import, see the first
COLUMNS = SIDE  # outputs are a multiple of it
TERMS = 64  # the inputs that weights have are filled up with zeros to a multiple of it
_ROWS = 2 * SIDE  # whose integers a thread keeps
_HALF = SIDE // 2  # rows of a tile, and outputs of one
_LINE = 4 * COLUMNS  # bytes of a row of sums
_BLOCK = SIDE * _LINE
_first, _second, _third, _fourth = INTEGER_QUARTERS


def room(columns: int) -> int:
    """How many bytes a thread works in."""
    return _ROWS * (columns + TERMS) + 8 * _ROWS + 4 * columns + 2 * _BLOCK


@njit(**LOOPS)
def _finish(half, activated, first, last, sums, knows, to, next_row, weights, scale, bias):
    """These rows of a block as what they stand for; or GELU of that. knows: where their steps are, their middles
    behind."""
    for row in range(first, last):
        known, own, place = knows + 4 * row, sums + row * _LINE, to + row * next_row
        step, middle = every(floats(known, 1)[0]), every(floats(known + 4 * _ROWS, 1)[0])
        left = stood_for(as_numbers(pairs_at(own)), step, middle, weights, scale, bias)
        right = as_numbers(pairs_at(own + RIGHT))
        right = stood_for(right, step, middle, weights + RIGHT, scale + RIGHT, bias + RIGHT)
        put(half, place, gelu_lanes(left) if activated else left)
        put(half, place + (2 if half else 4) * WIDTH, gelu_lanes(right) if activated else right)


# Slots: those of integers.py; 15 whether GELU of the result is wanted, 16 what the tiles are.


@cfunc("void(voidptr)", **BODY)
def linear(given):
    s = slots(given)
    half, half_out, columns, outputs, least, activated = s[0], s[14], s[9], s[10], as_float(s[11]), s[15]
    size, size_out, steps = 2 if half else 4, 2 if half_out else 4, (columns + TERMS - 1) // TERMS
    line, next_row = TERMS * steps, size_out * outputs
    mine = s[12] + s[13] * np.int64(my_number())
    knows = mine + _ROWS * line
    here = knows + 8 * _ROWS
    both = here + 4 * columns
    kept = floats(knows, 2 * _ROWS)
    configure(s[16])
    blocks = (s[8] + _ROWS - 1) // _ROWS
    for block in range(np.int64(my_number()), blocks, np.int64(how_many())):
        first = block * _ROWS
        rows = min(_ROWS, s[8] - first)
        for i in range(rows):
            step, middle = spanned(half, s[1] + size * (first + i) * columns, s[2], columns, least, here)
            kept[i], kept[_ROWS + i] = step, middle
            for j in range(0, columns, WIDTH):
                store_bytes(mine + i * line + j, (load(here + 4 * j) - every(middle)) / every(step))
        # The block before: its sums, how many rows, where its rows' steps are, its place, and its first output.
        sums, count, known, to, place = both, 0, knows, s[4], 0
        for column in range(0, outputs, COLUMNS):
            for i in range(0, rows, SIDE):
                own, right = mine + i * line, s[3] + column * line
                below, share = own + _HALF * line, (count + steps - 1) // steps
                begin_at_zero()
                w, scale, bias = s[5] + place, s[6] + place, s[7] + place
                for number in range(steps):
                    done, until = min(number * share, count), min((number + 1) * share, count)
                    some = until - done
                    one, two, three = done + some // 4, done + some // 2, done + 3 * some // 4
                    _first(own, line, right, _LINE)
                    _finish(half_out, activated, done, one, sums, known, to, next_row, w, scale, bias)
                    _second(right, _LINE)
                    _finish(half_out, activated, one, two, sums, known, to, next_row, w, scale, bias)
                    _third(below, line)
                    _finish(half_out, activated, two, three, sums, known, to, next_row, w, scale, bias)
                    _fourth()
                    _finish(half_out, activated, three, until, sums, known, to, next_row, w, scale, bias)
                    own += TERMS
                    below += TERMS
                    right += _HALF * _LINE
                sums = both + _BLOCK if sums == both else both
                store_block(sums, _LINE)
                count, known, place = min(SIDE, rows - i), knows + 4 * i, 4 * column
                to = s[4] + size_out * ((first + i) * outputs + column)
        w, scale, bias = s[5] + place, s[6] + place, s[7] + place
        _finish(half_out, activated, 0, count, sums, known, to, next_row, w, scale, bias)
    release()
