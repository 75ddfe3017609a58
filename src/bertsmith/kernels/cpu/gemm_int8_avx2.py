"""A linear layer in int8 as one kernel, for processors with AVX2 but without int8 instructions.

The kernel quantizes the inputs, multiplies, and dequantizes the sums. Values are multiplied as pairs of int16
(vpmaddwd), twice as many at a time as fp32 values. Sums are exact.
"""

from __future__ import annotations

from numba import njit

from bertsmith.kernels.cpu import quantize
from bertsmith.kernels.cpu.arrays import float_from_bits
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, kernel
from bertsmith.kernels.cpu.launcher import num_threads, thread_index
from bertsmith.kernels.cpu.quantize import BLOCK_ROWS, dequantize_row
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH, store_int16, store_vector
from bertsmith.kernels.cpu.simd_pairs import broadcast_int, dot_int16, load_ints, zero_ints

_TILE_ROWS = 4


def workspace_size(inputs: int) -> int:
    """Return the bytes of workspace per thread."""
    return 2 * BLOCK_ROWS * inputs + quantize.ROW_PARAM_BYTES + 4 * inputs + 4 * VECTOR_WIDTH


_quantize_rows = quantize.make_row_quantizer(store_int16, 2)


@njit(inline="always", **JIT_OPTIONS)
def _store_row(is_bf16, sums, row, rows, row_params, out, unused_row, output_params):
    values = dequantize_row(row, sums, row_params, output_params)
    store_vector(is_bf16, out if row < rows else unused_row, values)


@kernel
def int8_linear_kernel(s):
    """Compute a linear layer in int8.

    Slots: 0 whether x is bf16; 1 x [rows, inputs]; 2 scale of each input; 3 weights int16
    [outputs / 16, inputs / 2, 16, 2]; 4 result [rows, outputs]; 5 to 7 sum of the weights, scale, and bias of each
    output; 8 rows; 9 inputs; 10 outputs; 11 bits of the smallest quantization step; 12 workspace; 13 its bytes per
    thread; 14 whether the result is bf16; 17 index of the input that is not quantized; 18 its weight for each
    output.
    """
    x_is_bf16, x, num_rows, inputs, outputs, min_step = s[0], s[1], s[8], s[9], s[10], float_from_bits(s[11])
    out_is_bf16, itemsize, out_itemsize = s[14], 2 if s[0] else 4, 2 if s[14] else 4
    out_stride, quantized_stride = out_itemsize * outputs, 2 * inputs
    quantized = s[12] + s[13] * thread_index()
    row_params = quantized + BLOCK_ROWS * quantized_stride
    buffer = row_params + quantize.ROW_PARAM_BYTES
    target = quantized, quantized_stride, row_params, buffer
    unused_row, blocks = buffer + 4 * inputs, (num_rows + BLOCK_ROWS - 1) // BLOCK_ROWS
    for block in range(thread_index(), blocks, num_threads()):
        first_row = block * BLOCK_ROWS
        block_x, rows = x + itemsize * first_row * inputs, min(BLOCK_ROWS, num_rows - first_row)
        _quantize_rows(x_is_bf16, block_x, rows, s[2], inputs, s[17], min_step, target)
        for column in range(0, outputs, VECTOR_WIDTH):
            output_params = quantize.output_param_pointers(s, column)
            for i in range(0, rows, _TILE_ROWS):
                integers, weights = quantized + i * quantized_stride, s[3] + 2 * inputs * column
                sums_0 = sums_1 = sums_2 = sums_3 = zero_ints()
                for _ in range(inputs // 2):
                    pairs = load_ints(weights)
                    sums_0 = dot_int16(sums_0, broadcast_int(integers), pairs)
                    sums_1 = dot_int16(sums_1, broadcast_int(integers + quantized_stride), pairs)
                    sums_2 = dot_int16(sums_2, broadcast_int(integers + 2 * quantized_stride), pairs)
                    sums_3 = dot_int16(sums_3, broadcast_int(integers + 3 * quantized_stride), pairs)
                    weights += 4 * VECTOR_WIDTH
                    integers += 4
                out = s[4] + (first_row + i) * out_stride + out_itemsize * column
                for row, sums in ((i, sums_0), (i + 1, sums_1), (i + 2, sums_2), (i + 3, sums_3)):
                    _store_row(out_is_bf16, sums, row, rows, row_params, out, unused_row, output_params)
                    out += out_stride
