"""Attention over packed sequences in bf16, forward and backward, by the processor's own bf16 products.

These are AMX tiles, or the dot products of AVX512-BF16. As in attention_fp32.py, a thread computes a head of a
sequence, one block of 32 queries at a time, and without dropout the result for a sequence does not depend on
other sequences. Sums and intermediate results are in fp32; weights and gradients are rounded to bf16 before they
are multiplied. The forward pass divides the products of weights and values, rather than the weights, by the sums
of the weights.
"""

from __future__ import annotations

from numba import njit

from bertsmith.kernels.cpu import attention_common
from bertsmith.kernels.cpu.attention_common import masked_row_max, recompute_weights, round_up, store_rows
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, float32, has_cpu_feature, kernel
from bertsmith.kernels.cpu.launcher import num_threads, thread_index
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH, load, reduce_sum, splat, store, store_bf16
from bertsmith.kernels.cpu.simd_pairs import interleave_bf16, transpose_16x16
from bertsmith.kernels.cpu.vector_functions import dropout_mask, exp_nonpositive

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
        return 9 * head // 2 + 4 * scores + 5 * rows // 2
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


# Transposed and interleaved matrices have the suffixes _t and _p (pairs); fp32 matrices take twice as much.


@kernel
def forward(s):
    """Compute the same as `attention_fp32.forward`."""
    args = attention_common.load_args(s)
    head_size, stats, dropout, softmax_scale = args.head_size, args.stats, args.dropout, args.softmax_scale
    q_stride, kv_stride = 2 * args.q_stride, 2 * args.kv_stride  # in bytes
    hidden_size, max_padded = args.num_heads * head_size, _round_up_to_block(args.max_columns)
    head_bytes, block_bytes = 2 * max_padded * head_size, 2 * _BLOCK * max_padded
    rows_bytes = 2 * _BLOCK * head_size
    buffer = args.workspace
    keys_t = buffer + head_bytes
    values_p = keys_t + head_bytes
    weights = values_p + head_bytes
    queries = weights + block_bytes
    products = queries + rows_bytes  # fp32
    scores = products + 2 * rows_bytes  # fp32
    configure(args.tile_config)
    for index in range(thread_index(), args.num_sequences * args.num_heads, num_threads()):
        head, first_token, num_keys, first_query, end_query = attention_common.head_of_sequence(args, index)
        columns, padded = round_up(num_keys), _round_up_to_block(num_keys)
        head_start = 2 * head * head_size
        if first_query < end_query:
            k = args.key_values + first_token * kv_stride + head_start
            _copy_rows(k, kv_stride, num_keys, head_size, buffer, padded)
            _transpose_pairs(buffer, padded, head_size // 2, keys_t)
            _copy_rows(k + 2 * hidden_size, kv_stride, num_keys, head_size, buffer, padded)
            _interleave_rows(buffer, padded, head_size, values_p)
        for start in range(first_query, end_query, _BLOCK):
            rows = min(_BLOCK, end_query - start)
            q = args.queries + start * q_stride + head_start
            _copy_rows(q, q_stride, rows, head_size, queries, _BLOCK)
            multiply_block(False, queries, 2 * head_size, keys_t, scores, padded, head_size, rows)
            for i in range(rows):
                row = attention_common.row_of_query(args, head, start + i, first_token, num_keys)
                score_row, weight_row = scores + 4 * i * padded, weights + 2 * i * padded
                row_max = masked_row_max(score_row, columns, row.first_key, row.end_key) * softmax_scale
                total = splat(0.0)
                for j in range(0, columns, VECTOR_WIDTH):
                    value = exp_nonpositive(load(score_row + 4 * j) * softmax_scale - row_max)
                    total = total + value
                    if dropout.threshold:
                        value = value * dropout_mask(row.dropout_counter + j, dropout)
                    store_bf16(weight_row + 2 * j, value)
                stats[row.stat], stats[row.stat + 1] = row_max, float32(1) / reduce_sum(total)
            _zero_padding(weights, columns, padded, rows)
            multiply_block(False, weights, 2 * padded, values_p, products, head_size, padded, rows)
            for i in range(rows):  # A row of products has fewer elements to divide than a row of weights.
                inverse_sum = stats[2 * ((start + i) * args.num_heads + head) + 1]
                out = args.output + 2 * (start + i) * hidden_size + head_start
                store_rows(1, products + 4 * i * head_size, 1, head_size, inverse_sum, out, hidden_size)
    release()


@njit(inline="always", **JIT_OPTIONS)
def _accumulate_transposed(a, b, out, padded, head_size, buffer):
    """Compute out += aᵀ · b for bf16 a [32, padded] and b [32, head_size], and fp32 out [padded, head_size].

    buffer: memory for two matrices of the size of a, and one of the size of b.
    """
    pairs, a_bytes, a_stride = buffer, 2 * _BLOCK * padded, 2 * _BLOCK
    a_t = pairs + a_bytes
    b_p = a_t + a_bytes
    _interleave_rows(a, _BLOCK, padded, pairs)
    _transpose_pairs(pairs, _BLOCK // 2, padded, a_t)
    _interleave_rows(b, _BLOCK, head_size, b_p)
    for j in range(0, padded, _BLOCK):
        out_block = out + 4 * j * head_size
        multiply_block(True, a_t + j * a_stride, a_stride, b_p, out_block, head_size, _BLOCK, _BLOCK)


@kernel
def backward(s):
    """Compute the same as `attention_fp32.backward`."""
    args = attention_common.load_args(s)
    one, scale, head_size = float32(1), args.softmax_scale, args.head_size
    hidden_size, max_padded = args.num_heads * head_size, _round_up_to_block(args.max_columns)
    head_bytes, block_bytes = 2 * max_padded * head_size, 2 * _BLOCK * max_padded
    rows_bytes = 2 * _BLOCK * head_size
    keys = args.workspace
    keys_t = keys + head_bytes
    keys_p = keys_t + head_bytes
    values = keys_p + head_bytes
    values_t = values + head_bytes
    key_grads = values_t + head_bytes  # fp32
    value_grads = key_grads + 2 * head_bytes  # fp32
    weights = value_grads + 2 * head_bytes  # after dropout
    score_grads = weights + block_bytes
    scores = score_grads + block_bytes  # fp32, then the weights before dropout
    weight_grads = scores + 2 * block_bytes  # fp32
    queries = weight_grads + 2 * block_bytes
    out_grad = queries + rows_bytes
    query_grads = out_grad + rows_bytes  # fp32
    buffer = query_grads + 2 * rows_bytes
    configure(args.tile_config)
    for index in range(thread_index(), args.num_sequences * args.num_heads, num_threads()):
        head, first_token, num_keys, first_query, end_query = attention_common.head_of_sequence(args, index)
        columns, padded = round_up(num_keys), _round_up_to_block(num_keys)
        head_start, v_offset = 2 * head * head_size, 2 * hidden_size
        kv_start = 2 * first_token * args.kv_stride + head_start
        if first_query < end_query:
            k = args.key_values + kv_start
            _copy_rows(k, 2 * args.kv_stride, num_keys, head_size, keys, padded)
            _transpose_pairs(keys, padded, head_size // 2, keys_t)
            _interleave_rows(keys, padded, head_size, keys_p)
            _copy_rows(k + v_offset, 2 * args.kv_stride, num_keys, head_size, values, padded)
            _transpose_pairs(values, padded, head_size // 2, values_t)
        attention_common.zero_floats(key_grads, padded * head_size)
        attention_common.zero_floats(value_grads, padded * head_size)
        for start in range(first_query, end_query, _BLOCK):
            rows, q_start = min(_BLOCK, end_query - start), 2 * start * args.q_stride + head_start
            out_start = 2 * start * hidden_size + head_start
            _copy_rows(args.queries + q_start, 2 * args.q_stride, rows, head_size, queries, _BLOCK)
            _copy_rows(args.out_grad + out_start, 2 * hidden_size, rows, head_size, out_grad, _BLOCK)
            multiply_block(False, queries, 2 * head_size, keys_t, scores, padded, head_size, rows)
            multiply_block(False, out_grad, 2 * head_size, values_t, weight_grads, padded, head_size, rows)
            for i in range(rows):
                row = attention_common.row_of_query(args, head, start + i, first_token, num_keys)
                weight_row, grad_row = scores + 4 * i * padded, weight_grads + 4 * i * padded
                dropped_row, out_row = weights + 2 * i * padded, score_grads + 2 * i * padded
                delta = recompute_weights(args, row, weight_row, grad_row, columns, scale, True, dropped_row)
                # The queries are not scaled here, so this passes the scale to the gradients of both factors.
                attention_common.store_score_grads(weight_row, grad_row, delta, columns, scale, True, out_row)
            _zero_padding(weights, columns, padded, rows)
            _zero_padding(score_grads, columns, padded, rows)
            multiply_block(False, score_grads, 2 * padded, keys_p, query_grads, head_size, padded, rows)
            store_rows(1, query_grads, rows, head_size, one, args.output + q_start, args.q_stride)
            _accumulate_transposed(weights, out_grad, value_grads, padded, head_size, buffer)
            _accumulate_transposed(score_grads, queries, key_grads, padded, head_size, buffer)
        kv_grad = args.key_value_grads + kv_start
        store_rows(1, key_grads, num_keys, head_size, one, kv_grad, args.kv_stride)
        store_rows(1, value_grads, num_keys, head_size, one, kv_grad + v_offset, args.kv_stride)
    release()
