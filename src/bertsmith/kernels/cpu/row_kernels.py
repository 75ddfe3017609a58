"""The bodies of the kernels between a layer's products and over the vocabulary: loops over rows, which Numba
compiles when this module is imported.

Values in bf16 are widened to fp32, computed with, and rounded to the nearest, ties to even.

A loop that adds up a sum writes no array. LLVM makes vectors of a loop that does both only where what is written
lies far enough behind what is read, else adds one by one, and so in another order: two runs whose arrays lie
elsewhere would not be the same.
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
    halves,
    how_many,
    integers,
    my_number,
    my_rows,
    number_at,
    put_number,
    slots,
)
from bertsmith.kernels.cpu.element_access import get_one, kept_one, put_one
from bertsmith.kernels.cpu.exponential import exp_below
from bertsmith.kernels.cpu.gelu import gelu_slope, share_below
from bertsmith.kernels.cpu.simd import WIDTH, every, get, larger, load, put, store, sum_of

WRITTEN_WITH = "ab60a78f450fbb93"  # element_access.py, compilation.py and simd.py, see there
_LANES = 64


@njit(inline="always", **LOOPS)
def _exp(x):
    """exp of x ≤ 0, to 2e-7 of its value: 2 to a whole number times a polynomial (Cephes)."""
    x = x if x > F(-87) else (F(-87) if x <= F(-87) else x)
    whole = np.floor(x * F(1.44269504) + F(0.5))
    r = x - whole * F(0.693359375) + whole * F(2.12194440e-4)
    p = F(1.9875691500e-4)
    p = p * r + F(1.3981999507e-3)
    p = p * r + F(8.3334519073e-3)
    p = p * r + F(4.1665795894e-2)
    p = p * r + F(1.6666665459e-1)
    p = p * r + F(5.0000001201e-1)
    y = p * r * r + r + F(1)
    return y * U(np.int32((np.int32(whole) + np.int32(127)) << np.int32(23))).view(np.float32)


@njit(**LOOPS)
def _top(values, lanes):
    """The largest, by the largest of each lane: a single one would wait for itself at each value."""
    for k in range(_LANES):
        lanes[k] = -np.inf
    whole = len(values) // _LANES
    for i in range(whole):
        some = values[i * _LANES : i * _LANES + _LANES]
        for k in range(_LANES):
            lanes[k] = some[k] if some[k] > lanes[k] else lanes[k]
    top = lanes[0]
    for k in range(_LANES):
        top = max(top, lanes[k])
    for j in range(whole * _LANES, len(values)):
        top = max(top, values[j])
    return top


# GELU. Slots: 0 whether bf16, 1 x, 2 the result, 3 elements; on the way back 4 the slope of the result.


@njit(inline="always", **LOOPS)
def gelu_lanes(x):
    """Of 16 numbers."""
    return x * share_below(x)


@njit(**LOOPS)
def gelu_of(x, y):
    """Of each element of x, written to y."""
    half, size, whole = x.itemsize == 2, x.itemsize, len(x) // WIDTH * WIDTH
    for place in range(0, size * whole, size * WIDTH):
        put(half, y.ctypes.data + place, gelu_lanes(get(half, x.ctypes.data + place)))
    if whole < len(x):
        rest = np.zeros(WIDTH, np.float32)
        for j in range(len(x) - whole):
            rest[j] = get_one(x, whole + j)
        store(rest.ctypes.data, gelu_lanes(load(rest.ctypes.data)))
        for j in range(len(x) - whole):
            put_one(y, whole + j, rest[j])


@njit(**LOOPS)
def gelu_slopes_of(x, g, y):
    """GELU's slopes at x times g, written to y, which may be g."""
    half, size, whole = x.itemsize == 2, x.itemsize, len(x) // WIDTH * WIDTH
    for place in range(0, size * whole, size * WIDTH):
        upstream = get(half, g.ctypes.data + place)
        put(half, y.ctypes.data + place, upstream * gelu_slope(get(half, x.ctypes.data + place)))
    if whole < len(x):
        rest = np.zeros(WIDTH, np.float32)
        for j in range(len(x) - whole):
            rest[j] = get_one(x, whole + j)
        store(rest.ctypes.data, gelu_slope(load(rest.ctypes.data)))
        for j in range(len(x) - whole):
            put_one(y, whole + j, get_one(g, whole + j) * rest[j])


@cfunc("void(voidptr)", **BODY)
def gelu(given):
    s = slots(given)
    first, last = my_rows(s[3])
    if s[0]:
        gelu_of(halves(s[1], s[3])[first:last], halves(s[2], s[3])[first:last])
    else:
        gelu_of(floats(s[1], s[3])[first:last], floats(s[2], s[3])[first:last])


@cfunc("void(voidptr)", **BODY)
def gelu_back(given):
    s = slots(given)
    n = s[3]
    first, last = my_rows(n)
    if s[0]:
        x, g, y = halves(s[1], n), halves(s[4], n), halves(s[2], n)
        gelu_slopes_of(x[first:last], g[first:last], y[first:last])
    else:
        a, b, c = floats(s[1], n), floats(s[4], n), floats(s[2], n)
        gelu_slopes_of(a[first:last], b[first:last], c[first:last])


# Slots: 0 whether bf16, 1 x, 2 what is added to it, 3 elements, a multiple of COLUMNS.


@cfunc("void(voidptr)", **BODY)
def add(given):
    s = slots(given)
    half, size = s[0] != 0, 2 if s[0] else 4
    first, last = my_rows(s[3] // WIDTH)
    for place in range(size * WIDTH * first, size * WIDTH * last, size * WIDTH):
        put(half, s[1] + place, get(half, s[1] + place) + get(half, s[2] + place))


# What threads have summed, together. Slots: 0 their sums, 1 the result, 2 threads, 3 numbers of each.


@cfunc("void(voidptr)", **BODY)
def summed(given):
    s = slots(given)
    n = s[3]
    sums, found = floats(s[0], s[2] * n), floats(s[1], n)
    first, last = my_rows(n)
    for j in range(first, last):
        found[j] = sums[j]
        for thread in range(1, s[2]):
            found[j] += sums[thread * n + j]


# Softmax of scores, then dropout. Slots: 0 whether bf16, 1 scores, 2 weights, 3 weights after dropout, 4 rows,
# 5 columns, 6 bias or 0, 7 rows of a sequence, 8 elements of the bias from one sequence to the next, 9 from one
# row to the next, 10 and 11 seed, 12 of 65,536 dropped, 13 scale. On the way back 1 is the slope of 3, which
# becomes that of the scores.


@njit(**LOOPS)
def _weights(
    scores,
    weights,
    after,
    columns,
    bias,
    a_sequence,
    by_sequence,
    by_row,
    low,
    high,
    dropped,
    scale,
    first,
    last,
):
    filled, lanes = np.empty(columns, np.float32), np.empty(_LANES, np.float32)
    for row in range(first, last):
        begin = row * columns
        ss, ws, ds = (
            scores[begin : begin + columns],
            weights[begin : begin + columns],
            after[begin : begin + columns],
        )
        if len(bias):
            at = row // a_sequence * by_sequence + row % columns * by_row
            bs = bias[at : at + columns]
            for j in range(columns):
                filled[j] = get_one(ss, j) + bs[j]
        else:
            for j in range(columns):
                filled[j] = get_one(ss, j)
        top = _top(filled, lanes)
        total = F(0)
        for j in range(columns):
            value = _exp(filled[j] - top)
            filled[j] = value
            total += value
        share = F(1) / total
        if dropped:
            for j in range(columns):
                put_one(ws, j, filled[j] * share)
                put_one(ds, j, get_one(ws, j) * kept_one(begin + j, low, high, dropped, scale))
        else:
            for j in range(columns):
                put_one(ws, j, filled[j] * share)


@njit(**LOOPS)
def _weights_back(slopes, weights, after, columns, low, high, dropped, scale, first, last):
    through = np.empty(columns, np.float32)
    for row in range(first, last):
        begin = row * columns
        gs, ws, ds = (
            slopes[begin : begin + columns],
            weights[begin : begin + columns],
            after[begin : begin + columns],
        )
        if dropped:
            for j in range(columns):
                kept = kept_one(begin + j, low, high, dropped, scale)
                put_one(ds, j, get_one(ws, j) * kept)
                through[j] = get_one(gs, j) * kept
        else:
            for j in range(columns):
                through[j] = get_one(gs, j)
        total = F(0)
        for j in range(columns):
            total += get_one(ws, j) * through[j]
        for j in range(columns):
            put_one(gs, j, get_one(ws, j) * (through[j] - total))


@cfunc("void(voidptr)", **BODY)
def weights(given):
    s = slots(given)
    n = s[4] * s[5]
    first, last = my_rows(s[4])
    bias = floats(s[6], s[4] // s[7] * s[8] + s[5] * s[9] + s[5] if s[6] else 0)
    low, high, dropped, scale = U(s[10]), U(s[11]), U(s[12]), as_float(s[13])
    if s[0]:
        a, b, c = halves(s[1], n), halves(s[2], n), halves(s[3], n)
        _weights(a, b, c, s[5], bias, s[7], s[8], s[9], low, high, dropped, scale, first, last)
    else:
        x, y, z = floats(s[1], n), floats(s[2], n), floats(s[3], n)
        _weights(x, y, z, s[5], bias, s[7], s[8], s[9], low, high, dropped, scale, first, last)


@cfunc("void(voidptr)", **BODY)
def weights_back(given):
    s = slots(given)
    n = s[4] * s[5]
    first, last = my_rows(s[4])
    low, high, dropped, scale = U(s[10]), U(s[11]), U(s[12]), as_float(s[13])
    if s[0]:
        a, b, c = halves(s[1], n), halves(s[2], n), halves(s[3], n)
        _weights_back(a, b, c, s[5], low, high, dropped, scale, first, last)
    else:
        x, y, z = floats(s[1], n), floats(s[2], n), floats(s[3], n)
        _weights_back(x, y, z, s[5], low, high, dropped, scale, first, last)


# Cross-entropy over the vocabulary. Slots: 0 whether bf16, 1 logits, which become their slopes, 2 rows, 3 columns,
# 4 bias, 5 the label of each row, 6 each row's loss, 7 whether its label is at the top, 8 each thread's sums of
# the slopes.


@njit(**LOOPS)
def _table(logits, columns, bias, labels, losses, right, sums, first, last):
    filled, lanes = np.empty(columns, np.float32), np.empty(_LANES, np.float32)
    for row in range(first, last):
        ls, label = logits[row * columns : row * columns + columns], labels[row]
        for j in range(columns):
            filled[j] = get_one(ls, j) + bias[j]
        top, gold = _top(filled, lanes), filled[label]
        total = F(0)
        for j in range(columns):
            value = _exp(filled[j] - top)
            filled[j] = value
            total += value
        losses[row] = np.log(total) + (top - gold)
        right[row] = gold == top
        share = F(1) / total
        filled[label] -= total
        for j in range(columns):
            value = filled[j] * share
            sums[j] += value
            put_one(ls, j, value)


@cfunc("void(voidptr)", **BODY)
def table(given):
    s = slots(given)
    n, v = s[2], s[3]
    first, last = my_rows(n)
    bias, labels, losses, right = floats(s[4], v), integers(s[5], n), floats(s[6], n), integers(s[7], n)
    mine = np.int64(my_number()) * v
    sums = floats(s[8], v * np.int64(how_many()))[mine : mine + v]
    if s[0]:
        _table(halves(s[1], n * v), v, bias, labels, losses, right, sums, first, last)
    else:
        _table(floats(s[1], n * v), v, bias, labels, losses, right, sums, first, last)


# The same by parts of the vocabulary: logits [rows, columns] of a part, a column for each token that is
# predicted, a multiple of COLUMNS. Slots: 0 rows, 1 columns, 2 the number of the first row, 3 logits, 4 bias, 5
# the label of each column, 6 each column's highest logit, 7 the sum of exp(logit - highest), 8 its label's logit;
# where slopes are made 7 is what each is multiplied by, 8 the slope of the loss, 9 those of the bias; 10 whether
# logits are bf16.
COLUMNS = WIDTH
_ROWS = 32  # of a part worked on at a time, while they are in the cache


@cfunc("void(voidptr)", **BODY)
def part_seen(given):
    s = slots(given)
    v, m = s[0], s[1]
    first, last = my_rows(m // COLUMNS)
    bias, labels, gold = floats(s[4], v), integers(s[5], m), floats(s[8], m)
    half, size = s[10], 2 if s[10] else 4
    for begin in range(0, v, _ROWS):
        end = min(begin + _ROWS, v)
        for place in range(4 * first * COLUMNS, 4 * last * COLUMNS, 4 * COLUMNS):
            before = load(s[6] + place)
            top = before
            for row in range(begin, end):
                top = larger(top, get(half, s[3] + size * row * m + place * size // 4) + every(bias[row]))
            total = load(s[7] + place) * exp_below(before - top)
            for row in range(begin, end):
                value = get(half, s[3] + size * row * m + place * size // 4) + every(bias[row])
                total = total + exp_below(value - top)
            store(s[6] + place, top)
            store(s[7] + place, total)
    for j in range(first * COLUMNS, last * COLUMNS):
        row = labels[j] - s[2]
        if 0 <= row < v:
            gold[j] = number_at(half, s[3] + size * (row * m + j)) + bias[row]


@cfunc("void(voidptr)", **BODY)
def part_slopes(given):
    s = slots(given)
    v, m = s[0], s[1]
    first, last = my_rows(v)
    bias, labels, top, share = floats(s[4], v), integers(s[5], m), floats(s[6], m), floats(s[7], m)
    slope, of_bias = as_float(s[8]), floats(s[9], v)
    half, size = s[10], 2 if s[10] else 4
    # A label's slope is rounded once: what is left of 1 is small.
    of_labels = np.zeros(m, np.float32)
    for j in range(m):
        row = labels[j] - s[2]
        if first <= row < last:
            logit = number_at(half, s[3] + size * (row * m + j)) + bias[row]
            of_labels[j] = _exp(logit - top[j]) * share[j] - slope
    for row in range(first, last):
        own, more, total = s[3] + size * row * m, every(bias[row]), every(F(0))
        for j in range(0, m, COLUMNS):
            value = get(half, own + size * j) + more - load(s[6] + 4 * j)
            value = exp_below(value) * load(s[7] + 4 * j)
            put(half, own + size * j, value)
            total = total + value
        of_bias[row] = sum_of(total)
    for j in range(m):
        row = labels[j] - s[2]
        if first <= row < last:
            put_number(half, s[3] + size * (row * m + j), of_labels[j])
            of_bias[row] -= slope
