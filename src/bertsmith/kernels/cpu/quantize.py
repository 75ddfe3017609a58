"""The bodies around a product of 8-bit integers: its inputs are rounded, its outputs made what they stand for."""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.cpu.compilation import (
    BODY,
    LOOPS,
    F,
    as_float,
    floats,
    my_number,
    my_rows,
    number_at,
    put_number,
    slots,
)
from bertsmith.kernels.cpu.row_kernels import gelu_lanes
from bertsmith.kernels.cpu.simd import (
    WIDTH,
    bottom_of,
    every,
    every_at,
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
from bertsmith.kernels.cpu.simd_pairs import as_numbers

WRITTEN_WITH = "cb3b140dc5afa30a"  # compilation.py, simd.py and simd_pairs.py, see the first
COLUMNS = WIDTH  # are a multiple of it
ROWS = 64  # whose integers a thread keeps
KNOWN = 12 * ROWS  # bytes of their steps, the middles behind, and behind these what is kept apart


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


@njit(inline="always", **LOOPS)
def rows_of_a_block(rows, threads, of):
    """How many rows, a multiple of `of`, a thread rounds and multiplies at a time: at most ROWS, and few enough
    for threads to get about equally many."""
    blocks = (rows + ROWS * threads - 1) // (ROWS * threads) * threads
    return ((rows + blocks - 1) // blocks + of - 1) // of * of


def rounding_with(keep, size):
    """What rounds rows, and keeps 16 integers at a time by `keep`, of so many bytes each."""

    @njit(**LOOPS)
    def rounds(half, x, rows, channels, columns, apart, least, to, line, knows, here):
        """Rows of x as integers in lines of so many bytes. apart: the column that is kept as it is. knows: where
        that, steps and middles are put, see KNOWN."""
        size_in = 2 if half else 4
        for i in range(rows):
            own = x + size_in * i * columns
            step, middle = spanned(half, own, channels, columns, least, here)
            put_number(0, knows + 4 * i, step)
            put_number(0, knows + 4 * (ROWS + i), middle)
            put_number(0, knows + 4 * (2 * ROWS + i), number_at(half, own + size_in * apart))
            for j in range(0, columns, WIDTH):
                keep(to + i * line + size * j, (load(here + 4 * j) - every(middle)) / every(step))

    return rounds


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


@njit(inline="always", **LOOPS)
def stood_for(sums, row, of):
    """What sums of products of integers stand for. row: see `of_row`. of: see `loaded`."""
    (step, middle, apart), (weights, scale, bias, of_apart) = row, of
    return (sums * step + middle * weights + apart * of_apart) * scale + bias


@njit(inline="always", **LOOPS)
def of_outputs(s, first):
    """Where that is which `loaded` reads of 16 outputs; s: the slots of integers.py."""
    return s[5] + 4 * first, s[6] + 4 * first, s[7] + 4 * first, s[18] + 4 * first


@njit(inline="always", **LOOPS)
def loaded(of):
    """Of 16 outputs the sums of their weights, what one of these stands for, their biases, and their weights of
    what is kept apart."""
    weights, scale, bias, of_apart = of
    return load(weights), load(scale), load(bias), load(of_apart)


@njit(inline="always", **LOOPS)
def of_row(row, knows):
    """Of a row its step, its middle, and what is kept apart of it; where that is known: see KNOWN."""
    place = knows + 4 * row
    return every_at(place), every_at(place + 4 * ROWS), every_at(place + 8 * ROWS)


@njit(inline="always", **LOOPS)
def stood_for_in(row, sums, knows, of):
    """What a row's sums stand for. of: see `of_outputs`."""
    return stood_for(as_numbers(sums), of_row(row, knows), loaded(of))


@njit(inline="always", **LOOPS)
def finish_with(half, activated, value, to):
    """Put 16 numbers of a product there, or their GELU."""
    put(half, to, gelu_lanes(value) if activated else value)


# Slots: 0 whether bf16, 1 the products, 2 the result, 3 each row's step, 4 its middle, 5 and what is kept apart of
# it, 6 to 9 each column's sum of weights, scale, bias, and weight of that, 10 rows, 11 columns.


@cfunc("void(voidptr)", **BODY)
def restored(given):
    s = slots(given)
    half, columns = s[0], s[11]
    steps, middles, aparts = floats(s[3], s[10]), floats(s[4], s[10]), floats(s[5], s[10])
    first, last = my_rows(s[10])
    for number in range(first, last):
        begin, step, middle = number * columns, every(steps[number]), every(middles[number])
        apart = every(aparts[number])
        for j in range(0, columns, WIDTH):
            sums, at = load_whole(s[1] + 4 * (begin + j)), 4 * j
            of = loaded((s[6] + at, s[7] + at, s[8] + at, s[9] + at))
            value = stood_for(sums, (step, middle, apart), of)
            put(half, s[2] + (2 if half else 4) * (begin + j), value)
