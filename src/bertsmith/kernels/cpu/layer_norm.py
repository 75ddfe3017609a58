"""Kernels of LayerNorm(residual + dropout(x)), forward and backward, 16 columns of a row at a time.

The row at hand is kept in fp32 in the workspace. The columns after the last multiple of 16 are computed one by
one, and summed in separate loops (see row_kernels.py).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from bertsmith.kernels.cpu.compilation import (
    JIT_OPTIONS,
    float32,
    float_array,
    float_from_bits,
    kernel,
    load_scalar,
    load_slots,
    store_scalar,
    thread_index,
    thread_range,
    uint32,
)
from bertsmith.kernels.cpu.element_access import dropout_scale
from bertsmith.kernels.cpu.simd import (
    VECTOR_WIDTH,
    broadcast_scalar,
    dropout_mask,
    load,
    load_as_float,
    reduce_sum,
    store,
    store_as_dtype,
)


@njit(**JIT_OPTIONS)
def _add_dropout(is_bf16, x, residual, start, columns, dropout, out):
    """Write residual + dropout(x) of a row in fp32 to `out`, and return the row's sum.

    start: the index of the row's first element. dropout: two seeds, the number of 65,536 elements that are
    dropped, and the scale of the others.
    """
    low, high, num_dropped, scale = dropout
    itemsize, vector_end = 2 if is_bf16 else 4, columns // VECTOR_WIDTH * VECTOR_WIDTH
    total = broadcast_scalar(float32(0))
    x, residual = x + itemsize * start, residual + itemsize * start
    for j in range(0, vector_end, VECTOR_WIDTH):
        value = load_as_float(is_bf16, x + itemsize * j)
        if num_dropped:
            value = value * dropout_mask(start + j, low, high, num_dropped, scale)
        value = value + load_as_float(is_bf16, residual + itemsize * j)
        store(out + 4 * j, value)
        total = total + value
    row_sum = reduce_sum(total)
    for j in range(vector_end, columns):
        element = load_scalar(is_bf16, x + itemsize * j)
        if num_dropped:
            element *= dropout_scale(start + j, low, high, num_dropped, scale)
        store_scalar(0, out + 4 * j, element + load_scalar(is_bf16, residual + itemsize * j))
    for j in range(vector_end, columns):
        row_sum += load_scalar(0, out + 4 * j)
    return row_sum


@njit(**JIT_OPTIONS)
def _inverse_std(row, columns, mean, epsilon):
    """Return 1 / standard deviation of an fp32 row."""
    vector_end, total = columns // VECTOR_WIDTH * VECTOR_WIDTH, broadcast_scalar(float32(0))
    for j in range(0, vector_end, VECTOR_WIDTH):
        centered = load(row + 4 * j) - broadcast_scalar(mean)
        total = total + centered * centered
    square_sum = reduce_sum(total)
    for j in range(vector_end, columns):
        element = load_scalar(0, row + 4 * j) - mean
        square_sum += element * element
    return float32(1) / np.sqrt(square_sum / float32(columns) + epsilon)


@njit(**JIT_OPTIONS)
def _normalize(is_bf16, row, columns, mean, inverse_std, weight, bias, out):
    """Write (row - mean) · inverse_std · weight + bias to `out`."""
    itemsize, vector_end = 2 if is_bf16 else 4, columns // VECTOR_WIDTH * VECTOR_WIDTH
    for j in range(0, vector_end, VECTOR_WIDTH):
        value = (load(row + 4 * j) - broadcast_scalar(mean)) * broadcast_scalar(inverse_std)
        store_as_dtype(is_bf16, out + itemsize * j, value * load(weight + 4 * j) + load(bias + 4 * j))
    for j in range(vector_end, columns):
        element = (load_scalar(0, row + 4 * j) - mean) * inverse_std
        element = element * load_scalar(0, weight + 4 * j) + load_scalar(0, bias + 4 * j)
        store_scalar(is_bf16, out + itemsize * j, element)


# Slots: 0 True for bf16, 1 x, 2 residual, 3 the result, in the backward pass the gradient of the residual, 4
# rows, 5 columns, 6 weight, 7 bias, 8 stats [rows, 2]: mean and 1 / standard deviation, 9 epsilon, 10 and 11 seed
# of dropout, 12 number of 65,536 elements that are dropped, 13 scale of the others, 17 workspace: a row in fp32
# for each thread, two in the backward pass. Of the backward pass alone: 14 gradient of the result, 15 gradient of
# x, 16 gradients of weight and bias [threads, 2, columns].


@kernel
def add_layer_norm_kernel(slots):
    s = load_slots(slots)
    is_bf16, columns, epsilon, stats = s[0], s[5], float_from_bits(s[9]), float_array(s[8], 2 * s[4])
    dropout, itemsize = (
        (uint32(s[10]), uint32(s[11]), uint32(s[12]), float_from_bits(s[13])),
        2 if is_bf16 else 4,
    )
    row = s[17] + 4 * columns * np.int64(thread_index())
    first, last = thread_range(s[4])
    for i in range(first, last):
        start = i * columns
        mean = _add_dropout(is_bf16, s[1], s[2], start, columns, dropout, row) / float32(columns)
        inverse_std = _inverse_std(row, columns, mean, epsilon)
        stats[2 * i], stats[2 * i + 1] = mean, inverse_std
        _normalize(is_bf16, row, columns, mean, inverse_std, s[6], s[7], s[3] + itemsize * start)


@njit(**JIT_OPTIONS)
def _normalized_grads(is_bf16, row, grads, grad_out, columns, mean, inverse_std, weight, param_grads):
    """Normalize a row in place, and write the gradients of the normalized row to `grads`.

    Return the mean of the gradients, and the mean of their products with the normalized row. Add the row's
    gradients of weight and bias to `param_grads`, fp32 [2, columns].
    """
    itemsize, vector_end = 2 if is_bf16 else 4, columns // VECTOR_WIDTH * VECTOR_WIDTH
    grad_total, product_total = broadcast_scalar(float32(0)), broadcast_scalar(float32(0))
    grad_weight, grad_bias = param_grads, param_grads + 4 * columns
    for j in range(0, vector_end, VECTOR_WIDTH):
        normalized = (load(row + 4 * j) - broadcast_scalar(mean)) * broadcast_scalar(inverse_std)
        grad = load_as_float(is_bf16, grad_out + itemsize * j)
        store(grad_weight + 4 * j, load(grad_weight + 4 * j) + grad * normalized)
        store(grad_bias + 4 * j, load(grad_bias + 4 * j) + grad)
        grad = grad * load(weight + 4 * j)
        store(row + 4 * j, normalized)
        store(grads + 4 * j, grad)
        grad_total, product_total = grad_total + grad, product_total + grad * normalized
    grad_sum, product_sum = reduce_sum(grad_total), reduce_sum(product_total)
    for j in range(vector_end, columns):
        element = (load_scalar(0, row + 4 * j) - mean) * inverse_std
        element_grad = load_scalar(is_bf16, grad_out + itemsize * j)
        store_scalar(0, grad_weight + 4 * j, load_scalar(0, grad_weight + 4 * j) + element_grad * element)
        store_scalar(0, grad_bias + 4 * j, load_scalar(0, grad_bias + 4 * j) + element_grad)
        element_grad *= load_scalar(0, weight + 4 * j)
        store_scalar(0, row + 4 * j, element)
        store_scalar(0, grads + 4 * j, element_grad)
    for j in range(vector_end, columns):
        grad_sum += load_scalar(0, grads + 4 * j)
        product_sum += load_scalar(0, grads + 4 * j) * load_scalar(0, row + 4 * j)
    return grad_sum / float32(columns), product_sum / float32(columns)


@njit(**JIT_OPTIONS)
def _input_grads(
    is_bf16,
    normalized,
    grads,
    start,
    columns,
    grad_mean,
    product_mean,
    inverse_std,
    dropout,
    grad_residual,
    grad_x,
):
    """Write the gradients of residual, and of x if elements of it were dropped."""
    low, high, num_dropped, scale = dropout
    itemsize, vector_end = 2 if is_bf16 else 4, columns // VECTOR_WIDTH * VECTOR_WIDTH
    grad_residual, grad_x = grad_residual + itemsize * start, grad_x + itemsize * start
    for j in range(0, vector_end, VECTOR_WIDTH):
        value = load(grads + 4 * j) - broadcast_scalar(grad_mean)
        value = (value - load(normalized + 4 * j) * broadcast_scalar(product_mean)) * broadcast_scalar(
            inverse_std
        )
        store_as_dtype(is_bf16, grad_residual + itemsize * j, value)
        if num_dropped:
            value = value * dropout_mask(start + j, low, high, num_dropped, scale)
            store_as_dtype(is_bf16, grad_x + itemsize * j, value)
    for j in range(vector_end, columns):
        element = load_scalar(0, grads + 4 * j) - grad_mean
        element = (element - load_scalar(0, normalized + 4 * j) * product_mean) * inverse_std
        store_scalar(is_bf16, grad_residual + itemsize * j, element)
        if num_dropped:
            element *= dropout_scale(start + j, low, high, num_dropped, scale)
            store_scalar(is_bf16, grad_x + itemsize * j, element)


@kernel
def add_layer_norm_backward_kernel(slots):
    s = load_slots(slots)
    is_bf16, columns, stats, thread = s[0], s[5], float_array(s[8], 2 * s[4]), np.int64(thread_index())
    dropout, itemsize = (
        (uint32(s[10]), uint32(s[11]), uint32(s[12]), float_from_bits(s[13])),
        2 if is_bf16 else 4,
    )
    row, param_grads = s[17] + 8 * columns * thread, s[16] + 8 * columns * thread
    grads = row + 4 * columns
    first, last = thread_range(s[4])
    for i in range(first, last):
        start, mean, inverse_std = i * columns, stats[2 * i], stats[2 * i + 1]
        _add_dropout(is_bf16, s[1], s[2], start, columns, dropout, row)
        grad_mean, product_mean = _normalized_grads(
            is_bf16, row, grads, s[14] + itemsize * start, columns, mean, inverse_std, s[6], param_grads
        )
        _input_grads(
            is_bf16, row, grads, start, columns, grad_mean, product_mean, inverse_std, dropout, s[3], s[15]
        )
