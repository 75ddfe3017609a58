"""Matrix products in fp32 for AMD processors up to Zen 4.

Names of sizes are those of BLAS and BLIS: out [m, n] = a [m, k] · b [k, n], and k is processed in blocks of kc
terms. The microkernel computes a tile of 6 rows and 16 columns. Its sums fill the registers of AVX2, or half of
those of AVX-512, whose units are no wider on these processors. Matrices are packed into panels in the order in
which the microkernel reads them.

The terms of each element are added in the same order. An element of the result therefore depends neither on the
other rows and columns nor on the number of threads.
"""

from __future__ import annotations

from numba import njit

from bertsmith.kernels.cpu import gemm_common
from bertsmith.kernels.cpu.arrays import floats, slot_address
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, float32, kernel
from bertsmith.kernels.cpu.gemm_common import ceil_div
from bertsmith.kernels.cpu.launcher import atomic_increment, barrier, num_threads, thread_index, thread_range
from bertsmith.kernels.cpu.microkernels import FP32_ROWS, INIT_BIAS, INIT_OUT, INIT_ZERO, microkernel_6x16
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH, copy_8, load, store, transpose_8x8

COLUMNS = VECTOR_WIDTH
KC = 256  # A panel of 16 columns and as many terms fills half of a first-level cache of 32 KiB.
_CLAIM_ROWS = 8 * FP32_ROWS  # rows that a thread claims at a time, if there are few
_MIN_CLAIMS = 4  # claims per thread from which on each claim has twice as many rows
PACK_ROWS = 32  # rows of a and b that `gemm_transposed_left` packs at a time
_TRANSPOSE_SIZE = 8
_A_TERM_BYTES, _B_TERM_BYTES = 4 * FP32_ROWS, 4 * COLUMNS  # bytes of a term in a panel of a or b
_A_PANEL_BYTES = _A_TERM_BYTES * KC + gemm_common.PANEL_PADDING_BYTES  # in `gemm_transposed_left`
_B_PANEL_BYTES = _B_TERM_BYTES * KC + gemm_common.PANEL_PADDING_BYTES
_EDGE_BYTES = _B_TERM_BYTES * (FP32_ROWS + 1)  # bytes of a tile and a bias at the edge


@njit(inline="always", **JIT_OPTIONS)
def _rows_per_claim(m, threads):
    # Each claim reads all panels from a farther cache, so that larger claims are better.
    return _CLAIM_ROWS if m < 2 * _MIN_CLAIMS * _CLAIM_ROWS * threads else 2 * _CLAIM_ROWS


def panel_size(k):
    """Return the bytes from a panel of b of `gemm` to the next."""
    return _B_TERM_BYTES * k + gemm_common.PANEL_PADDING_BYTES


def workspace_size(_k):
    """Return the bytes of workspace per thread of `gemm`."""
    return _EDGE_BYTES


def workspace_size_transposed(threads, m, n):
    """Return the bytes of workspace of `gemm_transposed_left`, of one block of a, and of one block of b."""
    a_bytes, b_bytes = ceil_div(m, FP32_ROWS) * _A_PANEL_BYTES, ceil_div(n, COLUMNS) * _B_PANEL_BYTES
    return threads * _EDGE_BYTES + 2 * (a_bytes + b_bytes), a_bytes, b_bytes


@njit(**JIT_OPTIONS)
def _compute_edge_tile(init, bias, a, a_row_stride, a_k_stride, b, out, out_stride, kc, region):
    """Compute a tile in the buffer, in the same order, and copy the region of it to out; see `_compute_tile`."""
    tile, first_row, rows, columns = region
    stride = _B_TERM_BYTES
    start, padded_bias = tile + stride * first_row, tile + stride * FP32_ROWS
    gemm_common.load_edge(init, bias, padded_bias, start, stride, out, out_stride, rows, columns)
    microkernel_6x16(init, padded_bias, a, a_row_stride, a_k_stride, b, stride, tile, stride, kc)
    gemm_common.store_edge(0, start, stride, out, out_stride, rows, columns)


@njit(inline="always", **JIT_OPTIONS)
def _compute_tile(init, bias, a, a_row_stride, a_k_stride, b, out, out_stride, kc, region):
    """Compute a tile of out, or at an edge a region of it.

    region: buffer of a tile and a bias, first row, number of rows, number of columns.
    """
    _, _, rows, columns = region
    if rows == FP32_ROWS and columns == COLUMNS:
        microkernel_6x16(init, bias, a, a_row_stride, a_k_stride, b, _B_TERM_BYTES, out, out_stride, kc)
    else:
        _compute_edge_tile(init, bias, a, a_row_stride, a_k_stride, b, out, out_stride, kc, region)


@njit(**JIT_OPTIONS)
def _pack_row_major(x, x_stride, k, n, packed, panel_columns, panel_bytes):
    """Pack a row-major matrix [k, n] into panels of 6 or 16 columns.

    Full panels are copied 16 values at a time, or 8, of which the next term overwrites the last 2: the last term
    of a panel of 6 columns is therefore copied value by value.
    """
    full_panels = n // panel_columns
    if panel_columns == FP32_ROWS and full_panels and full_panels * FP32_ROWS + 8 - FP32_ROWS > n:
        full_panels -= 1  # The last copy would read beyond the row.
    for term in range(k):
        source, target = x + term * x_stride, packed + 4 * panel_columns * term
        if panel_columns == COLUMNS:
            for _ in range(full_panels):
                store(target, load(source))
                source += 4 * panel_columns
                target += panel_bytes
        elif term + 1 < k:
            for _ in range(full_panels):
                copy_8(source, target)
                source += 4 * panel_columns
                target += panel_bytes
    for panel in range(full_panels if panel_columns == COLUMNS else 0, ceil_div(n, panel_columns)):
        count = min(panel_columns, n - panel * panel_columns)
        for term in range(k - 1 if panel < full_panels else 0, k):
            row = floats(x + term * x_stride + 4 * panel_columns * panel, count)
            panel_row = floats(packed + panel * panel_bytes + 4 * panel_columns * term, panel_columns)
            for j in range(panel_columns):
                panel_row[j] = row[j] if j < count else float32(0)


@njit(**JIT_OPTIONS)
def _pack_column_major(x, x_stride, k, n, packed, panel_bytes):
    """Pack a column-major matrix [k, n] into panels of 16 columns."""
    for panel in range(ceil_div(n, COLUMNS)):
        source, target = x + panel * COLUMNS * x_stride, packed + panel * panel_bytes
        count, transposed_terms = min(COLUMNS, n - panel * COLUMNS), 0
        if count == COLUMNS:
            transposed_terms = k // _TRANSPOSE_SIZE * _TRANSPOSE_SIZE
            for term in range(0, transposed_terms, _TRANSPOSE_SIZE):
                block, out = source + 4 * term, target + _B_TERM_BYTES * term
                transpose_8x8(block, x_stride, out, _B_TERM_BYTES)
                lower, right = block + _TRANSPOSE_SIZE * x_stride, out + 4 * _TRANSPOSE_SIZE
                transpose_8x8(lower, x_stride, right, _B_TERM_BYTES)
        for term in range(transposed_terms, k):
            panel_row = floats(target + _B_TERM_BYTES * term, COLUMNS)
            for j in range(COLUMNS):
                address = source + j * x_stride + 4 * term
                panel_row[j] = floats(address, 1)[0] if j < count else float32(0)


@kernel
def gemm(s):
    """Compute out [m, n] = a [m, k] · b [k, n] + bias, with GELU or its gradient as an optional epilogue.

    The slots are those of the bf16 kernels, without dtypes and tiles. Strides are in bytes: 0 a, row-major; 1
    its row stride; 3 b, or 0 if it is packed already; 4 and 5 its row and column stride; 7 out, row-major; 8 its
    row stride; 10 m, at least 6, or 0 to pack b only; 11 n; 12 k; 13 workspace; 15 bias or 0; 16 result
    GELU(out), or 0; 17 matrix at which the gradient of GELU is computed, by which out is multiplied, or 0: both
    have the layout of out; 18 counter of claims, 0 at the start; 20 packed b.
    """
    a, a_stride, b, b_row_stride, b_column_stride, out, out_stride = s[0], s[1], s[3], s[4], s[5], s[7], s[8]
    m, n, k, bias, packed = s[10], s[11], s[12], s[15], s[20]
    edge, counter = s[13] + thread_index() * _EDGE_BYTES, slot_address(s, 18)
    panels, panel_bytes = ceil_div(n, COLUMNS), _B_TERM_BYTES * k + gemm_common.PANEL_PADDING_BYTES
    if b:
        first_panel, last_panel = thread_range(panels)
        source, target = b + first_panel * COLUMNS * b_column_stride, packed + first_panel * panel_bytes
        count = min(n, last_panel * COLUMNS) - first_panel * COLUMNS
        if b_column_stride == 4:
            _pack_row_major(source, b_row_stride, k, count, target, COLUMNS, panel_bytes)
        else:
            _pack_column_major(source, b_column_stride, k, count, target, panel_bytes)
    barrier()
    claim_rows = _rows_per_claim(m, num_threads())
    row = claim_rows * atomic_increment(counter)
    while row < m:
        row_end = min(row + claim_rows, m)
        for k_start in range(0, k, KC):
            kc = min(KC, k - k_start)
            init = INIT_OUT if k_start else (INIT_BIAS if bias else INIT_ZERO)
            for panel in range(panels):
                b_panel = packed + panel_bytes * panel + _B_TERM_BYTES * k_start
                columns, panel_bias = min(COLUMNS, n - panel * COLUMNS), bias + _B_TERM_BYTES * panel
                for i in range(row, row_end, FP32_ROWS):
                    # The last tile starts as many rows early as it is too high.
                    overlap = max(0, i + FP32_ROWS - row_end)
                    a_tile = a + (i - overlap) * a_stride + 4 * k_start
                    out_tile = out + i * out_stride + _B_TERM_BYTES * panel
                    region = edge, overlap, FP32_ROWS - overlap, columns
                    _compute_tile(
                        init, panel_bias, a_tile, a_stride, 4, b_panel, out_tile, out_stride, kc, region
                    )
        offset = row * out_stride
        gemm_common.apply_epilogue(0, out + offset, s[16], s[17], offset, out_stride, n, row_end - row)
        row = claim_rows * atomic_increment(counter)


@kernel
def gemm_transposed_left(s):
    """Compute out [m, n] = aᵀ · b of a [k, m] and b [k, n], and optionally the sums of the columns of a.

    k is large. Blocks of kc terms are packed in turn into two buffers, so that some threads can pack a block while
    others still multiply the block before.

    Slots, with strides in bytes: 0 a, row-major; 1 its row stride; 2 b, row-major; 3 its row stride; 4 out,
    row-major; 5 its row stride; 6 m; 7 n; 8 k; 9 to 11 workspace and the sizes from `workspace_size_transposed`;
    12 two counters for each block, all 0; 13 the sums of the columns of a, or 0; 14 workspace for the partial sums
    of each PACK_ROWS terms.
    """
    a, a_stride, b, b_stride, out, out_stride, m, n, k = s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8]
    a_bytes, b_bytes, sums, partial_sums = s[10], s[11], s[13], s[14]
    threads = num_threads()
    edge, packed = s[9] + thread_index() * _EDGE_BYTES, s[9] + threads * _EDGE_BYTES
    claim_rows = _rows_per_claim(m, threads)
    for k_start in range(0, k, KC):
        kc, block = min(KC, k - k_start), k_start // KC
        a_panels = packed + block % 2 * (a_bytes + b_bytes)
        b_panels, counter = a_panels + a_bytes, s[12] + 16 * block
        term = PACK_ROWS * atomic_increment(counter)
        while term < kc:
            count = min(PACK_ROWS, kc - term)
            a_rows, b_rows = a + (k_start + term) * a_stride, b + (k_start + term) * b_stride
            a_target = a_panels + _A_TERM_BYTES * term
            _pack_row_major(a_rows, a_stride, count, m, a_target, FP32_ROWS, _A_PANEL_BYTES)
            if sums:
                slice_sums = partial_sums + 4 * m * ((k_start + term) // PACK_ROWS)
                gemm_common.column_sums(0, a_rows, a_stride, count, m, slice_sums)
            target = b_panels + _B_TERM_BYTES * term
            _pack_row_major(b_rows, b_stride, count, n, target, COLUMNS, _B_PANEL_BYTES)
            term = PACK_ROWS * atomic_increment(counter)
        barrier()
        init = INIT_OUT if k_start else INIT_ZERO
        row = claim_rows * atomic_increment(counter + 8)
        while row < m:
            row_end = min(row + claim_rows, m)
            for panel in range(ceil_div(n, COLUMNS)):
                b_panel, columns = b_panels + panel * _B_PANEL_BYTES, min(COLUMNS, n - panel * COLUMNS)
                for i in range(row, row_end, FP32_ROWS):
                    a_panel = a_panels + i // FP32_ROWS * _A_PANEL_BYTES
                    out_tile = out + i * out_stride + _B_TERM_BYTES * panel
                    region = edge, 0, min(FP32_ROWS, row_end - i), columns
                    _compute_tile(
                        init, 0, a_panel, 4, _A_TERM_BYTES, b_panel, out_tile, out_stride, kc, region
                    )
            row = claim_rows * atomic_increment(counter + 8)
    if sums:
        first, last = thread_range(m)
        slices = ceil_div(k, PACK_ROWS)
        gemm_common.column_sums(0, partial_sums + 4 * first, 4 * m, slices, last - first, sums + 4 * first)
