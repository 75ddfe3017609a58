"""Matrix products in bf16 for processors with AVX512-BF16.

Names of sizes are those of BLAS and BLIS: out [m, n] = a [m, k] · b [k, n], and `gemm_transposed_left` processes k
in blocks of kc terms. The microkernel computes a tile of 8 rows and 32 columns. Matrices are packed into panels
(gemm_common.py) with terms in pairs, in the order in which the microkernel reads them. Packing rounds matrices
that are in fp32, so that no copy of the weights in bf16 is needed. Sums are in fp32.

The terms of each element are added in the same order. An element of the result therefore depends neither on the
other rows and columns nor on the number of threads.
"""

from __future__ import annotations

from numba import njit

from bertsmith.kernels.cpu import gemm_common, microkernels
from bertsmith.kernels.cpu.arrays import bf16_bits, bf16s, floats, slot_address
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, kernel
from bertsmith.kernels.cpu.gemm_common import COLUMNS, KC, KC_PANEL_BYTES, PACK_ROWS, PAIR_BYTES, ceil_div
from bertsmith.kernels.cpu.launcher import atomic_increment, barrier, num_threads, thread_index, thread_range
from bertsmith.kernels.cpu.microkernels import BF16_ROWS, INIT_BIAS, INIT_OUT, INIT_ZERO, microkernel_8x32
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH, load, store_bf16, store_fence

_CLAIM_ROWS = VECTOR_WIDTH  # rows that a thread claims at a time
_A_PAIR_BYTES = 4 * VECTOR_WIDTH  # bytes of a pair of terms in a panel of 16 columns of a, transposed
_A_PANEL_BYTES = _A_PAIR_BYTES * KC // 2 + gemm_common.PANEL_PADDING_BYTES
_TILE_STRIDE = 4 * COLUMNS
_EDGE_BYTES = _TILE_STRIDE * (BF16_ROWS + 1)  # bytes of a tile and a bias at the edge


def panel_size(k):
    """Return the bytes from a panel of b of `gemm` to the next."""
    return PAIR_BYTES * ceil_div(k, 2) + gemm_common.PANEL_PADDING_BYTES


def workspace_size(k):
    """Return the bytes of workspace per thread of `gemm`."""
    return _EDGE_BYTES + gemm_common.TRANSPOSE_BYTES + 2 * _CLAIM_ROWS * k


def workspace_size_transposed(threads, m, n):
    """Return the bytes of workspace of `gemm_transposed_left`, of one block of a, and of one block of b."""
    a_bytes, b_bytes = ceil_div(m, VECTOR_WIDTH) * _A_PANEL_BYTES, ceil_div(n, COLUMNS) * KC_PANEL_BYTES
    return threads * _EDGE_BYTES + 2 * (a_bytes + b_bytes), a_bytes, b_bytes


@njit(**JIT_OPTIONS)
def _compute_edge_tile(init, bias, a, a_row_stride, a_pair_stride, b, pairs, out_tile, region):
    """Compute a tile in the buffer, in the same order, and copy the region of it to out; see `_compute_tile`."""
    store_mode, out, out_stride = out_tile
    tile, first_row, rows, columns = region
    region_start, padded_bias = tile + _TILE_STRIDE * first_row, tile + _TILE_STRIDE * BF16_ROWS
    gemm_common.load_edge(init, bias, padded_bias, region_start, _TILE_STRIDE, out, out_stride, rows, columns)
    microkernel_8x32(
        init, padded_bias, a, a_row_stride, a_pair_stride, b, PAIR_BYTES, 0, tile, _TILE_STRIDE, pairs
    )
    gemm_common.store_edge(store_mode == 1, region_start, _TILE_STRIDE, out, out_stride, rows, columns)


@njit(inline="always", **JIT_OPTIONS)
def _compute_tile(init, bias, a, a_row_stride, a_pair_stride, b, pairs, out_tile, region):
    """Compute a tile of out, or at an edge a region of it.

    out_tile: 0 for fp32, 1 for bf16, or NON_TEMPORAL; address; row stride. region: buffer of a tile and a bias,
    first row, number of rows, number of columns.
    """
    store_mode, out, out_stride = out_tile
    _, _, rows, columns = region
    if rows == BF16_ROWS and columns == COLUMNS:
        microkernel_8x32(
            init, bias, a, a_row_stride, a_pair_stride, b, PAIR_BYTES, store_mode, out, out_stride, pairs
        )
    else:
        _compute_edge_tile(init, bias, a, a_row_stride, a_pair_stride, b, pairs, out_tile, region)


@njit(**JIT_OPTIONS)
def _round_rows(x, x_stride, rows, columns, out):
    """Copy rows in fp32 to contiguous rows in bf16."""
    vector_columns = columns // VECTOR_WIDTH * VECTOR_WIDTH
    for i in range(rows):
        for j in range(0, vector_columns, VECTOR_WIDTH):
            store_bf16(out + 2 * (i * columns + j), load(x + i * x_stride + 4 * j))
        row, out_row = floats(x + i * x_stride, columns), bf16s(out + 2 * i * columns, columns)
        for j in range(vector_columns, columns):
            out_row[j] = bf16_bits(row[j])


@kernel
def gemm(s):
    """Compute out [m, n] = a [m, k] · b [k, n] + bias, with GELU or its gradient as an optional epilogue.

    Slots, with strides in bytes: 0 a, row-major; 1 its row stride; 2 whether it is bf16; 3 b, or 0 if it is packed
    already; 4 and 5 its row and column stride; 6 whether it is bf16; 7 out, row-major; 8 its row stride; 9 whether
    it is bf16; 10 m, at least 8, or 0 to pack b only; 11 n; 12 k, even; 13 workspace; 14 its bytes per thread;
    15 bias in fp32 or 0; 16 result GELU(out) or 0; 17 matrix at which the gradient of GELU is computed, by which
    out is multiplied, or 0: both have the layout of out, and all are bf16; 18 counter of claims, 0 at the start;
    20 packed b.
    """
    a, a_stride, a_is_bf16 = s[0], s[1], s[2]
    b, b_row_stride, b_column_stride, b_is_bf16 = s[3], s[4], s[5], s[6]
    out, out_stride, out_is_bf16 = s[7], s[8], s[9]
    m, n, k, bias, packed = s[10], s[11], s[12], s[15], s[20]
    edge, counter = s[13] + thread_index() * s[14], slot_address(s, 18)
    transposed, rounded = edge + _EDGE_BYTES, edge + _EDGE_BYTES + gemm_common.TRANSPOSE_BYTES
    pairs, panels = k // 2, ceil_div(n, COLUMNS)
    panel_bytes = PAIR_BYTES * pairs + gemm_common.PANEL_PADDING_BYTES
    if b:
        to_pack = thread_range(panels)
        gemm_common.pack_panels(
            b_is_bf16, b, b_row_stride, b_column_stride, k, n, packed, panel_bytes, to_pack, transposed
        )
    barrier()
    init, out_panel_bytes = INIT_BIAS if bias else INIT_ZERO, (2 if out_is_bf16 else 4) * COLUMNS
    row = _CLAIM_ROWS * atomic_increment(counter)
    while row < m:
        row_end = min(row + _CLAIM_ROWS, m)
        # The last tile starts as many rows early as it is too high.
        row_start = max(0, min(row, row_end - BF16_ROWS))
        a_rows, a_rows_stride = a + row_start * a_stride, a_stride
        if not a_is_bf16:
            _round_rows(a_rows, a_stride, row_end - row_start, k, rounded)
            a_rows, a_rows_stride = rounded, 2 * k
        for panel in range(panels):
            b_panel, columns = packed + panel * panel_bytes, min(COLUMNS, n - panel * COLUMNS)
            panel_bias = bias + 4 * COLUMNS * panel
            for i in range(row, row_end, BF16_ROWS):
                overlap = max(0, i + BF16_ROWS - row_end)
                a_tile = a_rows + (i - overlap - row_start) * a_rows_stride
                out_tile = out_is_bf16, out + i * out_stride + panel * out_panel_bytes, out_stride
                region = edge, overlap, BF16_ROWS - overlap, columns
                _compute_tile(init, panel_bias, a_tile, a_rows_stride, 4, b_panel, pairs, out_tile, region)
        offset, num_rows = row * out_stride, row_end - row
        gemm_common.apply_epilogue(out_is_bf16, out + offset, s[16], s[17], offset, out_stride, n, num_rows)
        row = _CLAIM_ROWS * atomic_increment(counter)


@kernel
def gemm_transposed_left(s):
    """Compute out [m, n] = aᵀ · b in fp32 of a [k, m] and b [k, n], and optionally the sums of the columns of a.

    k is large. Blocks of kc terms are packed in turn into two buffers, so that some threads can pack a block while
    others still multiply the block before.

    Slots, with strides in bytes: 0 a, row-major; 1 its row stride; 2 whether it is bf16; 3 to 5 the same of b;
    6 out, row-major; 7 its row stride; 8 m; 9 n; 10 k; 11 to 13 workspace and the sizes from
    `workspace_size_transposed`; 14 two counters for each block, all 0; 15 the sums of the columns of a, or 0;
    16 workspace for the partial sums of each PACK_ROWS terms.
    """
    a, a_stride, a_is_bf16, b, b_stride, b_is_bf16 = s[0], s[1], s[2], s[3], s[4], s[5]
    out, out_stride, m, n, k, a_bytes, b_bytes = s[6], s[7], s[8], s[9], s[10], s[12], s[13]
    sums, partial_sums = s[15], s[16]
    threads = num_threads()
    edge, packed = s[11] + thread_index() * _EDGE_BYTES, s[11] + threads * _EDGE_BYTES
    # A result that is written only once is read much later: it bypasses the caches.
    is_aligned = (out | out_stride) % (4 * VECTOR_WIDTH) == 0
    store_mode = microkernels.NON_TEMPORAL if k <= KC and is_aligned else 0
    for k_start in range(0, k, KC):
        kc, block = min(KC, k - k_start), k_start // KC
        a_panels = packed + block % 2 * (a_bytes + b_bytes)
        b_panels, counter = a_panels + a_bytes, s[14] + 16 * block
        term = PACK_ROWS * atomic_increment(counter)
        while term < kc:
            count = min(PACK_ROWS, kc - term)
            a_rows, b_rows = a + (k_start + term) * a_stride, b + (k_start + term) * b_stride
            a_target, b_target = a_panels + _A_PAIR_BYTES * term // 2, b_panels + PAIR_BYTES * term // 2
            gemm_common.pack_row_major(
                a_is_bf16, a_rows, a_stride, count, m, a_target, VECTOR_WIDTH, _A_PANEL_BYTES
            )
            if sums:
                slice_sums = partial_sums + 4 * m * ((k_start + term) // PACK_ROWS)
                gemm_common.column_sums(a_is_bf16, a_rows, a_stride, count, m, slice_sums)
            gemm_common.pack_row_major(
                b_is_bf16, b_rows, b_stride, count, n, b_target, COLUMNS, KC_PANEL_BYTES
            )
            term = PACK_ROWS * atomic_increment(counter)
        barrier()
        init, pairs = INIT_OUT if k_start else INIT_ZERO, (kc + 1) // 2
        row = _CLAIM_ROWS * atomic_increment(counter + 8)
        while row < m:
            row_end = min(row + _CLAIM_ROWS, m)
            for panel in range(ceil_div(n, COLUMNS)):
                b_panel, columns = b_panels + panel * KC_PANEL_BYTES, min(COLUMNS, n - panel * COLUMNS)
                for i in range(row, row_end, BF16_ROWS):
                    a_panel = a_panels + i // VECTOR_WIDTH * _A_PANEL_BYTES + i % VECTOR_WIDTH * 4
                    out_tile = store_mode, out + i * out_stride + 4 * COLUMNS * panel, out_stride
                    region = edge, 0, min(BF16_ROWS, row_end - i), columns
                    _compute_tile(init, 0, a_panel, 4, _A_PAIR_BYTES, b_panel, pairs, out_tile, region)
            row = _CLAIM_ROWS * atomic_increment(counter + 8)
    store_fence()
    if sums:
        first, last = thread_range(m)
        slices = ceil_div(k, PACK_ROWS)
        gemm_common.column_sums(0, partial_sums + 4 * first, 4 * m, slices, last - first, sums + 4 * first)
