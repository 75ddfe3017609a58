"""A layer in 8-bit integers in one body, where products of such integers are not the processor's own.

Its inputs are rounded, multiplied, and the sums made what they stand for. Integers are multiplied in pairs of 16
bits, which any processor with AVX2 does, twice as many at a time as numbers in fp32; all sums are exact.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.cpu.compilation import (
    JIT_OPTIONS,
    KERNEL_OPTIONS,
    float_from_bits,
    load_slots,
    num_threads,
    thread_index,
)
from bertsmith.kernels.cpu.quantize import (
    BLOCK_ROWS,
    ROW_PARAM_BYTES,
    dequantized_row,
    make_row_quantizer,
    output_param_pointers,
)
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH, store_as_dtype, store_int16
from bertsmith.kernels.cpu.simd_pairs import broadcast_int, dot_int16, load_ints, zero_ints

WRITTEN_WITH = "68cdd1df115701b4"  # compilation.py, simd.py and quantize.py, see the first
_AT_A_TIME = 4


def workspace_size(columns: int) -> int:
    """How many bytes a thread works in."""
    return 2 * BLOCK_ROWS * columns + ROW_PARAM_BYTES + 4 * columns + 4 * VECTOR_WIDTH


_rounds = make_row_quantizer(store_int16, 2)


@njit(inline="always", **JIT_OPTIONS)
def _finished(half, sums, row, rows, knows, to, nowhere, of):
    """A row's sums as what they stand for, if there is such a row."""
    found = dequantized_row(row, sums, knows, of)
    store_as_dtype(half, to if row < rows else nowhere, found)


# Slots: 0 whether x is bf16, 1 x, 2 factors of its columns, 3 weights, see `FastAnswers.integer_weights`, 4 the
# result, 5 to 7 of each output the sum of its weights, scale and bias, 8 rows, 9 columns, 10 outputs, 11 the least
# step by its bits, 12 `room` for each thread, 13 how large it is, 14 whether the result is bf16, 17 the column
# that is kept apart, 18 each output's weight of it.


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def int8_linear_kernel(given):
    s = load_slots(given)
    half, half_out, columns, outputs, least = s[0], s[14], s[9], s[10], float_from_bits(s[11])
    size, size_out, by = 2 if half else 4, 2 if half_out else 4, 2 * columns
    mine = s[12] + s[13] * np.int64(thread_index())
    knows = mine + BLOCK_ROWS * by
    here = knows + ROW_PARAM_BYTES
    nowhere, blocks = here + 4 * columns, (s[8] + BLOCK_ROWS - 1) // BLOCK_ROWS
    for block in range(np.int64(thread_index()), blocks, np.int64(num_threads())):
        first = block * BLOCK_ROWS
        x, rows = s[1] + size * first * columns, min(BLOCK_ROWS, s[8] - first)
        _rounds(half, x, rows, s[2], columns, s[17], least, mine, by, knows, here)
        for column in range(0, outputs, VECTOR_WIDTH):
            of = output_param_pointers(s, column)
            for i in range(0, rows, _AT_A_TIME):
                own, panel = mine + i * by, s[3] + column * by
                p = q = r = o = zero_ints()
                for _ in range(columns // 2):
                    pairs = load_ints(panel)
                    p = dot_int16(p, broadcast_int(own), pairs)
                    q = dot_int16(q, broadcast_int(own + by), pairs)
                    r = dot_int16(r, broadcast_int(own + 2 * by), pairs)
                    o = dot_int16(o, broadcast_int(own + 3 * by), pairs)
                    panel += 4 * VECTOR_WIDTH
                    own += 4
                to, next_one = s[4] + size_out * ((first + i) * outputs + column), size_out * outputs
                _finished(half_out, p, i, rows, knows, to, nowhere, of)
                to += next_one
                _finished(half_out, q, i + 1, rows, knows, to, nowhere, of)
                to += next_one
                _finished(half_out, r, i + 2, rows, knows, to, nowhere, of)
                to += next_one
                _finished(half_out, o, i + 3, rows, knows, to, nowhere, of)
