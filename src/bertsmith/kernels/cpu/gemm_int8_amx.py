"""A linear layer in int8 as one kernel, for processors with AMX-INT8.

The kernel quantizes the inputs, multiplies, and dequantizes the sums before they leave the cache. The tiles
compute a block of 32 rows and 32 outputs at a time; the sums of a block are dequantized between the tile
instructions of the next block. Sums are exact.
"""

from __future__ import annotations

from numba import njit

from bertsmith.kernels.cpu import amx, quantize
from bertsmith.kernels.cpu.arrays import float_from_bits
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, kernel
from bertsmith.kernels.cpu.launcher import num_threads, thread_index
from bertsmith.kernels.cpu.quantize import BLOCK_ROWS, dequantize_row, store_output
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH, store_int8
from bertsmith.kernels.cpu.simd_pairs import load_ints

OUTPUT_MULTIPLE = amx.BLOCK_SIZE  # The number of outputs must be a multiple of it.
INPUT_MULTIPLE = 64  # Weights are padded with zeros to a multiple of it.
_TILE_ROWS = amx.BLOCK_SIZE // 2
_SUM_STRIDE = 4 * OUTPUT_MULTIPLE  # bytes from one row of sums to the next
_WEIGHT_STRIDE = 4 * OUTPUT_MULTIPLE  # bytes from the weights of 4 inputs to the next
_BLOCK_BYTES = amx.BLOCK_SIZE * _SUM_STRIDE
_step_1, _step_2, _step_3, _step_4 = amx.INT8_BLOCK_STEPS


def workspace_size(inputs: int) -> int:
    """Return the bytes of workspace per thread."""
    return BLOCK_ROWS * (inputs + INPUT_MULTIPLE) + quantize.ROW_PARAM_BYTES + 4 * inputs + 2 * _BLOCK_BYTES


_quantize_rows = quantize.make_row_quantizer(store_int8, 1)


@njit(**JIT_OPTIONS)
def _store_rows(first, last, layout, block):
    """Dequantize and store the rows [first, last) of a block.

    layout: whether the result is bf16, whether to apply GELU, and the row stride of the result. block: addresses
    of the sums, the row parameters, the result, and the output parameters of the first and the last 16 outputs.
    """
    is_bf16, gelu, out_stride = layout
    sums, row_params, out, left_params, right_params = block
    for row in range(first, last):
        row_sums, target = sums + row * _SUM_STRIDE, out + row * out_stride
        left_values = dequantize_row(row, load_ints(row_sums), row_params, left_params)
        right_values = dequantize_row(row, load_ints(row_sums + amx.TILE_ROW_BYTES), row_params, right_params)
        store_output(is_bf16, gelu, left_values, target)
        target += (2 if is_bf16 else 4) * VECTOR_WIDTH
        store_output(is_bf16, gelu, right_values, target)


@kernel
def int8_linear_kernel(s):
    """Compute a linear layer in int8, and optionally its GELU.

    Slots: as in gemm_int8_vnni.py, but the weights are padded to a multiple of 64 inputs; 16 tile configuration.
    """
    x_is_bf16, x, num_rows, inputs, outputs, min_step = s[0], s[1], s[8], s[9], s[10], float_from_bits(s[11])
    itemsize, out_itemsize = 2 if s[0] else 4, 2 if s[14] else 4
    steps = (inputs + INPUT_MULTIPLE - 1) // INPUT_MULTIPLE
    quantized_stride = INPUT_MULTIPLE * steps
    layout = s[14], s[15], out_itemsize * outputs
    quantized = s[12] + s[13] * thread_index()
    row_params = quantized + BLOCK_ROWS * quantized_stride
    buffer = row_params + quantize.ROW_PARAM_BYTES
    both_sums = buffer + 4 * inputs
    target = quantized, quantized_stride, row_params, buffer
    amx.configure(s[16])
    row_blocks = (num_rows + BLOCK_ROWS - 1) // BLOCK_ROWS
    for row_block in range(thread_index(), row_blocks, num_threads()):
        first_row = row_block * BLOCK_ROWS
        block_x, rows = x + itemsize * first_row * inputs, min(BLOCK_ROWS, num_rows - first_row)
        _quantize_rows(x_is_bf16, block_x, rows, s[2], inputs, s[17], min_step, target)
        # The sums of the previous block are stored while a block is computed. At first there is none.
        left_params, right_params = (
            quantize.output_param_pointers(s, 0),
            quantize.output_param_pointers(s, VECTOR_WIDTH),
        )
        sums, previous_rows = both_sums, 0
        previous = sums, row_params, s[4], left_params, right_params
        for column in range(0, outputs, OUTPUT_MULTIPLE):
            for i in range(0, rows, amx.BLOCK_SIZE):
                upper, weights = quantized + i * quantized_stride, s[3] + column * quantized_stride
                lower = upper + _TILE_ROWS * quantized_stride
                rows_per_step = (previous_rows + steps - 1) // steps
                amx.zero_block()
                for step in range(steps):
                    first = min(step * rows_per_step, previous_rows)
                    count = min((step + 1) * rows_per_step, previous_rows) - first
                    quarter, half = first + count // 4, first + count // 2
                    three_quarters, last = first + 3 * count // 4, first + count
                    _step_1(upper, quantized_stride, weights, _WEIGHT_STRIDE)
                    _store_rows(first, quarter, layout, previous)
                    _step_2(weights, _WEIGHT_STRIDE)
                    _store_rows(quarter, half, layout, previous)
                    _step_3(lower, quantized_stride)
                    _store_rows(half, three_quarters, layout, previous)
                    _step_4()
                    _store_rows(three_quarters, last, layout, previous)
                    upper += INPUT_MULTIPLE
                    lower += INPUT_MULTIPLE
                    weights += _TILE_ROWS * _WEIGHT_STRIDE
                sums = both_sums + _BLOCK_BYTES if sums == both_sums else both_sums
                amx.store_block(sums, _SUM_STRIDE)
                out = s[4] + out_itemsize * ((first_row + i) * outputs + column)
                left_params = quantize.output_param_pointers(s, column)
                right_params = quantize.output_param_pointers(s, column + VECTOR_WIDTH)
                previous = sums, row_params + 4 * i, out, left_params, right_params
                previous_rows = min(amx.BLOCK_SIZE, rows - i)
        _store_rows(0, previous_rows, layout, previous)
    amx.release()
