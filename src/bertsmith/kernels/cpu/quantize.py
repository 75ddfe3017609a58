"""Quantization of the inputs of an int8 matrix product and dequantization of its sums.

Each row is quantized to 256 steps between its minimum and its maximum: value = step · integer + offset. One input
per layer, the outlier channel, is not quantized; it is multiplied in fp32.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from bertsmith.kernels.cpu import simd
from bertsmith.kernels.cpu.arrays import float_from_bits, floats, load_scalar, store_scalar
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, float32, kernel
from bertsmith.kernels.cpu.launcher import thread_index, thread_range
from bertsmith.kernels.cpu.row_kernels import gelu_simd
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH
from bertsmith.kernels.cpu.simd_pairs import int_to_float

COLUMNS = VECTOR_WIDTH  # The number of columns must be a multiple of it.
BLOCK_ROWS = 64  # rows that a thread quantizes and multiplies at a time, at most
ROW_PARAM_BYTES = 12 * BLOCK_ROWS
"""Bytes of the row parameters of a block: steps of all rows, then offsets, then outlier inputs, in fp32."""


@njit(inline="always", **JIT_OPTIONS)
def _scale_row(is_bf16, x, input_scale, columns, min_step, scaled):
    """Store a row times `input_scale` as fp32 in `scaled`, and return its quantization step and offset."""
    row_min, row_max, nan_check = simd.splat(np.inf), simd.splat(-np.inf), simd.splat(0.0)
    for j in range(0, columns, VECTOR_WIDTH):
        values = simd.load_vector(is_bf16, x + (2 if is_bf16 else 4) * j)
        values = values * simd.load(input_scale + 4 * j)
        simd.store(scaled + 4 * j, values)
        row_min, row_max = simd.minimum(row_min, values), simd.maximum(row_max, values)
        # NaN if any value is NaN or infinite: minimum and maximum skip NaN.
        nan_check = nan_check + values * 0.0
    smallest = simd.reduce_min(row_min)
    step = max((simd.reduce_max(row_max) - smallest) / float32(255), min_step) + simd.reduce_sum(nan_check)
    return step, smallest + float32(128) * step


@njit(inline="always", **JIT_OPTIONS)
def block_rows(rows, threads, multiple):
    """Return the number of rows, a multiple of `multiple` and at most BLOCK_ROWS, for balanced threads."""
    blocks = (rows + BLOCK_ROWS * threads - 1) // (BLOCK_ROWS * threads) * threads
    return ((rows + blocks - 1) // blocks + multiple - 1) // multiple * multiple


def make_row_quantizer(store_integers, value_bytes):
    """Return a function that quantizes rows; `store_integers` stores 16 values of `value_bytes` bytes."""

    @njit(**JIT_OPTIONS)
    def quantize_rows(is_bf16, x, rows, input_scale, columns, outlier_channel, min_step, target):
        """Quantize rows of x.

        target: addresses of the integers, bytes from one row of them to the next, and addresses of the row
        parameters (ROW_PARAM_BYTES) and of a buffer for a row in fp32.
        """
        quantized, quantized_stride, row_params, scaled = target
        itemsize = 2 if is_bf16 else 4
        for i in range(rows):
            row = x + itemsize * i * columns
            step, offset = _scale_row(is_bf16, row, input_scale, columns, min_step, scaled)
            outlier = load_scalar(is_bf16, row + itemsize * outlier_channel)
            store_scalar(0, row_params + 4 * i, step)
            store_scalar(0, row_params + 4 * (BLOCK_ROWS + i), offset)
            store_scalar(0, row_params + 4 * (2 * BLOCK_ROWS + i), outlier)
            for j in range(0, columns, VECTOR_WIDTH):
                store_integers(
                    quantized + i * quantized_stride + value_bytes * j,
                    (simd.load(scaled + 4 * j) - offset) / step,
                )

    return quantize_rows


@kernel
def quantize_rows_kernel(s):
    """Quantize the rows of a matrix to int8.

    Slots: 0 whether x is bf16; 1 x; 2 scale of each input; 3 result int8; 4 step and 5 offset of each row; 6 rows;
    7 columns; 8 bits of the smallest step; 9 a row in fp32 per thread as workspace.
    """
    is_bf16, columns = s[0], s[7]
    steps, offsets, min_step = floats(s[4], s[6]), floats(s[5], s[6]), float_from_bits(s[8])
    scaled = s[9] + 4 * columns * thread_index()
    first, last = thread_range(s[6])
    for row in range(first, last):
        start = row * columns
        x_row = s[1] + (2 if is_bf16 else 4) * start
        step, offset = _scale_row(is_bf16, x_row, s[2], columns, min_step, scaled)
        steps[row], offsets[row] = step, offset
        for j in range(0, columns, VECTOR_WIDTH):
            simd.store_int8(s[3] + start + j, (simd.load(scaled + 4 * j) - offset) / step)


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
    return simd.load(weight_sums), simd.load(scale), simd.load(bias), simd.load(outlier_weights)


@njit(inline="always", **JIT_OPTIONS)
def load_row_params(row, row_params):
    """Return the step, offset, and outlier input of a row as vectors; row_params: address, see ROW_PARAM_BYTES."""
    address = row_params + 4 * row
    return (
        simd.broadcast_load(address),
        simd.broadcast_load(address + 4 * BLOCK_ROWS),
        simd.broadcast_load(address + 8 * BLOCK_ROWS),
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
    simd.store_vector(is_bf16, address, gelu_simd(values) if gelu else values)


@kernel
def dequantize_kernel(s):
    """Dequantize the sums of a product of int8 matrices.

    Slots: 0 whether the result is bf16; 1 sums int32; 2 result; 3 step, 4 offset, and 5 outlier input of each row;
    6 to 9 sum of the weights, scale, bias, and outlier weight of each column; 10 rows; 11 columns.
    """
    is_bf16, columns = s[0], s[11]
    steps, offsets, outliers = floats(s[3], s[10]), floats(s[4], s[10]), floats(s[5], s[10])
    first, last = thread_range(s[10])
    for row in range(first, last):
        start = row * columns
        row_params = steps[row], offsets[row], outliers[row]
        for j in range(0, columns, VECTOR_WIDTH):
            sums, offset = simd.load_int32_as_float(s[1] + 4 * (start + j)), 4 * j
            output_params = load_output_params((s[6] + offset, s[7] + offset, s[8] + offset, s[9] + offset))
            values = dequantize(sums, row_params, output_params)
            simd.store_vector(is_bf16, s[2] + (2 if is_bf16 else 4) * (start + j), values)
