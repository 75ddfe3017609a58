"""The bodies around a product of 8-bit integers: its inputs are rounded, its outputs made what they stand for."""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.lanes import (
    WIDTH,
    bottom_of,
    every,
    get,
    larger,
    load,
    load_whole,
    put,
    smaller,
    store,
    store_bytes,
    sum_of,
    top_of,
)
from bertsmith.kernels.loops import BODY, LOOPS, F, as_float, floats, my_number, my_rows, slots

WRITTEN_WITH = "11e04103534caf05"  # loops.py and lanes.py, see there
COLUMNS = WIDTH  # are a multiple of it


@njit(inline="always", **LOOPS)
def spanned(half, x, channels, columns, least, here):
    """A row times the factors of its columns, kept in fp32 from `here` on; how large a step of its 8 bits is, and
    what 0 stands for."""
    low, high, none = every(F(np.inf)), every(F(-np.inf)), every(F(0))
    for j in range(0, columns, WIDTH):
        value = get(half, x + (2 if half else 4) * j)
        value = value * load(channels + 4 * j)
        store(here + 4 * j, value)
        low, high = smaller(low, value), larger(high, value)
        none = none + value * every(F(0))  # not a number where one is none, which the two above pass over
    lowest = bottom_of(low)
    step = max((top_of(high) - lowest) / F(255), least) + sum_of(none)
    return step, lowest + F(128) * step


# Slots: 0 whether bf16, 1 x, 2 factors of its columns, 3 the integers, 4 each row's step, 5 and its middle,
# 6 rows, 7 columns, 8 the least step by its bits, 9 a row in fp32 for each thread.


@cfunc("void(voidptr)", **BODY)
def rounded(given):
    s = slots(given)
    half, columns = s[0], s[7]
    steps, middles, least = floats(s[4], s[6]), floats(s[5], s[6]), as_float(s[8])
    here = s[9] + 4 * columns * np.int64(my_number())
    first, last = my_rows(s[6])
    for number in range(first, last):
        begin = number * columns
        step, middle = spanned(half, s[1] + (2 if half else 4) * begin, s[2], columns, least, here)
        steps[number], middles[number] = step, middle
        for j in range(0, columns, WIDTH):
            store_bytes(s[3] + begin + j, (load(here + 4 * j) - every(middle)) / every(step))


# Slots: 0 whether bf16, 1 the products, 2 the result, 3 each row's step, 4 and its middle, 5 to 7 each column's
# sum of weights, scale and bias, 8 rows, 9 columns.


@njit(inline="always", **LOOPS)
def stood_for(sums, step, middle, weights, scale, bias):
    """What sums of products of integers stand for; weights: of each column the sum of its own."""
    return (sums * step + middle * load(weights)) * load(scale) + load(bias)


@cfunc("void(voidptr)", **BODY)
def restored(given):
    s = slots(given)
    half, columns = s[0], s[9]
    steps, middles = floats(s[3], s[8]), floats(s[4], s[8])
    first, last = my_rows(s[8])
    for number in range(first, last):
        begin, step, middle = number * columns, every(steps[number]), every(middles[number])
        for j in range(0, columns, WIDTH):
            sums = load_whole(s[1] + 4 * (begin + j))
            value = stood_for(sums, step, middle, s[5] + 4 * j, s[6] + 4 * j, s[7] + 4 * j)
            put(half, s[2] + (2 if half else 4) * (begin + j), value)
