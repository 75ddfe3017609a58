"""Parts that matrix products share: sums of columns, epilogues, tiles at the edges, and packing in bf16.

The right operand b [k, n] of a bf16 product is packed into panels. A panel holds 16 or 32 columns of b, with rows
interleaved in pairs, in the order in which microkernels read them. The source may be fp32: packing rounds it to
bf16. Addresses are integers, and strides are in bytes.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numba.extending import register_jitable

from bertsmith.kernels.cpu.arrays import bf16_bits, bf16s, float_from_bf16, floats
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, float32, uint32
from bertsmith.kernels.cpu.microkernels import INIT_BIAS, INIT_OUT
from bertsmith.kernels.cpu.row_kernels import gelu_backward_into, gelu_into
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH, load, load_vector, splat, store, store_bf16
from bertsmith.kernels.cpu.simd_pairs import interleave_bf16, interleave_to_bf16, transpose_16x16

COLUMNS = 2 * VECTOR_WIDTH  # of a panel
PAIR_BYTES = 4 * COLUMNS  # bytes of a pair of rows in a panel
PANEL_PADDING_BYTES = 64  # panels at a stride of a power of two would share cache sets
PACK_ROWS = 32  # rows that a thread packs at a time
KC = 512  # terms that `gemm_transposed_left` packs before it multiplies
KC_PANEL_BYTES = PAIR_BYTES * KC // 2 + PANEL_PADDING_BYTES
_TRANSPOSE_ROWS = 2 * VECTOR_WIDTH  # rows of 16 columns that are transposed at a time
TRANSPOSE_BYTES = 2 * VECTOR_WIDTH * _TRANSPOSE_ROWS  # workspace of `pack_panels`


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


@njit(inline="always", **JIT_OPTIONS)
def _load_bf16_bits(is_bf16, address):
    """Load a value of bf16 or fp32 as the bits of bf16."""
    return uint32(bf16s(address, 1)[0] if is_bf16 else bf16_bits(floats(address, 1)[0]))


@njit(**JIT_OPTIONS)
def _pack_remainder(is_bf16, x, row_stride, column_stride, sizes, panel, pair_stride):
    """Pack x [k, n] into part of a panel, one value at a time; a missing last row and missing columns become 0.

    sizes: k, n, and the columns of that part.
    """
    k, n, panel_columns = sizes
    for row in range(0, k, 2):
        pairs = floats(panel + row // 2 * pair_stride, panel_columns).view(np.uint32)
        for column in range(panel_columns):
            pair = uint32(0)
            if column < n:
                address = x + row * row_stride + column * column_stride
                pair = _load_bf16_bits(is_bf16, address)
                if row + 1 < k:
                    lower = _load_bf16_bits(is_bf16, address + row_stride)
                    pair = uint32(pair | uint32(lower << uint32(16)))
            pairs[column] = pair


@njit(**JIT_OPTIONS)
def pack_row_major(is_bf16, x, row_stride, k, n, panels, panel_columns, panel_stride):
    """Pack x [k, n], whose rows are contiguous, into panels of `panel_columns` columns."""
    itemsize, pair_stride = 2 if is_bf16 else 4, 4 * panel_columns
    full_columns, even_rows = n // panel_columns * panel_columns, k // 2 * 2
    for row in range(0, even_rows, 2):
        source, panel = x + row * row_stride, panels + row // 2 * pair_stride
        for _ in range(0, full_columns, panel_columns):
            for column in range(0, panel_columns, VECTOR_WIDTH):
                upper = source + itemsize * column
                if is_bf16:
                    interleave_bf16(upper, upper + row_stride, panel + 4 * column)
                else:
                    interleave_to_bf16(load(upper), load(upper + row_stride), panel + 4 * column)
            source += itemsize * panel_columns
            panel += panel_stride
    if even_rows < k:
        last_row, last_pairs = x + even_rows * row_stride, panels + even_rows // 2 * pair_stride
        for i in range(full_columns // panel_columns):
            source, target = last_row + itemsize * panel_columns * i, last_pairs + i * panel_stride
            sizes = 1, panel_columns, panel_columns
            _pack_remainder(is_bf16, source, row_stride, itemsize, sizes, target, pair_stride)
    if full_columns < n:
        source, panel = x + itemsize * full_columns, panels + full_columns // panel_columns * panel_stride
        sizes = k, n - full_columns, panel_columns
        _pack_remainder(is_bf16, source, row_stride, itemsize, sizes, panel, pair_stride)


@njit(**JIT_OPTIONS)
def pack_panels(
    is_bf16, x, row_stride, column_stride, k, n, panels, panel_stride, range_of_panels, workspace
):
    """Pack some panels of 32 columns of x [k, n], whose rows or columns are contiguous; see TRANSPOSE_BYTES."""
    first_panel, last_panel = range_of_panels
    source, target = x + first_panel * COLUMNS * column_stride, panels + first_panel * panel_stride
    count = min(n, last_panel * COLUMNS) - first_panel * COLUMNS
    if count > 0 and column_stride == (2 if is_bf16 else 4):
        pack_row_major(is_bf16, source, row_stride, k, count, target, COLUMNS, panel_stride)
    elif count > 0:
        _pack_column_major(is_bf16, source, column_stride, k, count, target, panel_stride, workspace)


@njit(**JIT_OPTIONS)
def _pack_column_major(is_bf16, x, column_stride, k, n, panels, panel_stride, workspace):
    """Pack x [k, n], whose columns are contiguous, into panels of 32 columns; see TRANSPOSE_BYTES."""
    itemsize, full_rows = 2 if is_bf16 else 4, k // _TRANSPOSE_ROWS * _TRANSPOSE_ROWS
    for column in range(0, n, VECTOR_WIDTH):
        source, num_columns = x + column * column_stride, min(VECTOR_WIDTH, n - column)
        panel = panels + column // COLUMNS * panel_stride + column % COLUMNS * 4
        packed_rows = full_rows if num_columns == VECTOR_WIDTH else 0
        for row in range(0, packed_rows, _TRANSPOSE_ROWS):
            pairs = panel + row // 2 * PAIR_BYTES
            if is_bf16:
                transpose_16x16(source + 2 * row, column_stride, pairs, PAIR_BYTES)
            else:
                for j in range(VECTOR_WIDTH):
                    values = source + j * column_stride + 4 * row
                    rounded = workspace + 2 * _TRANSPOSE_ROWS * j
                    store_bf16(rounded, load(values))
                    store_bf16(rounded + 2 * VECTOR_WIDTH, load(values + 4 * VECTOR_WIDTH))
                transpose_16x16(workspace, 2 * _TRANSPOSE_ROWS, pairs, PAIR_BYTES)
        if packed_rows < k:
            x_rest, panel_rest = source + itemsize * packed_rows, panel + packed_rows // 2 * PAIR_BYTES
            sizes = k - packed_rows, num_columns, VECTOR_WIDTH
            _pack_remainder(is_bf16, x_rest, itemsize, column_stride, sizes, panel_rest, PAIR_BYTES)
    if 0 < n % COLUMNS <= VECTOR_WIDTH:  # the right half of the last panel
        panel = panels + n // COLUMNS * panel_stride + PAIR_BYTES // 2
        for pair in range((k + 1) // 2):
            store(panel + pair * PAIR_BYTES, splat(0.0))
