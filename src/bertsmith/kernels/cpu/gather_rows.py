"""The bodies of rows that are chosen of a matrix, and of what is added to such rows."""

from __future__ import annotations

from numba import cfunc

from bertsmith.kernels.cpu.compilation import (
    KERNEL_OPTIONS,
    bf16_array,
    int64_array,
    load_slots,
    thread_range,
)
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH, load_as_float, store_as_dtype

WRITTEN_WITH = "693f23ba0d5061c2"  # compilation.py and simd.py, see there


# Slots: 0 whether bf16, 1 a matrix, 2 the result, 3 which rows, 4 how many, 5 columns.
@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def gather_rows_kernel(given):
    s = load_slots(given)
    size = s[5] * (1 if s[0] else 2)
    rows = int64_array(s[3], s[4])
    first, last = thread_range(s[4])
    for number in range(first, last):
        row, found = (
            bf16_array(s[1] + 2 * size * rows[number], size),
            bf16_array(s[2] + 2 * size * number, size),
        )
        for j in range(size):
            found[j] = row[j]


# Slots: 0 whether bf16, 1 a matrix, 2 what is added to rows of it, 3 which rows, in ascending order, 4 how many,
# 5 columns, a multiple of WIDTH. What is added to one and the same row is added up first, in fp32, in its place.


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def scatter_add_rows_kernel(given):
    s = load_slots(given)
    half = s[0] != 0
    step = (2 if half else 4) * VECTOR_WIDTH
    length = s[5] // VECTOR_WIDTH * step
    rows = int64_array(s[3], s[4])
    first, last = thread_range(s[4])
    for number in range(first, last):
        if number > 0 and rows[number] == rows[number - 1]:
            continue  # added by whoever has the first of them
        end = number + 1
        while end < s[4] and rows[end] == rows[number]:
            end += 1
        for place in range(0, length, step):
            own, to = s[2] + length * number + place, s[1] + length * rows[number] + place
            total = load_as_float(half, own)
            for other in range(number + 1, end):
                total = total + load_as_float(half, s[2] + length * other + place)
            store_as_dtype(half, own, total)  # which rounds it
            store_as_dtype(half, to, load_as_float(half, to) + load_as_float(half, own))
