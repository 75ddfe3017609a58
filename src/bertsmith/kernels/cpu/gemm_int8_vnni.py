"""A linear layer in int8 as one kernel, for processors with AVX512-VNNI.

The kernel quantizes the inputs, multiplies, and dequantizes the sums before a row leaves the cache. The
instruction vpdpbusd multiplies uint8 by int8 and adds four products to a sum. The inputs are therefore stored with
128 added, and the sums start at -128 times the sum of the weights. Sums are exact.
"""

from __future__ import annotations

from numba import njit

from bertsmith.kernels.cpu import quantize, simd_pairs
from bertsmith.kernels.cpu.arrays import float_from_bits
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, kernel
from bertsmith.kernels.cpu.launcher import num_threads, thread_index
from bertsmith.kernels.cpu.quantize import BLOCK_ROWS, store_output
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH, store_uint8
from bertsmith.kernels.cpu.simd_pairs import broadcast_int, dot_uint8_int8, load_ints

OUTPUT_MULTIPLE = 2 * VECTOR_WIDTH  # The number of outputs must be a multiple of it.
INPUT_MULTIPLE = 4  # Weights are padded with zeros to a multiple of it.
_TILE_ROWS = 4
_VECTOR_BYTES = 4 * VECTOR_WIDTH


def workspace_size(inputs: int) -> int:
    """Return the bytes of workspace per thread."""
    return BLOCK_ROWS * inputs + quantize.ROW_PARAM_BYTES + 4 * inputs + 4 * OUTPUT_MULTIPLE


_quantize_rows = quantize.make_row_quantizer(store_uint8, 1)


@njit(inline="always", **JIT_OPTIONS)
def _store_row(is_bf16, gelu, left_sums, right_sums, row, out, block_params):
    """Store 32 outputs of a row.

    block_params: number of rows, address of their parameters, address where a row beyond them is stored, and the
    parameters of the first and the last 16 outputs.
    """
    rows, row_params, unused_row, left_params, right_params = block_params
    params, target = quantize.load_row_params(row, row_params), out if row < rows else unused_row
    store_output(
        is_bf16, gelu, quantize.dequantize(simd_pairs.int_to_float(left_sums), params, left_params), target
    )
    target += (2 if is_bf16 else 4) * VECTOR_WIDTH
    store_output(
        is_bf16, gelu, quantize.dequantize(simd_pairs.int_to_float(right_sums), params, right_params), target
    )


@kernel
def int8_linear_kernel(s):
    """Compute a linear layer in int8, and optionally its GELU.

    Slots: as in gemm_int8_avx2.py, but 3 weights int8 [outputs / 32, inputs / 4, 32, 4]; 15 whether to apply GELU.
    """
    x_is_bf16, x, num_rows, inputs, outputs, min_step = s[0], s[1], s[8], s[9], s[10], float_from_bits(s[11])
    out_is_bf16, gelu, itemsize, out_itemsize = s[14], s[15], 2 if s[0] else 4, 2 if s[14] else 4
    quantized = s[12] + s[13] * thread_index()
    row_params = quantized + BLOCK_ROWS * inputs
    buffer = row_params + quantize.ROW_PARAM_BYTES
    target = quantized, inputs, row_params, buffer
    unused_row, out_stride = buffer + 4 * inputs, out_itemsize * outputs
    threads = num_threads()
    max_rows = quantize.block_rows(num_rows, threads, _TILE_ROWS)
    for first_row in range(max_rows * thread_index(), num_rows, max_rows * threads):
        block_x, rows = x + itemsize * first_row * inputs, min(max_rows, num_rows - first_row)
        _quantize_rows(x_is_bf16, block_x, rows, s[2], inputs, s[17], min_step, target)
        for column in range(0, outputs, OUTPUT_MULTIPLE):
            left_params = quantize.load_output_params(quantize.output_param_pointers(s, column))
            right_params = quantize.load_output_params(
                quantize.output_param_pointers(s, column + VECTOR_WIDTH)
            )
            block_params = rows, row_params, unused_row, left_params, right_params
            left_init = simd_pairs.float_to_int(left_params[0] * -128.0)
            right_init = simd_pairs.float_to_int(right_params[0] * -128.0)
            for i in range(0, rows, _TILE_ROWS):
                integers, weights = quantized + i * inputs, s[3] + column * inputs
                left_0 = left_1 = left_2 = left_3 = left_init
                right_0 = right_1 = right_2 = right_3 = right_init
                for _ in range(inputs // 4):
                    w_left, w_right = load_ints(weights), load_ints(weights + _VECTOR_BYTES)
                    values = broadcast_int(integers)
                    left_0 = dot_uint8_int8(left_0, values, w_left)
                    right_0 = dot_uint8_int8(right_0, values, w_right)
                    values = broadcast_int(integers + inputs)
                    left_1 = dot_uint8_int8(left_1, values, w_left)
                    right_1 = dot_uint8_int8(right_1, values, w_right)
                    values = broadcast_int(integers + 2 * inputs)
                    left_2 = dot_uint8_int8(left_2, values, w_left)
                    right_2 = dot_uint8_int8(right_2, values, w_right)
                    values = broadcast_int(integers + 3 * inputs)
                    left_3 = dot_uint8_int8(left_3, values, w_left)
                    right_3 = dot_uint8_int8(right_3, values, w_right)
                    weights += 2 * _VECTOR_BYTES
                    integers += 4
                out = s[4] + (first_row + i) * out_stride + out_itemsize * column
                for row, left_sums, right_sums in (
                    (i, left_0, right_0),
                    (i + 1, left_1, right_1),
                    (i + 2, left_2, right_2),
                    (i + 3, left_3, right_3),
                ):
                    _store_row(out_is_bf16, gelu, left_sums, right_sums, row, out, block_params)
                    out += out_stride
