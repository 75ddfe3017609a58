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
    JIT_OPTIONS,
    KERNEL_OPTIONS,
    bf16_array,
    float32,
    float_array,
    float_from_bits,
    int64_array,
    load_scalar,
    load_slots,
    num_threads,
    store_scalar,
    thread_index,
    thread_range,
    uint32,
)
from bertsmith.kernels.cpu.element_access import dropout_scale, load_element, store_element
from bertsmith.kernels.cpu.exponential import exp_nonpositive
from bertsmith.kernels.cpu.gelu import gelu_grad, normal_cdf
from bertsmith.kernels.cpu.simd import (
    VECTOR_WIDTH,
    broadcast_scalar,
    load,
    load_as_float,
    maximum,
    reduce_sum,
    store,
    store_as_dtype,
)

WRITTEN_WITH = "ab60a78f450fbb93"  # element_access.py, compilation.py and simd.py, see there
_LANES = 64


@njit(inline="always", **JIT_OPTIONS)
def _exp(x):
    """exp of x ≤ 0, to 2e-7 of its value: 2 to a whole number times a polynomial (Cephes)."""
    x = x if x > float32(-87) else (float32(-87) if x <= float32(-87) else x)
    whole = np.floor(x * float32(1.44269504) + float32(0.5))
    r = x - whole * float32(0.693359375) + whole * float32(2.12194440e-4)
    p = float32(1.9875691500e-4)
    p = p * r + float32(1.3981999507e-3)
    p = p * r + float32(8.3334519073e-3)
    p = p * r + float32(4.1665795894e-2)
    p = p * r + float32(1.6666665459e-1)
    p = p * r + float32(5.0000001201e-1)
    y = p * r * r + r + float32(1)
    return y * uint32(np.int32((np.int32(whole) + np.int32(127)) << np.int32(23))).view(np.float32)


@njit(**JIT_OPTIONS)
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


@njit(inline="always", **JIT_OPTIONS)
def gelu_simd(x):
    """Of 16 numbers."""
    return x * normal_cdf(x)


@njit(**JIT_OPTIONS)
def gelu_into(x, y):
    """Of each element of x, written to y."""
    half, size, whole = x.itemsize == 2, x.itemsize, len(x) // VECTOR_WIDTH * VECTOR_WIDTH
    for place in range(0, size * whole, size * VECTOR_WIDTH):
        store_as_dtype(half, y.ctypes.data + place, gelu_simd(load_as_float(half, x.ctypes.data + place)))
    if whole < len(x):
        rest = np.zeros(VECTOR_WIDTH, np.float32)
        for j in range(len(x) - whole):
            rest[j] = load_element(x, whole + j)
        store(rest.ctypes.data, gelu_simd(load(rest.ctypes.data)))
        for j in range(len(x) - whole):
            store_element(y, whole + j, rest[j])


@njit(**JIT_OPTIONS)
def gelu_backward_into(x, g, y):
    """GELU's slopes at x times g, written to y, which may be g."""
    half, size, whole = x.itemsize == 2, x.itemsize, len(x) // VECTOR_WIDTH * VECTOR_WIDTH
    for place in range(0, size * whole, size * VECTOR_WIDTH):
        upstream = load_as_float(half, g.ctypes.data + place)
        store_as_dtype(
            half, y.ctypes.data + place, upstream * gelu_grad(load_as_float(half, x.ctypes.data + place))
        )
    if whole < len(x):
        rest = np.zeros(VECTOR_WIDTH, np.float32)
        for j in range(len(x) - whole):
            rest[j] = load_element(x, whole + j)
        store(rest.ctypes.data, gelu_grad(load(rest.ctypes.data)))
        for j in range(len(x) - whole):
            store_element(y, whole + j, load_element(g, whole + j) * rest[j])


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def gelu(given):
    s = load_slots(given)
    first, last = thread_range(s[3])
    if s[0]:
        gelu_into(bf16_array(s[1], s[3])[first:last], bf16_array(s[2], s[3])[first:last])
    else:
        gelu_into(float_array(s[1], s[3])[first:last], float_array(s[2], s[3])[first:last])


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def gelu_backward(given):
    s = load_slots(given)
    n = s[3]
    first, last = thread_range(n)
    if s[0]:
        x, g, y = bf16_array(s[1], n), bf16_array(s[4], n), bf16_array(s[2], n)
        gelu_backward_into(x[first:last], g[first:last], y[first:last])
    else:
        a, b, c = float_array(s[1], n), float_array(s[4], n), float_array(s[2], n)
        gelu_backward_into(a[first:last], b[first:last], c[first:last])


# Slots: 0 whether bf16, 1 x, 2 what is added to it, 3 elements, a multiple of COLUMNS.


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def add(given):
    s = load_slots(given)
    half, size = s[0] != 0, 2 if s[0] else 4
    first, last = thread_range(s[3] // VECTOR_WIDTH)
    for place in range(size * VECTOR_WIDTH * first, size * VECTOR_WIDTH * last, size * VECTOR_WIDTH):
        store_as_dtype(
            half, s[1] + place, load_as_float(half, s[1] + place) + load_as_float(half, s[2] + place)
        )


# What threads have summed, together. Slots: 0 their sums, 1 the result, 2 threads, 3 numbers of each.


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def sum_over_threads(given):
    s = load_slots(given)
    n = s[3]
    sums, found = float_array(s[0], s[2] * n), float_array(s[1], n)
    first, last = thread_range(n)
    for j in range(first, last):
        found[j] = sums[j]
        for thread in range(1, s[2]):
            found[j] += sums[thread * n + j]


# Softmax of scores, then dropout. Slots: 0 whether bf16, 1 scores, 2 weights, 3 weights after dropout, 4 rows,
# 5 columns, 6 bias or 0, 7 rows of a sequence, 8 elements of the bias from one sequence to the next, 9 from one
# row to the next, 10 and 11 seed, 12 of 65,536 dropped, 13 scale. On the way back 1 is the slope of 3, which
# becomes that of the scores.


@njit(**JIT_OPTIONS)
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
                filled[j] = load_element(ss, j) + bs[j]
        else:
            for j in range(columns):
                filled[j] = load_element(ss, j)
        top = _top(filled, lanes)
        total = float32(0)
        for j in range(columns):
            value = _exp(filled[j] - top)
            filled[j] = value
            total += value
        share = float32(1) / total
        if dropped:
            for j in range(columns):
                store_element(ws, j, filled[j] * share)
                store_element(
                    ds, j, load_element(ws, j) * dropout_scale(begin + j, low, high, dropped, scale)
                )
        else:
            for j in range(columns):
                store_element(ws, j, filled[j] * share)


@njit(**JIT_OPTIONS)
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
                kept = dropout_scale(begin + j, low, high, dropped, scale)
                store_element(ds, j, load_element(ws, j) * kept)
                through[j] = load_element(gs, j) * kept
        else:
            for j in range(columns):
                through[j] = load_element(gs, j)
        total = float32(0)
        for j in range(columns):
            total += load_element(ws, j) * through[j]
        for j in range(columns):
            store_element(gs, j, load_element(ws, j) * (through[j] - total))


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def attention_softmax(given):
    s = load_slots(given)
    n = s[4] * s[5]
    first, last = thread_range(s[4])
    bias = float_array(s[6], s[4] // s[7] * s[8] + s[5] * s[9] + s[5] if s[6] else 0)
    low, high, dropped, scale = uint32(s[10]), uint32(s[11]), uint32(s[12]), float_from_bits(s[13])
    if s[0]:
        a, b, c = bf16_array(s[1], n), bf16_array(s[2], n), bf16_array(s[3], n)
        _weights(a, b, c, s[5], bias, s[7], s[8], s[9], low, high, dropped, scale, first, last)
    else:
        x, y, z = float_array(s[1], n), float_array(s[2], n), float_array(s[3], n)
        _weights(x, y, z, s[5], bias, s[7], s[8], s[9], low, high, dropped, scale, first, last)


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def softmax_backward(given):
    s = load_slots(given)
    n = s[4] * s[5]
    first, last = thread_range(s[4])
    low, high, dropped, scale = uint32(s[10]), uint32(s[11]), uint32(s[12]), float_from_bits(s[13])
    if s[0]:
        a, b, c = bf16_array(s[1], n), bf16_array(s[2], n), bf16_array(s[3], n)
        _weights_back(a, b, c, s[5], low, high, dropped, scale, first, last)
    else:
        x, y, z = float_array(s[1], n), float_array(s[2], n), float_array(s[3], n)
        _weights_back(x, y, z, s[5], low, high, dropped, scale, first, last)


# Cross-entropy over the vocabulary. Slots: 0 whether bf16, 1 logits, which become their slopes, 2 rows, 3 columns,
# 4 bias, 5 the label of each row, 6 each row's loss, 7 whether its label is at the top, 8 each thread's sums of
# the slopes.


@njit(**JIT_OPTIONS)
def _table(logits, columns, bias, labels, losses, right, sums, first, last):
    filled, lanes = np.empty(columns, np.float32), np.empty(_LANES, np.float32)
    for row in range(first, last):
        ls, label = logits[row * columns : row * columns + columns], labels[row]
        for j in range(columns):
            filled[j] = load_element(ls, j) + bias[j]
        top, gold = _top(filled, lanes), filled[label]
        total = float32(0)
        for j in range(columns):
            value = _exp(filled[j] - top)
            filled[j] = value
            total += value
        losses[row] = np.log(total) + (top - gold)
        right[row] = gold == top
        share = float32(1) / total
        filled[label] -= total
        for j in range(columns):
            value = filled[j] * share
            sums[j] += value
            store_element(ls, j, value)


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def fused_cross_entropy(given):
    s = load_slots(given)
    n, v = s[2], s[3]
    first, last = thread_range(n)
    bias, labels, losses, right = (
        float_array(s[4], v),
        int64_array(s[5], n),
        float_array(s[6], n),
        int64_array(s[7], n),
    )
    mine = np.int64(thread_index()) * v
    sums = float_array(s[8], v * np.int64(num_threads()))[mine : mine + v]
    if s[0]:
        _table(bf16_array(s[1], n * v), v, bias, labels, losses, right, sums, first, last)
    else:
        _table(float_array(s[1], n * v), v, bias, labels, losses, right, sums, first, last)


# The same by parts of the vocabulary: logits [rows, columns] of a part, a column for each token that is
# predicted, a multiple of COLUMNS. Slots: 0 rows, 1 columns, 2 the number of the first row, 3 logits, 4 bias, 5
# the label of each column, 6 each column's highest logit, 7 the sum of exp(logit - highest), 8 its label's logit;
# where slopes are made 7 is what each is multiplied by, 8 the slope of the loss, 9 those of the bias; 10 whether
# logits are bf16.
COLUMN_MULTIPLE = VECTOR_WIDTH
_ROWS = 32  # of a part worked on at a time, while they are in the cache


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def update_online_softmax(given):
    s = load_slots(given)
    v, m = s[0], s[1]
    first, last = thread_range(m // COLUMN_MULTIPLE)
    bias, labels, gold = float_array(s[4], v), int64_array(s[5], m), float_array(s[8], m)
    half, size = s[10], 2 if s[10] else 4
    for begin in range(0, v, _ROWS):
        end = min(begin + _ROWS, v)
        for place in range(4 * first * COLUMN_MULTIPLE, 4 * last * COLUMN_MULTIPLE, 4 * COLUMN_MULTIPLE):
            before = load(s[6] + place)
            top = before
            for row in range(begin, end):
                top = maximum(
                    top,
                    load_as_float(half, s[3] + size * row * m + place * size // 4)
                    + broadcast_scalar(bias[row]),
                )
            total = load(s[7] + place) * exp_nonpositive(before - top)
            for row in range(begin, end):
                value = load_as_float(half, s[3] + size * row * m + place * size // 4) + broadcast_scalar(
                    bias[row]
                )
                total = total + exp_nonpositive(value - top)
            store(s[6] + place, top)
            store(s[7] + place, total)
    for j in range(first * COLUMN_MULTIPLE, last * COLUMN_MULTIPLE):
        row = labels[j] - s[2]
        if 0 <= row < v:
            gold[j] = load_scalar(half, s[3] + size * (row * m + j)) + bias[row]


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def chunk_backward(given):
    s = load_slots(given)
    v, m = s[0], s[1]
    first, last = thread_range(v)
    bias, labels, top, share = (
        float_array(s[4], v),
        int64_array(s[5], m),
        float_array(s[6], m),
        float_array(s[7], m),
    )
    slope, of_bias = float_from_bits(s[8]), float_array(s[9], v)
    half, size = s[10], 2 if s[10] else 4
    # A label's slope is rounded once: what is left of 1 is small.
    of_labels = np.zeros(m, np.float32)
    for j in range(m):
        row = labels[j] - s[2]
        if first <= row < last:
            logit = load_scalar(half, s[3] + size * (row * m + j)) + bias[row]
            of_labels[j] = _exp(logit - top[j]) * share[j] - slope
    for row in range(first, last):
        own, more, total = s[3] + size * row * m, broadcast_scalar(bias[row]), broadcast_scalar(float32(0))
        for j in range(0, m, COLUMN_MULTIPLE):
            value = load_as_float(half, own + size * j) + more - load(s[6] + 4 * j)
            value = exp_nonpositive(value) * load(s[7] + 4 * j)
            store_as_dtype(half, own + size * j, value)
            total = total + value
        of_bias[row] = reduce_sum(total)
    for j in range(m):
        row = labels[j] - s[2]
        if first <= row < last:
            store_scalar(half, s[3] + size * (row * m + j), of_labels[j])
            of_bias[row] -= slope
