"""Kernels of LayerNorm(residual + dropout(x)), forward and backward, 16 columns of a row at a time.

The row at hand is kept in fp32 in the workspace. The columns after the last multiple of 16 are computed one by
one, and summed in separate loops (see row_kernels.py).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from bertsmith.kernels.cpu.arrays import float_from_bits, floats, load_scalar, store_scalar
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, float32, kernel
from bertsmith.kernels.cpu.launcher import thread_index, thread_range
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH, load, load_vector, reduce_sum, splat, store, store_vector
from bertsmith.kernels.cpu.vector_functions import dropout_mask, dropout_scale, load_dropout


@njit(**JIT_OPTIONS)
def _add_dropout(is_bf16, x, residual, start, columns, dropout, out):
    """Write residual + dropout(x) of a row in fp32 to `out`, and return the row's sum.

    start: the index of the row's first element. dropout: two seeds, the number of 65,536 elements that are
    dropped, and the scale of the others.
    """
    itemsize, vector_end = 2 if is_bf16 else 4, columns // VECTOR_WIDTH * VECTOR_WIDTH
    total = splat(0.0)
    x, residual = x + itemsize * start, residual + itemsize * start
    for j in range(0, vector_end, VECTOR_WIDTH):
        value = load_vector(is_bf16, x + itemsize * j)
        if dropout.threshold:
            value = value * dropout_mask(start + j, dropout)
        value = value + load_vector(is_bf16, residual + itemsize * j)
        store(out + 4 * j, value)
        total = total + value
    row_sum = reduce_sum(total)
    for j in range(vector_end, columns):
        element = load_scalar(is_bf16, x + itemsize * j)
        if dropout.threshold:
            element *= dropout_scale(start + j, dropout)
        store_scalar(0, out + 4 * j, element + load_scalar(is_bf16, residual + itemsize * j))
    for j in range(vector_end, columns):
        row_sum += load_scalar(0, out + 4 * j)
    return row_sum


@njit(**JIT_OPTIONS)
def _compute_rstd(row, columns, mean, eps):
    """Return 1 / standard deviation of an fp32 row."""
    vector_end, total = columns // VECTOR_WIDTH * VECTOR_WIDTH, splat(0.0)
    for j in range(0, vector_end, VECTOR_WIDTH):
        centered = load(row + 4 * j) - mean
        total = total + centered * centered
    square_sum = reduce_sum(total)
    for j in range(vector_end, columns):
        element = load_scalar(0, row + 4 * j) - mean
        square_sum += element * element
    return float32(1) / np.sqrt(square_sum / float32(columns) + eps)


@njit(**JIT_OPTIONS)
def _normalize(is_bf16, row, columns, mean, rstd, weight, bias, out):
    """Write (row - mean) · rstd · weight + bias to `out`."""
    itemsize, vector_end = 2 if is_bf16 else 4, columns // VECTOR_WIDTH * VECTOR_WIDTH
    for j in range(0, vector_end, VECTOR_WIDTH):
        value = (load(row + 4 * j) - mean) * rstd
        store_vector(is_bf16, out + itemsize * j, value * load(weight + 4 * j) + load(bias + 4 * j))
    for j in range(vector_end, columns):
        element = (load_scalar(0, row + 4 * j) - mean) * rstd
        element = element * load_scalar(0, weight + 4 * j) + load_scalar(0, bias + 4 * j)
        store_scalar(is_bf16, out + itemsize * j, element)


# Slots: 0 True for bf16, 1 x, 2 residual, 3 the result, in the backward pass the gradient of the residual, 4
# rows, 5 columns, 6 weight, 7 bias, 8 stats [rows, 2]: mean and 1 / standard deviation, 9 eps, 10 and 11 seed
# of dropout, 12 number of 65,536 elements that are dropped, 13 scale of the others, 17 workspace: a row in fp32
# for each thread, two in the backward pass. Of the backward pass alone: 14 gradient of the result, 15 gradient of
# x, 16 gradients of weight and bias [parts, 2, columns], 18 parts of the rows.


@kernel
def add_layer_norm_kernel(s):
    is_bf16, columns, eps, stats = s[0], s[5], float_from_bits(s[9]), floats(s[8], 2 * s[4])
    dropout, itemsize = load_dropout(s, 10), 2 if is_bf16 else 4
    row = s[17] + 4 * columns * thread_index()
    first, last = thread_range(s[4])
    for i in range(first, last):
        start = i * columns
        mean = _add_dropout(is_bf16, s[1], s[2], start, columns, dropout, row) / float32(columns)
        rstd = _compute_rstd(row, columns, mean, eps)
        stats[2 * i], stats[2 * i + 1] = mean, rstd
        _normalize(is_bf16, row, columns, mean, rstd, s[6], s[7], s[3] + itemsize * start)


@njit(**JIT_OPTIONS)
def _normalized_grads(is_bf16, row, grads, out_grad, columns, mean, rstd, weight, param_grads):
    """Normalize a row in place, and write the gradients of the normalized row to `grads`.

    Return the mean of the gradients, and the mean of their products with the normalized row. Add the row's
    gradients of weight and bias to `param_grads`, fp32 [2, columns].
    """
    itemsize, vector_end = 2 if is_bf16 else 4, columns // VECTOR_WIDTH * VECTOR_WIDTH
    grad_total, product_total = splat(0.0), splat(0.0)
    weight_grad, bias_grad = param_grads, param_grads + 4 * columns
    for j in range(0, vector_end, VECTOR_WIDTH):
        normalized = (load(row + 4 * j) - mean) * rstd
        grad = load_vector(is_bf16, out_grad + itemsize * j)
        store(weight_grad + 4 * j, load(weight_grad + 4 * j) + grad * normalized)
        store(bias_grad + 4 * j, load(bias_grad + 4 * j) + grad)
        grad = grad * load(weight + 4 * j)
        store(row + 4 * j, normalized)
        store(grads + 4 * j, grad)
        grad_total, product_total = grad_total + grad, product_total + grad * normalized
    grad_sum, product_sum = reduce_sum(grad_total), reduce_sum(product_total)
    for j in range(vector_end, columns):
        element = (load_scalar(0, row + 4 * j) - mean) * rstd
        element_grad = load_scalar(is_bf16, out_grad + itemsize * j)
        store_scalar(0, weight_grad + 4 * j, load_scalar(0, weight_grad + 4 * j) + element_grad * element)
        store_scalar(0, bias_grad + 4 * j, load_scalar(0, bias_grad + 4 * j) + element_grad)
        element_grad *= load_scalar(0, weight + 4 * j)
        store_scalar(0, row + 4 * j, element)
        store_scalar(0, grads + 4 * j, element_grad)
    for j in range(vector_end, columns):
        grad_sum += load_scalar(0, grads + 4 * j)
        product_sum += load_scalar(0, grads + 4 * j) * load_scalar(0, row + 4 * j)
    return grad_sum / float32(columns), product_sum / float32(columns)


@njit(**JIT_OPTIONS)
def _input_grads(
    is_bf16, normalized, grads, start, columns, grad_mean, product_mean, rstd, dropout, residual_grad, x_grad
):
    """Write the gradients of residual, and of x if elements of it were dropped."""
    itemsize, vector_end = 2 if is_bf16 else 4, columns // VECTOR_WIDTH * VECTOR_WIDTH
    residual_grad, x_grad = residual_grad + itemsize * start, x_grad + itemsize * start
    for j in range(0, vector_end, VECTOR_WIDTH):
        value = load(grads + 4 * j) - grad_mean
        value = (value - load(normalized + 4 * j) * product_mean) * rstd
        store_vector(is_bf16, residual_grad + itemsize * j, value)
        if dropout.threshold:
            value = value * dropout_mask(start + j, dropout)
            store_vector(is_bf16, x_grad + itemsize * j, value)
    for j in range(vector_end, columns):
        element = load_scalar(0, grads + 4 * j) - grad_mean
        element = (element - load_scalar(0, normalized + 4 * j) * product_mean) * rstd
        store_scalar(is_bf16, residual_grad + itemsize * j, element)
        if dropout.threshold:
            element *= dropout_scale(start + j, dropout)
            store_scalar(is_bf16, x_grad + itemsize * j, element)


@kernel
def add_layer_norm_backward_kernel(s):
    is_bf16, columns, stats = s[0], s[5], floats(s[8], 2 * s[4])
    dropout, itemsize = load_dropout(s, 10), 2 if is_bf16 else 4
    row = s[17] + 8 * columns * thread_index()
    grads = row + 4 * columns
    first_part, last_part = thread_range(s[18])
    for part in range(first_part, last_part):
        param_grads = s[16] + 8 * columns * part
        for i in range(s[4] * part // s[18], s[4] * (part + 1) // s[18]):
            start, mean, rstd = i * columns, stats[2 * i], stats[2 * i + 1]
            _add_dropout(is_bf16, s[1], s[2], start, columns, dropout, row)
            grad_mean, product_mean = _normalized_grads(
                is_bf16, row, grads, s[14] + itemsize * start, columns, mean, rstd, s[6], param_grads
            )
            _input_grads(
                is_bf16, row, grads, start, columns, grad_mean, product_mean, rstd, dropout, s[3], s[15]
            )
