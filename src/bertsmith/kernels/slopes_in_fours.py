"""The slopes of a layer's weights in 8-bit integers, where the processor multiplies four of them at a time
(AVX512-VNNI).

Of the many terms of such a product 512 are added up at a time, exactly. Of these each column of either matrix has
a scale of its own, the same on both sides of 0, and is rounded to it; the sums are multiplied by both scales and
added to those of the terms before.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.cpu.compilation import (
    BODY,
    LOOPS,
    F,
    as_float,
    my_rows,
    next_number,
    slots,
    wait_for_all,
)
from bertsmith.kernels.cpu.simd import (
    WIDTH,
    are_stored,
    every,
    every_at,
    get,
    larger,
    load,
    store,
    store_past,
)
from bertsmith.kernels.cpu.simd_pairs import (
    as_integers,
    as_numbers,
    every_pair_at,
    no_sums,
    pairs_at,
    sizes_of,
    store_fours,
    store_unsigned_fours,
    with_fours,
    with_sizes,
)

WRITTEN_WITH = "234545e526576c97"  # loops.py, lanes.py and pairs.py, see the first
TERMS = 512  # added up at a time
ROWS = 8  # made at a time
COLUMNS = 2 * WIDTH
_PAST = 2  # of sums: they are put past the caches
_CLAIMED = 64  # rows that a thread makes before it looks for others
_LARGEST = 127
_RIGHT = 4 * WIDTH  # bytes of a four of 16 columns
_SCALES_OF_ROWS = _RIGHT * TERMS // 4  # where the scales of 16 columns of a are, behind them
_OF_ROWS = _SCALES_OF_ROWS + 4 * WIDTH
_FOUR = 2 * _RIGHT  # bytes of a panel's four
_SCALES = _FOUR * TERMS // 4  # of 32 columns of b; behind them the scales, and the sums of the integers
_OF_COLUMNS = _SCALES + 8 * COLUMNS


def room(rows, columns):
    """How many bytes of two sets of panels."""
    return 2 * (rows // WIDTH * _OF_ROWS + columns // COLUMNS * _OF_COLUMNS)


def turns(terms):
    """How many numbers the threads count with."""
    return 2 * blocks(terms)


def blocks(terms):
    """How many times terms are added up."""
    return (terms + TERMS - 1) // TERMS


_blocks = njit(inline="always", **LOOPS)(blocks)


@njit(inline="always", **LOOPS)
def _term(half, x, x_term, number, terms):
    """Sixteen columns of a term; zeros behind the last one."""
    return get(half, x + number * x_term) if number < terms else every(F(0))


@njit(**LOOPS)
def _rounded(half, x, x_term, terms, to, four, scales, least, is_left):
    """Sixteen columns of so many terms in fours. four: bytes from one of them to the next. is_left: without a
    sign, see integers_in_fours.py."""
    sizes = no_sums()
    for term in range(terms):
        sizes = with_sizes(sizes, get(half, x + term * x_term))
    scale = larger(sizes_of(sizes) * every(F(1 / _LARGEST)), every(least))
    store(scales, scale)
    by = every(F(1)) / scale
    for term in range(0, terms, 4):
        p, q = _term(half, x, x_term, term, terms) * by, _term(half, x, x_term, term + 1, terms) * by
        r, s = _term(half, x, x_term, term + 2, terms) * by, _term(half, x, x_term, term + 3, terms) * by
        if is_left:
            store_unsigned_fours(to, p, q, r, s)
        else:
            store_fours(to, p, q, r, s)
        to += four


@njit(**LOOPS)
def _summed(half, x, x_term, terms, sums):
    """Over the terms of 16 columns."""
    total = every(F(0))
    for term in range(terms):
        total = total + get(half, x + term * x_term)
    store(sums, total)


@njit(inline="always", **LOOPS)
def _added(adds, out, sums, scale, scales):
    """adds: to what is there, or _PAST."""
    found = as_numbers(sums) * scale * load(scales)
    if adds == _PAST:
        store_past(out, found)
    else:
        store(out, load(out) + found if adds else found)


@njit(**LOOPS)
def _eight_rows(adds, a, scales, b, out, width, fours):
    """Of out, see below: eight rows and 32 columns. scales: of these rows."""
    of_b = b + _SCALES
    below = as_integers(load(of_b + 4 * COLUMNS) * every(F(-128)))
    under = as_integers(load(of_b + 4 * COLUMNS + 4 * WIDTH) * every(F(-128)))
    c = d = e = f = k = m = n = o = below
    g = h = i = j = p = q = r = s = under
    for _ in range(fours):
        x, y, z = pairs_at(b), pairs_at(b + _RIGHT), every_pair_at(a)
        c, g = with_fours(c, z, x), with_fours(g, z, y)
        z = every_pair_at(a + 4)
        d, h = with_fours(d, z, x), with_fours(h, z, y)
        z = every_pair_at(a + 8)
        e, i = with_fours(e, z, x), with_fours(i, z, y)
        z = every_pair_at(a + 12)
        f, j = with_fours(f, z, x), with_fours(j, z, y)
        z = every_pair_at(a + 16)
        k, p = with_fours(k, z, x), with_fours(p, z, y)
        z = every_pair_at(a + 20)
        m, q = with_fours(m, z, x), with_fours(q, z, y)
        z = every_pair_at(a + 24)
        n, r = with_fours(n, z, x), with_fours(r, z, y)
        z = every_pair_at(a + 28)
        o, s = with_fours(o, z, x), with_fours(s, z, y)
        a += _RIGHT
        b += _FOUR
    right = 4 * WIDTH
    for sums, others in ((c, g), (d, h), (e, i), (f, j), (k, p), (m, q), (n, r), (o, s)):
        scale = every_at(scales)
        _added(adds, out, sums, scale, of_b)
        _added(adds, out + right, others, scale, of_b + right)
        scales += 4
        out += width


# out = aᵀ·b in fp32. Slots: 0 a, 1 bytes from one term of it to the next, 2 whether it is bf16, 3 to 5 the same of
# b, 6 out, 7 bytes from one row of it to the next, 8 rows of out, a multiple of 16, 9 columns, a multiple of 32,
# 10 terms, 11 `room`, 12 the least scale by its bits, 13 fours of ones, 14 `turns`, all 0, 15 sums of a's columns,
# 16 room for as many of each block.


@cfunc("void(voidptr)", **BODY)
def by_columns(given):
    s = slots(given)
    width, rows, columns, terms, least = s[7], s[8], s[9], s[10], as_float(s[12])
    of_rows, of_columns = rows // WIDTH, columns // COLUMNS
    size_a, size_b = 2 if s[2] else 4, 2 if s[5] else 4
    for begin in range(0, terms, TERMS):
        some, number = min(TERMS, terms - begin), begin // TERMS
        lefts = s[11] + number % 2 * (of_rows * _OF_ROWS + of_columns * _OF_COLUMNS)
        rights, counter = lefts + of_rows * _OF_ROWS, s[14] + 16 * number
        panel = next_number(counter)
        while panel < of_rows + of_columns:
            if panel < of_rows:
                own, to = s[0] + begin * s[1] + size_a * WIDTH * panel, lefts + panel * _OF_ROWS
                _rounded(s[2], own, s[1], some, to, _RIGHT, to + _SCALES_OF_ROWS, least, 1)
                _summed(s[2], own, s[1], some, s[16] + 4 * (rows * number + WIDTH * panel))
            else:
                column = panel - of_rows
                own, to = s[3] + begin * s[4] + size_b * COLUMNS * column, rights + column * _OF_COLUMNS
                for side in range(2):
                    scales = to + _SCALES + 4 * WIDTH * side
                    half = to + _RIGHT * side
                    _rounded(s[5], own + size_b * WIDTH * side, s[4], some, half, _FOUR, scales, least, 0)
                    sums, ones = no_sums(), every_pair_at(s[13])
                    for place in range(half, half + (some + 3) // 4 * _FOUR, _FOUR):
                        sums = with_fours(sums, ones, pairs_at(place))
                    store(scales + 4 * COLUMNS, as_numbers(sums))
            panel = next_number(counter)
        wait_for_all()
        # Where sums are written but once nobody reads them before all slopes are made.
        adds = _PAST if terms <= TERMS and (s[6] | width) % (4 * WIDTH) == 0 else np.int64(begin > 0)
        row = _CLAIMED * next_number(counter + 8)
        while row < rows:
            end = min(row + _CLAIMED, rows)
            for column in range(of_columns):
                right = rights + column * _OF_COLUMNS
                for i in range(row, end, ROWS):
                    left, out = lefts + i // WIDTH * _OF_ROWS, s[6] + i * width + 4 * COLUMNS * column
                    own, scales = left + i % WIDTH * 4, left + _SCALES_OF_ROWS + i % WIDTH * 4
                    _eight_rows(adds, own, scales, right, out, width, (some + 3) // 4)
            row = _CLAIMED * next_number(counter + 8)
    are_stored()
    wait_for_all()
    first, last = my_rows(rows // WIDTH)
    for place in range(4 * WIDTH * first, 4 * WIDTH * last, 4 * WIDTH):
        total = load(s[16] + place)
        for number in range(1, _blocks(terms)):
            total = total + load(s[16] + 4 * rows * number + place)
        store(s[15] + place, total)
