"""The bodies of products of matrices in fp32, for AMD's processors up to Zen 4.

Six rows and 16 columns are made at a time, in as many registers as AVX2 has, or in half as many with AVX-512,
whose units are no wider there. What is multiplied by is first copied into panels, in the order in which it is
read. Terms are added up one after the other, the same for every element: no row of a product depends on the other
rows, nor a column on the other columns, nor any on the number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.cpu.compilation import (
    JIT_OPTIONS,
    KERNEL_OPTIONS,
    barrier,
    fetch_and_increment,
    float32,
    float_array,
    load_slots,
    num_threads,
    thread_index,
)
from bertsmith.kernels.cpu.microkernel_fp32 import (
    INIT_ACCUMULATE,
    INIT_BIAS,
    INIT_ZERO,
    ROWS,
    microkernel_6x16,
)
from bertsmith.kernels.cpu.row_kernels import gelu_backward_into, gelu_into
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH, copy_8, load, store, transpose_8x8

WRITTEN_WITH = "9fe1bdfb151083f8"  # what is imported here, and what these import, see the first
COLUMNS = VECTOR_WIDTH
_TERMS = 256  # added up at a time: 16 columns of so many fill half of the first cache
_CLAIMED = (
    8 * ROWS
)  # rows that a thread makes before it looks for others; twice as many where there are enough
_ENOUGH = 4  # claims of a thread
_SLICE = 32  # terms that a thread copies before it looks for others
_SIDE = 8  # of a square that is turned at a time
_PANEL_ROWS, _PANEL = 4 * ROWS, 4 * COLUMNS  # bytes of a term in a panel
_APART = 64  # bytes between panels: at a power of two they would share a part of the cache
_EDGE = _PANEL * (ROWS + 1)  # bytes of a tile and a bias at the edge


def _panels(count, of):
    return (count + of - 1) // of


def _panel(size, terms):
    """How many bytes lie between a panel and the next, of terms of this size."""
    return size * min(terms, _TERMS) + _APART


def _claims(rows, threads):
    """How many rows are claimed at a time. Each claim walks through all panels, which lie in a farther cache."""
    return _CLAIMED if rows < 2 * _ENOUGH * _CLAIMED * threads else 2 * _CLAIMED


_panels_of, _panel_of, _claimed = (
    njit(inline="always", **JIT_OPTIONS)(sized) for sized in (_panels, _panel, _claims)
)


def workspace_size(threads, columns, terms):
    """How many bytes `by_rows` needs to compute in."""
    return threads * _EDGE + _panels(terms, _TERMS) * _panels(columns, COLUMNS) * _panel(_PANEL, terms)


def workspace_size_transposed(threads, rows, columns):
    """How many bytes `by_columns` needs to compute in; of these, a set of panels of rows, and of columns."""
    of_rows = _panels(rows, ROWS) * _panel(_PANEL_ROWS, _TERMS)
    of_columns = _panels(columns, COLUMNS) * _panel(_PANEL, _TERMS)
    return threads * _EDGE + 2 * (of_rows + of_columns), of_rows, of_columns


def num_counters(terms):
    """How many numbers the threads of `by_columns` count with."""
    return 2 * _panels(terms, _TERMS)


def num_slices(terms):
    """How many sums of each column `by_columns` makes."""
    return _panels(terms, _SLICE)


@njit(**JIT_OPTIONS)
def _tile_at_edge(begins, bias, a, a_row, a_term, b, out, width, terms, edge, first, rows, columns):
    """Of a tile these rows from the first on, and these columns: it is made elsewhere, in the same order."""
    for r in range(rows):
        made, wanted = (
            float_array(edge + _PANEL * (first + r), COLUMNS),
            float_array(out + r * width, columns),
        )
        for j in range(COLUMNS):
            made[j] = wanted[j] if begins == INIT_ACCUMULATE and j < columns else float32(0)
    if begins == INIT_BIAS:
        given, padded = float_array(bias, columns), float_array(edge + _PANEL * ROWS, COLUMNS)
        for j in range(COLUMNS):
            padded[j] = given[j] if j < columns else float32(0)
    microkernel_6x16(begins, edge + _PANEL * ROWS, a, a_row, a_term, b, _PANEL, edge, _PANEL, terms)
    for r in range(rows):
        made, wanted = (
            float_array(edge + _PANEL * (first + r), COLUMNS),
            float_array(out + r * width, columns),
        )
        for j in range(columns):
            wanted[j] = made[j]


@njit(**JIT_OPTIONS)
def _copied(x, x_term, terms, per, columns, to, apart):
    """Into panels of `per` columns: those of x that lie side by side. A whole panel is copied 8 or 16 numbers at a
    time; behind 6 the next term's are written over what is too many, so that the last term goes by itself."""
    whole = columns // per
    if per == ROWS and whole and whole * per + _SIDE - ROWS > columns:
        whole -= 1
    for term in range(terms):
        own, here = x + term * x_term, to + 4 * per * term
        if per == COLUMNS:
            for _ in range(whole):
                store(here, load(own))
                own += 4 * per
                here += apart
        elif term + 1 < terms:
            for _ in range(whole):
                copy_8(own, here)
                own += 4 * per
                here += apart
    begin = whole if per == COLUMNS else 0
    for panel in range(begin, _panels_of(columns, per)):
        count = min(per, columns - panel * per)
        for term in range(terms - 1 if panel < whole else 0, terms):
            own, here = float_array(x + term * x_term + 4 * per * panel, count), to + panel * apart
            made = float_array(here + 4 * per * term, per)
            for j in range(per):
                made[j] = own[j] if j < count else float32(0)


@njit(**JIT_OPTIONS)
def _summed(x, x_term, terms, columns, sums):
    """Over the terms of each column."""
    whole = columns // VECTOR_WIDTH * VECTOR_WIDTH
    for j in range(0, whole, VECTOR_WIDTH):
        total = load(x + 4 * j)
        for term in range(1, terms):
            total = total + load(x + term * x_term + 4 * j)
        store(sums + 4 * j, total)
    for j in range(whole, columns):
        rest = float32(0)
        for term in range(terms):
            rest += float_array(x + term * x_term + 4 * j, 1)[0]
        float_array(sums + 4 * j, 1)[0] = rest


@njit(**JIT_OPTIONS)
def _turned(x, x_column, terms, columns, to, apart):
    """Into panels of 16 columns: those of x whose terms lie side by side."""
    for panel in range(_panels_of(columns, COLUMNS)):
        own, here = x + panel * COLUMNS * x_column, to + panel * apart
        count, squares = min(COLUMNS, columns - panel * COLUMNS), 0
        if count == COLUMNS:
            squares = terms // _SIDE * _SIDE
            for term in range(0, squares, _SIDE):
                place = here + _PANEL * term
                transpose_8x8(own + 4 * term, x_column, place, _PANEL)
                transpose_8x8(own + 4 * term + _SIDE * x_column, x_column, place + 4 * _SIDE, _PANEL)
        for term in range(squares, terms):
            made = float_array(here + _PANEL * term, COLUMNS)
            for j in range(COLUMNS):
                made[j] = float_array(own + j * x_column + 4 * term, 1)[0] if j < count else float32(0)


@njit(**JIT_OPTIONS)
def _finished(out, activated, before, at, width, columns, rows):
    """Rows of out, while they are in the cache: see slots 13 and 14 of `by_rows`. at: where these rows begin."""
    for place in range(0, rows * width, width):
        own = float_array(out + place, columns)
        if activated:
            gelu_into(own, float_array(activated + at + place, columns))
        elif before:
            gelu_backward_into(float_array(before + at + place, columns), own, own)


# out = a·b + bias; the terms of a row of a lie side by side. Slots: 0 a, 1 from one row of a to the next, 2 b, 3
# from one term of b to the next, 4 from one column of it to the next, 5 out, 6 from one row of it to the next, 7
# rows, at least 6, 8 columns, 9 terms, 10 `room`, 11 bias or 0, 12 the number of the rows that are claimed next, 0
# at first, 13 and 14 another matrix like out, or 0: GELU of out is written to the first; with the second out is
# multiplied by GELU's slopes at it. What lies between two is in bytes, here and below.


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def gemm(given):
    s = load_slots(given)
    rows, columns, terms, width, bias = s[7], s[8], s[9], s[6], s[11]
    mine, of = np.int64(thread_index()), np.int64(num_threads())
    edge, panels = s[10] + mine * _EDGE, _panels_of(columns, COLUMNS)
    shared, apart = s[10] + of * _EDGE, _panel_of(_PANEL, terms)
    first, last = panels * mine // of, panels * (mine + 1) // of
    for begin in range(0, terms, _TERMS):
        some = min(_TERMS, terms - begin)
        own = s[2] + begin * s[3] + first * COLUMNS * s[4]
        here = shared + apart * (begin // _TERMS * panels + first)
        count = min(columns, last * COLUMNS) - first * COLUMNS
        if s[4] == 4:
            _copied(own, s[3], some, COLUMNS, count, here, apart)
        else:
            _turned(own, s[4], some, count, here, apart)
    barrier()
    claimed = _claimed(rows, of)
    row = claimed * fetch_and_increment(s.ctypes.data + 8 * 12)
    while row < rows:
        end = min(row + claimed, rows)
        for begin in range(0, terms, _TERMS):
            some = min(_TERMS, terms - begin)
            begins = INIT_ACCUMULATE if begin else (INIT_BIAS if bias else INIT_ZERO)
            for panel in range(panels):
                b = shared + apart * (begin // _TERMS * panels + panel)
                count = min(COLUMNS, columns - panel * COLUMNS)
                for i in range(row, end, ROWS):
                    # Of the last rows a tile begins as much earlier as it is too high.
                    first = max(0, i + ROWS - end)
                    a, out = s[0] + (i - first) * s[1] + 4 * begin, s[5] + i * width + _PANEL * panel
                    more = bias + _PANEL * panel
                    if first or count < COLUMNS:
                        high = ROWS - first
                        _tile_at_edge(begins, more, a, s[1], 4, b, out, width, some, edge, first, high, count)
                    else:
                        microkernel_6x16(begins, more, a, s[1], 4, b, _PANEL, out, width, some)
        _finished(s[5] + row * width, s[13], s[14], row * width, width, columns, end - row)
        row = claimed * fetch_and_increment(s.ctypes.data + 8 * 12)


# out = aᵀ·b, of many terms; rows of out lie side by side in a, its columns in b. Both are copied some terms at a
# time, into one of two sets of panels, while threads may still multiply what the other holds. Slots: 0 a, 1 from
# one term of a to the next, 2 b, 3 from one term of b to the next, 4 out, 5 from one row of it to the next, 6 rows
# of out, 7 columns, 8 terms, 9 to 11 `room_turned`, 12 `turns`, all 0, 13 sums of a's columns, or 0, 14 room
# for `slices` rows of them.


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def gemm_transposed_left(given):
    s = load_slots(given)
    rows, columns, terms, width = s[6], s[7], s[8], s[5]
    edge = s[9] + np.int64(thread_index()) * _EDGE
    shared, panels = s[9] + np.int64(num_threads()) * _EDGE, _panels_of(columns, COLUMNS)
    apart_rows, apart = _panel_of(_PANEL_ROWS, _TERMS), _panel_of(_PANEL, _TERMS)
    claimed = _claimed(rows, np.int64(num_threads()))
    for begin in range(0, terms, _TERMS):
        some, number = min(_TERMS, terms - begin), begin // _TERMS
        of_rows = shared + number % 2 * (s[10] + s[11])
        of_columns, counter = of_rows + s[10], s[12] + 16 * number
        at = _SLICE * fetch_and_increment(counter)
        while at < some:
            few, term = min(_SLICE, some - at), begin + at
            _copied(s[0] + term * s[1], s[1], few, ROWS, rows, of_rows + _PANEL_ROWS * at, apart_rows)
            if s[13]:
                _summed(s[0] + term * s[1], s[1], few, rows, s[14] + 4 * rows * (term // _SLICE))
            _copied(s[2] + term * s[3], s[3], few, COLUMNS, columns, of_columns + _PANEL * at, apart)
            at = _SLICE * fetch_and_increment(counter)
        barrier()
        row, begins = claimed * fetch_and_increment(counter + 8), INIT_ACCUMULATE if begin else INIT_ZERO
        while row < rows:
            end = min(row + claimed, rows)
            for panel in range(panels):
                b, count = of_columns + panel * apart, min(COLUMNS, columns - panel * COLUMNS)
                for i in range(row, end, ROWS):
                    a, out = of_rows + i // ROWS * apart_rows, s[4] + i * width + _PANEL * panel
                    high = min(ROWS, end - i)
                    if high < ROWS or count < COLUMNS:
                        _tile_at_edge(begins, 0, a, 4, _PANEL_ROWS, b, out, width, some, edge, 0, high, count)
                    else:
                        microkernel_6x16(begins, 0, a, 4, _PANEL_ROWS, b, _PANEL, out, width, some)
            row = claimed * fetch_and_increment(counter + 8)
    if s[13]:
        mine, of = np.int64(thread_index()), np.int64(num_threads())
        first, last = rows * mine // of, rows * (mine + 1) // of
        place = 4 * first
        _summed(s[14] + place, 4 * rows, _panels_of(terms, _SLICE), last - first, s[13] + place)
