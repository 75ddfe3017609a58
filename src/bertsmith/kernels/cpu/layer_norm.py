"""The bodies of dropout, sum and LayerNorm, there and back, 16 columns of a row at a time.

A row is kept in fp32 while it is worked on. Columns behind the last sixteen are computed one by one, and added up
in loops of their own, see row_kernels.py.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.cpu.compilation import (
    JIT_OPTIONS,
    KERNEL_OPTIONS,
    float32,
    float_array,
    float_from_bits,
    load_scalar,
    load_slots,
    store_scalar,
    thread_index,
    thread_range,
    uint32,
)
from bertsmith.kernels.cpu.element_access import dropout_scale
from bertsmith.kernels.cpu.simd import (
    VECTOR_WIDTH,
    broadcast_scalar,
    dropout_mask,
    load,
    load_as_float,
    reduce_sum,
    store,
    store_as_dtype,
)

WRITTEN_WITH = "746206bf3d15963b"  # element_access.py, compilation.py and simd.py, see compilation.py


@njit(**JIT_OPTIONS)
def _added(half, x, residual, begin, columns, drawn, to):
    """A row's residual + dropout(x), in fp32 at `to`: its sum. begin: the number of its first element; drawn: two
    seeds, of 65,536 how many are dropped, and the scale."""
    low, high, dropped, scale = drawn
    size, whole, total = (
        2 if half else 4,
        columns // VECTOR_WIDTH * VECTOR_WIDTH,
        broadcast_scalar(float32(0)),
    )
    x, residual = x + size * begin, residual + size * begin
    for j in range(0, whole, VECTOR_WIDTH):
        value = load_as_float(half, x + size * j)
        if dropped:
            value = value * dropout_mask(begin + j, low, high, dropped, scale)
        value = value + load_as_float(half, residual + size * j)
        store(to + 4 * j, value)
        total = total + value
    rest = reduce_sum(total)
    for j in range(whole, columns):
        one = load_scalar(half, x + size * j)
        if dropped:
            one *= dropout_scale(begin + j, low, high, dropped, scale)
        store_scalar(0, to + 4 * j, one + load_scalar(half, residual + size * j))
    for j in range(whole, columns):
        rest += load_scalar(0, to + 4 * j)
    return rest


@njit(**JIT_OPTIONS)
def _inverse(row, columns, mean, epsilon):
    """1/deviation of a row in fp32."""
    whole, total = columns // VECTOR_WIDTH * VECTOR_WIDTH, broadcast_scalar(float32(0))
    for j in range(0, whole, VECTOR_WIDTH):
        apart = load(row + 4 * j) - broadcast_scalar(mean)
        total = total + apart * apart
    rest = reduce_sum(total)
    for j in range(whole, columns):
        one = load_scalar(0, row + 4 * j) - mean
        rest += one * one
    return float32(1) / np.sqrt(rest / float32(columns) + epsilon)


@njit(**JIT_OPTIONS)
def _normed(half, row, columns, mean, inverse, weight, bias, to):
    """(row - mean) · inverse · weight + bias."""
    size, whole = 2 if half else 4, columns // VECTOR_WIDTH * VECTOR_WIDTH
    for j in range(0, whole, VECTOR_WIDTH):
        value = (load(row + 4 * j) - broadcast_scalar(mean)) * broadcast_scalar(inverse)
        store_as_dtype(half, to + size * j, value * load(weight + 4 * j) + load(bias + 4 * j))
    for j in range(whole, columns):
        one = (load_scalar(0, row + 4 * j) - mean) * inverse
        store_scalar(half, to + size * j, one * load_scalar(0, weight + 4 * j) + load_scalar(0, bias + 4 * j))


# LN(residual + dropout(x)). Slots: 0 whether bf16, 1 x, 2 residual, 3 the result, 4 rows, 5 columns, 6 weight,
# 7 bias, 8 each row's mean and 1/deviation, 9 epsilon, 10 and 11 seed, 12 of 65,536 dropped, 13 scale; on the way
# back 3 is the slope of the sum, and 14 the slope of the result, 15 the slope of x, 16 each thread's sums for the
# slopes of weight and bias. The last one: a row of fp32 for each thread, two on the way back.


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def add_layer_norm_kernel(given):
    s = load_slots(given)
    half, columns, epsilon, stats = s[0], s[5], float_from_bits(s[9]), float_array(s[8], 2 * s[4])
    drawn, size = (uint32(s[10]), uint32(s[11]), uint32(s[12]), float_from_bits(s[13])), 2 if half else 4
    row = s[17] + 4 * columns * np.int64(thread_index())
    first, last = thread_range(s[4])
    for number in range(first, last):
        begin = number * columns
        mean = _added(half, s[1], s[2], begin, columns, drawn, row) / float32(columns)
        inverse = _inverse(row, columns, mean, epsilon)
        stats[2 * number], stats[2 * number + 1] = mean, inverse
        _normed(half, row, columns, mean, inverse, s[6], s[7], s[3] + size * begin)


@njit(**JIT_OPTIONS)
def _slopes(half, row, slope, grad, columns, mean, inverse, weight, sums):
    """A row as LayerNorm has it before weight and bias, in its place; the slopes of that at `slope`: their mean,
    and that of both multiplied. The slopes of weight and bias are added to `sums`."""
    size, whole = 2 if half else 4, columns // VECTOR_WIDTH * VECTOR_WIDTH
    along, across = broadcast_scalar(float32(0)), broadcast_scalar(float32(0))
    more = sums + 4 * columns
    for j in range(0, whole, VECTOR_WIDTH):
        unit, given = (
            (load(row + 4 * j) - broadcast_scalar(mean)) * broadcast_scalar(inverse),
            load_as_float(half, grad + size * j),
        )
        store(sums + 4 * j, load(sums + 4 * j) + given * unit)
        store(more + 4 * j, load(more + 4 * j) + given)
        given = given * load(weight + 4 * j)
        store(row + 4 * j, unit)
        store(slope + 4 * j, given)
        along, across = along + given, across + given * unit
    rest, others = reduce_sum(along), reduce_sum(across)
    for j in range(whole, columns):
        one, of = (load_scalar(0, row + 4 * j) - mean) * inverse, load_scalar(half, grad + size * j)
        store_scalar(0, sums + 4 * j, load_scalar(0, sums + 4 * j) + of * one)
        store_scalar(0, more + 4 * j, load_scalar(0, more + 4 * j) + of)
        of *= load_scalar(0, weight + 4 * j)
        store_scalar(0, row + 4 * j, one)
        store_scalar(0, slope + 4 * j, of)
    for j in range(whole, columns):
        rest += load_scalar(0, slope + 4 * j)
        others += load_scalar(0, slope + 4 * j) * load_scalar(0, row + 4 * j)
    return rest / float32(columns), others / float32(columns)


@njit(**JIT_OPTIONS)
def _slopes_back(half, row, slope, begin, columns, along, across, inverse, drawn, of_sum, of_x):
    """The slopes of the sum, and of x where some of it was dropped."""
    low, high, dropped, scale = drawn
    size, whole = 2 if half else 4, columns // VECTOR_WIDTH * VECTOR_WIDTH
    of_sum, of_x = of_sum + size * begin, of_x + size * begin
    for j in range(0, whole, VECTOR_WIDTH):
        value = (
            load(slope + 4 * j) - broadcast_scalar(along) - load(row + 4 * j) * broadcast_scalar(across)
        ) * broadcast_scalar(inverse)
        store_as_dtype(half, of_sum + size * j, value)
        if dropped:
            store_as_dtype(half, of_x + size * j, value * dropout_mask(begin + j, low, high, dropped, scale))
    for j in range(whole, columns):
        one = (load_scalar(0, slope + 4 * j) - along - load_scalar(0, row + 4 * j) * across) * inverse
        store_scalar(half, of_sum + size * j, one)
        if dropped:
            store_scalar(half, of_x + size * j, one * dropout_scale(begin + j, low, high, dropped, scale))


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def add_layer_norm_backward_kernel(given):
    s = load_slots(given)
    half, columns, stats, mine = s[0], s[5], float_array(s[8], 2 * s[4]), np.int64(thread_index())
    drawn, size = (uint32(s[10]), uint32(s[11]), uint32(s[12]), float_from_bits(s[13])), 2 if half else 4
    row, sums = s[17] + 8 * columns * mine, s[16] + 8 * columns * mine
    slope = row + 4 * columns
    first, last = thread_range(s[4])
    for number in range(first, last):
        begin, mean, inverse = number * columns, stats[2 * number], stats[2 * number + 1]
        _added(half, s[1], s[2], begin, columns, drawn, row)
        along, across = _slopes(half, row, slope, s[14] + size * begin, columns, mean, inverse, s[6], sums)
        _slopes_back(half, row, slope, begin, columns, along, across, inverse, drawn, s[3], s[15])
