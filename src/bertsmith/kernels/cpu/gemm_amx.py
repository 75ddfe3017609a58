"""Matrix products in bf16 for processors with AMX-BF16.

Names of sizes are those of BLAS and BLIS: out [m, n] = a [m, k] · b [k, n], and `gemm_transposed_left` processes k
in blocks of kc terms. Four tiles hold a block of 32 rows and 32 columns of the result. The right matrix is packed
into panels as in gemm_avx512bf16.py, whose slots these kernels use, with k padded with zeros to a multiple of 32.
Sums are in fp32.

The terms of each element are added in the same order. An element of the result therefore depends neither on the
other rows and columns nor on the number of threads.
"""

from __future__ import annotations

from numba import njit

from bertsmith.kernels.cpu import amx, gemm_common
from bertsmith.kernels.cpu.arrays import bf16_bits, bf16s, floats, slot_address
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, kernel
from bertsmith.kernels.cpu.gemm_common import COLUMNS, KC, KC_PANEL_BYTES, PACK_ROWS, PAIR_BYTES, ceil_div
from bertsmith.kernels.cpu.launcher import atomic_increment, barrier, num_threads, thread_index, thread_range
from bertsmith.kernels.cpu.microkernels import INIT_BIAS, INIT_OUT, INIT_ZERO
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH, load, splat, store, store_bf16
from bertsmith.kernels.cpu.simd_pairs import transpose_16x16, transpose_pairs

ROWS = amx.BLOCK_SIZE
_TILE_ROWS = amx.BLOCK_SIZE // 2  # rows of a tile, and pairs of terms that a tile instruction adds up
_MAX_CLAIM_ROWS = 2 * ROWS  # rows that a thread claims at a time, at most
_BLOCK_STRIDE = 4 * COLUMNS  # bytes from one row of a block in fp32 to the next
_TILE_BYTES = amx.TILE_ROW_BYTES * _TILE_ROWS
_BLOCK_BYTES = ROWS * _BLOCK_STRIDE
_EDGE_BYTES = _BLOCK_BYTES + _BLOCK_STRIDE  # bytes of a block and a bias at the edge
_A_PANEL_BYTES = _TILE_BYTES * KC // amx.BLOCK_SIZE + gemm_common.PANEL_PADDING_BYTES


def panel_size(k):
    """Return the bytes from a panel of b of `gemm` to the next."""
    return PAIR_BYTES * _TILE_ROWS * ceil_div(k, amx.BLOCK_SIZE) + gemm_common.PANEL_PADDING_BYTES


def workspace_size(k):
    """Return the bytes of workspace per thread of `gemm`."""
    row_bytes = 2 * amx.BLOCK_SIZE * ceil_div(k, amx.BLOCK_SIZE)
    return _EDGE_BYTES + gemm_common.TRANSPOSE_BYTES + row_bytes * (_MAX_CLAIM_ROWS + ROWS)


def workspace_size_transposed(threads, m, n):
    """Return the bytes of workspace of `gemm_transposed_left`, of each thread, and of one block of b."""
    thread_bytes = _EDGE_BYTES + _MAX_CLAIM_ROWS // VECTOR_WIDTH * _A_PANEL_BYTES
    b_bytes = ceil_div(n, COLUMNS) * KC_PANEL_BYTES
    return threads * thread_bytes + 2 * b_bytes, thread_bytes, b_bytes


@njit(**JIT_OPTIONS)
def _compute_block(init, bias, a_block, b, steps, out_block, buffer):
    """Compute a block of out.

    a_block: address of the rows of a, row stride, bytes to the 16 rows below, and bytes to the next 32 terms.
    steps: number of times that 32 terms are added. out_block: whether out is bf16, its address, and its row
    stride. buffer: a block in fp32 that is to be rounded.
    """
    a, a_row_stride, a_lower_offset, a_step_stride = a_block
    out_is_bf16, out, out_stride = out_block
    for i in range(ROWS):  # The result is in the cache once its products are computed.
        amx.prefetch_write(out + i * out_stride)
    if init == INIT_OUT:  # in fp32
        amx.load_block(out, out_stride)
    elif init == INIT_BIAS:
        amx.load_block(bias, 0)
    else:
        amx.zero_block()
    for _ in range(steps):
        amx.accumulate_bf16(a, a + a_lower_offset, a_row_stride, b, PAIR_BYTES)
        a += a_step_stride
        b += _TILE_ROWS * PAIR_BYTES
    if out_is_bf16:
        amx.store_block(buffer, _BLOCK_STRIDE)
        for i in range(ROWS):
            out_row, block_row = out + i * out_stride, buffer + i * _BLOCK_STRIDE
            store_bf16(out_row, load(block_row))
            store_bf16(out_row + 2 * VECTOR_WIDTH, load(block_row + amx.TILE_ROW_BYTES))
    else:
        amx.store_block(out, out_stride)


@njit(**JIT_OPTIONS)
def _compute_edge_block(init, bias, a_block, b, steps, out_block, region):
    """Compute a block in a buffer, in the same order, and copy a region of it to out.

    region: buffer of a block and a bias, first row, number of rows, number of columns.
    """
    out_is_bf16, out, out_stride = out_block
    buffer, first_row, rows, columns = region
    start, padded_bias = buffer + _BLOCK_STRIDE * first_row, buffer + _BLOCK_BYTES
    gemm_common.load_edge(init, bias, padded_bias, start, _BLOCK_STRIDE, out, out_stride, rows, columns)
    _compute_block(init, padded_bias, a_block, b, steps, (0, buffer, _BLOCK_STRIDE), buffer)
    gemm_common.store_edge(out_is_bf16, start, _BLOCK_STRIDE, out, out_stride, rows, columns)


@njit(**JIT_OPTIONS)
def _zero_rows(address, first, last, stride):
    """Set the rows [first, last) to 0. stride: their bytes, a multiple of 64."""
    for row_part in range(address + first * stride, address + last * stride, amx.TILE_ROW_BYTES):
        store(row_part, splat(0.0))


@njit(**JIT_OPTIONS)
def _copy_padded_rows(is_bf16, x, x_stride, rows, columns, out, out_stride):
    """Copy rows as bf16, each padded with zeros to `out_stride` bytes."""
    vector_columns = 0 if is_bf16 else columns // VECTOR_WIDTH * VECTOR_WIDTH
    for i in range(rows):
        source, out_row = x + i * x_stride, bf16s(out + i * out_stride, out_stride // 2)
        for j in range(0, vector_columns, VECTOR_WIDTH):
            store_bf16(out + i * out_stride + 2 * j, load(source + 4 * j))
        if is_bf16:
            bf16_row = bf16s(source, columns)
            for j in range(columns):
                out_row[j] = bf16_row[j]
        else:
            row = floats(source, columns)
            for j in range(vector_columns, columns):
                out_row[j] = bf16_bits(row[j])
        for j in range(columns, out_stride // 2):
            out_row[j] = 0


@kernel
def gemm(s):
    """Compute out [m, n] = a [m, k] · b [k, n] + bias, with GELU or its gradient as an optional epilogue.

    Slots: as in gemm_avx512bf16.py; 19 tile configuration. m and k may be of any size.
    """
    a, a_stride, a_is_bf16 = s[0], s[1], s[2]
    b, b_row_stride, b_column_stride, b_is_bf16 = s[3], s[4], s[5], s[6]
    out, out_stride, out_is_bf16 = s[7], s[8], s[9]
    m, n, k, bias, packed = s[10], s[11], s[12], s[15], s[20]
    edge, counter = s[13] + thread_index() * s[14], slot_address(s, 18)
    transposed, copied_rows = edge + _EDGE_BYTES, edge + _EDGE_BYTES + gemm_common.TRANSPOSE_BYTES
    steps, panels = ceil_div(k, amx.BLOCK_SIZE), ceil_div(n, COLUMNS)
    panel_bytes = PAIR_BYTES * _TILE_ROWS * steps + gemm_common.PANEL_PADDING_BYTES
    if b:
        to_pack = thread_range(panels)
        gemm_common.pack_panels(
            b_is_bf16, b, b_row_stride, b_column_stride, k, n, packed, panel_bytes, to_pack, transposed
        )
        for panel in range(*to_pack):
            _zero_rows(packed + panel * panel_bytes, (k + 1) // 2, _TILE_ROWS * steps, PAIR_BYTES)
    barrier()
    amx.configure(s[19])
    init, out_panel_bytes = INIT_BIAS if bias else INIT_ZERO, (2 if out_is_bf16 else 4) * COLUMNS
    is_copied = not a_is_bf16 or k % amx.BLOCK_SIZE or m < ROWS
    claim_rows = ROWS if m < 4 * _MAX_CLAIM_ROWS * num_threads() else _MAX_CLAIM_ROWS
    row = claim_rows * atomic_increment(counter)
    while row < m:
        row_end = min(row + claim_rows, m)
        a_rows, a_rows_stride = a + row * a_stride, a_stride
        if is_copied:
            padded_stride = 2 * amx.BLOCK_SIZE * steps
            _copy_padded_rows(a_is_bf16, a_rows, a_stride, row_end - row, k, copied_rows, padded_stride)
            a_rows, a_rows_stride = copied_rows, padded_stride
        for panel in range(panels):
            b_panel, columns = packed + panel * panel_bytes, min(COLUMNS, n - panel * COLUMNS)
            panel_bias = bias + 4 * COLUMNS * panel
            for i in range(row, row_end, ROWS):
                # The last block starts as many rows early as it is too high, unless the rows are copied.
                overlap = 0 if is_copied else max(0, i + ROWS - row_end)
                rows, a_address = min(ROWS, row_end - i), a_rows + (i - overlap - row) * a_rows_stride
                a_block = a_address, a_rows_stride, _TILE_ROWS * a_rows_stride, 2 * amx.BLOCK_SIZE
                out_block = out_is_bf16, out + i * out_stride + panel * out_panel_bytes, out_stride
                if rows < ROWS or columns < COLUMNS:
                    region = edge, overlap, rows, columns
                    _compute_edge_block(init, panel_bias, a_block, b_panel, steps, out_block, region)
                else:
                    _compute_block(init, panel_bias, a_block, b_panel, steps, out_block, edge)
        offset, num_rows = row * out_stride, row_end - row
        gemm_common.apply_epilogue(out_is_bf16, out + offset, s[16], s[17], offset, out_stride, n, num_rows)
        row = claim_rows * atomic_increment(counter)
    amx.release()


@njit(**JIT_OPTIONS)
def _prefetch_rows(x, stride, rows, row_bytes):
    """Prefetch the first `row_bytes` bytes of rows."""
    for i in range(rows):
        for offset in range(0, row_bytes, amx.TILE_ROW_BYTES):
            amx.prefetch_read(x + i * stride + offset)


@njit(**JIT_OPTIONS)
def _pack_transposed(is_bf16, x, x_stride, terms, rows, tiles):
    """Pack at most 32 terms of aᵀ: one tile of 16 rows at its place in each panel of a. x: the first term."""
    full_panels = rows // VECTOR_WIDTH if terms == amx.BLOCK_SIZE and is_bf16 else 0
    for panel in range(full_panels):
        transpose_pairs(x + 2 * VECTOR_WIDTH * panel, x_stride, tiles + panel * _A_PANEL_BYTES)
    packed_rows = full_panels * VECTOR_WIDTH
    if packed_rows < rows:
        source, target = x + (2 if is_bf16 else 4) * packed_rows, tiles + full_panels * _A_PANEL_BYTES
        count = rows - packed_rows
        columns = VECTOR_WIDTH
        gemm_common.pack_row_major(is_bf16, source, x_stride, terms, count, target, columns, _A_PANEL_BYTES)
    for panel in range(full_panels, ceil_div(rows, VECTOR_WIDTH)):
        tile = tiles + panel * _A_PANEL_BYTES
        _zero_rows(tile, (terms + 1) // 2, _TILE_ROWS, amx.TILE_ROW_BYTES)
        transpose_16x16(tile, amx.TILE_ROW_BYTES, tile, amx.TILE_ROW_BYTES)


@kernel
def gemm_transposed_left(s):
    """Compute out [m, n] = aᵀ · b in fp32 of a [k, m] and b [k, n], and optionally the sums of the columns of a.

    Threads share the panels of b. Each thread packs the rows of aᵀ that it multiplies, as a sequence of tiles.

    Slots: as in gemm_avx512bf16.py, but 12 bytes of workspace per thread; 13 bytes of one block of b; 17 tile
    configuration.
    """
    a, a_stride, a_is_bf16, b, b_stride, b_is_bf16 = s[0], s[1], s[2], s[3], s[4], s[5]
    out, out_stride, m, n, k = s[6], s[7], s[8], s[9], s[10]
    thread_bytes, b_bytes, sums, partial_sums = s[12], s[13], s[15], s[16]
    edge = s[11] + thread_index() * thread_bytes
    a_panels, packed_b = edge + _EDGE_BYTES, s[11] + num_threads() * thread_bytes
    itemsize, panels = 2 if a_is_bf16 else 4, ceil_div(n, COLUMNS)
    amx.configure(s[17])
    for k_start in range(0, k, KC):
        kc, k_block = min(KC, k - k_start), k_start // KC
        b_panels, counter = packed_b + k_block % 2 * b_bytes, s[14] + 16 * k_block
        term = PACK_ROWS * atomic_increment(counter)
        while term < kc:
            count, target = min(PACK_ROWS, kc - term), b_panels + PAIR_BYTES * term // 2
            b_rows = b + (k_start + term) * b_stride
            gemm_common.pack_row_major(b_is_bf16, b_rows, b_stride, count, n, target, COLUMNS, KC_PANEL_BYTES)
            for panel in range(panels):
                _zero_rows(target + panel * KC_PANEL_BYTES, (count + 1) // 2, _TILE_ROWS, PAIR_BYTES)
            term = PACK_ROWS * atomic_increment(counter)
        barrier()
        init, steps = INIT_OUT if k_start else INIT_ZERO, ceil_div(kc, amx.BLOCK_SIZE)
        row = _MAX_CLAIM_ROWS * atomic_increment(counter + 8)
        while row < m:
            row_end = min(row + _MAX_CLAIM_ROWS, m)
            claim_rows = row_end - row
            for term in range(0, kc, PACK_ROWS):
                count = min(PACK_ROWS, kc - term)
                source = a + (k_start + term) * a_stride + itemsize * row
                if term + PACK_ROWS < kc:
                    next_count = min(PACK_ROWS, kc - term - PACK_ROWS)
                    _prefetch_rows(source + PACK_ROWS * a_stride, a_stride, next_count, itemsize * claim_rows)
                tiles = a_panels + _TILE_BYTES * term // amx.BLOCK_SIZE
                _pack_transposed(a_is_bf16, source, a_stride, count, claim_rows, tiles)
                if sums:
                    slice_sums = partial_sums + 4 * (m * ((k_start + term) // PACK_ROWS) + row)
                    gemm_common.column_sums(a_is_bf16, source, a_stride, count, claim_rows, slice_sums)
            # The partial sums of the earlier blocks were stored before the last barrier.
            if sums and k_start + kc == k:
                slices = ceil_div(k, PACK_ROWS)
                gemm_common.column_sums(0, partial_sums + 4 * row, 4 * m, slices, claim_rows, sums + 4 * row)
            for i in range(row, row_end, ROWS):
                rows, a_panel = min(ROWS, row_end - i), a_panels + (i - row) // VECTOR_WIDTH * _A_PANEL_BYTES
                a_block = a_panel, amx.TILE_ROW_BYTES, _A_PANEL_BYTES, _TILE_BYTES
                for panel in range(panels):
                    b_panel, columns = b_panels + panel * KC_PANEL_BYTES, min(COLUMNS, n - panel * COLUMNS)
                    out_block = 0, out + i * out_stride + 4 * COLUMNS * panel, out_stride
                    if rows < ROWS or columns < COLUMNS:
                        region = edge, 0, rows, columns
                        _compute_edge_block(init, 0, a_block, b_panel, steps, out_block, region)
                    else:
                        _compute_block(init, 0, a_block, b_panel, steps, out_block, edge)
            row = _MAX_CLAIM_ROWS * atomic_increment(counter + 8)
    amx.release()
