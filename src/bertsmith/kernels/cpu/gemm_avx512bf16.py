"""The bodies of products of matrices in bf16, for processors that multiply it in registers (AVX512-BF16).

Eight rows and 32 columns are made at a time in registers. What is multiplied by is first copied into panels, its
terms in pairs, in the order in which it is read; a matrix may lie in memory in fp32, and is rounded on the way, so
that no copy of the weights in bf16 has to be kept. Sums are in fp32. No row of a product depends on the other
rows, nor a column on the other columns, nor any on the number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

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
from bertsmith.kernels.cpu.microkernel_bf16 import NON_TEMPORAL, ROWS, microkernel_8x32
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
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH, load, store_bf16, store_fence

WRITTEN_WITH = "0b1498edaf0b038e"  # what is imported here, and what these import, see the first
_CLAIMED = VECTOR_WIDTH  # rows that a thread makes before it looks for others
_TERMS = 512  # of `by_columns` added up at a time
_ROW_PAIR = 4 * VECTOR_WIDTH  # of one in a panel of the rows of `by_columns`, 16 of them
_EDGE = 4 * COLUMNS * (ROWS + 1)  # bytes of a tile and a bias at the edge


def panel_size(terms):
    """How many bytes lie between a panel of `by_rows` and the next."""
    return PAIR_BYTES * ceil_div(terms, 2) + PANEL_PADDING_BYTES


def workspace_size(terms):
    """How many bytes each thread of `by_rows` needs to compute in."""
    return _EDGE + TRANSPOSE_BYTES + 2 * _CLAIMED * terms


def workspace_size_transposed(threads, rows, columns):
    """How many bytes `by_columns` needs to compute in; of these, a set of panels of rows, and of columns."""
    of_rows = ceil_div(rows, VECTOR_WIDTH) * (_ROW_PAIR * _TERMS // 2 + PANEL_PADDING_BYTES)
    of_columns = ceil_div(columns, COLUMNS) * (PAIR_BYTES * _TERMS // 2 + PANEL_PADDING_BYTES)
    return threads * _EDGE + 2 * (of_rows + of_columns), of_rows, of_columns


def num_counters(terms):
    """How many numbers the threads of `by_columns` count with."""
    return 2 * ceil_div(terms, _TERMS)


def num_slices(terms):
    """How many sums of each column `by_columns` makes."""
    return ceil_div(terms, PACK_ROWS)


@njit(**JIT_OPTIONS)
def _tile_at_edge(begins, bias, a, a_row, a_pair, b, half, out, width, pairs, edge, first, rows, columns):
    """Of a tile these rows from the first on, and these columns: it is made elsewhere, in the same order."""
    tile, row = float_array(edge, ROWS * COLUMNS), 4 * COLUMNS
    if begins == INIT_ACCUMULATE:
        for r in range(rows):
            wanted = float_array(out + r * width, columns)
            for j in range(columns):
                tile[r * COLUMNS + j] = wanted[j]
    if begins == INIT_BIAS:
        given, padded = float_array(bias, columns), float_array(edge + row * ROWS, COLUMNS)
        for j in range(COLUMNS):
            padded[j] = given[j] if j < columns else float32(0)
    microkernel_8x32(begins, edge + row * ROWS, a, a_row, a_pair, b, PAIR_BYTES, 0, edge, row, pairs)
    for r in range(rows):
        own, place = edge + row * (first + r), out + r * width
        if half:
            made = bf16_array(place, columns)
            for j in range(columns):
                made[j] = bf16_bits(float_array(own, columns)[j])
        else:
            wanted, tile_row = float_array(place, columns), float_array(own, columns)
            for j in range(columns):
                wanted[j] = tile_row[j]


# out = a·b + bias; the terms of a row of a lie side by side, an even number of them. Slots: 0 a, 1 from one row
# of it to the next, 2 whether it is bf16, 3 b, or 0 where it is in panels already, 4 from one term of it to the
# next, 5 from one column to the next, 6 whether it is bf16, 7 out, 8 from one row of it to the next, 9 whether it
# is bf16, 10 rows, at least 8 or none, 11 columns, 12 terms, 13 `room` for each thread, 14 how large it is, 15
# the bias in fp32 or 0, 16 and 17 another matrix like out, which is bf16 then, or 0: GELU of out is written to
# the first; with the second out is multiplied by GELU's slopes at it; 18 the number of the rows that are claimed
# next, 0 at first; 20 the panels of b. What lies between two is in bytes, here and below.


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def gemm(given):
    s = load_slots(given)
    half, width, rows, columns, terms, bias = s[9], s[8], s[10], s[11], s[12], s[15]
    mine, of = np.int64(thread_index()), np.int64(num_threads())
    edge = s[13] + mine * s[14]
    kept, copied = edge + _EDGE, edge + _EDGE + TRANSPOSE_BYTES
    shared, pairs = s[20], terms // 2
    panels, apart, size = (
        ceil_div(columns, COLUMNS),
        PAIR_BYTES * pairs + PANEL_PADDING_BYTES,
        2 if half else 4,
    )
    first, last = panels * mine // of, panels * (mine + 1) // of
    count = min(columns, last * COLUMNS) - first * COLUMNS
    if s[3] and count > 0:
        own, here = s[3] + first * COLUMNS * s[5], shared + first * apart
        if s[5] == (2 if s[6] else 4):
            pack_row_major(s[6], own, s[4], terms, count, here, COLUMNS, apart)
        else:
            pack_column_major(s[6], own, s[5], terms, count, here, apart, kept)
    barrier()
    row = _CLAIMED * fetch_and_increment(s.ctypes.data + 8 * 18)
    while row < rows:
        end = min(row + _CLAIMED, rows)
        # Of the last rows a tile begins as much earlier as it is too high.
        start = max(0, min(row, end - ROWS))
        lines, line = s[0] + start * s[1], s[1]
        if not s[2]:
            for i in range(end - start):
                for c in range(0, terms // VECTOR_WIDTH * VECTOR_WIDTH, VECTOR_WIDTH):
                    store_bf16(copied + 2 * (i * terms + c), load(lines + i * line + 4 * c))
                to = bf16_array(copied + 2 * i * terms, terms)
                for c in range(terms // VECTOR_WIDTH * VECTOR_WIDTH, terms):
                    to[c] = bf16_bits(float_array(lines + i * line, terms)[c])
            lines, line = copied, 2 * terms
        for panel in range(panels):
            b, many = shared + panel * apart, min(COLUMNS, columns - panel * COLUMNS)
            more, begins = bias + 4 * COLUMNS * panel, INIT_BIAS if bias else INIT_ZERO
            for i in range(row, end, ROWS):
                over = max(0, i + ROWS - end)
                a, out = lines + (i - over - start) * line, s[7] + i * width + size * COLUMNS * panel
                if over or many < COLUMNS:
                    high = ROWS - over
                    _tile_at_edge(
                        begins, more, a, line, 4, b, half, out, width, pairs, edge, over, high, many
                    )
                else:
                    microkernel_8x32(begins, more, a, line, 4, b, PAIR_BYTES, half, out, width, pairs)
        apply_epilogue(s[7] + row * width, s[16], s[17], row * width, width, columns, end - row)
        row = _CLAIMED * fetch_and_increment(s.ctypes.data + 8 * 18)


# out = aᵀ·b in fp32, of many terms; rows of out lie side by side in a, its columns in b. Both are copied some
# terms at a time, into one of two sets of panels, while threads may still multiply what the other holds. Slots: 0
# a, 1 from one term of it to the next, 2 whether it is bf16, 3 to 5 the same of b, 6 out, 7 from one row of it to
# the next, 8 rows of out, 9 columns, 10 terms, 11 to 13 `room_turned`, 14 `turns`, all 0, 15 sums of a's columns,
# or 0, 16 room for `slices` rows of them.


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def gemm_transposed_left(given):
    s = load_slots(given)
    width, rows, columns, terms = s[7], s[8], s[9], s[10]
    edge = s[11] + np.int64(thread_index()) * _EDGE
    shared, panels = s[11] + np.int64(num_threads()) * _EDGE, ceil_div(columns, COLUMNS)
    apart_rows, apart = (
        _ROW_PAIR * _TERMS // 2 + PANEL_PADDING_BYTES,
        PAIR_BYTES * _TERMS // 2 + PANEL_PADDING_BYTES,
    )
    for begin in range(0, terms, _TERMS):
        some, number = min(_TERMS, terms - begin), begin // _TERMS
        of_rows = shared + number % 2 * (s[12] + s[13])
        of_columns, counter = of_rows + s[12], s[14] + 16 * number
        at = PACK_ROWS * fetch_and_increment(counter)
        while at < some:
            few, term = min(PACK_ROWS, some - at), begin + at
            a, b = s[0] + term * s[1], s[3] + term * s[4]
            pack_row_major(s[2], a, s[1], few, rows, of_rows + _ROW_PAIR * at // 2, VECTOR_WIDTH, apart_rows)
            if s[15]:
                column_sums(s[2], a, s[1], few, rows, s[16] + 4 * rows * (term // PACK_ROWS))
            pack_row_major(s[5], b, s[4], few, columns, of_columns + PAIR_BYTES * at // 2, COLUMNS, apart)
            at = PACK_ROWS * fetch_and_increment(counter)
        barrier()
        begins, pairs = INIT_ACCUMULATE if begin else INIT_ZERO, (some + 1) // 2
        # What is written but once is read when much else has been computed.
        kind = NON_TEMPORAL if terms <= _TERMS and (s[6] | width) % (4 * VECTOR_WIDTH) == 0 else 0
        row = _CLAIMED * fetch_and_increment(counter + 8)
        while row < rows:
            end = min(row + _CLAIMED, rows)
            for panel in range(panels):
                b, many = of_columns + panel * apart, min(COLUMNS, columns - panel * COLUMNS)
                for i in range(row, end, ROWS):
                    a = of_rows + i // VECTOR_WIDTH * apart_rows + i % VECTOR_WIDTH * 4
                    out = s[6] + i * width + 4 * COLUMNS * panel
                    high = min(ROWS, end - i)
                    if high < ROWS or many < COLUMNS:
                        _tile_at_edge(
                            begins, 0, a, 4, _ROW_PAIR, b, 0, out, width, pairs, edge, 0, high, many
                        )
                    else:
                        microkernel_8x32(begins, 0, a, 4, _ROW_PAIR, b, PAIR_BYTES, kind, out, width, pairs)
            row = _CLAIMED * fetch_and_increment(counter + 8)
    store_fence()
    if s[15]:
        mine, of = np.int64(thread_index()), np.int64(num_threads())
        first, last = rows * mine // of, rows * (mine + 1) // of
        place = 4 * first
        column_sums(0, s[16] + place, 4 * rows, ceil_div(terms, PACK_ROWS), last - first, s[15] + place)
