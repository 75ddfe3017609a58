"""The bodies of products of matrices in bf16, for processors that multiply it in tiles (AMX).

Thirty-two rows and as many columns are made at a time, in four tiles. What is multiplied by is copied into panels,
as for products in registers (gemm_avx512bf16.py), whose slots these bodies read; terms are filled up with zeros to
a multiple of 32. Sums are in fp32. No row of a product depends on the other rows, nor a column on the other
columns, nor any on the number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.cpu.amx import (
    BLOCK_SIZE,
    TILE_ROW_BYTES,
    accumulate_bf16,
    configure,
    load_block,
    prefetch_read,
    prefetch_write,
    release,
    store_block,
    zero_block,
)
from bertsmith.kernels.cpu.compilation import (
    JIT_OPTIONS,
    KERNEL_OPTIONS,
    barrier,
    bf16_array,
    bf16_bits,
    fetch_and_increment,
    float32,
    float_array,
    load_slots,
    num_threads,
    thread_index,
)
from bertsmith.kernels.cpu.microkernel_fp32 import INIT_ACCUMULATE, INIT_BIAS, INIT_ZERO
from bertsmith.kernels.cpu.packed_matrix import (
    COLUMNS,
    PACK_ROWS,
    PAIR_BYTES,
    PANEL_PADDING_BYTES,
    TRANSPOSE_BYTES,
    apply_epilogue,
    ceil_div,
    column_sums,
    pack_column_major,
    pack_row_major,
)
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH, broadcast_scalar, load, store, store_bf16
from bertsmith.kernels.cpu.simd_pairs import transpose_16x16, transpose_pairs

WRITTEN_WITH = "28653773a7c07887"  # what is imported here, and what these import, see the first
ROWS = BLOCK_SIZE
_HALF = BLOCK_SIZE // 2  # rows of a tile, and pairs of terms
_CLAIMED = 2 * ROWS  # rows that a thread makes at most before it looks for others
_TERMS = 512  # of `by_columns` added up at a time
_LINE = 4 * COLUMNS  # bytes of a row of a block in fp32
_TILE = 64 * _HALF  # bytes of a tile
_BLOCK = ROWS * _LINE
_EDGE = _BLOCK + _LINE  # bytes of a block and a bias at the edge
_APART_ROWS = (
    _TILE * _TERMS // BLOCK_SIZE + PANEL_PADDING_BYTES
)  # bytes from a panel of rows of `by_columns` to the next


def _steps(terms):
    return ceil_div(terms, BLOCK_SIZE)


def panel_size(terms):
    """How many bytes lie between a panel of `by_rows` and the next."""
    return PAIR_BYTES * _HALF * _steps(terms) + PANEL_PADDING_BYTES


def workspace_size(terms):
    """How many bytes each thread of `by_rows` needs to compute in."""
    return _EDGE + TRANSPOSE_BYTES + 2 * BLOCK_SIZE * _steps(terms) * (_CLAIMED + ROWS)


def workspace_size_transposed(threads, rows, columns):
    """How many bytes `by_columns` needs to compute in; of these, each thread, and a set of panels of columns."""
    own = _EDGE + _CLAIMED // VECTOR_WIDTH * _APART_ROWS
    of_columns = ceil_div(columns, COLUMNS) * (PAIR_BYTES * _TERMS // 2 + PANEL_PADDING_BYTES)
    return threads * own + 2 * of_columns, own, of_columns


def num_counters(terms):
    """How many numbers the threads of `by_columns` count with."""
    return 2 * ceil_div(terms, _TERMS)


def num_slices(terms):
    """How many sums of each column `by_columns` makes."""
    return ceil_div(terms, PACK_ROWS)


@njit(**JIT_OPTIONS)
def _block(begins, bias, a, a_row, a_below, a_step, b, half, out, width, steps, kept):
    """What begins there (microkernel_fp32.py), and 32 rows of a times 32 columns of b, 32 terms at a step. In
    bytes: a_row between two rows of a tile of a, a_below to the 16 rows below, a_step to the next terms, width
    between rows of out, which is bf16 or fp32. kept: where a block lies before it is rounded."""
    for r in range(ROWS):  # there while its products are made
        prefetch_write(out + r * width)
    if begins == INIT_ACCUMULATE:  # in fp32
        load_block(out, width)
    elif begins == INIT_BIAS:
        load_block(bias, 0)
    else:
        zero_block()
    for _ in range(steps):
        accumulate_bf16(a, a + a_below, a_row, b, PAIR_BYTES)
        a += a_step
        b += _HALF * PAIR_BYTES
    if half:
        store_block(kept, _LINE)
    else:
        store_block(out, width)
    if half:
        for r in range(ROWS):
            made, own = out + r * width, kept + r * _LINE
            store_bf16(made, load(own))
            store_bf16(made + 2 * VECTOR_WIDTH, load(own + TILE_ROW_BYTES))


@njit(**JIT_OPTIONS)
def _at_edge(begins, bias, a, a_row, a_below, a_step, b, half, out, width, steps, edge, first, rows, columns):
    """Of a block these rows from the first on, and these columns: it is made elsewhere, in the same order."""
    if begins == INIT_ACCUMULATE:
        block = float_array(edge, ROWS * COLUMNS)
        for r in range(rows):
            wanted = float_array(out + r * width, columns)
            for j in range(columns):
                block[r * COLUMNS + j] = wanted[j]
    if begins == INIT_BIAS:
        given, padded = float_array(bias, columns), float_array(edge + _BLOCK, COLUMNS)
        for j in range(COLUMNS):
            padded[j] = given[j] if j < columns else float32(0)
    _block(begins, edge + _BLOCK, a, a_row, a_below, a_step, b, 0, edge, _LINE, steps, edge)
    for r in range(rows):
        own, place = float_array(edge + _LINE * (first + r), columns), out + r * width
        if half:
            made = bf16_array(place, columns)
            for j in range(columns):
                made[j] = bf16_bits(own[j])
        else:
            wanted = float_array(place, columns)
            for j in range(columns):
                wanted[j] = own[j]


@njit(**JIT_OPTIONS)
def _cleared(place, begin, end, row):
    """Rows of so many bytes, a multiple of 64, from one to another."""
    for at in range(place + begin * row, place + end * row, TILE_ROW_BYTES):
        store(at, broadcast_scalar(float32(0)))


@njit(**JIT_OPTIONS)
def _lines(half, x, x_row, rows, terms, to, line):
    """Rows of x in bf16, each filled up with zeros."""
    whole = terms // VECTOR_WIDTH * VECTOR_WIDTH
    for r in range(rows):
        own, made = x + r * x_row, bf16_array(to + r * line, line // 2)
        done = 0
        if not half:
            for c in range(0, whole, VECTOR_WIDTH):
                store_bf16(to + r * line + 2 * c, load(own + 4 * c))
            done = whole
        if half:
            given = bf16_array(own, terms)
            for c in range(terms):
                made[c] = given[c]
        else:
            more = float_array(own, terms)
            for c in range(done, terms):
                made[c] = bf16_bits(more[c])
        for c in range(terms, line // 2):
            made[c] = 0


# The slots of products_half's `by_rows`, and 19 what the tiles are. There may be any number of rows, and of terms.


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def gemm(given):
    s = load_slots(given)
    half, width, rows, columns, terms, bias = s[9], s[8], s[10], s[11], s[12], s[15]
    mine, of = np.int64(thread_index()), np.int64(num_threads())
    edge, steps = s[13] + mine * s[14], ceil_div(terms, BLOCK_SIZE)
    turned, copied, shared = edge + _EDGE, edge + _EDGE + TRANSPOSE_BYTES, s[20]
    panels, apart, size = (
        ceil_div(columns, COLUMNS),
        PAIR_BYTES * _HALF * steps + PANEL_PADDING_BYTES,
        2 if half else 4,
    )
    first, last = panels * mine // of, panels * (mine + 1) // of
    count = min(columns, last * COLUMNS) - first * COLUMNS
    if s[3] and count > 0:
        own, here = s[3] + first * COLUMNS * s[5], shared + first * apart
        if s[5] == (2 if s[6] else 4):
            pack_row_major(s[6], own, s[4], terms, count, here, COLUMNS, apart)
        else:
            pack_column_major(s[6], own, s[5], terms, count, here, apart, turned)
        for panel in range(first, last):
            _cleared(shared + panel * apart, (terms + 1) // 2, _HALF * steps, PAIR_BYTES)
    barrier()
    configure(s[19])
    is_copied = not s[2] or terms % BLOCK_SIZE or rows < ROWS
    claimed = ROWS if rows < 4 * _CLAIMED * of else _CLAIMED
    row = claimed * fetch_and_increment(s.ctypes.data + 8 * 18)
    while row < rows:
        end = min(row + claimed, rows)
        lines, line = s[0] + row * s[1], s[1]
        if is_copied:
            _lines(s[2], lines, line, end - row, terms, copied, 2 * BLOCK_SIZE * steps)
            lines, line = copied, 2 * BLOCK_SIZE * steps
        for panel in range(panels):
            b, many = shared + panel * apart, min(COLUMNS, columns - panel * COLUMNS)
            more, begins = bias + 4 * COLUMNS * panel, INIT_BIAS if bias else INIT_ZERO
            for i in range(row, end, ROWS):
                # Of the last rows a block begins as much earlier as it is too high, where they are not copied.
                over = 0 if is_copied else max(0, i + ROWS - end)
                high = min(ROWS, end - i)
                a, out = lines + (i - over - row) * line, s[7] + i * width + size * COLUMNS * panel
                if high < ROWS or many < COLUMNS:
                    _at_edge(
                        begins,
                        more,
                        a,
                        line,
                        _HALF * line,
                        2 * BLOCK_SIZE,
                        b,
                        half,
                        out,
                        width,
                        steps,
                        edge,
                        over,
                        high,
                        many,
                    )
                else:
                    _block(
                        begins, more, a, line, _HALF * line, 2 * BLOCK_SIZE, b, half, out, width, steps, edge
                    )
        apply_epilogue(s[7] + row * width, s[16], s[17], row * width, width, columns, end - row)
        row = claimed * fetch_and_increment(s.ctypes.data + 8 * 18)
    release()


@njit(**JIT_OPTIONS)
def _fetched(x, row, rows, size):
    """So many bytes of each of these rows are there when they are read."""
    for r in range(rows):
        for c in range(0, size, TILE_ROW_BYTES):
            prefetch_read(x + r * row + c)


@njit(**JIT_OPTIONS)
def _rows_of(half, x, x_term, few, rows, tiles):
    """Rows of `by_columns`, of at most 32 terms: a tile of 16 of them at its place in each panel. x: where the
    first of them lies."""
    whole, size = rows // VECTOR_WIDTH if few == BLOCK_SIZE and half else 0, 2 if half else 4
    for panel in range(whole):
        transpose_pairs(x + 2 * VECTOR_WIDTH * panel, x_term, tiles + panel * _APART_ROWS)
    if whole * VECTOR_WIDTH < rows:
        rest, there = rows - whole * VECTOR_WIDTH, tiles + whole * _APART_ROWS
        pack_row_major(
            half, x + size * VECTOR_WIDTH * whole, x_term, few, rest, there, VECTOR_WIDTH, _APART_ROWS
        )
    for panel in range(whole, ceil_div(rows, VECTOR_WIDTH)):
        tile = tiles + panel * _APART_ROWS
        _cleared(tile, (few + 1) // 2, _HALF, TILE_ROW_BYTES)
        transpose_16x16(tile, TILE_ROW_BYTES, tile, TILE_ROW_BYTES)


# The slots of products_half's `by_columns`, but for 12, how many bytes of the room are a thread's, and 13, of a
# set of panels of columns; and 17 what the tiles are. Threads share these panels; rows are copied by the thread
# that multiplies them, a panel of them being a tile after the other.


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def gemm_transposed_left(given):
    s = load_slots(given)
    width, rows, columns, terms, size = s[7], s[8], s[9], s[10], 2 if s[2] else 4
    edge = s[11] + np.int64(thread_index()) * s[12]
    of_rows = edge + _EDGE
    shared, panels = s[11] + np.int64(num_threads()) * s[12], ceil_div(columns, COLUMNS)
    apart, below = PAIR_BYTES * _TERMS // 2 + PANEL_PADDING_BYTES, _APART_ROWS
    configure(s[17])
    for begin in range(0, terms, _TERMS):
        some, number = min(_TERMS, terms - begin), begin // _TERMS
        of_columns, counter = shared + number % 2 * s[13], s[14] + 16 * number
        at = PACK_ROWS * fetch_and_increment(counter)
        while at < some:
            few, pairs = min(PACK_ROWS, some - at), of_columns + PAIR_BYTES * at // 2
            pack_row_major(s[5], s[3] + (begin + at) * s[4], s[4], few, columns, pairs, COLUMNS, apart)
            for panel in range(panels):
                _cleared(pairs + panel * apart, (few + 1) // 2, _HALF, PAIR_BYTES)
            at = PACK_ROWS * fetch_and_increment(counter)
        barrier()
        begins, steps = INIT_ACCUMULATE if begin else INIT_ZERO, ceil_div(some, BLOCK_SIZE)
        row = _CLAIMED * fetch_and_increment(counter + 8)
        while row < rows:
            end = min(row + _CLAIMED, rows)
            for at in range(0, some, PACK_ROWS):
                few, term = min(PACK_ROWS, some - at), begin + at
                own = s[0] + term * s[1] + size * row
                if at + PACK_ROWS < some:
                    _fetched(
                        own + PACK_ROWS * s[1],
                        s[1],
                        min(PACK_ROWS, some - at - PACK_ROWS),
                        size * (end - row),
                    )
                _rows_of(s[2], own, s[1], few, end - row, of_rows + _TILE * at // BLOCK_SIZE)
                if s[15]:
                    column_sums(
                        s[2], own, s[1], few, end - row, s[16] + 4 * (rows * (term // PACK_ROWS) + row)
                    )
            if s[15] and begin + some == terms:  # all earlier sums of these rows were made before threads met
                every_slice = ceil_div(terms, PACK_ROWS)
                column_sums(0, s[16] + 4 * row, 4 * rows, every_slice, end - row, s[15] + 4 * row)
            for i in range(row, end, ROWS):
                a, high = of_rows + (i - row) // VECTOR_WIDTH * _APART_ROWS, min(ROWS, end - i)
                for panel in range(panels):
                    b, many = of_columns + panel * apart, min(COLUMNS, columns - panel * COLUMNS)
                    out = s[6] + i * width + 4 * COLUMNS * panel
                    if high < ROWS or many < COLUMNS:
                        _at_edge(
                            begins,
                            0,
                            a,
                            TILE_ROW_BYTES,
                            below,
                            _TILE,
                            b,
                            0,
                            out,
                            width,
                            steps,
                            edge,
                            0,
                            high,
                            many,
                        )
                    else:
                        _block(begins, 0, a, TILE_ROW_BYTES, below, _TILE, b, 0, out, width, steps, edge)
            row = _CLAIMED * fetch_and_increment(counter + 8)
    release()
