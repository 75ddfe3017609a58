"""Kernels of the embedding layer, forward and backward: a sum of three embeddings, LayerNorm, and dropout."""

from __future__ import annotations

import numpy as np
from numba import njit

from bertsmith.kernels.cpu.compilation import (
    JIT_OPTIONS,
    barrier,
    bf16_array,
    float32,
    float_array,
    float_from_bits,
    int64_array,
    kernel,
    load_slots,
    num_threads,
    thread_index,
    thread_range,
    uint32,
)
from bertsmith.kernels.cpu.element_access import dropout_scale, load_element, mean_and_rstd, store_element

# Slots: 0 True for a bf16 result, 1 word embeddings [tokens, columns], 2 and 4 weights of two more embeddings
# [their rows, columns], 3 and 5 each token's row of these, 6 tokens, 7 columns, 8 weight, 9 stats [tokens, 2]:
# mean and 1 / standard deviation, 10 and 11 seed of dropout, 12 number of 65,536 elements that are dropped, 13
# scale of the others, 14 the result, 15 bias, 16 epsilon, 19 and 20 numbers of rows of the two embeddings. In the
# backward pass 14 is the gradient of the result, 15 and 16 the gradients of the two embeddings, 17 that of slot
# 1, 18 the gradients of weight and bias [threads, 2, columns].


@njit(**JIT_OPTIONS)
def _sum_embeddings(words, embeddings, indices, columns, token, out):
    """Write the sum of a token's three embeddings to `out`."""
    start = token * columns
    xs = words[start : start + columns]
    a, b = indices[0][token] * columns, indices[1][token] * columns
    ys, zs = embeddings[0][a : a + columns], embeddings[1][b : b + columns]
    for j in range(columns):
        out[j] = xs[j] + ys[j] + zs[j]


@njit(**JIT_OPTIONS)
def _forward(words, embeddings, indices, columns, weight, stats, dropout, out, bias, epsilon, first, last):
    low, high, num_dropped, scale = dropout
    summed = np.empty(columns, np.float32)
    for token in range(first, last):
        start = token * columns
        _sum_embeddings(words, embeddings, indices, columns, token, summed)
        mean, inverse_std = mean_and_rstd(summed, epsilon)
        stats[2 * token], stats[2 * token + 1] = mean, inverse_std
        row = out[start : start + columns]
        if num_dropped:
            for j in range(columns):
                value = (summed[j] - mean) * inverse_std * weight[j] + bias[j]
                store_element(row, j, value * dropout_scale(start + j, low, high, num_dropped, scale))
        else:
            for j in range(columns):
                store_element(row, j, (summed[j] - mean) * inverse_std * weight[j] + bias[j])


@njit(**JIT_OPTIONS)
def _backward(
    words,
    embeddings,
    indices,
    columns,
    weight,
    stats,
    dropout,
    grad_out,
    grad_words,
    param_grads,
    first,
    last,
):
    """Write the gradients of the summed embeddings, and add those of weight and bias to `param_grads`."""
    low, high, num_dropped, scale = dropout
    normalized, grads = np.empty(columns, np.float32), np.empty(columns, np.float32)
    grad_weight, grad_bias = param_grads[:columns], param_grads[columns:]
    for token in range(first, last):
        start = token * columns
        _sum_embeddings(words, embeddings, indices, columns, token, normalized)
        grad_row, mean, inverse_std = (
            grad_out[start : start + columns],
            stats[2 * token],
            stats[2 * token + 1],
        )
        if num_dropped:
            for j in range(columns):
                factor = dropout_scale(start + j, low, high, num_dropped, scale)
                grads[j] = load_element(grad_row, j) * factor
        else:
            for j in range(columns):
                grads[j] = load_element(grad_row, j)
        for j in range(columns):
            normalized[j] = (normalized[j] - mean) * inverse_std
            grad_weight[j] += grads[j] * normalized[j]
            grad_bias[j] += grads[j]
            grads[j] *= weight[j]
        grad_mean, product_mean = float32(0), float32(0)
        for j in range(columns):
            grad_mean += grads[j]
            product_mean += grads[j] * normalized[j]
        grad_mean /= float32(columns)
        product_mean /= float32(columns)
        row = grad_words[start : start + columns]
        for j in range(columns):
            row[j] = (grads[j] - grad_mean - normalized[j] * product_mean) * inverse_std


@njit(**JIT_OPTIONS)
def _accumulate(token_grads, indices, grads, columns, first, last):
    """Add the columns [first, last) of the gradients of all tokens to those of an embedding's weights."""
    for token in range(len(indices)):
        start, row_start = token * columns, indices[token] * columns
        source, target = (
            token_grads[start + first : start + last],
            grads[row_start + first : row_start + last],
        )
        for j in range(len(source)):
            target[j] += source[j]


@kernel
def forward(slots):
    s = load_slots(slots)
    tokens, columns = s[6], s[7]
    first, last = thread_range(tokens)
    indices = int64_array(s[3], tokens), int64_array(s[5], tokens)
    embeddings = float_array(s[2], s[19] * columns), float_array(s[4], s[20] * columns)
    words, weight, stats = (
        float_array(s[1], tokens * columns),
        float_array(s[8], columns),
        float_array(s[9], 2 * tokens),
    )
    dropout = uint32(s[10]), uint32(s[11]), uint32(s[12]), float_from_bits(s[13])
    bias, epsilon = float_array(s[15], columns), float_from_bits(s[16])
    if s[0]:
        out = bf16_array(s[14], tokens * columns)
        _forward(words, embeddings, indices, columns, weight, stats, dropout, out, bias, epsilon, first, last)
    else:
        out32 = float_array(s[14], tokens * columns)
        _forward(
            words, embeddings, indices, columns, weight, stats, dropout, out32, bias, epsilon, first, last
        )


@kernel
def backward(slots):
    s = load_slots(slots)
    tokens, columns = s[6], s[7]
    first, last = thread_range(tokens)
    indices = int64_array(s[3], tokens), int64_array(s[5], tokens)
    embeddings = float_array(s[2], s[19] * columns), float_array(s[4], s[20] * columns)
    words, weight, stats = (
        float_array(s[1], tokens * columns),
        float_array(s[8], columns),
        float_array(s[9], 2 * tokens),
    )
    dropout = uint32(s[10]), uint32(s[11]), uint32(s[12]), float_from_bits(s[13])
    start, grads = np.int64(thread_index()) * 2 * columns, float_array(s[17], tokens * columns)
    sums = float_array(s[18], 2 * columns * np.int64(num_threads()))[start : start + 2 * columns]
    if s[0]:
        out = bf16_array(s[14], tokens * columns)
        _backward(words, embeddings, indices, columns, weight, stats, dropout, out, grads, sums, first, last)
    else:
        out32 = float_array(s[14], tokens * columns)
        _backward(
            words, embeddings, indices, columns, weight, stats, dropout, out32, grads, sums, first, last
        )
    barrier()
    first, last = thread_range(columns)
    _accumulate(grads, indices[0], float_array(s[15], s[19] * columns), columns, first, last)
    _accumulate(grads, indices[1], float_array(s[16], s[20] * columns), columns, first, last)
