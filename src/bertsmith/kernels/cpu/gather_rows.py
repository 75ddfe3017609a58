"""Kernels that copy rows of a matrix by their indices, and that add to rows of a matrix."""

from __future__ import annotations

from bertsmith.kernels.cpu.arrays import bf16s, int64s
from bertsmith.kernels.cpu.compilation import kernel
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH, load_vector, store_vector
from bertsmith.kernels.cpu.threads import thread_range

# Slots: 0 True for bf16, 1 a matrix, 2 the result [indices, columns], 3 row indices, 4 their count, 5 columns.


@kernel
def gather_rows_kernel(s):
    size = s[5] * (1 if s[0] else 2)  # of a row in 16-bit elements
    indices = int64s(s[3], s[4])
    first, last = thread_range(s[4])
    for i in range(first, last):
        source, target = bf16s(s[1] + 2 * size * indices[i], size), bf16s(s[2] + 2 * size * i, size)
        for j in range(size):
            target[j] = source[j]


# Slots: 0 True for bf16, 1 a matrix, 2 rows to add [indices, columns], 3 row indices in ascending order, 4 their
# count, 5 columns, a multiple of VECTOR_WIDTH. Rows to add to the same row are first summed in fp32, in place.


@kernel
def scatter_add_rows_kernel(s):
    is_bf16 = s[0] != 0
    step = (2 if is_bf16 else 4) * VECTOR_WIDTH
    row_bytes = s[5] // VECTOR_WIDTH * step
    indices = int64s(s[3], s[4])
    first, last = thread_range(s[4])
    for i in range(first, last):
        if i > 0 and indices[i] == indices[i - 1]:
            continue  # The thread of the first of these rows adds all of them.
        end = i + 1
        while end < s[4] and indices[end] == indices[i]:
            end += 1
        for offset in range(0, row_bytes, step):
            source, target = s[2] + row_bytes * i + offset, s[1] + row_bytes * indices[i] + offset
            total = load_vector(is_bf16, source)
            for k in range(i + 1, end):
                total = total + load_vector(is_bf16, s[2] + row_bytes * k + offset)
            store_vector(is_bf16, source, total)  # This rounds the sum.
            store_vector(is_bf16, target, load_vector(is_bf16, target) + load_vector(is_bf16, source))
