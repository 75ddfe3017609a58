"""The bodies of dropout, sum and LayerNorm, there and back, 16 columns of a row at a time.

A row is kept in fp32 while it is worked on. Columns behind the last sixteen are computed one by one, and added up
in loops of their own, see row_kernels.py.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.cpu.compilation import (
    BODY,
    LOOPS,
    F,
    U,
    as_float,
    floats,
    my_number,
    my_rows,
    number_at,
    put_number,
    slots,
)
from bertsmith.kernels.cpu.element_access import kept_one
from bertsmith.kernels.cpu.simd import WIDTH, every, get, kept, load, put, store, sum_of

WRITTEN_WITH = "746206bf3d15963b"  # element_access.py, compilation.py and simd.py, see compilation.py


@njit(**LOOPS)
def _added(half, x, residual, begin, columns, drawn, to):
    """A row's residual + dropout(x), in fp32 at `to`: its sum. begin: the number of its first element; drawn: two
    seeds, of 65,536 how many are dropped, and the scale."""
    low, high, dropped, scale = drawn
    size, whole, total = 2 if half else 4, columns // WIDTH * WIDTH, every(F(0))
    x, residual = x + size * begin, residual + size * begin
    for j in range(0, whole, WIDTH):
        value = get(half, x + size * j)
        if dropped:
            value = value * kept(begin + j, low, high, dropped, scale)
        value = value + get(half, residual + size * j)
        store(to + 4 * j, value)
        total = total + value
    rest = sum_of(total)
    for j in range(whole, columns):
        one = number_at(half, x + size * j)
        if dropped:
            one *= kept_one(begin + j, low, high, dropped, scale)
        put_number(0, to + 4 * j, one + number_at(half, residual + size * j))
    for j in range(whole, columns):
        rest += number_at(0, to + 4 * j)
    return rest


@njit(**LOOPS)
def _inverse(row, columns, mean, epsilon):
    """1/deviation of a row in fp32."""
    whole, total = columns // WIDTH * WIDTH, every(F(0))
    for j in range(0, whole, WIDTH):
        apart = load(row + 4 * j) - every(mean)
        total = total + apart * apart
    rest = sum_of(total)
    for j in range(whole, columns):
        one = number_at(0, row + 4 * j) - mean
        rest += one * one
    return F(1) / np.sqrt(rest / F(columns) + epsilon)


@njit(**LOOPS)
def _normed(half, row, columns, mean, inverse, weight, bias, to):
    """(row - mean) · inverse · weight + bias."""
    size, whole = 2 if half else 4, columns // WIDTH * WIDTH
    for j in range(0, whole, WIDTH):
        value = (load(row + 4 * j) - every(mean)) * every(inverse)
        put(half, to + size * j, value * load(weight + 4 * j) + load(bias + 4 * j))
    for j in range(whole, columns):
        one = (number_at(0, row + 4 * j) - mean) * inverse
        put_number(half, to + size * j, one * number_at(0, weight + 4 * j) + number_at(0, bias + 4 * j))


# LN(residual + dropout(x)). Slots: 0 whether bf16, 1 x, 2 residual, 3 the result, 4 rows, 5 columns, 6 weight,
# 7 bias, 8 each row's mean and 1/deviation, 9 epsilon, 10 and 11 seed, 12 of 65,536 dropped, 13 scale; on the way
# back 3 is the slope of the sum, and 14 the slope of the result, 15 the slope of x, 16 each thread's sums for the
# slopes of weight and bias. The last one: a row of fp32 for each thread, two on the way back.


@cfunc("void(voidptr)", **BODY)
def add_norm(given):
    s = slots(given)
    half, columns, epsilon, stats = s[0], s[5], as_float(s[9]), floats(s[8], 2 * s[4])
    drawn, size = (U(s[10]), U(s[11]), U(s[12]), as_float(s[13])), 2 if half else 4
    row = s[17] + 4 * columns * np.int64(my_number())
    first, last = my_rows(s[4])
    for number in range(first, last):
        begin = number * columns
        mean = _added(half, s[1], s[2], begin, columns, drawn, row) / F(columns)
        inverse = _inverse(row, columns, mean, epsilon)
        stats[2 * number], stats[2 * number + 1] = mean, inverse
        _normed(half, row, columns, mean, inverse, s[6], s[7], s[3] + size * begin)


@njit(**LOOPS)
def _slopes(half, row, slope, grad, columns, mean, inverse, weight, sums):
    """A row as LayerNorm has it before weight and bias, in its place; the slopes of that at `slope`: their mean,
    and that of both multiplied. The slopes of weight and bias are added to `sums`."""
    size, whole = 2 if half else 4, columns // WIDTH * WIDTH
    along, across = every(F(0)), every(F(0))
    more = sums + 4 * columns
    for j in range(0, whole, WIDTH):
        unit, given = (load(row + 4 * j) - every(mean)) * every(inverse), get(half, grad + size * j)
        store(sums + 4 * j, load(sums + 4 * j) + given * unit)
        store(more + 4 * j, load(more + 4 * j) + given)
        given = given * load(weight + 4 * j)
        store(row + 4 * j, unit)
        store(slope + 4 * j, given)
        along, across = along + given, across + given * unit
    rest, others = sum_of(along), sum_of(across)
    for j in range(whole, columns):
        one, of = (number_at(0, row + 4 * j) - mean) * inverse, number_at(half, grad + size * j)
        put_number(0, sums + 4 * j, number_at(0, sums + 4 * j) + of * one)
        put_number(0, more + 4 * j, number_at(0, more + 4 * j) + of)
        of *= number_at(0, weight + 4 * j)
        put_number(0, row + 4 * j, one)
        put_number(0, slope + 4 * j, of)
    for j in range(whole, columns):
        rest += number_at(0, slope + 4 * j)
        others += number_at(0, slope + 4 * j) * number_at(0, row + 4 * j)
    return rest / F(columns), others / F(columns)


@njit(**LOOPS)
def _slopes_back(half, row, slope, begin, columns, along, across, inverse, drawn, of_sum, of_x):
    """The slopes of the sum, and of x where some of it was dropped."""
    low, high, dropped, scale = drawn
    size, whole = 2 if half else 4, columns // WIDTH * WIDTH
    of_sum, of_x = of_sum + size * begin, of_x + size * begin
    for j in range(0, whole, WIDTH):
        value = (load(slope + 4 * j) - every(along) - load(row + 4 * j) * every(across)) * every(inverse)
        put(half, of_sum + size * j, value)
        if dropped:
            put(half, of_x + size * j, value * kept(begin + j, low, high, dropped, scale))
    for j in range(whole, columns):
        one = (number_at(0, slope + 4 * j) - along - number_at(0, row + 4 * j) * across) * inverse
        put_number(half, of_sum + size * j, one)
        if dropped:
            put_number(half, of_x + size * j, one * kept_one(begin + j, low, high, dropped, scale))


@cfunc("void(voidptr)", **BODY)
def add_norm_back(given):
    s = slots(given)
    half, columns, stats, mine = s[0], s[5], floats(s[8], 2 * s[4]), np.int64(my_number())
    drawn, size = (U(s[10]), U(s[11]), U(s[12]), as_float(s[13])), 2 if half else 4
    row, sums = s[17] + 8 * columns * mine, s[16] + 8 * columns * mine
    slope = row + 4 * columns
    first, last = my_rows(s[4])
    for number in range(first, last):
        begin, mean, inverse = number * columns, stats[2 * number], stats[2 * number + 1]
        _added(half, s[1], s[2], begin, columns, drawn, row)
        along, across = _slopes(half, row, slope, s[14] + size * begin, columns, mean, inverse, s[6], sums)
        _slopes_back(half, row, slope, begin, columns, along, across, inverse, drawn, s[3], s[15])
