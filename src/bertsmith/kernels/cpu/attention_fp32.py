"""Attention over packed sequences in fp32, forward and backward, without storing the scores.

A thread computes a head of a sequence, one block of 32 queries at a time, so that the scores of a block stay in
the cache. No result depends on the number of threads; without dropout, the result for a sequence does not depend
on other sequences either. Inputs and results are fp32 or bf16; all arithmetic is in fp32.

The forward pass saves, for each row of scores, the maximum and the reciprocal of the sum of exp(score - maximum),
from which the backward pass recomputes the weights. Flash attention (Dao et al. 2022) saves the maximum and the
sum, and its second version their log-sum-exp. It also divides the keys into blocks; here a block of queries has
the scores of all keys, so that no maximum or sum is ever corrected.

Dropout has a counter-based random number generator (vector_functions.py). The counter of a weight is its index in
an array [tokens, heads, max_seqlen rounded up to 16], so that a token has the same mask whichever tokens have
queries.

All pointers are integer addresses of bytes.
"""

from __future__ import annotations

from numba import njit

from bertsmith.kernels.cpu import attention_common, simd
from bertsmith.kernels.cpu.attention_common import masked_row_max, recompute_weights, round_up, store_rows
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, float32, has_cpu_feature, kernel
from bertsmith.kernels.cpu.launcher import num_threads, thread_index
from bertsmith.kernels.cpu.microkernels import FP32_ROWS, INIT_OUT, INIT_ZERO, microkernel_6x16
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH
from bertsmith.kernels.cpu.vector_functions import dropout_mask, exp_nonpositive

HEAD_SIZE_MULTIPLE = VECTOR_WIDTH
_HAS_4X32 = has_cpu_feature("avx512f")  # Other processors have too few registers for the accumulators.
_BLOCK_QUERIES = 32
_SMALL_ROWS = 4  # of the microkernels in this file
_FLOAT_BYTES, _VECTOR_BYTES = 4, 4 * VECTOR_WIDTH
_TRANSPOSE_SIZE = 8
# Rows of scores that are a power of two apart would compete for the same sets of the cache.
_ROW_PADDING = 64  # bytes


def workspace_size(max_seqlen: int, head_size: int, is_backward: bool) -> int:
    """Return the number of fp32 elements of workspace that a thread of `forward` or `backward` needs."""
    max_columns = -(-max_seqlen // VECTOR_WIDTH) * VECTOR_WIDTH
    block = _BLOCK_QUERIES * (max_columns + _ROW_PADDING // _FLOAT_BYTES)
    if is_backward:
        return 6 * max_columns * head_size + 3 * block + 2 * _BLOCK_QUERIES * head_size
    return 3 * max_columns * head_size + _BLOCK_QUERIES * head_size + block


@njit(inline="always", **JIT_OPTIONS)
def _gemm(init, a, a_row_stride, a_k_stride, b, b_k_stride, b_panel_stride, out, out_stride, sizes):
    """Compute out = a · b or out += a · b, one panel of 16 columns of b and out after the other.

    Strides are in bytes. sizes: rows of out, panels, and k. The microkernels compute 6 or 4 rows, so rows behind
    the last one are read and written, up to the next multiple of 4. This is safe: all matrices with such rows are
    in the workspace, which has room for a multiple of 4 rows of each, and no result depends on these rows.
    """
    num_rows, num_panels, k = sizes
    panel = 0
    while panel < num_panels:
        is_double = _HAS_4X32 and panel + 1 < num_panels
        b_start, out_start, row = b + panel * b_panel_stride, out + panel * _VECTOR_BYTES, 0
        while row < num_rows:
            a_start, out_tile = a + row * a_row_stride, out_start + row * out_stride
            remaining = num_rows - row
            if is_double:
                _microkernel_4x32(
                    init,
                    a_start,
                    a_row_stride,
                    a_k_stride,
                    b_start,
                    b_k_stride,
                    b_panel_stride,
                    out_tile,
                    out_stride,
                    k,
                )
                row += _SMALL_ROWS
            # The last 7 or 8 rows are computed as 4 + 4, since 6 + 4 would waste more.
            elif remaining > 2 * _SMALL_ROWS or _SMALL_ROWS < remaining <= FP32_ROWS:
                microkernel_6x16(
                    init, 0, a_start, a_row_stride, a_k_stride, b_start, b_k_stride, out_tile, out_stride, k
                )
                row += FP32_ROWS
            else:
                _microkernel_4x16(
                    init, a_start, a_row_stride, a_k_stride, b_start, b_k_stride, out_tile, out_stride, k
                )
                row += _SMALL_ROWS
        panel += 2 if is_double else 1


@njit(**JIT_OPTIONS)
def _matmul(a, a_row_stride, b, b_panel_stride, out, out_stride, sizes):
    """Compute out = a · b for a row-major a and a b packed in panels; see `_gemm`."""
    _gemm(INIT_ZERO, a, a_row_stride, _FLOAT_BYTES, b, _VECTOR_BYTES, b_panel_stride, out, out_stride, sizes)


@njit(**JIT_OPTIONS)
def _accumulate_transposed(a, a_row_stride, b, out, out_stride, sizes):
    """Compute out += aᵀ · b, all row-major; b has the stride of out; see `_gemm`."""
    _gemm(INIT_OUT, a, _FLOAT_BYTES, a_row_stride, b, out_stride, _VECTOR_BYTES, out, out_stride, sizes)


@njit(inline="always", **JIT_OPTIONS)
def _microkernel_4x32(init, a, a_row_stride, a_k_stride, b, b_k_stride, b_panel_stride, out, out_stride, k):
    """Compute 4 rows of two panels."""
    out_1, out_2, out_3 = out + out_stride, out + 2 * out_stride, out + 3 * out_stride
    if init == INIT_OUT:
        c00, c10, c20, c30 = simd.load(out), simd.load(out_1), simd.load(out_2), simd.load(out_3)
        c01, c11 = simd.load(out + _VECTOR_BYTES), simd.load(out_1 + _VECTOR_BYTES)
        c21, c31 = simd.load(out_2 + _VECTOR_BYTES), simd.load(out_3 + _VECTOR_BYTES)
    else:
        c00 = c10 = c20 = c30 = c01 = c11 = c21 = c31 = simd.splat(0.0)
    for _ in range(k):
        b0, b1 = simd.load(b), simd.load(b + b_panel_stride)
        a0, a1 = simd.broadcast_load(a), simd.broadcast_load(a + a_row_stride)
        a2, a3 = simd.broadcast_load(a + 2 * a_row_stride), simd.broadcast_load(a + 3 * a_row_stride)
        c00, c10, c20, c30 = c00 + a0 * b0, c10 + a1 * b0, c20 + a2 * b0, c30 + a3 * b0
        c01, c11, c21, c31 = c01 + a0 * b1, c11 + a1 * b1, c21 + a2 * b1, c31 + a3 * b1
        a += a_k_stride
        b += b_k_stride
    simd.store(out, c00)
    simd.store(out_1, c10)
    simd.store(out_2, c20)
    simd.store(out_3, c30)
    simd.store(out + _VECTOR_BYTES, c01)
    simd.store(out_1 + _VECTOR_BYTES, c11)
    simd.store(out_2 + _VECTOR_BYTES, c21)
    simd.store(out_3 + _VECTOR_BYTES, c31)


@njit(inline="always", **JIT_OPTIONS)
def _microkernel_4x16(init, a, a_row_stride, a_k_stride, b, b_k_stride, out, out_stride, k):
    """Compute 4 rows of one panel."""
    out_1, out_2, out_3 = out + out_stride, out + 2 * out_stride, out + 3 * out_stride
    if init == INIT_OUT:
        c0, c1, c2, c3 = simd.load(out), simd.load(out_1), simd.load(out_2), simd.load(out_3)
    else:
        c0 = c1 = c2 = c3 = simd.splat(0.0)
    for _ in range(k):
        b0 = simd.load(b)
        c0, c1 = c0 + simd.broadcast_load(a) * b0, c1 + simd.broadcast_load(a + a_row_stride) * b0
        c2 = c2 + simd.broadcast_load(a + 2 * a_row_stride) * b0
        c3 = c3 + simd.broadcast_load(a + 3 * a_row_stride) * b0
        a += a_k_stride
        b += b_k_stride
    simd.store(out, c0)
    simd.store(out_1, c1)
    simd.store(out_2, c2)
    simd.store(out_3, c3)


@njit(**JIT_OPTIONS)
def _pack_rows(is_bf16, x, stride, rows, head_size, scale, out, out_row_stride, out_panel_stride):
    """Copy rows [rows, head_size] of a head to fp32, times `scale`.

    stride counts elements of x; the other strides are in bytes, between rows and between panels of 16 columns.
    """
    factor, itemsize = simd.splat(scale), 2 if is_bf16 else 4
    for i in range(rows):
        target = out + i * out_row_stride
        for c in range(i * stride, i * stride + head_size, VECTOR_WIDTH):
            simd.store(target, simd.load_vector(is_bf16, x + itemsize * c) * factor)
            target += out_panel_stride


@njit(**JIT_OPTIONS)
def _load_rows(is_bf16, x, stride, rows, head_size, scale, out):
    """Copy rows of a head to contiguous fp32 [rows, head_size], times `scale`."""
    _pack_rows(is_bf16, x, stride, rows, head_size, scale, out, _FLOAT_BYTES * head_size, _VECTOR_BYTES)


@njit(**JIT_OPTIONS)
def _pack_panels(is_bf16, x, stride, rows, head_size, out):
    """Copy rows of a head to fp32 panels [head_size / 16, rows, 16]."""
    _pack_rows(is_bf16, x, stride, rows, head_size, float32(1), out, _VECTOR_BYTES, _VECTOR_BYTES * rows)


@njit(**JIT_OPTIONS)
def _pack_transposed(is_bf16, x, stride, rows, head_size, buffer, out):
    """Transpose rows of a head to panels [round_up(rows) / 16, head_size, 16], with zeros behind the last row.

    buffer: memory for fp32 [round_up(rows), head_size].
    """
    columns, buffer_row_stride = round_up(rows), _FLOAT_BYTES * head_size
    _load_rows(is_bf16, x, stride, rows, head_size, float32(1), buffer)
    attention_common.zero_floats(buffer + rows * buffer_row_stride, (columns - rows) * head_size)
    for i in range(0, columns, _TRANSPOSE_SIZE):
        target = out + i // VECTOR_WIDTH * head_size * _VECTOR_BYTES + i % VECTOR_WIDTH * _FLOAT_BYTES
        for c in range(0, head_size, _TRANSPOSE_SIZE):
            source = buffer + i * buffer_row_stride + c * _FLOAT_BYTES
            simd.transpose_8x8(source, buffer_row_stride, target + c * _VECTOR_BYTES, _VECTOR_BYTES)


# A panel of a packed matrix has 16 columns. The suffix _t marks keys or values transposed to [head_size, keys],
# whose panels are key_panel_stride bytes apart; panels of [keys, head_size] are head_panel_stride bytes apart.


@kernel
def forward(s):
    """Compute O = (P · M)·V with S = Q·Kᵀ/√head_size, P = softmax(S), and the dropout mask M, element by element.

    Slots: see `AttentionArgs`.
    """
    args = attention_common.load_args(s)
    is_bf16, head_size, stats, dropout = args.is_bf16, args.head_size, args.stats, args.dropout
    itemsize, hidden_size = 2 if is_bf16 else 4, args.num_heads * head_size
    head_stride, head_bytes = _FLOAT_BYTES * head_size, _FLOAT_BYTES * args.max_columns * head_size
    keys_t = args.workspace
    values = keys_t + head_bytes
    buffer = values + head_bytes
    scores = buffer + head_bytes + _BLOCK_QUERIES * head_stride
    for index in range(thread_index(), args.num_sequences * args.num_heads, num_threads()):
        head, first_token, num_keys, first_query, end_query = attention_common.head_of_sequence(args, index)
        columns, head_start = round_up(num_keys), itemsize * head * head_size
        score_stride = _FLOAT_BYTES * columns + _ROW_PADDING
        key_panel_stride, head_panel_stride = _VECTOR_BYTES * head_size, _VECTOR_BYTES * num_keys
        key_panels, head_panels = columns // VECTOR_WIDTH, head_size // VECTOR_WIDTH
        if first_query < end_query:
            k = args.key_values + itemsize * first_token * args.kv_stride + head_start
            _pack_transposed(is_bf16, k, args.kv_stride, num_keys, head_size, buffer, keys_t)
            _pack_panels(is_bf16, k + itemsize * hidden_size, args.kv_stride, num_keys, head_size, values)
        for start in range(first_query, end_query, _BLOCK_QUERIES):
            rows = min(_BLOCK_QUERIES, end_query - start)
            q = args.queries + itemsize * start * args.q_stride + head_start
            out = args.output + itemsize * start * hidden_size + head_start
            _load_rows(is_bf16, q, args.q_stride, rows, head_size, args.softmax_scale, buffer)
            sizes = rows, key_panels, head_size
            _matmul(buffer, head_stride, keys_t, key_panel_stride, scores, score_stride, sizes)
            for i in range(rows):
                row = attention_common.row_of_query(args, head, start + i, first_token, num_keys)
                weight_row = scores + i * score_stride
                row_max = masked_row_max(weight_row, columns, row.first_key, row.end_key)
                total = simd.splat(0.0)
                for j in range(0, columns, VECTOR_WIDTH):
                    value = exp_nonpositive(simd.load(weight_row + 4 * j) - row_max)
                    simd.store(weight_row + 4 * j, value)
                    total = total + value
                inverse_sum = float32(1) / simd.reduce_sum(total)
                stats[row.stat], stats[row.stat + 1] = row_max, inverse_sum
                for j in range(0, columns, VECTOR_WIDTH):
                    value = simd.load(weight_row + 4 * j) * inverse_sum
                    if dropout.threshold:
                        value = value * dropout_mask(row.dropout_counter + j, dropout)
                    simd.store(weight_row + 4 * j, value)
            sizes = rows, head_panels, num_keys
            _matmul(scores, score_stride, values, head_panel_stride, buffer, head_stride, sizes)
            store_rows(is_bf16, buffer, rows, head_size, float32(1), out, hidden_size)


@kernel
def backward(s):
    """Compute the gradients of attention from dO, the gradient of the output.

    With S = Q·Kᵀ/√head_size, P = softmax(S), the dropout mask M, and products of equal shapes element by element:

        dV = (P · M)ᵀ·dO
        dP = M · (dO·Vᵀ)
        D = rowsum(P · dP)
        dS = P · (dP - D)
        dQ = dS·K/√head_size
        dK = dSᵀ·Q/√head_size

    Slots: see `AttentionArgs`.
    """
    args = attention_common.load_args(s)
    is_bf16, head_size, softmax_scale = args.is_bf16, args.head_size, args.softmax_scale
    itemsize, hidden_size = 2 if is_bf16 else 4, args.num_heads * head_size
    head_stride, head_bytes = _FLOAT_BYTES * head_size, _FLOAT_BYTES * args.max_columns * head_size
    block_bytes = _BLOCK_QUERIES * (_FLOAT_BYTES * args.max_columns + _ROW_PADDING)
    keys = args.workspace
    keys_t = keys + head_bytes
    values_t = keys_t + head_bytes
    buffer = values_t + head_bytes
    key_grads = buffer + head_bytes
    value_grads = key_grads + head_bytes
    weights = value_grads + head_bytes
    score_grads = weights + block_bytes
    dropped_weights = score_grads + block_bytes
    queries = dropped_weights + block_bytes
    grads = queries + _BLOCK_QUERIES * head_stride  # of the output, then of the queries
    one = float32(1)
    for index in range(thread_index(), args.num_sequences * args.num_heads, num_threads()):
        head, first_token, num_keys, first_query, end_query = attention_common.head_of_sequence(args, index)
        columns, head_start = round_up(num_keys), itemsize * head * head_size
        score_stride = _FLOAT_BYTES * columns + _ROW_PADDING
        key_panel_stride, head_panel_stride = _VECTOR_BYTES * head_size, _VECTOR_BYTES * num_keys
        key_panels, head_panels = columns // VECTOR_WIDTH, head_size // VECTOR_WIDTH
        kv_start, v_offset = itemsize * first_token * args.kv_stride + head_start, itemsize * hidden_size
        if first_query < end_query:
            k = args.key_values + kv_start
            _pack_panels(is_bf16, k, args.kv_stride, num_keys, head_size, keys)
            _pack_transposed(is_bf16, k, args.kv_stride, num_keys, head_size, buffer, keys_t)
            _pack_transposed(is_bf16, k + v_offset, args.kv_stride, num_keys, head_size, buffer, values_t)
        attention_common.zero_floats(key_grads, columns * head_size)
        attention_common.zero_floats(value_grads, columns * head_size)
        for start in range(first_query, end_query, _BLOCK_QUERIES):
            rows = min(_BLOCK_QUERIES, end_query - start)
            q_start = itemsize * start * args.q_stride + head_start
            q, out_grad = args.queries + q_start, args.out_grad + itemsize * start * hidden_size + head_start
            _load_rows(is_bf16, q, args.q_stride, rows, head_size, softmax_scale, queries)
            _load_rows(is_bf16, out_grad, hidden_size, rows, head_size, one, grads)
            sizes = rows, key_panels, head_size
            _matmul(queries, head_stride, keys_t, key_panel_stride, weights, score_stride, sizes)
            _matmul(grads, head_stride, values_t, key_panel_stride, score_grads, score_stride, sizes)
            for i in range(rows):
                row = attention_common.row_of_query(args, head, start + i, first_token, num_keys)
                weight_row, grad_row = weights + i * score_stride, score_grads + i * score_stride
                dropped_row = dropped_weights + i * score_stride
                # The queries are multiplied by softmax_scale already, so neither the scores need a scale nor the
                # gradient of the keys.
                delta = recompute_weights(args, row, weight_row, grad_row, columns, one, False, dropped_row)
                attention_common.store_score_grads(weight_row, grad_row, delta, columns, one, False, grad_row)
            sizes = num_keys, head_panels, rows
            _accumulate_transposed(dropped_weights, score_stride, grads, value_grads, head_stride, sizes)
            _accumulate_transposed(score_grads, score_stride, queries, key_grads, head_stride, sizes)
            sizes = rows, head_panels, num_keys
            _matmul(score_grads, score_stride, keys, head_panel_stride, grads, head_stride, sizes)
            store_rows(is_bf16, grads, rows, head_size, softmax_scale, args.output + q_start, args.q_stride)
        kv_grad = args.key_value_grads + kv_start
        store_rows(is_bf16, key_grads, num_keys, head_size, one, kv_grad, args.kv_stride)
        store_rows(is_bf16, value_grads, num_keys, head_size, one, kv_grad + v_offset, args.kv_stride)
