"""The bodies of attention over packed sequences, there and back.

A head of a sequence is one thread's work, some of its queries at a time, so that no score leaves the cache. What
comes of it depends on no other sequence, and not on the number of threads. All is computed in fp32.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.lanes import (
    WIDTH,
    every,
    every_at,
    exp_below,
    get,
    kept,
    larger,
    load,
    put,
    store,
    sum_of,
    top_of,
)
from bertsmith.kernels.loops import (
    BODY,
    LOOPS,
    F,
    U,
    as_float,
    compiles_for,
    floats,
    how_many,
    integers,
    my_number,
    slots,
)

WRITTEN_WITH = "d464acfa1baa2024"  # loops.py and lanes.py, see there
_ROWS = 4  # made at a time in a product
_WIDE = compiles_for("avx512f")  # else the sums of twice as many columns are more than the registers hold
_QUERIES = 32  # worked on at a time
_BEFORE, _BEHIND = 1, 2
SEES = {"all": 0, "before": _BEFORE, "behind": _BEHIND}
COLUMNS = WIDTH  # a head's are a multiple of it


def room(longest: int, width: int, back: bool) -> int:
    """How many fp32 numbers a thread of `forward` or `backward` needs to compute in; both divide it so."""
    most = -(-longest // WIDTH) * WIDTH
    if back:
        return 6 * most * width + 3 * _QUERIES * most + 2 * _QUERIES * width
    return 3 * most * width + _QUERIES * width + _QUERIES * most


@njit(**LOOPS)
def _product(adds, a, a_row, a_column, b, out, rows, columns, terms):
    """out [rows, columns] = a · b, or that is added to it. b is [terms, columns], a's element [r, c] stands at r ·
    a_row + c · a_column. Rows are made 4 at a time, columns 32, or 16 where a register holds half as many: so many
    sums that none waits for itself."""
    first, second, third = a.ctypes.data, b.ctypes.data, out.ctypes.data
    for row in range(0, rows, _ROWS):
        column, own = 0, first + 4 * row * a_row
        while column < columns:
            other, place = second + 4 * column, third + 4 * (row * columns + column)
            if _WIDE and column + 2 * WIDTH <= columns:
                _wide(adds, own, 4 * a_row, 4 * a_column, other, place, 4 * columns, terms)
                column += 2 * WIDTH
            else:
                _narrow(adds, own, 4 * a_row, 4 * a_column, other, place, 4 * columns, terms)
                column += WIDTH


@njit(inline="always", **LOOPS)
def _wide(adds, a, a_row, a_column, b, out, width, terms):
    """4 rows and 32 columns of a product; what lies between rows is in bytes."""
    one, two, three = out + width, out + 2 * width, out + 3 * width
    if adds:
        s, t, u, v = load(out), load(one), load(two), load(three)
        w, x, y, z = load(out + 64), load(one + 64), load(two + 64), load(three + 64)
    else:
        s = t = u = v = w = x = y = z = every(F(0))
    for _ in range(terms):
        left, right = load(b), load(b + 64)
        p, q, r, o = every_at(a), every_at(a + a_row), every_at(a + 2 * a_row), every_at(a + 3 * a_row)
        s, t, u, v = s + p * left, t + q * left, u + r * left, v + o * left
        w, x, y, z = w + p * right, x + q * right, y + r * right, z + o * right
        a += a_column
        b += width
    store(out, s)
    store(one, t)
    store(two, u)
    store(three, v)
    store(out + 64, w)
    store(one + 64, x)
    store(two + 64, y)
    store(three + 64, z)


@njit(inline="always", **LOOPS)
def _narrow(adds, a, a_row, a_column, b, out, width, terms):
    """4 rows and 16 columns."""
    one, two, three = out + width, out + 2 * width, out + 3 * width
    if adds:
        s, t, u, v = load(out), load(one), load(two), load(three)
    else:
        s = t = u = v = every(F(0))
    for _ in range(terms):
        own = load(b)
        s, t = s + every_at(a) * own, t + every_at(a + a_row) * own
        u, v = u + every_at(a + 2 * a_row) * own, v + every_at(a + 3 * a_row) * own
        a += a_column
        b += width
    store(out, s)
    store(one, t)
    store(two, u)
    store(three, v)


@njit(**LOOPS)
def _read(half, x, begin, stride, count, width, scale, out):
    """Rows of a head, [count, width], which lie `stride` apart from `begin` on."""
    place, by = out.ctypes.data, every(scale)
    for i in range(count):
        for c in range(begin + i * stride, begin + i * stride + width, WIDTH):
            store(place, get(half, x + (2 if half else 4) * c) * by)
            place += 4 * WIDTH


@njit(**LOOPS)
def write(half, x, count, width, scale, out, begin, stride):
    """The same back."""
    place, by = x.ctypes.data, every(scale)
    for i in range(count):
        for c in range(begin + i * stride, begin + i * stride + width, WIDTH):
            put(half, out + (2 if half else 4) * c, load(place) * by)
            place += 4 * WIDTH


@njit(**LOOPS)
def _turned(x, count, width, out, across):
    """x [count, width] → [width, across], 0 behind it."""
    for c in range(width):
        row = out[c * across : c * across + across]
        for i in range(count):
            row[i] = x[i * width + c]
        for i in range(count, across):
            row[i] = F(0)


@njit(**LOOPS)
def hide(row, i, count, sees):
    """The scores of what query i does not see, and of no key at all."""
    if sees == _BEHIND:
        row[:i] = -np.inf
    row[i + 1 if sees == _BEFORE else count :] = -np.inf


@njit(**LOOPS)
def up(count):
    return (count + WIDTH - 1) // WIDTH * WIDTH


# Slots: 0 whether bf16, 1 qkv, 2 the result, 3 of each row and head the highest score and 1 / the sum, 4 starts, 5
# sequences, 6 heads, 7 columns of a head, 8 what a token sees, 9 to 12 dropout, 13 rows, 14 tokens of the longest
# sequence, 15 `room` for all threads, 16 how much of it a thread has; on the way back 2 is the slope of qkv, 17
# that of the result.


@cfunc("void(voidptr)", **BODY)
def forward(given):
    s = slots(given)
    half, qkv, out, heads, width, sees, rows = s[0], s[1], s[2], s[6], s[7], s[8], s[13]
    stats, starts = floats(s[3], 2 * rows * heads), integers(s[4], s[5] + 1)
    low, high, dropped, scale = U(s[9]), U(s[10]), U(s[11]), as_float(s[12])
    inner, most = heads * width, up(s[14])
    stride = 3 * inner
    each, block = most * width, _QUERIES * most
    mine = s[15] + 4 * np.int64(my_number()) * s[16]
    keys, values, scores = floats(mine, each), floats(mine + 4 * each, each), floats(mine + 8 * each, block)
    some_rows = floats(mine + 8 * each + 4 * block, each + _QUERIES * width)
    root = F(1) / np.sqrt(F(width))
    for pair in range(np.int64(my_number()), s[5] * heads, np.int64(how_many())):
        one, head = pair // heads, pair % heads
        first, count = starts[one], starts[one + 1] - starts[one]
        across, at = up(count), starts[one] * stride + head * width
        _read(half, qkv, at + inner, stride, count, width, F(1), some_rows)
        _turned(some_rows, count, width, keys, across)
        _read(half, qkv, at + 2 * inner, stride, count, width, F(1), values)
        for begin in range(0, count, _QUERIES):
            some = min(_QUERIES, count - begin)
            _read(half, qkv, at + begin * stride, stride, some, width, root, some_rows)
            _product(False, some_rows, width, 1, keys, scores, some, across, width)
            for i in range(some):
                row = scores[i * across : i * across + across]
                hide(row, begin + i, count, sees)
                here = row.ctypes.data
                top = load(here)
                for j in range(WIDTH, across, WIDTH):
                    top = larger(top, load(here + 4 * j))
                highest = top_of(top)
                total = every(F(0))
                for j in range(0, across, WIDTH):
                    value = exp_below(load(here + 4 * j) - every(highest))
                    store(here + 4 * j, value)
                    total = total + value
                share = F(1) / sum_of(total)
                place = (first + begin + i) * heads + head
                stats[2 * place], stats[2 * place + 1] = highest, share
                for j in range(0, across, WIDTH):
                    value = load(here + 4 * j) * every(share)
                    if dropped:
                        value = value * kept(place * most + j, low, high, dropped, scale)
                    store(here + 4 * j, value)
            _product(False, scores, across, 1, values, some_rows, some, width, count)
            write(half, some_rows, some, width, F(1), out, (first + begin) * inner + head * width, inner)


@cfunc("void(voidptr)", **BODY)
def backward(given):
    s = slots(given)
    half, qkv, slopes, heads, width, sees, rows, grad = s[0], s[1], s[2], s[6], s[7], s[8], s[13], s[17]
    stats, starts = floats(s[3], 2 * rows * heads), integers(s[4], s[5] + 1)
    low, high, dropped, scale = U(s[9]), U(s[10]), U(s[11]), as_float(s[12])
    inner, most = heads * width, up(s[14])
    stride = 3 * inner
    each, block, few = most * width, _QUERIES * most, _QUERIES * width
    mine = s[15] + 4 * np.int64(my_number()) * s[16]
    keys, keys_turned = floats(mine, each), floats(mine + 4 * each, each)
    values, values_turned = floats(mine + 8 * each, each), floats(mine + 12 * each, each)
    of_keys, of_values = floats(mine + 16 * each, each), floats(mine + 20 * each, each)
    mine += 24 * each
    weights, through, after = (
        floats(mine, block),
        floats(mine + 4 * block, block),
        floats(mine + 8 * block, block),
    )
    queries, upstream = floats(mine + 12 * block, few), floats(mine + 12 * block + 4 * few, few)
    root = F(1) / np.sqrt(F(width))
    for pair in range(np.int64(my_number()), s[5] * heads, np.int64(how_many())):
        one, head = pair // heads, pair % heads
        first, count = starts[one], starts[one + 1] - starts[one]
        across, at = up(count), starts[one] * stride + head * width
        _read(half, qkv, at + inner, stride, count, width, F(1), keys)
        _turned(keys, count, width, keys_turned, across)
        _read(half, qkv, at + 2 * inner, stride, count, width, F(1), values)
        _turned(values, count, width, values_turned, across)
        of_keys[: across * width] = F(0)
        of_values[: across * width] = F(0)
        for begin in range(0, count, _QUERIES):
            some = min(_QUERIES, count - begin)
            _read(half, qkv, at + begin * stride, stride, some, width, root, queries)
            _read(half, grad, (first + begin) * inner + head * width, inner, some, width, F(1), upstream)
            _product(False, queries, width, 1, keys_turned, weights, some, across, width)
            _product(False, upstream, width, 1, values_turned, through, some, across, width)
            for i in range(some):
                row = weights[i * across : i * across + across]
                hide(row, begin + i, count, sees)
                here = row.ctypes.data
                slope = through[i * across : i * across + across].ctypes.data
                mixed = after[i * across : i * across + across].ctypes.data
                place = (first + begin + i) * heads + head
                highest, share = every(stats[2 * place]), every(stats[2 * place + 1])
                total = every(F(0))
                for j in range(0, across, WIDTH):
                    weight, value = exp_below(load(here + 4 * j) - highest) * share, load(slope + 4 * j)
                    after_it = weight
                    if dropped:
                        after_it = weight * kept(place * most + j, low, high, dropped, scale)
                    value = value * after_it
                    store(here + 4 * j, weight)
                    store(mixed + 4 * j, after_it)
                    store(slope + 4 * j, value)
                    total = total + value
                whole = every(sum_of(total))
                for j in range(0, across, WIDTH):
                    store(slope + 4 * j, load(slope + 4 * j) - load(here + 4 * j) * whole)
            _product(True, after, 1, across, upstream, of_values, count, width, some)
            _product(True, through, 1, across, queries, of_keys, count, width, some)
            _product(False, through, across, 1, keys, upstream, some, width, count)
            write(half, upstream, some, width, root, slopes, at + begin * stride, stride)
        write(half, of_keys, count, width, F(1), slopes, at + inner, stride)
        write(half, of_values, count, width, F(1), slopes, at + 2 * inner, stride)
