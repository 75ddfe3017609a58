"""Row-wise and element-wise kernels: GELU, addition, softmax with dropout, and cross-entropy over the vocabulary.

bf16 values are converted to fp32, computed with, and rounded to nearest, ties to even.

A loop that sums writes no array. LLVM vectorizes a loop that does both behind a run-time check that the arrays do
not overlap; if the check fails, the scalar loop sums in another order. The result would then depend on the
addresses of the arrays, and two equal runs could differ.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from bertsmith.kernels.cpu.compilation import (
    JIT_OPTIONS,
    bf16_array,
    float32,
    float_array,
    float_from_bits,
    int64_array,
    kernel,
    load_scalar,
    load_slots,
    num_threads,
    store_scalar,
    thread_index,
    thread_range,
    uint32,
)
from bertsmith.kernels.cpu.element_access import dropout_scale, load_element, store_element
from bertsmith.kernels.cpu.exponential import exp_nonpositive
from bertsmith.kernels.cpu.gelu import gelu_grad, normal_cdf
from bertsmith.kernels.cpu.simd import (
    VECTOR_WIDTH,
    broadcast_scalar,
    load,
    load_as_float,
    maximum,
    reduce_sum,
    store,
    store_as_dtype,
)

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
    return x * normal_cdf(x)


@njit(**JIT_OPTIONS)
def gelu_into(x, y):
    """Write GELU of an array x to y."""
    is_bf16, itemsize, end = x.itemsize == 2, x.itemsize, len(x) // VECTOR_WIDTH * VECTOR_WIDTH
    for offset in range(0, itemsize * end, itemsize * VECTOR_WIDTH):
        value = gelu_simd(load_as_float(is_bf16, x.ctypes.data + offset))
        store_as_dtype(is_bf16, y.ctypes.data + offset, value)
    if end < len(x):
        tail = np.zeros(VECTOR_WIDTH, np.float32)
        for j in range(len(x) - end):
            tail[j] = load_element(x, end + j)
        store(tail.ctypes.data, gelu_simd(load(tail.ctypes.data)))
        for j in range(len(x) - end):
            store_element(y, end + j, tail[j])


@njit(**JIT_OPTIONS)
def gelu_backward_into(x, grad, out):
    """Write the gradient of x to an array `out`, which may be the gradient of GELU(x), `grad`."""
    is_bf16, itemsize, end = x.itemsize == 2, x.itemsize, len(x) // VECTOR_WIDTH * VECTOR_WIDTH
    for offset in range(0, itemsize * end, itemsize * VECTOR_WIDTH):
        upstream = load_as_float(is_bf16, grad.ctypes.data + offset)
        value = upstream * gelu_grad(load_as_float(is_bf16, x.ctypes.data + offset))
        store_as_dtype(is_bf16, out.ctypes.data + offset, value)
    if end < len(x):
        tail = np.zeros(VECTOR_WIDTH, np.float32)
        for j in range(len(x) - end):
            tail[j] = load_element(x, end + j)
        store(tail.ctypes.data, gelu_grad(load(tail.ctypes.data)))
        for j in range(len(x) - end):
            store_element(out, end + j, load_element(grad, end + j) * tail[j])


@kernel
def gelu(slots):
    s = load_slots(slots)
    n = s[3]
    first, last = thread_range(n)
    if s[0]:
        gelu_into(bf16_array(s[1], n)[first:last], bf16_array(s[2], n)[first:last])
    else:
        gelu_into(float_array(s[1], n)[first:last], float_array(s[2], n)[first:last])


@kernel
def gelu_backward(slots):
    s = load_slots(slots)
    n = s[3]
    first, last = thread_range(n)
    if s[0]:
        x, grad, out = bf16_array(s[1], n), bf16_array(s[4], n), bf16_array(s[2], n)
        gelu_backward_into(x[first:last], grad[first:last], out[first:last])
    else:
        x32, grad32, out32 = float_array(s[1], n), float_array(s[4], n), float_array(s[2], n)
        gelu_backward_into(x32[first:last], grad32[first:last], out32[first:last])


# x += y. Slots: 0 True for bf16, 1 x, 2 y, 3 number of elements, a multiple of COLUMN_MULTIPLE.


@kernel
def add(slots):
    s = load_slots(slots)
    is_bf16, step = s[0] != 0, (2 if s[0] else 4) * VECTOR_WIDTH
    first, last = thread_range(s[3] // VECTOR_WIDTH)
    for offset in range(step * first, step * last, step):
        value = load_as_float(is_bf16, s[1] + offset) + load_as_float(is_bf16, s[2] + offset)
        store_as_dtype(is_bf16, s[1] + offset, value)


# Slots: 0 partial sums [threads, n], 1 their sum [n], 2 threads, 3 n.


@kernel
def sum_over_threads(slots):
    s = load_slots(slots)
    n = s[3]
    partial_sums, sums = float_array(s[0], s[2] * n), float_array(s[1], n)
    first, last = thread_range(n)
    for j in range(first, last):
        sums[j] = partial_sums[j]
        for thread in range(1, s[2]):
            sums[j] += partial_sums[thread * n + j]


# Softmax of attention scores, then dropout. Slots: 0 True for bf16, 1 scores [rows, columns], in the backward
# pass the gradient of slot 3, which becomes that of the scores, 2 weights, 3 weights after dropout, 4 rows, 5
# columns, 6 bias or 0, 7 rows of a sequence, 8 stride of the bias between sequences, 9 between rows, in elements,
# 10 and 11 seed of dropout, 12 number of 65,536 elements that are dropped, 13 scale of the others.


@njit(**JIT_OPTIONS)
def _softmax_rows(
    scores,
    weights,
    dropped_weights,
    columns,
    bias,
    sequence_rows,
    bias_sequence_stride,
    bias_row_stride,
    low,
    high,
    num_dropped,
    scale,
    first,
    last,
):
    values, maxima = np.empty(columns, np.float32), np.empty(_NUM_MAXIMA, np.float32)
    for row in range(first, last):
        start, end = row * columns, row * columns + columns
        score_row, weight_row, dropped_row = scores[start:end], weights[start:end], dropped_weights[start:end]
        if len(bias):
            offset = row // sequence_rows * bias_sequence_stride + row % columns * bias_row_stride
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
        if num_dropped:
            for j in range(columns):
                store_element(weight_row, j, values[j] * inverse_sum)
                factor = dropout_scale(start + j, low, high, num_dropped, scale)
                store_element(dropped_row, j, load_element(weight_row, j) * factor)
        else:
            for j in range(columns):
                store_element(weight_row, j, values[j] * inverse_sum)


@njit(**JIT_OPTIONS)
def _softmax_rows_backward(
    grads, weights, dropped_weights, columns, low, high, num_dropped, scale, first, last
):
    weight_grads = np.empty(columns, np.float32)
    for row in range(first, last):
        start, end = row * columns, row * columns + columns
        grad_row, weight_row, dropped_row = grads[start:end], weights[start:end], dropped_weights[start:end]
        if num_dropped:
            for j in range(columns):
                factor = dropout_scale(start + j, low, high, num_dropped, scale)
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
def attention_softmax(slots):
    s = load_slots(slots)
    n, columns = s[4] * s[5], s[5]
    first, last = thread_range(s[4])
    bias = float_array(s[6], s[4] // s[7] * s[8] + columns * s[9] + columns if s[6] else 0)
    low, high, num_dropped, scale = uint32(s[10]), uint32(s[11]), uint32(s[12]), float_from_bits(s[13])
    if s[0]:
        a, b, c = bf16_array(s[1], n), bf16_array(s[2], n), bf16_array(s[3], n)
        _softmax_rows(a, b, c, columns, bias, s[7], s[8], s[9], low, high, num_dropped, scale, first, last)
    else:
        x, y, z = float_array(s[1], n), float_array(s[2], n), float_array(s[3], n)
        _softmax_rows(x, y, z, columns, bias, s[7], s[8], s[9], low, high, num_dropped, scale, first, last)


@kernel
def softmax_backward(slots):
    s = load_slots(slots)
    n, columns = s[4] * s[5], s[5]
    first, last = thread_range(s[4])
    low, high, num_dropped, scale = uint32(s[10]), uint32(s[11]), uint32(s[12]), float_from_bits(s[13])
    if s[0]:
        a, b, c = bf16_array(s[1], n), bf16_array(s[2], n), bf16_array(s[3], n)
        _softmax_rows_backward(a, b, c, columns, low, high, num_dropped, scale, first, last)
    else:
        x, y, z = float_array(s[1], n), float_array(s[2], n), float_array(s[3], n)
        _softmax_rows_backward(x, y, z, columns, low, high, num_dropped, scale, first, last)


# Cross-entropy over the vocabulary. Slots: 0 True for bf16, 1 logits [rows, columns], which become their
# gradients, 2 rows, 3 columns, 4 bias, 5 labels [rows], 6 losses [rows], 7 whether the label has the largest
# logit [rows], 8 sums of the gradients over rows [threads, columns].


@njit(**JIT_OPTIONS)
def _cross_entropy_rows(logits, columns, bias, labels, losses, is_correct, grad_sums, first, last):
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
def fused_cross_entropy(slots):
    s = load_slots(slots)
    rows, columns = s[2], s[3]
    first, last = thread_range(rows)
    bias, labels = float_array(s[4], columns), int64_array(s[5], rows)
    losses, is_correct = float_array(s[6], rows), int64_array(s[7], rows)
    start = np.int64(thread_index()) * columns
    sums = float_array(s[8], columns * np.int64(num_threads()))[start : start + columns]
    if s[0]:
        logits = bf16_array(s[1], rows * columns)
        _cross_entropy_rows(logits, columns, bias, labels, losses, is_correct, sums, first, last)
    else:
        logits32 = float_array(s[1], rows * columns)
        _cross_entropy_rows(logits32, columns, bias, labels, losses, is_correct, sums, first, last)


# Cross-entropy by chunks of the vocabulary: logits [rows, columns] have a row for each entry of a chunk and a
# column for each predicted token. Columns are a multiple of COLUMN_MULTIPLE. Slots: 0 rows, 1 columns, 2
# vocabulary index of the first row, 3 logits, 4 bias [rows], 5 labels [columns], 6 maximal logit so far
# [columns], 7 sum of exp(logit - maximum) [columns], 8 label's logit [columns], 10 True for bf16. In the backward
# pass logits become their gradients, 7 is the factor of exp(logit - maximum) [columns], 8 the gradient of the
# loss, by its bits, 9 gradients of the bias.
COLUMN_MULTIPLE = VECTOR_WIDTH
_BLOCK_ROWS = 32  # A block of a chunk stays in the cache between the maximum and the sum.


@kernel
def update_online_softmax(slots):
    s = load_slots(slots)
    rows, columns, is_bf16, itemsize = s[0], s[1], s[10], 2 if s[10] else 4
    first, last = thread_range(columns // COLUMN_MULTIPLE)
    bias, labels, label_logits = (
        float_array(s[4], rows),
        int64_array(s[5], columns),
        float_array(s[8], columns),
    )
    for start in range(0, rows, _BLOCK_ROWS):
        end = min(start + _BLOCK_ROWS, rows)
        for j in range(first * COLUMN_MULTIPLE, last * COLUMN_MULTIPLE, COLUMN_MULTIPLE):
            logits, column_max, column_sum = s[3] + itemsize * j, s[6] + 4 * j, s[7] + 4 * j
            old_max = load(column_max)
            new_max = old_max
            for row in range(start, end):
                value = load_as_float(is_bf16, logits + itemsize * row * columns)
                new_max = maximum(new_max, value + broadcast_scalar(bias[row]))
            total = load(column_sum) * exp_nonpositive(old_max - new_max)
            for row in range(start, end):
                value = load_as_float(is_bf16, logits + itemsize * row * columns)
                total = total + exp_nonpositive(value + broadcast_scalar(bias[row]) - new_max)
            store(column_max, new_max)
            store(column_sum, total)
    for j in range(first * COLUMN_MULTIPLE, last * COLUMN_MULTIPLE):
        row = labels[j] - s[2]
        if 0 <= row < rows:
            label_logits[j] = load_scalar(is_bf16, s[3] + itemsize * (row * columns + j)) + bias[row]


@kernel
def chunk_backward(slots):
    s = load_slots(slots)
    rows, columns, is_bf16, itemsize = s[0], s[1], s[10], 2 if s[10] else 4
    first, last = thread_range(rows)
    bias, labels = float_array(s[4], rows), int64_array(s[5], columns)
    maxima, factors = float_array(s[6], columns), float_array(s[7], columns)
    grad_loss, grad_bias = float_from_bits(s[8]), float_array(s[9], rows)
    # The gradient of a label's logit, a small difference, is computed in fp32 and rounded to bf16 only once.
    label_grads = np.zeros(columns, np.float32)
    for j in range(columns):
        row = labels[j] - s[2]
        if first <= row < last:
            logit = load_scalar(is_bf16, s[3] + itemsize * (row * columns + j)) + bias[row]
            label_grads[j] = _exp(logit - maxima[j]) * factors[j] - grad_loss
    for row in range(first, last):
        logits, row_bias = s[3] + itemsize * row * columns, broadcast_scalar(bias[row])
        total = broadcast_scalar(float32(0))
        for j in range(0, columns, COLUMN_MULTIPLE):
            value = load_as_float(is_bf16, logits + itemsize * j) + row_bias - load(s[6] + 4 * j)
            value = exp_nonpositive(value) * load(s[7] + 4 * j)
            store_as_dtype(is_bf16, logits + itemsize * j, value)
            total = total + value
        grad_bias[row] = reduce_sum(total)
    for j in range(columns):
        row = labels[j] - s[2]
        if first <= row < last:
            store_scalar(is_bf16, s[3] + itemsize * (row * columns + j), label_grads[j])
            grad_bias[row] -= grad_loss
