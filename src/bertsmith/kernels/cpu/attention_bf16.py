"""Attention over packed sequences in bf16, forward and backward, by the processor's own bf16 products.

These are AMX tiles, or the dot products of AVX512-BF16. As in attention_fp32.py, a thread computes a head of a
sequence, one block of 32 queries at a time, and without dropout the result for a sequence does not depend on
other sequences. Sums and intermediate results are in fp32; weights and gradients are rounded to bf16 before they
are multiplied. The forward pass divides the products of weights and values, rather than the weights, by the sums
of the weights.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from bertsmith.kernels.cpu import attention_fp32
from bertsmith.kernels.cpu.arrays import floats, int64s
from bertsmith.kernels.cpu.attention_fp32 import query_token, round_up
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, float32, has_cpu_feature, kernel
from bertsmith.kernels.cpu.launcher import num_threads, thread_index
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH, load, reduce_sum, splat, store, store_bf16
from bertsmith.kernels.cpu.simd_pairs import interleave_bf16, transpose_16x16
from bertsmith.kernels.cpu.vector_functions import dropout_mask, exp_nonpositive, load_dropout

if has_cpu_feature("amx-bf16"):
    from bertsmith.kernels.cpu.amx import configure, multiply_block, release
else:
    from bertsmith.kernels.cpu.microkernels import configure, multiply_block, release

_BLOCK = 32  # rows, columns, and terms of a matrix product are padded to a multiple of it
HEAD_SIZE_MULTIPLE = _BLOCK


def workspace_size(max_seqlen: int, head_size: int, is_backward: bool) -> int:
    """Return the number of fp32 elements of workspace that a thread of `forward` or `backward` needs."""
    max_columns = -(-max_seqlen // _BLOCK) * _BLOCK
    head, scores, rows = max_columns * head_size, _BLOCK * max_columns, _BLOCK * head_size
    if is_backward:
        return 9 * head // 2 + 9 * scores // 2 + 3 * rows
    return 3 * head // 2 + 3 * scores // 2 + 3 * rows // 2


@njit(**JIT_OPTIONS)
def _copy_rows(x, stride, rows, head_size, out, padded_rows):
    """Copy bf16 rows [rows, head_size], `stride` bytes apart, to contiguous rows, and pad them with zero rows."""
    for _ in range(rows):
        for c in range(0, 2 * head_size, 64):
            store(out + c, load(x + c))
        x += stride
        out += 2 * head_size
    for c in range(0, 2 * head_size * (padded_rows - rows), 64):
        store(out + c, splat(0.0))


@njit(**JIT_OPTIONS)
def _interleave_rows(x, rows, columns, out):
    """Interleave each two rows of bf16 [rows, columns], so that the elements of a column become pairs."""
    for _ in range(0, rows, 2):
        for c in range(0, columns, VECTOR_WIDTH):
            interleave_bf16(x + 2 * c, x + 2 * (columns + c), out + 4 * c)
        x += 4 * columns
        out += 4 * columns


@njit(**JIT_OPTIONS)
def _transpose_pairs(x, rows, pairs, out):
    """Transpose bf16 pairs [rows, pairs] to [pairs, rows]; both are multiples of 16."""
    for i in range(0, rows, VECTOR_WIDTH):
        for c in range(0, pairs, VECTOR_WIDTH):
            transpose_16x16(x + 4 * (i * pairs + c), 4 * pairs, out + 4 * (c * rows + i), 4 * rows)


@njit(**JIT_OPTIONS)
def _round_up_to_block(count):
    return (count + _BLOCK - 1) // _BLOCK * _BLOCK


@njit(**JIT_OPTIONS)
def _zero_padding(out, columns, padded_columns, rows):
    """Set the padding columns of the first `rows` rows of bf16 [32, padded_columns] to 0, and all other rows."""
    if columns < padded_columns:
        for i in range(rows):
            store_bf16(out + 2 * (i * padded_columns + columns), splat(0.0))
    for c in range(2 * rows * padded_columns, 2 * _BLOCK * padded_columns, 64):
        store(out + c, splat(0.0))


# Slots: see attention_fp32.py.
#
# Transposed and interleaved matrices have the suffixes _t and _p (pairs); fp32 matrices take twice as much.


@kernel
def forward(s):
    """Compute the same as `attention_fp32.forward`."""
    q_base, out_base, k_base, tile_config = s[1], s[2], s[19], s[18]
    num_sequences, num_heads, head_size, direction = s[5], s[6], s[7], s[8]
    num_queries, max_seqlen, workspace_stride = s[13], s[14], s[16]
    q_stride, kv_stride, query_indices = 2 * s[20], 2 * s[21], s[23]  # strides in bytes
    workspace = s[15] + 4 * thread_index() * workspace_stride
    stats, cu_seqlens = floats(s[3], 2 * num_queries * num_heads), int64s(s[4], num_sequences + 1)
    query_cu_seqlens, dropout = int64s(s[22], num_sequences + 1), load_dropout(s, 9)
    hidden_size, max_columns = num_heads * head_size, round_up(max_seqlen)
    max_padded = _round_up_to_block(max_seqlen)
    head_bytes, block_bytes = 2 * max_padded * head_size, 2 * _BLOCK * max_padded
    rows_bytes = 2 * _BLOCK * head_size
    buffer = workspace
    keys_t = buffer + head_bytes
    values_p = keys_t + head_bytes
    weights = values_p + head_bytes
    queries = weights + block_bytes
    products = queries + rows_bytes  # fp32
    scores = products + 2 * rows_bytes  # fp32
    softmax_scale = float32(1) / np.sqrt(float32(head_size))
    configure(tile_config)
    for index in range(thread_index(), num_sequences * num_heads, num_threads()):
        sequence, head = index // num_heads, index % num_heads
        first_token, num_keys = cu_seqlens[sequence], cu_seqlens[sequence + 1] - cu_seqlens[sequence]
        first_query, end_query = query_cu_seqlens[sequence], query_cu_seqlens[sequence + 1]
        columns, padded = round_up(num_keys), _round_up_to_block(num_keys)
        head_start = 2 * head * head_size
        if first_query < end_query:
            k = k_base + first_token * kv_stride + head_start
            _copy_rows(k, kv_stride, num_keys, head_size, buffer, padded)
            _transpose_pairs(buffer, padded, head_size // 2, keys_t)
            _copy_rows(k + 2 * hidden_size, kv_stride, num_keys, head_size, buffer, padded)
            _interleave_rows(buffer, padded, head_size, values_p)
        for start in range(first_query, end_query, _BLOCK):
            rows = min(_BLOCK, end_query - start)
            _copy_rows(q_base + start * q_stride + head_start, q_stride, rows, head_size, queries, _BLOCK)
            multiply_block(False, queries, 2 * head_size, keys_t, scores, padded, head_size, rows)
            for i in range(rows):
                row, token = scores + 4 * i * padded, query_token(query_indices, start + i)
                first_key, end_key = attention_fp32.visible_range(token - first_token, num_keys, direction)
                row_max = attention_fp32.masked_row_max(row, columns, first_key, end_key) * softmax_scale
                weight_row, element = weights + 2 * i * padded, (token * num_heads + head) * max_columns
                total = splat(0.0)
                for j in range(0, columns, VECTOR_WIDTH):
                    value = exp_nonpositive(load(row + 4 * j) * softmax_scale - row_max)
                    total = total + value
                    if dropout.threshold:
                        value = value * dropout_mask(element + j, dropout)
                    store_bf16(weight_row + 2 * j, value)
                stat = 2 * ((start + i) * num_heads + head)
                stats[stat], stats[stat + 1] = row_max, float32(1) / reduce_sum(total)
            _zero_padding(weights, columns, padded, rows)
            multiply_block(False, weights, 2 * padded, values_p, products, head_size, padded, rows)
            for i in range(rows):  # A row of products has fewer elements to divide than a row of weights.
                inverse_sum = stats[2 * ((start + i) * num_heads + head) + 1]
                out = out_base + 2 * (start + i) * hidden_size + head_start
                attention_fp32.store_rows(
                    1, products + 4 * i * head_size, 1, head_size, inverse_sum, out, hidden_size
                )
    release()


@kernel
def backward(s):
    """Compute the same as `attention_fp32.backward`."""
    q_base, q_grad_base, k_base, tile_config = s[1], s[2], s[19], s[18]
    num_sequences, num_heads, head_size, direction = s[5], s[6], s[7], s[8]
    num_queries, max_seqlen, workspace_stride = s[13], s[14], s[16]
    q_stride, kv_stride, query_indices = s[20], s[21], s[23]
    out_grad_base, k_grad_base = s[17], s[24]
    workspace = s[15] + 4 * thread_index() * workspace_stride
    stats, cu_seqlens = floats(s[3], 2 * num_queries * num_heads), int64s(s[4], num_sequences + 1)
    query_cu_seqlens, dropout = int64s(s[22], num_sequences + 1), load_dropout(s, 9)
    hidden_size, max_columns = num_heads * head_size, round_up(max_seqlen)
    max_padded = _round_up_to_block(max_seqlen)
    head_bytes, block_bytes = 2 * max_padded * head_size, 2 * _BLOCK * max_padded
    rows_bytes = 2 * _BLOCK * head_size
    keys = workspace
    keys_t = keys + head_bytes
    keys_p = keys_t + head_bytes
    values = keys_p + head_bytes
    values_t = values + head_bytes
    key_grads = values_t + head_bytes  # fp32
    value_grads = key_grads + 2 * head_bytes  # fp32
    weights = value_grads + 2 * head_bytes  # after dropout
    score_grads = weights + block_bytes
    pairs = score_grads + block_bytes
    weights_t = pairs + block_bytes
    score_grads_t = weights_t + block_bytes
    scores = score_grads_t + block_bytes  # fp32, then the weights before dropout
    weight_grads = scores + 2 * block_bytes  # fp32
    queries = weight_grads + 2 * block_bytes
    out_grad = queries + rows_bytes
    queries_p = out_grad + rows_bytes
    out_grad_p = queries_p + rows_bytes
    query_grads = out_grad_p + rows_bytes  # fp32
    one, softmax_scale = float32(1), float32(1) / np.sqrt(float32(head_size))
    configure(tile_config)
    for index in range(thread_index(), num_sequences * num_heads, num_threads()):
        sequence, head = index // num_heads, index % num_heads
        first_token, num_keys = cu_seqlens[sequence], cu_seqlens[sequence + 1] - cu_seqlens[sequence]
        first_query, end_query = query_cu_seqlens[sequence], query_cu_seqlens[sequence + 1]
        columns, padded = round_up(num_keys), _round_up_to_block(num_keys)
        head_start, v_offset = 2 * head * head_size, 2 * hidden_size
        kv_start = 2 * first_token * kv_stride + head_start
        if first_query < end_query:
            k = k_base + kv_start
            _copy_rows(k, 2 * kv_stride, num_keys, head_size, keys, padded)
            _transpose_pairs(keys, padded, head_size // 2, keys_t)
            _interleave_rows(keys, padded, head_size, keys_p)
            _copy_rows(k + v_offset, 2 * kv_stride, num_keys, head_size, values, padded)
            _transpose_pairs(values, padded, head_size // 2, values_t)
        attention_fp32.zero_floats(key_grads, padded * head_size)
        attention_fp32.zero_floats(value_grads, padded * head_size)
        for start in range(first_query, end_query, _BLOCK):
            rows, q_start = min(_BLOCK, end_query - start), 2 * start * q_stride + head_start
            out_start = 2 * start * hidden_size + head_start
            _copy_rows(q_base + q_start, 2 * q_stride, rows, head_size, queries, _BLOCK)
            _copy_rows(out_grad_base + out_start, 2 * hidden_size, rows, head_size, out_grad, _BLOCK)
            multiply_block(False, queries, 2 * head_size, keys_t, scores, padded, head_size, rows)
            multiply_block(False, out_grad, 2 * head_size, values_t, weight_grads, padded, head_size, rows)
            for i in range(rows):
                token, stat = query_token(query_indices, start + i), 2 * ((start + i) * num_heads + head)
                first_key, end_key = attention_fp32.visible_range(token - first_token, num_keys, direction)
                row, grad_row = scores + 4 * i * padded, weight_grads + 4 * i * padded
                element = (token * num_heads + head) * max_columns
                row_max, inverse_sum = splat(stats[stat]), splat(stats[stat + 1])
                total = splat(0.0)
                weight_row, score_grad_row = weights + 2 * i * padded, score_grads + 2 * i * padded
                for j in range(0, columns, VECTOR_WIDTH):
                    score = attention_fp32.load_masked_scores(row, j, first_key, end_key) * softmax_scale
                    weight = exp_nonpositive(score - row_max) * inverse_sum
                    grad = load(grad_row + 4 * j)
                    dropped_weight = weight
                    if dropout.threshold:
                        dropped_weight = weight * dropout_mask(element + j, dropout)
                    grad = grad * dropped_weight
                    store(row + 4 * j, weight)
                    store_bf16(weight_row + 2 * j, dropped_weight)
                    store(grad_row + 4 * j, grad)
                    total = total + grad
                delta = splat(reduce_sum(total))
                for j in range(0, columns, VECTOR_WIDTH):
                    grad = load(grad_row + 4 * j) - load(row + 4 * j) * delta
                    # The queries are not scaled here, so this passes the scale to the gradients of both factors.
                    store_bf16(score_grad_row + 2 * j, grad * softmax_scale)
            _zero_padding(weights, columns, padded, rows)
            _zero_padding(score_grads, columns, padded, rows)
            multiply_block(False, score_grads, 2 * padded, keys_p, query_grads, head_size, padded, rows)
            attention_fp32.store_rows(1, query_grads, rows, head_size, one, q_grad_base + q_start, q_stride)
            _interleave_rows(weights, _BLOCK, padded, pairs)
            _transpose_pairs(pairs, _BLOCK // 2, padded, weights_t)
            _interleave_rows(score_grads, _BLOCK, padded, pairs)
            _transpose_pairs(pairs, _BLOCK // 2, padded, score_grads_t)
            _interleave_rows(queries, _BLOCK, head_size, queries_p)
            _interleave_rows(out_grad, _BLOCK, head_size, out_grad_p)
            for j in range(0, padded, _BLOCK):
                a, a_stride, out = 2 * j * _BLOCK, 2 * _BLOCK, 4 * j * head_size
                weights_a, scores_a = weights_t + a, score_grads_t + a
                values_out, keys_out = value_grads + out, key_grads + out
                multiply_block(True, weights_a, a_stride, out_grad_p, values_out, head_size, _BLOCK, _BLOCK)
                multiply_block(True, scores_a, a_stride, queries_p, keys_out, head_size, _BLOCK, _BLOCK)
        kv_grad = k_grad_base + kv_start
        attention_fp32.store_rows(1, key_grads, num_keys, head_size, one, kv_grad, kv_stride)
        attention_fp32.store_rows(1, value_grads, num_keys, head_size, one, kv_grad + v_offset, kv_stride)
    release()
