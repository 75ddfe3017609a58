"""A layer in 8-bit integers in one body, where the processor multiplies them in tiles (AMX).

Its inputs are rounded, multiplied 32 rows and as many outputs at a time, and the sums made what they stand for,
before they leave the cache: those of a block between the products of the next one. All sums are exact.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.cpu.amx import (
    INTEGER_QUARTERS,
    RIGHT,
    SIDE,
    begin_at_zero,
    configure,
    release,
    store_block,
)
from bertsmith.kernels.cpu.compilation import BODY, LOOPS, as_float, how_many, my_number, slots
from bertsmith.kernels.cpu.quantize import KNOWN, ROWS, finish_with, of_outputs, rounding_with, stood_for_in
from bertsmith.kernels.cpu.simd import WIDTH, store_bytes
from bertsmith.kernels.cpu.simd_pairs import pairs_at

WRITTEN_WITH = "68901c91e22edd38"  # what is imported here, and what these import, see the first
COLUMNS = SIDE  # outputs are a multiple of it
TERMS = 64  # the inputs that weights have are filled up with zeros to a multiple of it
_HALF = SIDE // 2  # rows of a tile, and outputs of one
_LINE = 4 * COLUMNS  # bytes of a row of sums
_BLOCK = SIDE * _LINE
_first, _second, _third, _fourth = INTEGER_QUARTERS


def room(columns: int) -> int:
    """How many bytes a thread works in."""
    return ROWS * (columns + TERMS) + KNOWN + 4 * columns + 2 * _BLOCK


_rounds = rounding_with(store_bytes, 1)


@njit(**LOOPS)
def _finish(first, last, kind, block):
    """These rows of a block as what becomes of what they stand for. kind: whether the result is bf16, whether
    GELU of it is wanted, and bytes from a row of it to the next. block: where its sums are, what is known of its
    rows (see KNOWN), where the result is put; and of both halves of its outputs, see `of_outputs`."""
    half, activated, next_row = kind
    sums, knows, to, of, of_right = block
    for row in range(first, last):
        own, place = sums + row * _LINE, to + row * next_row
        left = stood_for_in(row, pairs_at(own), knows, of)
        right = stood_for_in(row, pairs_at(own + RIGHT), knows, of_right)
        finish_with(half, activated, left, place)
        place += (2 if half else 4) * WIDTH
        finish_with(half, activated, right, place)


# Slots: those of gemm_int8_avx2.py; 15 as in gemm_int8_vnni.py, 16 what the tiles are.


@cfunc("void(voidptr)", **BODY)
def linear(given):
    s = slots(given)
    half, columns, outputs, least = s[0], s[9], s[10], as_float(s[11])
    size, size_out, steps = 2 if half else 4, 2 if s[14] else 4, (columns + TERMS - 1) // TERMS
    line = TERMS * steps
    kind = s[14], s[15], size_out * outputs
    mine = s[12] + s[13] * np.int64(my_number())
    knows = mine + ROWS * line
    here = knows + KNOWN
    both = here + 4 * columns
    configure(s[16])
    blocks = (s[8] + ROWS - 1) // ROWS
    for block in range(np.int64(my_number()), blocks, np.int64(how_many())):
        first = block * ROWS
        x, rows = s[1] + size * first * columns, min(ROWS, s[8] - first)
        _rounds(half, x, rows, s[2], columns, s[17], least, mine, line, knows, here)
        # The block whose products were made before, see `_finish`, and how many rows it has.
        sums, last, count = both, (both, knows, s[4], of_outputs(s, 0), of_outputs(s, WIDTH)), 0
        for column in range(0, outputs, COLUMNS):
            for i in range(0, rows, SIDE):
                own, right = mine + i * line, s[3] + column * line
                below, share = own + _HALF * line, (count + steps - 1) // steps
                begin_at_zero()
                for number in range(steps):
                    done, until = min(number * share, count), min((number + 1) * share, count)
                    some = until - done
                    one, two, three = done + some // 4, done + some // 2, done + 3 * some // 4
                    _first(own, line, right, _LINE)
                    _finish(done, one, kind, last)
                    _second(right, _LINE)
                    _finish(one, two, kind, last)
                    _third(below, line)
                    _finish(two, three, kind, last)
                    _fourth()
                    _finish(three, until, kind, last)
                    own += TERMS
                    below += TERMS
                    right += _HALF * _LINE
                sums = both + _BLOCK if sums == both else both
                store_block(sums, _LINE)
                to = s[4] + size_out * ((first + i) * outputs + column)
                of, of_right = of_outputs(s, column), of_outputs(s, column + WIDTH)
                last = (sums, knows + 4 * i, to, of, of_right)
                count = min(SIDE, rows - i)
        _finish(0, count, kind, last)
    release()
