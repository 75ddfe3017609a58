"""The bodies of products of matrices in bf16, for processors that multiply it in tiles (AMX).

Thirty-two rows and as many columns are made at a time, in four tiles. What is multiplied by is copied into panels,
as for products in registers (gemm_avx512bf16.py), whose slots these bodies read; terms are filled up with zeros to
a multiple of 32. Sums are in fp32. No row of a product depends on the other rows, nor a column on the other
columns, nor any on the number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.cpu.amx import (
    RIGHT,
    SIDE,
    add_products,
    begin_at_zero,
    begin_with,
    configure,
    fetch,
    fetch_to_read,
    release,
    store_block,
)
from bertsmith.kernels.cpu.compilation import (
    BODY,
    LOOPS,
    F,
    floats,
    half_bits,
    halves,
    how_many,
    my_number,
    next_number,
    slots,
    wait_for_all,
)
from bertsmith.kernels.cpu.microkernel_fp32 import FROM_0, FROM_BIAS, FROM_SUMS
from bertsmith.kernels.cpu.packed_matrix import (
    APART,
    COLUMNS,
    PAIR,
    SLICE,
    TURNED,
    copied_into,
    finished,
    panels_of,
    summed,
    turned_into,
    up,
)
from bertsmith.kernels.cpu.simd import WIDTH, every, load, store, store_half
from bertsmith.kernels.cpu.simd_pairs import turn, turn_pairs

WRITTEN_WITH = "28653773a7c07887"  # what is imported here, and what these import, see the first
ROWS = SIDE
_HALF = SIDE // 2  # rows of a tile, and pairs of terms
_CLAIMED = 2 * ROWS  # rows that a thread makes at most before it looks for others
_TERMS = 512  # of `by_columns` added up at a time
_LINE = 4 * COLUMNS  # bytes of a row of a block in fp32
_TILE = 64 * _HALF  # bytes of a tile
_BLOCK = ROWS * _LINE
_EDGE = _BLOCK + _LINE  # bytes of a block and a bias at the edge
_APART_ROWS = _TILE * _TERMS // SIDE + APART  # bytes from a panel of rows of `by_columns` to the next


def _steps(terms):
    return up(terms, SIDE)


def panel(terms):
    """How many bytes lie between a panel of `by_rows` and the next."""
    return PAIR * _HALF * _steps(terms) + APART


def room(terms):
    """How many bytes each thread of `by_rows` needs to compute in."""
    return _EDGE + TURNED + 2 * SIDE * _steps(terms) * (_CLAIMED + ROWS)


def room_turned(threads, rows, columns):
    """How many bytes `by_columns` needs to compute in; of these, each thread, and a set of panels of columns."""
    own = _EDGE + _CLAIMED // WIDTH * _APART_ROWS
    of_columns = up(columns, COLUMNS) * (PAIR * _TERMS // 2 + APART)
    return threads * own + 2 * of_columns, own, of_columns


def turns(terms):
    """How many numbers the threads of `by_columns` count with."""
    return 2 * up(terms, _TERMS)


def slices(terms):
    """How many sums of each column `by_columns` makes."""
    return up(terms, SLICE)


@njit(**LOOPS)
def _block(begins, bias, a, a_row, a_below, a_step, b, half, out, width, steps, kept):
    """What begins there (microkernel_fp32.py), and 32 rows of a times 32 columns of b, 32 terms at a step. In
    bytes: a_row between two rows of a tile of a, a_below to the 16 rows below, a_step to the next terms, width
    between rows of out, which is bf16 or fp32. kept: where a block lies before it is rounded."""
    for r in range(ROWS):  # there while its products are made
        fetch(out + r * width)
    if begins == FROM_SUMS:  # in fp32
        begin_with(out, width)
    elif begins == FROM_BIAS:
        begin_with(bias, 0)
    else:
        begin_at_zero()
    for _ in range(steps):
        add_products(a, a + a_below, a_row, b, PAIR)
        a += a_step
        b += _HALF * PAIR
    if half:
        store_block(kept, _LINE)
    else:
        store_block(out, width)
    if half:
        for r in range(ROWS):
            made, own = out + r * width, kept + r * _LINE
            store_half(made, load(own))
            store_half(made + 2 * WIDTH, load(own + RIGHT))


@njit(**LOOPS)
def _at_edge(begins, bias, a, a_row, a_below, a_step, b, half, out, width, steps, edge, first, rows, columns):
    """Of a block these rows from the first on, and these columns: it is made elsewhere, in the same order."""
    if begins == FROM_SUMS:
        block = floats(edge, ROWS * COLUMNS)
        for r in range(rows):
            wanted = floats(out + r * width, columns)
            for j in range(columns):
                block[r * COLUMNS + j] = wanted[j]
    if begins == FROM_BIAS:
        given, padded = floats(bias, columns), floats(edge + _BLOCK, COLUMNS)
        for j in range(COLUMNS):
            padded[j] = given[j] if j < columns else F(0)
    _block(begins, edge + _BLOCK, a, a_row, a_below, a_step, b, 0, edge, _LINE, steps, edge)
    for r in range(rows):
        own, place = floats(edge + _LINE * (first + r), columns), out + r * width
        if half:
            made = halves(place, columns)
            for j in range(columns):
                made[j] = half_bits(own[j])
        else:
            wanted = floats(place, columns)
            for j in range(columns):
                wanted[j] = own[j]


@njit(**LOOPS)
def _cleared(place, begin, end, row):
    """Rows of so many bytes, a multiple of 64, from one to another."""
    for at in range(place + begin * row, place + end * row, RIGHT):
        store(at, every(F(0)))


@njit(**LOOPS)
def _lines(half, x, x_row, rows, terms, to, line):
    """Rows of x in bf16, each filled up with zeros."""
    whole = terms // WIDTH * WIDTH
    for r in range(rows):
        own, made = x + r * x_row, halves(to + r * line, line // 2)
        done = 0
        if not half:
            for c in range(0, whole, WIDTH):
                store_half(to + r * line + 2 * c, load(own + 4 * c))
            done = whole
        if half:
            given = halves(own, terms)
            for c in range(terms):
                made[c] = given[c]
        else:
            more = floats(own, terms)
            for c in range(done, terms):
                made[c] = half_bits(more[c])
        for c in range(terms, line // 2):
            made[c] = 0


# The slots of products_half's `by_rows`, and 19 what the tiles are. There may be any number of rows, and of terms.


@cfunc("void(voidptr)", **BODY)
def by_rows(given):
    s = slots(given)
    half, width, rows, columns, terms, bias = s[9], s[8], s[10], s[11], s[12], s[15]
    mine, of = np.int64(my_number()), np.int64(how_many())
    edge, steps = s[13] + mine * s[14], panels_of(terms, SIDE)
    turned, copied, shared = edge + _EDGE, edge + _EDGE + TURNED, s[20]
    panels, apart, size = panels_of(columns, COLUMNS), PAIR * _HALF * steps + APART, 2 if half else 4
    first, last = panels * mine // of, panels * (mine + 1) // of
    count = min(columns, last * COLUMNS) - first * COLUMNS
    if s[3] and count > 0:
        own, here = s[3] + first * COLUMNS * s[5], shared + first * apart
        if s[5] == (2 if s[6] else 4):
            copied_into(s[6], own, s[4], terms, count, here, COLUMNS, apart)
        else:
            turned_into(s[6], own, s[5], terms, count, here, apart, turned)
        for panel in range(first, last):
            _cleared(shared + panel * apart, (terms + 1) // 2, _HALF * steps, PAIR)
    wait_for_all()
    configure(s[19])
    is_copied = not s[2] or terms % SIDE or rows < ROWS
    claimed = ROWS if rows < 4 * _CLAIMED * of else _CLAIMED
    row = claimed * next_number(s.ctypes.data + 8 * 18)
    while row < rows:
        end = min(row + claimed, rows)
        lines, line = s[0] + row * s[1], s[1]
        if is_copied:
            _lines(s[2], lines, line, end - row, terms, copied, 2 * SIDE * steps)
            lines, line = copied, 2 * SIDE * steps
        for panel in range(panels):
            b, many = shared + panel * apart, min(COLUMNS, columns - panel * COLUMNS)
            more, begins = bias + 4 * COLUMNS * panel, FROM_BIAS if bias else FROM_0
            for i in range(row, end, ROWS):
                # Of the last rows a block begins as much earlier as it is too high, where they are not copied.
                over = 0 if is_copied else max(0, i + ROWS - end)
                high = min(ROWS, end - i)
                a, out = lines + (i - over - row) * line, s[7] + i * width + size * COLUMNS * panel
                if high < ROWS or many < COLUMNS:
                    _at_edge(
                        begins,
                        more,
                        a,
                        line,
                        _HALF * line,
                        2 * SIDE,
                        b,
                        half,
                        out,
                        width,
                        steps,
                        edge,
                        over,
                        high,
                        many,
                    )
                else:
                    _block(begins, more, a, line, _HALF * line, 2 * SIDE, b, half, out, width, steps, edge)
        finished(s[7] + row * width, s[16], s[17], row * width, width, columns, end - row)
        row = claimed * next_number(s.ctypes.data + 8 * 18)
    release()


@njit(**LOOPS)
def _fetched(x, row, rows, size):
    """So many bytes of each of these rows are there when they are read."""
    for r in range(rows):
        for c in range(0, size, RIGHT):
            fetch_to_read(x + r * row + c)


@njit(**LOOPS)
def _rows_of(half, x, x_term, few, rows, tiles):
    """Rows of `by_columns`, of at most 32 terms: a tile of 16 of them at its place in each panel. x: where the
    first of them lies."""
    whole, size = rows // WIDTH if few == SIDE and half else 0, 2 if half else 4
    for panel in range(whole):
        turn_pairs(x + 2 * WIDTH * panel, x_term, tiles + panel * _APART_ROWS)
    if whole * WIDTH < rows:
        rest, there = rows - whole * WIDTH, tiles + whole * _APART_ROWS
        copied_into(half, x + size * WIDTH * whole, x_term, few, rest, there, WIDTH, _APART_ROWS)
    for panel in range(whole, panels_of(rows, WIDTH)):
        tile = tiles + panel * _APART_ROWS
        _cleared(tile, (few + 1) // 2, _HALF, RIGHT)
        turn(tile, RIGHT, tile, RIGHT)


# The slots of products_half's `by_columns`, but for 12, how many bytes of the room are a thread's, and 13, of a
# set of panels of columns; and 17 what the tiles are. Threads share these panels; rows are copied by the thread
# that multiplies them, a panel of them being a tile after the other.


@cfunc("void(voidptr)", **BODY)
def by_columns(given):
    s = slots(given)
    width, rows, columns, terms, size = s[7], s[8], s[9], s[10], 2 if s[2] else 4
    edge = s[11] + np.int64(my_number()) * s[12]
    of_rows = edge + _EDGE
    shared, panels = s[11] + np.int64(how_many()) * s[12], panels_of(columns, COLUMNS)
    apart, below = PAIR * _TERMS // 2 + APART, _APART_ROWS
    configure(s[17])
    for begin in range(0, terms, _TERMS):
        some, number = min(_TERMS, terms - begin), begin // _TERMS
        of_columns, counter = shared + number % 2 * s[13], s[14] + 16 * number
        at = SLICE * next_number(counter)
        while at < some:
            few, pairs = min(SLICE, some - at), of_columns + PAIR * at // 2
            copied_into(s[5], s[3] + (begin + at) * s[4], s[4], few, columns, pairs, COLUMNS, apart)
            for panel in range(panels):
                _cleared(pairs + panel * apart, (few + 1) // 2, _HALF, PAIR)
            at = SLICE * next_number(counter)
        wait_for_all()
        begins, steps = FROM_SUMS if begin else FROM_0, panels_of(some, SIDE)
        row = _CLAIMED * next_number(counter + 8)
        while row < rows:
            end = min(row + _CLAIMED, rows)
            for at in range(0, some, SLICE):
                few, term = min(SLICE, some - at), begin + at
                own = s[0] + term * s[1] + size * row
                if at + SLICE < some:
                    _fetched(own + SLICE * s[1], s[1], min(SLICE, some - at - SLICE), size * (end - row))
                _rows_of(s[2], own, s[1], few, end - row, of_rows + _TILE * at // SIDE)
                if s[15]:
                    summed(s[2], own, s[1], few, end - row, s[16] + 4 * (rows * (term // SLICE) + row))
            if s[15] and begin + some == terms:  # all earlier sums of these rows were made before threads met
                every_slice = panels_of(terms, SLICE)
                summed(0, s[16] + 4 * row, 4 * rows, every_slice, end - row, s[15] + 4 * row)
            for i in range(row, end, ROWS):
                a, high = of_rows + (i - row) // WIDTH * _APART_ROWS, min(ROWS, end - i)
                for panel in range(panels):
                    b, many = of_columns + panel * apart, min(COLUMNS, columns - panel * COLUMNS)
                    out = s[6] + i * width + 4 * COLUMNS * panel
                    if high < ROWS or many < COLUMNS:
                        _at_edge(
                            begins, 0, a, RIGHT, below, _TILE, b, 0, out, width, steps, edge, 0, high, many
                        )
                    else:
                        _block(begins, 0, a, RIGHT, below, _TILE, b, 0, out, width, steps, edge)
            row = _CLAIMED * next_number(counter + 8)
    release()
