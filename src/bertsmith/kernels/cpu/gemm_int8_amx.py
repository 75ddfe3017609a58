"""A layer in 8-bit integers in one body, where the processor multiplies them in tiles (AMX).

Its inputs are rounded, multiplied 32 rows and as many outputs at a time, and the sums made what they stand for,
before they leave the cache: those of a block between the products of the next one. All sums are exact.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.cpu.amx import (
    BLOCK_SIZE,
    INT8_BLOCK_STEPS,
    TILE_ROW_BYTES,
    configure,
    release,
    store_block,
    zero_block,
)
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
    store_output,
)
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH, store_int8
from bertsmith.kernels.cpu.simd_pairs import load_ints

WRITTEN_WITH = "68901c91e22edd38"  # what is imported here, and what these import, see the first
OUTPUT_MULTIPLE = BLOCK_SIZE  # outputs are a multiple of it
INPUT_MULTIPLE = 64  # the inputs that weights have are filled up with zeros to a multiple of it
_HALF = BLOCK_SIZE // 2  # rows of a tile, and outputs of one
_LINE = 4 * OUTPUT_MULTIPLE  # bytes of a row of sums
_BLOCK = BLOCK_SIZE * _LINE
_first, _second, _third, _fourth = INT8_BLOCK_STEPS


def workspace_size(columns: int) -> int:
    """How many bytes a thread works in."""
    return BLOCK_ROWS * (columns + INPUT_MULTIPLE) + ROW_PARAM_BYTES + 4 * columns + 2 * _BLOCK


_rounds = make_row_quantizer(store_int8, 1)


@njit(**JIT_OPTIONS)
def _finish(first, last, kind, block):
    """These rows of a block as what becomes of what they stand for. kind: whether the result is bf16, whether
    GELU of it is wanted, and bytes from a row of it to the next. block: where its sums are, what is known of its
    rows (see KNOWN), where the result is put; and of both halves of its outputs, see `of_outputs`."""
    half, activated, next_row = kind
    sums, knows, to, of, of_right = block
    for row in range(first, last):
        own, place = sums + row * _LINE, to + row * next_row
        left = dequantized_row(row, load_ints(own), knows, of)
        right = dequantized_row(row, load_ints(own + TILE_ROW_BYTES), knows, of_right)
        store_output(half, activated, left, place)
        place += (2 if half else 4) * VECTOR_WIDTH
        store_output(half, activated, right, place)


# Slots: those of gemm_int8_avx2.py; 15 as in gemm_int8_vnni.py, 16 what the tiles are.


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def int8_linear_kernel(given):
    s = load_slots(given)
    half, columns, outputs, least = s[0], s[9], s[10], float_from_bits(s[11])
    size, size_out, steps = (
        2 if half else 4,
        2 if s[14] else 4,
        (columns + INPUT_MULTIPLE - 1) // INPUT_MULTIPLE,
    )
    line = INPUT_MULTIPLE * steps
    kind = s[14], s[15], size_out * outputs
    mine = s[12] + s[13] * np.int64(thread_index())
    knows = mine + BLOCK_ROWS * line
    here = knows + ROW_PARAM_BYTES
    both = here + 4 * columns
    configure(s[16])
    blocks = (s[8] + BLOCK_ROWS - 1) // BLOCK_ROWS
    for block in range(np.int64(thread_index()), blocks, np.int64(num_threads())):
        first = block * BLOCK_ROWS
        x, rows = s[1] + size * first * columns, min(BLOCK_ROWS, s[8] - first)
        _rounds(half, x, rows, s[2], columns, s[17], least, mine, line, knows, here)
        # The block whose products were made before, see `_finish`, and how many rows it has.
        sums, last, count = (
            both,
            (both, knows, s[4], output_param_pointers(s, 0), output_param_pointers(s, VECTOR_WIDTH)),
            0,
        )
        for column in range(0, outputs, OUTPUT_MULTIPLE):
            for i in range(0, rows, BLOCK_SIZE):
                own, right = mine + i * line, s[3] + column * line
                below, share = own + _HALF * line, (count + steps - 1) // steps
                zero_block()
                for number in range(steps):
                    done, until = min(number * share, count), min((number + 1) * share, count)
                    some = until - done
                    one, two, three = done + some // 4, done + some // 2, done + 3 * some // 4
                    _first(own, line, right, _LINE)
                    _finish(done, one, kind, last)
                    _second(right, _LINE)
                    _finish(one, two, kind, last)
                    _third(below, line)
                    _finish(two, three, kind, last)
                    _fourth()
                    _finish(three, until, kind, last)
                    own += INPUT_MULTIPLE
                    below += INPUT_MULTIPLE
                    right += _HALF * _LINE
                sums = both + _BLOCK if sums == both else both
                store_block(sums, _LINE)
                to = s[4] + size_out * ((first + i) * outputs + column)
                of, of_right = (
                    output_param_pointers(s, column),
                    output_param_pointers(s, column + VECTOR_WIDTH),
                )
                last = (sums, knows + 4 * i, to, of, of_right)
                count = min(BLOCK_SIZE, rows - i)
        _finish(0, count, kind, last)
    release()
