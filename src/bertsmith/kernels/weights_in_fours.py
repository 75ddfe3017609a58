"""The body that rounds weights to 8-bit integers and has them in fours, as products of such integers read them:
those of a layer, for its products there and back, in one pass over memory.

Each column of what is multiplied with has a scale of its own, the same on both sides of 0, and is rounded to it:
on the way there each row of a matrix [out, in], back each of its columns. Columns stand 32 to a panel; in it four
terms of a column are neighbours.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.cpu.compilation import (
    BODY,
    LOOPS,
    F,
    as_float,
    floats,
    how_many,
    integers,
    my_number,
    my_rows,
    put_number,
    slots,
    wait_for_all,
)
from bertsmith.kernels.cpu.simd import WIDTH, every, larger, load, store, store_bytes
from bertsmith.kernels.cpu.simd_pairs import (
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

WRITTEN_WITH = "234545e526576c97"  # loops.py, lanes.py and pairs.py, see the first
COLUMNS = 2 * WIDTH  # of a panel
MULTIPLE = 64  # of which both sides of a matrix are one, see MULTIPLE_IN_INTEGERS in plain.py
FIELDS = 10  # of a matrix, see below
_RIGHT = 4 * WIDTH  # bytes of a four of 16 columns
_FOUR = 2 * _RIGHT  # of a panel's
_LARGEST = 127


def room(columns: int) -> int:
    """How many bytes a thread works in."""
    return WIDTH * MULTIPLE + 4 * columns


@njit(inline="always", **LOOPS)
def _scale_of(sizes, least):
    return larger(sizes * every(F(1 / _LARGEST)), every(least))


@njit(inline="always", **LOOPS)
def _panel(fours, column, terms):
    """Where 16 columns have their fours."""
    return fours + column // COLUMNS * COLUMNS * terms + column % COLUMNS // WIDTH * _RIGHT


@njit(**LOOPS)
def _measured(x, row, rows, columns, least, scales, of_columns):
    """The scales of rows; and what is largest in their columns, put at `of_columns`."""
    for column in range(of_columns, of_columns + 4 * columns, 4 * WIDTH):
        store(column, every(F(0)))
    for i in range(rows):
        largest = no_sums()
        for at in range(0, 4 * columns, 4 * WIDTH):
            value = load(x + i * row + at)
            largest = with_sizes(largest, value)
            store(of_columns + at, sizes_of(with_sizes(pairs_at(of_columns + at), value)))
        scale = largest_size(largest) * F(1 / _LARGEST)
        put_number(0, scales + 4 * i, scale if not scale < least else least)  # what is not a number stays


@njit(**LOOPS)
def _rounded(x, row, i, rows, columns, there, scales, back, back_scales, room):
    """Sixteen rows from i on, as columns there and as terms back."""
    own = x + i * row
    for column in range(0, columns, MULTIPLE):
        for j in range(WIDTH):
            by, place = every(F(1) / floats(scales + 4 * (i + j), 1)[0]), own + j * row + 4 * column
            for k in range(0, MULTIPLE, WIDTH):
                store_bytes(room + MULTIPLE * j + k, load(place + 4 * k) * by)
        turn(room, MULTIPLE, _panel(there, i, columns) + column // 4 * _FOUR, _FOUR)
        for k in range(column, column + MULTIPLE, WIDTH):
            by, to = every(F(1)) / load(back_scales + 4 * k), _panel(back, k, rows) + i // 4 * _FOUR
            for place in range(own + 4 * k, own + 4 * k + WIDTH * row, 4 * row):
                two = place + 2 * row
                store_fours(
                    to, load(place) * by, load(place + row) * by, load(two) * by, load(two + row) * by
                )
                to += _FOUR


@njit(**LOOPS)
def _summed(panel, terms, ones, sums):
    """Of 16 columns the sums of their integers."""
    total, one = no_sums(), every_pair_at(ones)
    for place in range(panel, panel + terms // 4 * _FOUR, _FOUR):
        total = with_fours(total, one, pairs_at(place))
    store(sums, as_numbers(total))


# Slots: 0 of each matrix these FIELDS: where it lies in fp32, bytes from one row to the next, rows, columns, and
# there and back the fours, of each column the sum of its integers, and its scale; 1 how many matrices, 2 the least
# scale by its bits, 3 `room` for each thread, 4 how large it is, 5 fours of ones.


@cfunc("void(voidptr)", **BODY)
def rounded(given):
    s = slots(given)
    least, rooms, size, ones = as_float(s[2]), s[3], s[4], s[5]
    threads, room = np.int64(how_many()), rooms + size * np.int64(my_number())
    of_columns = WIDTH * MULTIPLE  # where a thread has what is largest in each
    for number in range(s[1]):
        of = integers(s[0] + 8 * FIELDS * number, FIELDS)
        x, row, rows, columns = of[0], of[1], of[2], of[3]
        there, there_sums, there_scales = of[4], of[5], of[6]
        back, back_sums, back_scales = of[7], of[8], of[9]
        first, last = my_rows(rows // WIDTH)
        begin, end = WIDTH * first, WIDTH * last
        of_mine = there_scales + 4 * begin
        _measured(x + begin * row, row, end - begin, columns, least, of_mine, room + of_columns)
        wait_for_all()
        mine, until = my_rows(columns // WIDTH)
        for at in range(4 * WIDTH * mine, 4 * WIDTH * until, 4 * WIDTH):
            sizes = no_sums()
            for thread in range(threads):
                sizes = with_sizes(sizes, load(rooms + size * thread + of_columns + at))
            store(back_scales + at, _scale_of(sizes_of(sizes), least))
        wait_for_all()
        for i in range(begin, end, WIDTH):
            _rounded(x, row, i, rows, columns, there, there_scales, back, back_scales, room)
            _summed(_panel(there, i, columns), columns, ones, there_sums + 4 * i)
        wait_for_all()
        for column in range(WIDTH * mine, WIDTH * until, WIDTH):
            _summed(_panel(back, column, rows), rows, ones, back_sums + 4 * column)
