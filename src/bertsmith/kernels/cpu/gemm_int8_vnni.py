"""A layer in 8-bit integers in one body, where the processor multiplies four of them at a time (AVX512-VNNI).

Its inputs are rounded, multiplied, and the sums made what they stand for, before a row leaves the cache. The
instruction wants what it multiplies from the left without a sign: 128 more than it is, which the sums begin with
the contrary of. All sums are exact.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.cpu.compilation import (
    JIT_OPTIONS,
    KERNEL_OPTIONS,
    float32,
    float_from_bits,
    load_slots,
    num_threads,
    thread_index,
)
from bertsmith.kernels.cpu.quantize import (
    BLOCK_ROWS,
    ROW_PARAM_BYTES,
    block_rows,
    dequantized,
    load_output_params,
    load_row_params,
    make_row_quantizer,
    output_param_pointers,
    store_output,
)
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH, broadcast_scalar, store_uint8
from bertsmith.kernels.cpu.simd_pairs import (
    broadcast_int,
    dot_uint8_int8,
    float_to_int,
    int_to_float,
    load_ints,
)

WRITTEN_WITH = "68cdd1df115701b4"  # what is imported here, and what these import, see the first
OUTPUT_MULTIPLE = 2 * VECTOR_WIDTH  # outputs are a multiple of it
INPUT_MULTIPLE = 4  # and the inputs that weights have of this
_AT_A_TIME = 4
_RIGHT = 4 * VECTOR_WIDTH  # bytes of the weights that a register holds


def workspace_size(columns: int) -> int:
    """How many bytes a thread works in."""
    return BLOCK_ROWS * columns + ROW_PARAM_BYTES + 4 * columns + 4 * OUTPUT_MULTIPLE


_rounds = make_row_quantizer(store_uint8, 1)


@njit(inline="always", **JIT_OPTIONS)
def _finished(half, activated, sums, others, row, rows, knows, to, nowhere, of, of_right):
    """Both halves of a row's sums as what becomes of what they stand for, if there is such a row."""
    known, right = load_row_params(row, knows), (2 if half else 4) * VECTOR_WIDTH
    there = to if row < rows else nowhere
    store_output(half, activated, dequantized(int_to_float(sums), known, of), there)
    store_output(half, activated, dequantized(int_to_float(others), known, of_right), there + right)


# Slots: those of gemm_int8_avx2.py; 15 whether GELU of the product is wanted.


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def int8_linear_kernel(given):
    s = load_slots(given)
    half, half_out, columns, outputs, least, activated = (
        s[0],
        s[14],
        s[9],
        s[10],
        float_from_bits(s[11]),
        s[15],
    )
    size, size_out = 2 if half else 4, 2 if half_out else 4
    mine = s[12] + s[13] * np.int64(thread_index())
    knows = mine + BLOCK_ROWS * columns
    here = knows + ROW_PARAM_BYTES
    nowhere, next_row = here + 4 * columns, size_out * outputs
    threads = np.int64(num_threads())
    most = block_rows(s[8], threads, _AT_A_TIME)
    for first in range(most * np.int64(thread_index()), s[8], most * threads):
        place, rows = s[1] + size * first * columns, min(most, s[8] - first)
        _rounds(half, place, rows, s[2], columns, s[17], least, mine, columns, knows, here)
        for column in range(0, outputs, OUTPUT_MULTIPLE):
            of, of_right = (
                load_output_params(output_param_pointers(s, column)),
                load_output_params(output_param_pointers(s, column + VECTOR_WIDTH)),
            )
            below, below_too = (
                float_to_int(of[0] * broadcast_scalar(float32(-128))),
                float_to_int(of_right[0] * broadcast_scalar(float32(-128))),
            )
            for i in range(0, rows, _AT_A_TIME):
                own, panel = mine + i * columns, s[3] + column * columns
                p = q = r = o = below
                t = u = v = z = below_too
                for _ in range(columns // 4):
                    left, more = load_ints(panel), load_ints(panel + _RIGHT)
                    x = broadcast_int(own)
                    p, t = dot_uint8_int8(p, x, left), dot_uint8_int8(t, x, more)
                    x = broadcast_int(own + columns)
                    q, u = dot_uint8_int8(q, x, left), dot_uint8_int8(u, x, more)
                    x = broadcast_int(own + 2 * columns)
                    r, v = dot_uint8_int8(r, x, left), dot_uint8_int8(v, x, more)
                    x = broadcast_int(own + 3 * columns)
                    o, z = dot_uint8_int8(o, x, left), dot_uint8_int8(z, x, more)
                    panel += 2 * _RIGHT
                    own += 4
                to = s[4] + size_out * ((first + i) * outputs + column)
                for row, sums, others in ((i, p, t), (i + 1, q, u), (i + 2, r, v), (i + 3, o, z)):
                    _finished(half_out, activated, sums, others, row, rows, knows, to, nowhere, of, of_right)
                    to += next_row
