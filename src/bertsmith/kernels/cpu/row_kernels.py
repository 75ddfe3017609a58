"""Row-wise and element-wise kernels: GELU, addition, softmax with dropout, cross-entropy, and selection of rows.

bf16 values are converted to fp32, computed with, and rounded to nearest, ties to even.

A loop that sums writes no array. LLVM vectorizes a loop that does both behind a run-time check that the arrays do
not overlap; if the check fails, the scalar loop sums in another order. The result would then depend on the
addresses of the arrays, and two equal runs could differ.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from bertsmith.kernels.cpu import arrays, simd, vector_functions
from bertsmith.kernels.cpu.arrays import bf16s, floats, int64s, load_element, store_element
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, float32, kernel, uint32
from bertsmith.kernels.cpu.launcher import thread_range
from bertsmith.kernels.cpu.vector_functions import dropout_scale, exp_nonpositive, load_dropout

_NUM_MAXIMA = 64


@njit(inline="always", **JIT_OPTIONS)
def _exp(x):
    """Compute exp(x) for x ≤ 0 with a relative error of 2e-7, as 2 to an integer times a polynomial (Cephes)."""
    x = x if x > float32(-87) else (float32(-87) if x <= float32(-87) else x)
    exponent = np.floor(x * float32(1.44269504) + float32(0.5))
    r = x - exponent * float32(0.693359375) + exponent * float32(2.12194440e-4)
    p = float32(1.9875691500e-4)
    p = p * r + float32(1.3981999507e-3)
    p = p * r + float32(8.3334519073e-3)
    p = p * r + float32(4.1665795894e-2)
    p = p * r + float32(1.6666665459e-1)
    p = p * r + float32(5.0000001201e-1)
    y = p * r * r + r + float32(1)
    return y * uint32(np.int32((np.int32(exponent) + np.int32(127)) << np.int32(23))).view(np.float32)


@njit(**JIT_OPTIONS)
def _max(values, maxima):
    """Return the largest value. 64 partial maxima in `maxima` avoid a chain of dependent comparisons."""
    for k in range(_NUM_MAXIMA):
        maxima[k] = -np.inf
    num_blocks = len(values) // _NUM_MAXIMA
    for i in range(num_blocks):
        block = values[i * _NUM_MAXIMA : i * _NUM_MAXIMA + _NUM_MAXIMA]
        for k in range(_NUM_MAXIMA):
            maxima[k] = block[k] if block[k] > maxima[k] else maxima[k]
    largest = maxima[0]
    for k in range(_NUM_MAXIMA):
        largest = max(largest, maxima[k])
    for j in range(num_blocks * _NUM_MAXIMA, len(values)):
        largest = max(largest, values[j])
    return largest


# GELU. Slots: 0 True for bf16, 1 x, 2 the result, 3 number of elements, 4 in the backward pass the gradient of
# GELU(x).


@njit(inline="always", **JIT_OPTIONS)
def gelu_simd(x):
    """Compute GELU of a vector."""
    return x * vector_functions.normal_cdf(x)


@njit(**JIT_OPTIONS)
def _gelu_of_tail(is_bf16, is_grad, x, size):
    """Return GELU, or its gradient, of the last elements of an array, fewer than 16."""
    tail, itemsize = np.zeros(simd.VECTOR_WIDTH, np.float32), 2 if is_bf16 else 4
    for j in range(size):
        tail[j] = arrays.load_scalar(is_bf16, x + itemsize * j)
    values = simd.load(tail.ctypes.data)
    simd.store(tail.ctypes.data, vector_functions.gelu_grad(values) if is_grad else gelu_simd(values))
    return tail


@njit(**JIT_OPTIONS)
def gelu_into(is_bf16, x, y, size):
    """Write GELU of an array x to y; both are addresses."""
    itemsize, tail_size = 2 if is_bf16 else 4, size % simd.VECTOR_WIDTH
    end = itemsize * (size - tail_size)
    for offset in range(0, end, itemsize * simd.VECTOR_WIDTH):
        simd.store_vector(is_bf16, y + offset, gelu_simd(simd.load_vector(is_bf16, x + offset)))
    if tail_size:
        tail = _gelu_of_tail(is_bf16, False, x + end, tail_size)
        for j in range(tail_size):
            arrays.store_scalar(is_bf16, y + end + itemsize * j, tail[j])


@njit(**JIT_OPTIONS)
def gelu_backward_into(is_bf16, x, grad, out, size):
    """Write the gradient of x to `out`, which may be the gradient of GELU(x), `grad`; all are addresses."""
    itemsize, tail_size = 2 if is_bf16 else 4, size % simd.VECTOR_WIDTH
    end = itemsize * (size - tail_size)
    for offset in range(0, end, itemsize * simd.VECTOR_WIDTH):
        value = simd.load_vector(is_bf16, grad + offset) * vector_functions.gelu_grad(
            simd.load_vector(is_bf16, x + offset)
        )
        simd.store_vector(is_bf16, out + offset, value)
    if tail_size:
        tail = _gelu_of_tail(is_bf16, True, x + end, tail_size)
        for j in range(tail_size):
            element = arrays.load_scalar(is_bf16, grad + end + itemsize * j) * tail[j]
            arrays.store_scalar(is_bf16, out + end + itemsize * j, element)


@kernel
def gelu(s):
    first, last = thread_range(s[3])
    offset = (2 if s[0] else 4) * first
    gelu_into(s[0], s[1] + offset, s[2] + offset, last - first)


@kernel
def gelu_backward(s):
    first, last = thread_range(s[3])
    offset = (2 if s[0] else 4) * first
    gelu_backward_into(s[0], s[1] + offset, s[4] + offset, s[2] + offset, last - first)


# x += y. Slots: 0 True for bf16, 1 x, 2 y, 3 number of elements, a multiple of COLUMN_MULTIPLE.


@kernel
def add(s):
    is_bf16, step = s[0] != 0, (2 if s[0] else 4) * simd.VECTOR_WIDTH
    first, last = thread_range(s[3] // simd.VECTOR_WIDTH)
    for offset in range(step * first, step * last, step):
        value = simd.load_vector(is_bf16, s[1] + offset) + simd.load_vector(is_bf16, s[2] + offset)
        simd.store_vector(is_bf16, s[1] + offset, value)


# Slots: 0 partial sums [parts, n], 1 their sum [n], 2 parts, 3 n.


@kernel
def sum_over_parts(s):
    n = s[3]
    partial_sums, sums = floats(s[0], s[2] * n), floats(s[1], n)
    first, last = thread_range(n)
    for j in range(first, last):
        sums[j] = partial_sums[j]
    for start in range(n, s[2] * n, n):
        for j in range(first, last):
            sums[j] += partial_sums[start + j]


# Softmax of attention scores, then dropout. Slots: 0 True for bf16, 1 scores [rows, columns], in the backward
# pass the gradient of slot 3, which becomes that of the scores, 2 weights, 3 weights after dropout, 4 rows, 5
# columns, 6 bias or 0, 7 rows of a sequence, 8 stride of the bias between sequences, 9 between rows, in elements,
# 10 and 11 seed of dropout, 12 number of 65,536 elements that are dropped, 13 scale of the others.


@njit(**JIT_OPTIONS)
def _softmax_rows(scores, weights, dropped_weights, num_rows, columns, bias, bias_layout, dropout):
    """Compute this thread's rows. bias_layout: rows of a sequence, and strides between sequences and rows."""
    sequence_rows, sequence_stride, row_stride = bias_layout
    first, last = thread_range(num_rows)
    values, maxima = np.empty(columns, np.float32), np.empty(_NUM_MAXIMA, np.float32)
    for row in range(first, last):
        start, end = row * columns, row * columns + columns
        score_row, weight_row, dropped_row = scores[start:end], weights[start:end], dropped_weights[start:end]
        if len(bias):
            offset = row // sequence_rows * sequence_stride + row % columns * row_stride
            bias_row = bias[offset : offset + columns]
            for j in range(columns):
                values[j] = load_element(score_row, j) + bias_row[j]
        else:
            for j in range(columns):
                values[j] = load_element(score_row, j)
        row_max = _max(values, maxima)
        total = float32(0)
        for j in range(columns):
            value = _exp(values[j] - row_max)
            values[j] = value
            total += value
        inverse_sum = float32(1) / total
        if dropout.threshold:
            for j in range(columns):
                store_element(weight_row, j, values[j] * inverse_sum)
                factor = dropout_scale(start + j, dropout)
                store_element(dropped_row, j, load_element(weight_row, j) * factor)
        else:
            for j in range(columns):
                store_element(weight_row, j, values[j] * inverse_sum)


@njit(**JIT_OPTIONS)
def _softmax_rows_backward(grads, weights, dropped_weights, num_rows, columns, dropout):
    first, last = thread_range(num_rows)
    weight_grads = np.empty(columns, np.float32)
    for row in range(first, last):
        start, end = row * columns, row * columns + columns
        grad_row, weight_row, dropped_row = grads[start:end], weights[start:end], dropped_weights[start:end]
        if dropout.threshold:
            for j in range(columns):
                factor = dropout_scale(start + j, dropout)
                store_element(dropped_row, j, load_element(weight_row, j) * factor)
                weight_grads[j] = load_element(grad_row, j) * factor
        else:
            for j in range(columns):
                weight_grads[j] = load_element(grad_row, j)
        total = float32(0)
        for j in range(columns):
            total += load_element(weight_row, j) * weight_grads[j]
        for j in range(columns):
            store_element(grad_row, j, load_element(weight_row, j) * (weight_grads[j] - total))


@kernel
def attention_softmax(s):
    num_rows, columns, size = s[4], s[5], s[4] * s[5]
    bias = floats(s[6], num_rows // s[7] * s[8] + columns * s[9] + columns if s[6] else 0)
    bias_layout, dropout = (s[7], s[8], s[9]), load_dropout(s, 10)
    if s[0]:
        x, y, z = bf16s(s[1], size), bf16s(s[2], size), bf16s(s[3], size)
        _softmax_rows(x, y, z, num_rows, columns, bias, bias_layout, dropout)
    else:
        x32, y32, z32 = floats(s[1], size), floats(s[2], size), floats(s[3], size)
        _softmax_rows(x32, y32, z32, num_rows, columns, bias, bias_layout, dropout)


@kernel
def softmax_backward(s):
    num_rows, columns, size, dropout = s[4], s[5], s[4] * s[5], load_dropout(s, 10)
    if s[0]:
        x, y, z = bf16s(s[1], size), bf16s(s[2], size), bf16s(s[3], size)
        _softmax_rows_backward(x, y, z, num_rows, columns, dropout)
    else:
        x32, y32, z32 = floats(s[1], size), floats(s[2], size), floats(s[3], size)
        _softmax_rows_backward(x32, y32, z32, num_rows, columns, dropout)


# Cross-entropy over the vocabulary. Slots: 0 True for bf16, 1 logits [rows, columns], which become their
# gradients, 2 rows, 3 columns, 4 bias, 5 labels [rows], 6 losses [rows], 7 whether the label has the largest
# logit [rows], 8 sums of the gradients over rows [parts, columns], 9 parts of the rows.


@njit(**JIT_OPTIONS)
def _cross_entropy_rows(logits, bias, labels, losses, is_correct, grad_sums, first, last):
    columns = len(bias)
    values, maxima = np.empty(columns, np.float32), np.empty(_NUM_MAXIMA, np.float32)
    for row in range(first, last):
        logit_row, label = logits[row * columns : row * columns + columns], labels[row]
        for j in range(columns):
            values[j] = load_element(logit_row, j) + bias[j]
        row_max, label_logit = _max(values, maxima), values[label]
        total = float32(0)
        for j in range(columns):
            value = _exp(values[j] - row_max)
            values[j] = value
            total += value
        losses[row] = np.log(total) + (row_max - label_logit)
        is_correct[row] = label_logit == row_max
        inverse_sum = float32(1) / total
        values[label] -= total
        for j in range(columns):
            value = values[j] * inverse_sum
            grad_sums[j] += value
            store_element(logit_row, j, value)


@kernel
def fused_cross_entropy(s):
    num_rows, columns = s[2], s[3]
    bias, labels = floats(s[4], columns), int64s(s[5], num_rows)
    losses, is_correct = floats(s[6], num_rows), int64s(s[7], num_rows)
    first_part, last_part = thread_range(s[9])
    for part in range(first_part, last_part):
        grad_sums = floats(s[8] + 4 * columns * part, columns)
        first, last = num_rows * part // s[9], num_rows * (part + 1) // s[9]
        if s[0]:
            logits = bf16s(s[1], num_rows * columns)
            _cross_entropy_rows(logits, bias, labels, losses, is_correct, grad_sums, first, last)
        else:
            logits32 = floats(s[1], num_rows * columns)
            _cross_entropy_rows(logits32, bias, labels, losses, is_correct, grad_sums, first, last)


# Cross-entropy by chunks of the vocabulary: logits [rows, columns] have a row for each entry of a chunk and a
# column for each predicted token. Columns are a multiple of COLUMN_MULTIPLE. Slots: 0 rows, 1 columns, 2
# vocabulary index of the first row, 3 logits, 4 bias [rows], 5 labels [columns], 6 maximal logit so far
# [columns], 7 sum of exp(logit - maximum) [columns], 8 label's logit [columns], 10 True for bf16. In the backward
# pass logits become their gradients, 7 is the factor of exp(logit - maximum) [columns], 8 the gradient of the
# loss, by its bits, 9 gradients of the bias.
COLUMN_MULTIPLE = simd.VECTOR_WIDTH
_BLOCK_ROWS = 32  # A block of a chunk stays in the cache between the maximum and the sum.


@kernel
def update_online_softmax(s):
    num_rows, columns, is_bf16, itemsize = s[0], s[1], s[10], 2 if s[10] else 4
    first, last = thread_range(columns // COLUMN_MULTIPLE)
    bias, labels, label_logits = floats(s[4], num_rows), int64s(s[5], columns), floats(s[8], columns)
    for start in range(0, num_rows, _BLOCK_ROWS):
        end = min(start + _BLOCK_ROWS, num_rows)
        for j in range(first * COLUMN_MULTIPLE, last * COLUMN_MULTIPLE, COLUMN_MULTIPLE):
            logits, column_max, column_sum = s[3] + itemsize * j, s[6] + 4 * j, s[7] + 4 * j
            old_max = simd.load(column_max)
            new_max = old_max
            for row in range(start, end):
                value = simd.load_vector(is_bf16, logits + itemsize * row * columns)
                new_max = simd.maximum(new_max, value + bias[row])
            total = simd.load(column_sum) * exp_nonpositive(old_max - new_max)
            for row in range(start, end):
                value = simd.load_vector(is_bf16, logits + itemsize * row * columns)
                total = total + exp_nonpositive(value + bias[row] - new_max)
            simd.store(column_max, new_max)
            simd.store(column_sum, total)
    for j in range(first * COLUMN_MULTIPLE, last * COLUMN_MULTIPLE):
        row = labels[j] - s[2]
        if 0 <= row < num_rows:
            label_logits[j] = arrays.load_scalar(is_bf16, s[3] + itemsize * (row * columns + j)) + bias[row]


@kernel
def chunk_backward(s):
    num_rows, columns, is_bf16, itemsize = s[0], s[1], s[10], 2 if s[10] else 4
    first, last = thread_range(num_rows)
    bias, labels = floats(s[4], num_rows), int64s(s[5], columns)
    max_logits, factors = floats(s[6], columns), floats(s[7], columns)
    loss_grad, bias_grads = arrays.float_from_bits(s[8]), floats(s[9], num_rows)
    # The gradient of a label's logit, a small difference, is computed in fp32 and rounded to bf16 only once.
    label_grads = np.zeros(columns, np.float32)
    for j in range(columns):
        row = labels[j] - s[2]
        if first <= row < last:
            logit = arrays.load_scalar(is_bf16, s[3] + itemsize * (row * columns + j)) + bias[row]
            label_grads[j] = _exp(logit - max_logits[j]) * factors[j] - loss_grad
    for row in range(first, last):
        logits, row_bias = s[3] + itemsize * row * columns, simd.splat(bias[row])
        total = simd.splat(0.0)
        for j in range(0, columns, COLUMN_MULTIPLE):
            value = simd.load_vector(is_bf16, logits + itemsize * j) + row_bias - simd.load(s[6] + 4 * j)
            value = exp_nonpositive(value) * simd.load(s[7] + 4 * j)
            simd.store_vector(is_bf16, logits + itemsize * j, value)
            total = total + value
        bias_grads[row] = simd.reduce_sum(total)
    for j in range(columns):
        row = labels[j] - s[2]
        if first <= row < last:
            arrays.store_scalar(is_bf16, s[3] + itemsize * (row * columns + j), label_grads[j])
            bias_grads[row] -= loss_grad


# Copies of rows. Slots: 0 True for bf16, 1 a matrix, 2 the result [indices, columns], 3 row indices, 4 their
# count, 5 columns.


@kernel
def gather_rows_kernel(s):
    size = s[5] * (1 if s[0] else 2)  # of a row in 16-bit elements
    indices = int64s(s[3], s[4])
    first, last = thread_range(s[4])
    for i in range(first, last):
        source, target = bf16s(s[1] + 2 * size * indices[i], size), bf16s(s[2] + 2 * size * i, size)
        for j in range(size):
            target[j] = source[j]


# Additions to rows. Slots: 0 True for bf16, 1 a matrix, 2 rows to add [indices, columns], 3 row indices in
# ascending order, 4 their count, 5 columns, a multiple of VECTOR_WIDTH. Rows to add to the same row are first
# summed in fp32, in place.


@kernel
def scatter_add_rows_kernel(s):
    is_bf16 = s[0] != 0
    step = (2 if is_bf16 else 4) * simd.VECTOR_WIDTH
    row_bytes = s[5] // simd.VECTOR_WIDTH * step
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
            total = simd.load_vector(is_bf16, source)
            for k in range(i + 1, end):
                total = total + simd.load_vector(is_bf16, s[2] + row_bytes * k + offset)
            simd.store_vector(is_bf16, source, total)  # This rounds the sum.
            rounded = simd.load_vector(is_bf16, source)
            simd.store_vector(is_bf16, target, simd.load_vector(is_bf16, target) + rounded)
