"""Parts that the matrix products in fp32 and bf16 share: sums of columns, epilogues, and tiles at the edges."""

from __future__ import annotations

from numba import njit
from numba.extending import register_jitable

from bertsmith.kernels.cpu.arrays import bf16_bits, bf16s, float_from_bf16, floats
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, float32
from bertsmith.kernels.cpu.microkernel_fp32 import INIT_BIAS, INIT_OUT
from bertsmith.kernels.cpu.row_kernels import gelu_backward_into, gelu_into
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH, load_vector, store


@register_jitable(inline="always", **JIT_OPTIONS)
def ceil_div(count, size):
    """Return the integer count / size, rounded up; callable from Python and from kernels."""
    return (count + size - 1) // size


@njit(**JIT_OPTIONS)
def column_sums(is_bf16, x, row_stride, num_rows, num_columns, sums):
    """Compute the fp32 sum of each column of x [num_rows, num_columns], whose rows are contiguous."""
    itemsize, vector_columns = 2 if is_bf16 else 4, num_columns // VECTOR_WIDTH * VECTOR_WIDTH
    for column in range(0, vector_columns, VECTOR_WIDTH):
        total = load_vector(is_bf16, x + itemsize * column)
        for row in range(1, num_rows):
            total = total + load_vector(is_bf16, x + row * row_stride + itemsize * column)
        store(sums + 4 * column, total)
    for column in range(vector_columns, num_columns):
        scalar_total = float32(0)
        for row in range(num_rows):
            address = x + row * row_stride + itemsize * column
            scalar_total += float_from_bf16(bf16s(address, 1)[0]) if is_bf16 else floats(address, 1)[0]
        floats(sums + 4 * column, 1)[0] = scalar_total


@njit(**JIT_OPTIONS)
def apply_epilogue(is_bf16, out, gelu_out, gelu_input, offset, stride, num_columns, num_rows):
    """Apply an epilogue to rows of a product at `out`, while they are in the cache.

    With gelu_out, write GELU of the rows there; with gelu_input, multiply them by the gradient of GELU at it. Each
    is the address of a matrix in the layout of the full product, or 0. `offset` is the distance in bytes from the
    start of the product to `out`.
    """
    for position in range(0, num_rows * stride, stride):
        row, row_offset = out + position, offset + position
        if gelu_out:
            gelu_into(is_bf16, row, gelu_out + row_offset, num_columns)
        elif gelu_input:
            gelu_backward_into(is_bf16, gelu_input + row_offset, row, row, num_columns)


@njit(**JIT_OPTIONS)
def load_edge(init, bias, padded_bias, tile, tile_stride, out, out_stride, rows, columns):
    """Copy the initial values of a region of out to a buffer: out itself, or the bias padded to a row."""
    if init == INIT_OUT:
        for i in range(rows):
            tile_row, out_row = floats(tile + i * tile_stride, columns), floats(out + i * out_stride, columns)
            for j in range(columns):
                tile_row[j] = out_row[j]
    if init == INIT_BIAS:
        bias_values, padded_values = floats(bias, columns), floats(padded_bias, tile_stride // 4)
        for j in range(tile_stride // 4):
            padded_values[j] = bias_values[j] if j < columns else float32(0)


@njit(**JIT_OPTIONS)
def store_edge(is_bf16, tile, tile_stride, out, out_stride, rows, columns):
    """Copy a region of out from a buffer in fp32."""
    for i in range(rows):
        tile_row = floats(tile + i * tile_stride, columns)
        if is_bf16:
            bf16_row = bf16s(out + i * out_stride, columns)
            for j in range(columns):
                bf16_row[j] = bf16_bits(tile_row[j])
        else:
            out_row = floats(out + i * out_stride, columns)
            for j in range(columns):
                out_row[j] = tile_row[j]
