"""The bodies of an encoder's beginning: rows of three tables added up, LayerNorm and dropout, and the way back."""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.cpu.compilation import (
    JIT_OPTIONS,
    KERNEL_OPTIONS,
    barrier,
    bf16_array,
    float32,
    float_array,
    float_from_bits,
    int64_array,
    load_slots,
    num_threads,
    thread_index,
    thread_range,
    uint32,
)
from bertsmith.kernels.cpu.element_access import dropout_scale, load_element, mean_and_rstd, store_element

WRITTEN_WITH = "9fab70ddb2fb9a69"  # element_access.py and compilation.py, see there

# Slots: 0 whether the result is bf16, 1 each token's row of the first table, 2 the second table, 3 the number of
# each token's row in it, 4 and 5 the same of the third, 6 tokens, 7 columns, 8 weight, 9 each token's mean and
# 1/deviation, 10 and 11 seed, 12 of 65,536 dropped, 13 scale, 14 the result, 15 bias, 16 epsilon, 19 and 20 the
# numbers of rows of the second and third table. On the way back 14 is the slope of the result, 15 and 16 are the
# slopes of the second and third table, 17 those of the rows in slot 1, 18 each thread's sums for the slopes of
# weight and bias.


@njit(**JIT_OPTIONS)
def _added(rows, tables, places, columns, row, added):
    begin = row * columns
    xs = rows[begin : begin + columns]
    a, b = places[0][row] * columns, places[1][row] * columns
    ys, zs = tables[0][a : a + columns], tables[1][b : b + columns]
    for j in range(columns):
        added[j] = xs[j] + ys[j] + zs[j]


@njit(**JIT_OPTIONS)
def _there(rows, tables, places, h, weight, stats, numbers, found, bias, epsilon, first, last):
    low, high, dropped, scale = numbers
    added = np.empty(h, np.float32)
    for row in range(first, last):
        begin = row * h
        _added(rows, tables, places, h, row, added)
        mean, inverse = mean_and_rstd(added, epsilon)
        stats[2 * row], stats[2 * row + 1] = mean, inverse
        ys = found[begin : begin + h]
        if dropped:
            for j in range(h):
                value = (added[j] - mean) * inverse * weight[j] + bias[j]
                store_element(ys, j, value * dropout_scale(begin + j, low, high, dropped, scale))
        else:
            for j in range(h):
                store_element(ys, j, (added[j] - mean) * inverse * weight[j] + bias[j])


@njit(**JIT_OPTIONS)
def _back(rows, tables, places, h, weight, stats, numbers, grad, of_rows, sums, first, last):
    low, high, dropped, scale = numbers
    unit, slope = np.empty(h, np.float32), np.empty(h, np.float32)
    of_weight, of_bias = sums[:h], sums[h:]
    for row in range(first, last):
        begin = row * h
        _added(rows, tables, places, h, row, unit)
        gs, mean, inverse = grad[begin : begin + h], stats[2 * row], stats[2 * row + 1]
        if dropped:
            for j in range(h):
                slope[j] = load_element(gs, j) * dropout_scale(begin + j, low, high, dropped, scale)
        else:
            for j in range(h):
                slope[j] = load_element(gs, j)
        for j in range(h):
            unit[j] = (unit[j] - mean) * inverse
            of_weight[j] += slope[j] * unit[j]
            of_bias[j] += slope[j]
            slope[j] *= weight[j]
        along, across = float32(0), float32(0)
        for j in range(h):
            along += slope[j]
            across += slope[j] * unit[j]
        along /= float32(h)
        across /= float32(h)
        os = of_rows[begin : begin + h]
        for j in range(h):
            os[j] = (slope[j] - along - unit[j] * across) * inverse


@njit(**JIT_OPTIONS)
def _summed(of_rows, place, of_table, h, first, last):
    """Of the slopes of all tokens the columns from the first to the last, added to those of the table."""
    for row in range(len(place)):
        begin, own = row * h, place[row] * h
        some, to = of_rows[begin + first : begin + last], of_table[own + first : own + last]
        for j in range(len(some)):
            to[j] += some[j]


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def forward(given):
    s = load_slots(given)
    count, h = s[6], s[7]
    first, last = thread_range(count)
    places = int64_array(s[3], count), int64_array(s[5], count)
    tables = float_array(s[2], s[19] * h), float_array(s[4], s[20] * h)
    rows, weight, stats = float_array(s[1], count * h), float_array(s[8], h), float_array(s[9], 2 * count)
    numbers = uint32(s[10]), uint32(s[11]), uint32(s[12]), float_from_bits(s[13])
    bias, eps = float_array(s[15], h), float_from_bits(s[16])
    if s[0]:
        found = bf16_array(s[14], count * h)
        _there(rows, tables, places, h, weight, stats, numbers, found, bias, eps, first, last)
    else:
        full = float_array(s[14], count * h)
        _there(rows, tables, places, h, weight, stats, numbers, full, bias, eps, first, last)


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def backward(given):
    s = load_slots(given)
    count, h = s[6], s[7]
    first, last = thread_range(count)
    places = int64_array(s[3], count), int64_array(s[5], count)
    tables = float_array(s[2], s[19] * h), float_array(s[4], s[20] * h)
    rows, weight, stats = float_array(s[1], count * h), float_array(s[8], h), float_array(s[9], 2 * count)
    numbers = uint32(s[10]), uint32(s[11]), uint32(s[12]), float_from_bits(s[13])
    mine, of_rows = np.int64(thread_index()) * 2 * h, float_array(s[17], count * h)
    sums = float_array(s[18], 2 * h * np.int64(num_threads()))[mine : mine + 2 * h]
    if s[0]:
        grad = bf16_array(s[14], count * h)
        _back(rows, tables, places, h, weight, stats, numbers, grad, of_rows, sums, first, last)
    else:
        full = float_array(s[14], count * h)
        _back(rows, tables, places, h, weight, stats, numbers, full, of_rows, sums, first, last)
    barrier()
    first, last = thread_range(h)
    _summed(of_rows, places[0], float_array(s[15], s[19] * h), h, first, last)
    _summed(of_rows, places[1], float_array(s[16], s[20] * h), h, first, last)
