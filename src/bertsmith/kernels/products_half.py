"""The bodies of products of matrices in bf16, for processors that multiply it in registers (AVX512-BF16).

Eight rows and 32 columns are made at a time in registers. What is multiplied by is first copied into panels, its
terms in pairs, in the order in which it is read; a matrix may lie in memory in fp32, and is rounded on the way, so
that no copy of the weights in bf16 is kept. Sums are in fp32. No row of a product depends on the other rows, nor a
column on the other columns, nor any on the number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.compiled import gelu_of, gelu_slopes_of
from bertsmith.kernels.half_registers import COLUMNS, RIGHT, ROWS, eight_rows
from bertsmith.kernels.lanes import WIDTH, every, get, load, store, store_half
from bertsmith.kernels.loops import (
    BODY,
    LOOPS,
    F,
    U,
    floats,
    half_bits,
    halves,
    how_many,
    my_number,
    next_number,
    slots,
    wait_for_all,
)
from bertsmith.kernels.pairs import join, join_lanes, turn
from bertsmith.kernels.registers import FROM_0, FROM_BIAS, FROM_SUMS

WRITTEN_WITH = "1f5b666aa3c6e97f"  # what is imported here, and what these import, see the first
_CLAIMED = WIDTH  # rows that a thread makes before it looks for others
_TERMS = 512  # of `by_columns` added up at a time
_SLICE = 32  # terms that a thread copies before it looks for others
_PAIR = 4 * COLUMNS  # bytes of a pair of terms in a panel
_ROW_PAIR = 4 * WIDTH  # of one in a panel of the rows of `by_columns`, 16 of them
_APART = 64  # bytes between panels: at a power of two they would share a part of the cache
_BLOCK = 2 * WIDTH  # terms of 16 columns that are turned at a time
_EDGE = 4 * COLUMNS * (ROWS + 1)  # bytes of a tile and a bias at the edge
_TURNED = 2 * WIDTH * _BLOCK  # bytes of what is turned


def _up(count, of):
    return (count + of - 1) // of


_panels_of = njit(inline="always", **LOOPS)(_up)


def room(threads, columns, terms):
    """How many bytes `by_rows` needs to compute in, and how many of them each thread."""
    own = _EDGE + _TURNED + 2 * _CLAIMED * terms
    return threads * own + _up(columns, COLUMNS) * (_PAIR * _up(terms, 2) + _APART), own


def room_turned(threads, rows, columns):
    """How many bytes `by_columns` needs to compute in; of these, a set of panels of rows, and of columns."""
    of_rows = _up(rows, WIDTH) * (_ROW_PAIR * _TERMS // 2 + _APART)
    of_columns = _up(columns, COLUMNS) * (_PAIR * _TERMS // 2 + _APART)
    return threads * _EDGE + 2 * (of_rows + of_columns), of_rows, of_columns


def turns(terms):
    """How many numbers the threads of `by_columns` count with."""
    return 2 * _up(terms, _TERMS)


def slices(terms):
    """How many sums of each column `by_columns` makes."""
    return _up(terms, _SLICE)


@njit(inline="always", **LOOPS)
def _rounded(half, address):
    """A number of memory as bf16, by its bits."""
    return U(halves(address, 1)[0]) if half else U(half_bits(floats(address, 1)[0]))


@njit(**LOOPS)
def _paired(half, x, x_term, x_column, terms, columns, wide, to, row):
    """Pairs of terms as `to` wants them, one number after the other: what the others leave. Behind the last term
    and the last column there are zeros. wide: columns of `to`; row: its bytes from one pair to the next."""
    for term in range(0, terms, 2):
        made = floats(to + term // 2 * row, wide).view(np.uint32)
        for j in range(wide):
            pair = U(0)
            if j < columns:
                own = x + term * x_term + j * x_column
                pair = _rounded(half, own)
                if term + 1 < terms:
                    pair = U(pair | U(_rounded(half, own + x_term) << U(16)))
            made[j] = pair


@njit(**LOOPS)
def _copied(half, x, x_term, terms, columns, to, per, apart):
    """Into panels of `per` columns: those of x that lie side by side."""
    size, row = 2 if half else 4, 4 * per
    whole, even = columns // per * per, terms // 2 * 2
    for term in range(0, even, 2):
        own, panel = x + term * x_term, to + term // 2 * row
        for _ in range(0, whole, per):
            for c in range(0, per, WIDTH):
                here = own + size * c
                if half:
                    join(here, here + x_term, panel + 4 * c)
                else:
                    join_lanes(load(here), load(here + x_term), panel + 4 * c)
            own += size * per
            panel += apart
    if even < terms:
        last, place = x + even * x_term, to + even // 2 * row
        for panel in range(whole // per):
            _paired(half, last + size * per * panel, x_term, size, 1, per, per, place + panel * apart, row)
    if whole < columns:
        rest = to + whole // per * apart
        _paired(half, x + size * whole, x_term, size, terms, columns - whole, per, rest, row)


@njit(**LOOPS)
def _turned(half, x, x_column, terms, columns, to, apart, kept):
    """Into panels of 32 columns: those of x whose terms lie side by side. kept: where 16 columns lie meanwhile."""
    size, whole = 2 if half else 4, terms // _BLOCK * _BLOCK
    for column in range(0, columns, WIDTH):
        own, count = x + column * x_column, min(WIDTH, columns - column)
        panel = to + column // COLUMNS * apart + column % COLUMNS * 4
        done = whole if count == WIDTH else 0
        for term in range(0, done, _BLOCK):
            if half:
                turn(own + 2 * term, x_column, panel + term // 2 * _PAIR, _PAIR)
            else:
                for j in range(WIDTH):
                    here, there = own + j * x_column + 4 * term, kept + 2 * _BLOCK * j
                    store_half(there, load(here))
                    store_half(there + 2 * WIDTH, load(here + 4 * WIDTH))
                turn(kept, 2 * _BLOCK, panel + term // 2 * _PAIR, _PAIR)
        if done < terms:
            rest = panel + done // 2 * _PAIR
            _paired(half, own + size * done, size, x_column, terms - done, count, WIDTH, rest, _PAIR)
    if columns % COLUMNS and columns % COLUMNS <= WIDTH:
        panel = to + columns // COLUMNS * apart + RIGHT
        for pair in range((terms + 1) // 2):
            store(panel + pair * _PAIR, every(F(0)))


@njit(**LOOPS)
def _summed(half, x, x_term, terms, columns, sums):
    """Over the terms of each column."""
    size, whole = 2 if half else 4, columns // WIDTH * WIDTH
    for j in range(0, whole, WIDTH):
        total = get(half, x + size * j)
        for term in range(1, terms):
            total = total + get(half, x + term * x_term + size * j)
        store(sums + 4 * j, total)
    for j in range(whole, columns):
        rest = F(0)
        for term in range(terms):
            here = x + term * x_term + size * j
            rest += U(_rounded(half, here) << U(16)).view(np.float32) if half else floats(here, 1)[0]
        floats(sums + 4 * j, 1)[0] = rest


@njit(**LOOPS)
def _tile_at_edge(begins, bias, a, a_row, a_pair, b, half, out, width, pairs, edge, first, rows, columns):
    """Of a tile these rows from the first on, and these columns: it is made elsewhere, in the same order."""
    tile, row = floats(edge, ROWS * COLUMNS), 4 * COLUMNS
    if begins == FROM_SUMS:
        for r in range(rows):
            wanted = floats(out + r * width, columns)
            for j in range(columns):
                tile[r * COLUMNS + j] = wanted[j]
    if begins == FROM_BIAS:
        given, padded = floats(bias, columns), floats(edge + row * ROWS, COLUMNS)
        for j in range(COLUMNS):
            padded[j] = given[j] if j < columns else F(0)
    eight_rows(begins, edge + row * ROWS, a, a_row, a_pair, b, _PAIR, 0, edge, row, pairs)
    for r in range(rows):
        own, place = edge + row * (first + r), out + r * width
        if half:
            made = halves(place, columns)
            for j in range(columns):
                made[j] = half_bits(floats(own, columns)[j])
        else:
            wanted, tile_row = floats(place, columns), floats(own, columns)
            for j in range(columns):
                wanted[j] = tile_row[j]


@njit(**LOOPS)
def _finished(out, activated, before, at, width, columns, rows):
    """Rows of out, while they are in the cache: see slots 16 and 17 of `by_rows`. at: where these rows begin."""
    for place in range(0, rows * width, width):
        own = halves(out + place, columns)
        if activated:
            gelu_of(own, halves(activated + at + place, columns))
        elif before:
            gelu_slopes_of(halves(before + at + place, columns), own, own)


# out = a·b + bias; the terms of a row of a lie side by side, an even number of them. Slots: 0 a, 1 from one row
# of it to the next, 2 whether it is bf16, 3 b, 4 from one term of it to the next, 5 from one column to the next,
# 6 whether it is bf16, 7 out, 8 from one row of it to the next, 9 whether it is bf16, 10 rows, at least 8, 11
# columns, 12 terms, 13 and 14 `room`, 15 bias in fp32 or 0, 16 and 17 another matrix like out, which is bf16
# then, or 0: GELU of out is written to the first; with the second out is multiplied by GELU's slopes at it; 18
# the number of the rows that are claimed next, 0 at first. What lies between two is in bytes, here and below.


@cfunc("void(voidptr)", **BODY)
def by_rows(given):
    s = slots(given)
    half, width, rows, columns, terms, bias = s[9], s[8], s[10], s[11], s[12], s[15]
    mine, of = np.int64(my_number()), np.int64(how_many())
    edge = s[13] + mine * s[14]
    kept, copied = edge + _EDGE, edge + _EDGE + _TURNED
    shared, pairs = s[13] + of * s[14], terms // 2
    panels, apart, size = _panels_of(columns, COLUMNS), _PAIR * pairs + _APART, 2 if half else 4
    first, last = panels * mine // of, panels * (mine + 1) // of
    count = min(columns, last * COLUMNS) - first * COLUMNS
    if count > 0:
        own, here = s[3] + first * COLUMNS * s[5], shared + first * apart
        if s[5] == (2 if s[6] else 4):
            _copied(s[6], own, s[4], terms, count, here, COLUMNS, apart)
        else:
            _turned(s[6], own, s[5], terms, count, here, apart, kept)
    wait_for_all()
    row = _CLAIMED * next_number(s.ctypes.data + 8 * 18)
    while row < rows:
        end = min(row + _CLAIMED, rows)
        # Of the last rows a tile begins as much earlier as it is too high.
        start = max(0, min(row, end - ROWS))
        lines, line = s[0] + start * s[1], s[1]
        if not s[2]:
            for i in range(end - start):
                for c in range(0, terms // WIDTH * WIDTH, WIDTH):
                    store_half(copied + 2 * (i * terms + c), load(lines + i * line + 4 * c))
                to = halves(copied + 2 * i * terms, terms)
                for c in range(terms // WIDTH * WIDTH, terms):
                    to[c] = half_bits(floats(lines + i * line, terms)[c])
            lines, line = copied, 2 * terms
        for panel in range(panels):
            b, many = shared + panel * apart, min(COLUMNS, columns - panel * COLUMNS)
            more, begins = bias + 4 * COLUMNS * panel, FROM_BIAS if bias else FROM_0
            for i in range(row, end, ROWS):
                over = max(0, i + ROWS - end)
                a, out = lines + (i - over - start) * line, s[7] + i * width + size * COLUMNS * panel
                if over or many < COLUMNS:
                    high = ROWS - over
                    _tile_at_edge(
                        begins, more, a, line, 4, b, half, out, width, pairs, edge, over, high, many
                    )
                else:
                    eight_rows(begins, more, a, line, 4, b, _PAIR, half, out, width, pairs)
        _finished(s[7] + row * width, s[16], s[17], row * width, width, columns, end - row)
        row = _CLAIMED * next_number(s.ctypes.data + 8 * 18)


# out = aᵀ·b in fp32, of many terms; rows of out lie side by side in a, its columns in b. Both are copied some
# terms at a time, into one of two sets of panels, while threads may still multiply what the other holds. Slots: 0
# a, 1 from one term of it to the next, 2 whether it is bf16, 3 to 5 the same of b, 6 out, 7 from one row of it to
# the next, 8 rows of out, 9 columns, 10 terms, 11 to 13 `room_turned`, 14 `turns`, all 0, 15 sums of a's columns,
# or 0, 16 room for `slices` rows of them.


@cfunc("void(voidptr)", **BODY)
def by_columns(given):
    s = slots(given)
    width, rows, columns, terms = s[7], s[8], s[9], s[10]
    edge = s[11] + np.int64(my_number()) * _EDGE
    shared, panels = s[11] + np.int64(how_many()) * _EDGE, _panels_of(columns, COLUMNS)
    apart_rows, apart = _ROW_PAIR * _TERMS // 2 + _APART, _PAIR * _TERMS // 2 + _APART
    for begin in range(0, terms, _TERMS):
        some, number = min(_TERMS, terms - begin), begin // _TERMS
        of_rows = shared + number % 2 * (s[12] + s[13])
        of_columns, counter = of_rows + s[12], s[14] + 16 * number
        at = _SLICE * next_number(counter)
        while at < some:
            few, term = min(_SLICE, some - at), begin + at
            a, b = s[0] + term * s[1], s[3] + term * s[4]
            _copied(s[2], a, s[1], few, rows, of_rows + _ROW_PAIR * at // 2, WIDTH, apart_rows)
            if s[15]:
                _summed(s[2], a, s[1], few, rows, s[16] + 4 * rows * (term // _SLICE))
            _copied(s[5], b, s[4], few, columns, of_columns + _PAIR * at // 2, COLUMNS, apart)
            at = _SLICE * next_number(counter)
        wait_for_all()
        begins, pairs = FROM_SUMS if begin else FROM_0, (some + 1) // 2
        row = _CLAIMED * next_number(counter + 8)
        while row < rows:
            end = min(row + _CLAIMED, rows)
            for panel in range(panels):
                b, many = of_columns + panel * apart, min(COLUMNS, columns - panel * COLUMNS)
                for i in range(row, end, ROWS):
                    a = of_rows + i // WIDTH * apart_rows + i % WIDTH * 4
                    out = s[6] + i * width + 4 * COLUMNS * panel
                    high = min(ROWS, end - i)
                    if high < ROWS or many < COLUMNS:
                        _tile_at_edge(
                            begins, 0, a, 4, _ROW_PAIR, b, 0, out, width, pairs, edge, 0, high, many
                        )
                    else:
                        eight_rows(begins, 0, a, 4, _ROW_PAIR, b, _PAIR, 0, out, width, pairs)
            row = _CLAIMED * next_number(counter + 8)
    if s[15]:
        mine, of = np.int64(my_number()), np.int64(how_many())
        first, last = rows * mine // of, rows * (mine + 1) // of
        place = 4 * first
        _summed(0, s[16] + place, 4 * rows, _panels_of(terms, _SLICE), last - first, s[15] + place)
