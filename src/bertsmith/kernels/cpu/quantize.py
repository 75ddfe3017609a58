"""The bodies around a product of 8-bit integers: its inputs are rounded, its outputs made what they stand for."""

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
)
from bertsmith.kernels.cpu.row_kernels import gelu_simd
from bertsmith.kernels.cpu.simd import (
    VECTOR_WIDTH,
    broadcast_load,
    broadcast_scalar,
    load,
    load_as_float,
    load_int32_as_float,
    maximum,
    minimum,
    reduce_max,
    reduce_min,
    reduce_sum,
    store,
    store_as_dtype,
    store_int8,
)
from bertsmith.kernels.cpu.simd_pairs import int_to_float

WRITTEN_WITH = "cb3b140dc5afa30a"  # compilation.py, simd.py and simd_pairs.py, see the first
COLUMNS = VECTOR_WIDTH  # are a multiple of it
BLOCK_ROWS = 64  # whose integers a thread keeps
ROW_PARAM_BYTES = (
    12 * BLOCK_ROWS
)  # bytes of their steps, the middles behind, and behind these what is kept apart


@njit(inline="always", **JIT_OPTIONS)
def spanned(half, x, channels, columns, least, here):
    """A row times the factors of its columns, kept in fp32 from `here` on; how large a step of its 8 bits is, and
    what 0 stands for."""
    low, high, none = (
        broadcast_scalar(float32(np.inf)),
        broadcast_scalar(float32(-np.inf)),
        broadcast_scalar(float32(0)),
    )
    for j in range(0, columns, VECTOR_WIDTH):
        value = load_as_float(half, x + (2 if half else 4) * j)
        value = value * load(channels + 4 * j)
        store(here + 4 * j, value)
        low, high = minimum(low, value), maximum(high, value)
        none = none + value * broadcast_scalar(
            float32(0)
        )  # not a number where one is none, which the two above pass over
    lowest = reduce_min(low)
    step = max((reduce_max(high) - lowest) / float32(255), least) + reduce_sum(none)
    return step, lowest + float32(128) * step


@njit(inline="always", **JIT_OPTIONS)
def block_rows(rows, threads, of):
    """How many rows, a multiple of `of`, a thread rounds and multiplies at a time: at most ROWS, and few enough
    for threads to get about equally many."""
    blocks = (rows + BLOCK_ROWS * threads - 1) // (BLOCK_ROWS * threads) * threads
    return ((rows + blocks - 1) // blocks + of - 1) // of * of


def make_row_quantizer(keep, size):
    """What rounds rows, and keeps 16 integers at a time by `keep`, of so many bytes each."""

    @njit(**JIT_OPTIONS)
    def rounds(half, x, rows, channels, columns, apart, least, to, line, knows, here):
        """Rows of x as integers in lines of so many bytes. apart: the column that is kept as it is. knows: where
        that, steps and middles are put, see KNOWN."""
        size_in = 2 if half else 4
        for i in range(rows):
            own = x + size_in * i * columns
            step, middle = spanned(half, own, channels, columns, least, here)
            store_scalar(0, knows + 4 * i, step)
            store_scalar(0, knows + 4 * (BLOCK_ROWS + i), middle)
            store_scalar(0, knows + 4 * (2 * BLOCK_ROWS + i), load_scalar(half, own + size_in * apart))
            for j in range(0, columns, VECTOR_WIDTH):
                keep(
                    to + i * line + size * j,
                    (load(here + 4 * j) - broadcast_scalar(middle)) / broadcast_scalar(step),
                )

    return rounds


# Slots: 0 whether bf16, 1 x, 2 factors of its columns, 3 the integers, 4 each row's step, 5 and its middle,
# 6 rows, 7 columns, 8 the least step by its bits, 9 a row in fp32 for each thread.


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def quantize_rows_kernel(given):
    s = load_slots(given)
    half, columns = s[0], s[7]
    steps, middles, least = float_array(s[4], s[6]), float_array(s[5], s[6]), float_from_bits(s[8])
    here = s[9] + 4 * columns * np.int64(thread_index())
    first, last = thread_range(s[6])
    for number in range(first, last):
        begin = number * columns
        step, middle = spanned(half, s[1] + (2 if half else 4) * begin, s[2], columns, least, here)
        steps[number], middles[number] = step, middle
        for j in range(0, columns, VECTOR_WIDTH):
            store_int8(
                s[3] + begin + j, (load(here + 4 * j) - broadcast_scalar(middle)) / broadcast_scalar(step)
            )


@njit(inline="always", **JIT_OPTIONS)
def dequantized(sums, row, of):
    """What sums of products of integers stand for. row: see `of_row`. of: see `loaded`."""
    (step, middle, apart), (weights, scale, bias, of_apart) = row, of
    return (sums * step + middle * weights + apart * of_apart) * scale + bias


@njit(inline="always", **JIT_OPTIONS)
def output_param_pointers(s, first):
    """Where that is which `loaded` reads of 16 outputs; s: the slots of integers.py."""
    return s[5] + 4 * first, s[6] + 4 * first, s[7] + 4 * first, s[18] + 4 * first


@njit(inline="always", **JIT_OPTIONS)
def load_output_params(of):
    """Of 16 outputs the sums of their weights, what one of these stands for, their biases, and their weights of
    what is kept apart."""
    weights, scale, bias, of_apart = of
    return load(weights), load(scale), load(bias), load(of_apart)


@njit(inline="always", **JIT_OPTIONS)
def load_row_params(row, knows):
    """Of a row its step, its middle, and what is kept apart of it; where that is known: see KNOWN."""
    place = knows + 4 * row
    return (
        broadcast_load(place),
        broadcast_load(place + 4 * BLOCK_ROWS),
        broadcast_load(place + 8 * BLOCK_ROWS),
    )


@njit(inline="always", **JIT_OPTIONS)
def dequantized_row(row, sums, knows, of):
    """What a row's sums stand for. of: see `of_outputs`."""
    return dequantized(int_to_float(sums), load_row_params(row, knows), load_output_params(of))


@njit(inline="always", **JIT_OPTIONS)
def store_output(half, activated, value, to):
    """Put 16 numbers of a product there, or their GELU."""
    store_as_dtype(half, to, gelu_simd(value) if activated else value)


# Slots: 0 whether bf16, 1 the products, 2 the result, 3 each row's step, 4 its middle, 5 and what is kept apart of
# it, 6 to 9 each column's sum of weights, scale, bias, and weight of that, 10 rows, 11 columns.


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def dequantize_kernel(given):
    s = load_slots(given)
    half, columns = s[0], s[11]
    steps, middles, aparts = float_array(s[3], s[10]), float_array(s[4], s[10]), float_array(s[5], s[10])
    first, last = thread_range(s[10])
    for number in range(first, last):
        begin, step, middle = (
            number * columns,
            broadcast_scalar(steps[number]),
            broadcast_scalar(middles[number]),
        )
        apart = broadcast_scalar(aparts[number])
        for j in range(0, columns, VECTOR_WIDTH):
            sums, at = load_int32_as_float(s[1] + 4 * (begin + j)), 4 * j
            of = load_output_params((s[6] + at, s[7] + at, s[8] + at, s[9] + at))
            value = dequantized(sums, (step, middle, apart), of)
            store_as_dtype(half, s[2] + (2 if half else 4) * (begin + j), value)
