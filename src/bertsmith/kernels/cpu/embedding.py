"""Kernels of the embedding layer, forward and backward: a sum of three embeddings, LayerNorm, and dropout."""

from __future__ import annotations

import numpy as np
from numba import njit

from bertsmith.kernels.cpu.arrays import bf16s, float_from_bits, floats, int64s, load_element, store_element
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, float32, kernel
from bertsmith.kernels.cpu.launcher import barrier, thread_range
from bertsmith.kernels.cpu.vector_functions import dropout_scale, load_dropout

# Slots: 0 True for a bf16 result, 1 word embeddings [tokens, columns], 2 and 4 weights of two more embeddings
# [their rows, columns], 3 and 5 each token's row of these, 6 tokens, 7 columns, 8 weight, 9 stats [tokens, 2]:
# mean and 1 / standard deviation, 10 and 11 seed of dropout, 12 number of 65,536 elements that are dropped, 13
# scale of the others, 14 the result, 15 bias, 16 eps, 19 and 20 numbers of rows of the two embeddings. In the
# backward pass 14 is the gradient of the result, 15 and 16 the gradients of the two embeddings, 17 that of slot
# 1, 18 the gradients of weight and bias [parts, 2, columns], 21 parts of the tokens.


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
def _mean_and_rstd(values, eps):
    """Return the mean, and 1 / sqrt(variance + eps), of an fp32 array."""
    total, squares = float32(0), float32(0)
    for j in range(len(values)):
        total += values[j]
    mean = total / float32(len(values))
    for j in range(len(values)):
        centered = values[j] - mean
        squares += centered * centered
    return mean, float32(1) / np.sqrt(squares / float32(len(values)) + eps)


@njit(**JIT_OPTIONS)
def _forward(words, embeddings, indices, columns, weight, stats, dropout, out, bias, eps, first, last):
    summed = np.empty(columns, np.float32)
    for token in range(first, last):
        start = token * columns
        _sum_embeddings(words, embeddings, indices, columns, token, summed)
        mean, rstd = _mean_and_rstd(summed, eps)
        stats[2 * token], stats[2 * token + 1] = mean, rstd
        row = out[start : start + columns]
        if dropout.threshold:
            for j in range(columns):
                value = (summed[j] - mean) * rstd * weight[j] + bias[j]
                store_element(row, j, value * dropout_scale(start + j, dropout))
        else:
            for j in range(columns):
                store_element(row, j, (summed[j] - mean) * rstd * weight[j] + bias[j])


@njit(**JIT_OPTIONS)
def _backward(
    words, embeddings, indices, columns, weight, stats, dropout, out_grad, word_grads, sums, first, last
):
    """Write the gradients of the summed embeddings, and add those of weight and bias to `sums`."""
    normalized, grads = np.empty(columns, np.float32), np.empty(columns, np.float32)
    weight_grad, bias_grad = sums[:columns], sums[columns:]
    for token in range(first, last):
        start = token * columns
        _sum_embeddings(words, embeddings, indices, columns, token, normalized)
        grad_row = out_grad[start : start + columns]
        mean, rstd = stats[2 * token], stats[2 * token + 1]
        if dropout.threshold:
            for j in range(columns):
                factor = dropout_scale(start + j, dropout)
                grads[j] = load_element(grad_row, j) * factor
        else:
            for j in range(columns):
                grads[j] = load_element(grad_row, j)
        for j in range(columns):
            normalized[j] = (normalized[j] - mean) * rstd
            weight_grad[j] += grads[j] * normalized[j]
            bias_grad[j] += grads[j]
            grads[j] *= weight[j]
        grad_mean, product_mean = float32(0), float32(0)
        for j in range(columns):
            grad_mean += grads[j]
            product_mean += grads[j] * normalized[j]
        grad_mean /= float32(columns)
        product_mean /= float32(columns)
        row = word_grads[start : start + columns]
        for j in range(columns):
            row[j] = (grads[j] - grad_mean - normalized[j] * product_mean) * rstd


@njit(**JIT_OPTIONS)
def _accumulate(token_grads, indices, grads, columns, first, last):
    """Add the columns [first, last) of the gradients of all tokens to those of an embedding's weights."""
    for token in range(len(indices)):
        start, row_start = token * columns, indices[token] * columns
        source = token_grads[start + first : start + last]
        target = grads[row_start + first : row_start + last]
        for j in range(len(source)):
            target[j] += source[j]


@kernel
def forward(s):
    tokens, columns = s[6], s[7]
    first, last = thread_range(tokens)
    indices = int64s(s[3], tokens), int64s(s[5], tokens)
    embeddings = floats(s[2], s[19] * columns), floats(s[4], s[20] * columns)
    words, weight, stats = (floats(s[1], tokens * columns), floats(s[8], columns), floats(s[9], 2 * tokens))
    dropout = load_dropout(s, 10)
    bias, eps = floats(s[15], columns), float_from_bits(s[16])
    if s[0]:
        out = bf16s(s[14], tokens * columns)
        _forward(words, embeddings, indices, columns, weight, stats, dropout, out, bias, eps, first, last)
    else:
        out32 = floats(s[14], tokens * columns)
        _forward(words, embeddings, indices, columns, weight, stats, dropout, out32, bias, eps, first, last)


@kernel
def backward(s):
    tokens, columns = s[6], s[7]
    indices = int64s(s[3], tokens), int64s(s[5], tokens)
    embeddings = floats(s[2], s[19] * columns), floats(s[4], s[20] * columns)
    words, weight, stats = (floats(s[1], tokens * columns), floats(s[8], columns), floats(s[9], 2 * tokens))
    dropout, grads = load_dropout(s, 10), floats(s[17], tokens * columns)
    first_part, last_part = thread_range(s[21])
    for part in range(first_part, last_part):
        first, last = tokens * part // s[21], tokens * (part + 1) // s[21]
        sums = floats(s[18] + 8 * columns * part, 2 * columns)
        if s[0]:
            out = bf16s(s[14], tokens * columns)
            _backward(
                words, embeddings, indices, columns, weight, stats, dropout, out, grads, sums, first, last
            )
        else:
            out32 = floats(s[14], tokens * columns)
            _backward(
                words, embeddings, indices, columns, weight, stats, dropout, out32, grads, sums, first, last
            )
    barrier()
    first, last = thread_range(columns)
    _accumulate(grads, indices[0], floats(s[15], s[19] * columns), columns, first, last)
    _accumulate(grads, indices[1], floats(s[16], s[20] * columns), columns, first, last)
