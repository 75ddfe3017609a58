"""Quantization of the inputs of an int8 matrix product and dequantization of its sums.

Each row is quantized to 256 steps between its minimum and its maximum: value = step · integer + offset. One input
per layer, the outlier channel, is not quantized; it is multiplied in fp32.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from bertsmith.kernels.cpu.compilation import (
    JIT_OPTIONS,
    float32,
    float_array,
    float_from_bits,
    kernel,
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

COLUMNS = VECTOR_WIDTH  # The number of columns must be a multiple of it.
BLOCK_ROWS = 64  # rows that a thread quantizes and multiplies at a time, at most
ROW_PARAM_BYTES = 12 * BLOCK_ROWS
"""Bytes of the row parameters of a block: steps of all rows, then offsets, then outlier inputs, in fp32."""


@njit(inline="always", **JIT_OPTIONS)
def _scale_row(is_bf16, x, input_scale, columns, min_step, scaled):
    """Store a row times `input_scale` as fp32 in `scaled`, and return its quantization step and offset."""
    row_min, row_max, nan_check = (
        broadcast_scalar(float32(np.inf)),
        broadcast_scalar(float32(-np.inf)),
        broadcast_scalar(float32(0)),
    )
    for j in range(0, columns, VECTOR_WIDTH):
        values = load_as_float(is_bf16, x + (2 if is_bf16 else 4) * j)
        values = values * load(input_scale + 4 * j)
        store(scaled + 4 * j, values)
        row_min, row_max = minimum(row_min, values), maximum(row_max, values)
        # NaN if any value is NaN or infinite: minimum and maximum skip NaN.
        nan_check = nan_check + values * broadcast_scalar(float32(0))
    smallest = reduce_min(row_min)
    step = max((reduce_max(row_max) - smallest) / float32(255), min_step) + reduce_sum(nan_check)
    return step, smallest + float32(128) * step


@njit(inline="always", **JIT_OPTIONS)
def block_rows(rows, threads, multiple):
    """Return the number of rows, a multiple of `multiple` and at most BLOCK_ROWS, for balanced threads."""
    blocks = (rows + BLOCK_ROWS * threads - 1) // (BLOCK_ROWS * threads) * threads
    return ((rows + blocks - 1) // blocks + multiple - 1) // multiple * multiple


def make_row_quantizer(store_integers, value_bytes):
    """Return a function that quantizes rows and stores 16 integers of so many bytes by `store_integers`."""

    @njit(**JIT_OPTIONS)
    def quantize_rows(is_bf16, x, rows, input_scale, columns, outlier_channel, min_step, target):
        """Quantize rows of x.

        target: addresses of the integers, bytes from one row of them to the next, and addresses of the row
        parameters (ROW_PARAM_BYTES) and of a buffer for a row in fp32.
        """
        quantized, quantized_stride, row_params, scaled = target
        x_bytes = 2 if is_bf16 else 4
        for i in range(rows):
            row = x + x_bytes * i * columns
            step, offset = _scale_row(is_bf16, row, input_scale, columns, min_step, scaled)
            outlier = load_scalar(is_bf16, row + x_bytes * outlier_channel)
            store_scalar(0, row_params + 4 * i, step)
            store_scalar(0, row_params + 4 * (BLOCK_ROWS + i), offset)
            store_scalar(0, row_params + 4 * (2 * BLOCK_ROWS + i), outlier)
            for j in range(0, columns, VECTOR_WIDTH):
                store_integers(
                    quantized + i * quantized_stride + value_bytes * j,
                    (load(scaled + 4 * j) - broadcast_scalar(offset)) / broadcast_scalar(step),
                )

    return quantize_rows


@kernel
def quantize_rows_kernel(args):
    """Quantize the rows of a matrix to int8.

    Slots: 0 whether x is bf16; 1 x; 2 scale of each input; 3 result int8; 4 step and 5 offset of each row; 6 rows;
    7 columns; 8 bits of the smallest step; 9 a row in fp32 per thread as workspace.
    """
    s = load_slots(args)
    is_bf16, columns = s[0], s[7]
    steps, offsets, min_step = float_array(s[4], s[6]), float_array(s[5], s[6]), float_from_bits(s[8])
    scaled = s[9] + 4 * columns * np.int64(thread_index())
    first, last = thread_range(s[6])
    for row in range(first, last):
        start = row * columns
        x_row = s[1] + (2 if is_bf16 else 4) * start
        step, offset = _scale_row(is_bf16, x_row, s[2], columns, min_step, scaled)
        steps[row], offsets[row] = step, offset
        for j in range(0, columns, VECTOR_WIDTH):
            store_int8(
                s[3] + start + j,
                (load(scaled + 4 * j) - broadcast_scalar(offset)) / broadcast_scalar(step),
            )


@njit(inline="always", **JIT_OPTIONS)
def dequantize(sums, row_params, output_params):
    """Return the outputs of 16 sums of products of integers; see `load_row_params` and `load_output_params`."""
    (step, offset, outlier), (weight_sums, scale, bias, outlier_weights) = row_params, output_params
    return (sums * step + offset * weight_sums + outlier * outlier_weights) * scale + bias


@njit(inline="always", **JIT_OPTIONS)
def output_param_pointers(s, column):
    """Return the addresses of the parameters of 16 outputs; s: slots of an int8 linear kernel."""
    return s[5] + 4 * column, s[6] + 4 * column, s[7] + 4 * column, s[18] + 4 * column


@njit(inline="always", **JIT_OPTIONS)
def load_output_params(pointers):
    """Return the sums of the weights, scales, biases, and outlier weights of 16 outputs."""
    weight_sums, scale, bias, outlier_weights = pointers
    return load(weight_sums), load(scale), load(bias), load(outlier_weights)


@njit(inline="always", **JIT_OPTIONS)
def load_row_params(row, row_params):
    """Return the step, offset, and outlier input of a row as vectors; row_params: address, see ROW_PARAM_BYTES."""
    address = row_params + 4 * row
    return (
        broadcast_load(address),
        broadcast_load(address + 4 * BLOCK_ROWS),
        broadcast_load(address + 8 * BLOCK_ROWS),
    )


@njit(inline="always", **JIT_OPTIONS)
def dequantize_row(row, sums, row_params, output_pointers):
    """Return 16 outputs of a row from their sums."""
    return dequantize(
        int_to_float(sums), load_row_params(row, row_params), load_output_params(output_pointers)
    )


@njit(inline="always", **JIT_OPTIONS)
def store_output(is_bf16, gelu, values, address):
    """Store 16 outputs or their GELU."""
    store_as_dtype(is_bf16, address, gelu_simd(values) if gelu else values)


@kernel
def dequantize_kernel(args):
    """Dequantize the sums of a product of int8 matrices.

    Slots: 0 whether the result is bf16; 1 sums int32; 2 result; 3 step, 4 offset, and 5 outlier input of each row;
    6 to 9 sum of the weights, scale, bias, and outlier weight of each column; 10 rows; 11 columns.
    """
    s = load_slots(args)
    is_bf16, columns = s[0], s[11]
    steps, offsets, outliers = float_array(s[3], s[10]), float_array(s[4], s[10]), float_array(s[5], s[10])
    first, last = thread_range(s[10])
    for row in range(first, last):
        start = row * columns
        row_params = (
            broadcast_scalar(steps[row]),
            broadcast_scalar(offsets[row]),
            broadcast_scalar(outliers[row]),
        )
        for j in range(0, columns, VECTOR_WIDTH):
            sums, offset = load_int32_as_float(s[1] + 4 * (start + j)), 4 * j
            output_params = load_output_params((s[6] + offset, s[7] + offset, s[8] + offset, s[9] + offset))
            values = dequantize(sums, row_params, output_params)
            store_as_dtype(is_bf16, s[2] + (2 if is_bf16 else 4) * (start + j), values)
