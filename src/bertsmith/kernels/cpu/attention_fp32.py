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

import numpy as np
from numba import njit

from bertsmith.kernels.cpu import simd
from bertsmith.kernels.cpu.arrays import floats, int64s
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, float32, has_cpu_feature, kernel
from bertsmith.kernels.cpu.launcher import num_threads, thread_index
from bertsmith.kernels.cpu.microkernels import FP32_ROWS, INIT_OUT, INIT_ZERO, microkernel_6x16
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH
from bertsmith.kernels.cpu.vector_functions import dropout_mask, exp_nonpositive, load_dropout

_CAUSAL, _REVERSE_CAUSAL = 1, 2
DIRECTIONS = {"all": 0, "before": _CAUSAL, "behind": _REVERSE_CAUSAL}
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
        c2, c3 = (
            c2 + simd.broadcast_load(a + 2 * a_row_stride) * b0,
            c3 + simd.broadcast_load(a + 3 * a_row_stride) * b0,
        )
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
def store_rows(is_bf16, x, rows, head_size, scale, out, stride):
    """Store contiguous fp32 rows [rows, head_size], times `scale`, as rows of a head, `stride` elements apart."""
    factor, itemsize = simd.splat(scale), 2 if is_bf16 else 4
    for i in range(rows):
        for c in range(i * stride, i * stride + head_size, VECTOR_WIDTH):
            simd.store_vector(is_bf16, out + itemsize * c, simd.load(x) * factor)
            x += _VECTOR_BYTES


@njit(**JIT_OPTIONS)
def zero_floats(address, size):
    """Set fp32 elements at an address to 0."""
    floats(address, size)[:] = float32(0)


@njit(**JIT_OPTIONS)
def _pack_transposed(is_bf16, x, stride, rows, head_size, buffer, out):
    """Transpose rows of a head to panels [round_up(rows) / 16, head_size, 16], with zeros behind the last row.

    buffer: memory for fp32 [round_up(rows), head_size].
    """
    columns, buffer_row_stride = round_up(rows), _FLOAT_BYTES * head_size
    _pack_rows(is_bf16, x, stride, rows, head_size, float32(1), buffer, buffer_row_stride, _VECTOR_BYTES)
    zero_floats(buffer + rows * buffer_row_stride, (columns - rows) * head_size)
    for i in range(0, columns, _TRANSPOSE_SIZE):
        target = out + i // VECTOR_WIDTH * head_size * _VECTOR_BYTES + i % VECTOR_WIDTH * _FLOAT_BYTES
        for c in range(0, head_size, _TRANSPOSE_SIZE):
            source = buffer + i * buffer_row_stride + c * _FLOAT_BYTES
            simd.transpose_8x8(source, buffer_row_stride, target + c * _VECTOR_BYTES, _VECTOR_BYTES)


@njit(inline="always", **JIT_OPTIONS)
def visible_range(position, num_keys, direction):
    """Return the range of keys that the query at a position of its sequence attends to."""
    start = position if direction == _REVERSE_CAUSAL else 0
    return start, position + 1 if direction == _CAUSAL else num_keys


@njit(inline="always", **JIT_OPTIONS)
def load_masked_scores(scores, j, start, end):
    """Load 16 scores of a row from key j on, with -inf for keys outside of range(start, end)."""
    value = simd.load(scores + 4 * j)
    return value if start <= j and j + VECTOR_WIDTH <= end else simd.mask_lanes(value, j, start, end)


@njit(inline="always", **JIT_OPTIONS)
def masked_row_max(scores, columns, start, end):
    """Return the maximum of a row of scores, and store -inf for keys outside of range(start, end)."""
    maxima = simd.splat(-np.inf)
    for j in range(0, columns, VECTOR_WIDTH):
        value = load_masked_scores(scores, j, start, end)
        simd.store(scores + 4 * j, value)
        maxima = simd.maximum(maxima, value)
    return simd.reduce_max(maxima)


@njit(**JIT_OPTIONS)
def round_up(count):
    """Return the least multiple of the vector width that is not below `count`."""
    return (count + VECTOR_WIDTH - 1) // VECTOR_WIDTH * VECTOR_WIDTH


@njit(inline="always", **JIT_OPTIONS)
def query_token(query_indices, query):
    """Return the index of a query's token; query_indices: an address, or 0 if each token has a query."""
    return int64s(query_indices, query + 1)[query] if query_indices else query


# Slots of both kernels, also in attention_bf16.py. Strides count elements; H is num_heads · head_size, and N the
# number of tokens.
#  0 is_bf16           1 for bf16, 0 for fp32
#  1 queries           address, [num_queries, H] with stride 20
#  2 output            address; forward: output, contiguous [num_queries, H]; backward: gradient of the queries,
#                      with stride 20
#  3 stats             address, fp32 [num_queries, num_heads, 2]: maximum of a row of scaled scores, and
#                      1 / sum of exp(score - maximum)
#  4 cu_seqlens        address, int64 [num_sequences + 1]
#  5 num_sequences     count
#  6 num_heads         count
#  7 head_size         count
#  8 direction         a value of DIRECTIONS
#  9 dropout seed      lower 32 bits
# 10 dropout seed      upper 32 bits
# 11 dropout threshold dropout probability in units of 1/65,536
# 12 dropout scale     bits of the fp32 factor of the weights that are kept
# 13 num_queries       count
# 14 max_seqlen        count
# 15 workspace         address
# 16 workspace stride  fp32 elements of workspace per thread, from `workspace_size`
# 17 out_grad          address, gradient of the output, contiguous [num_queries, H]; backward only
# 18 tile_config       address, configuration of AMX tiles; attention_bf16.py only
# 19 keys              address, [N, 2H] with stride 21: the keys, with the values behind them in each row
# 20 q_stride          count, row stride of the queries
# 21 kv_stride         count, row stride of keys and values
# 22 query_cu_seqlens  address, int64 [num_sequences + 1]: the first query of each sequence and the end of the last
# 23 query_indices     address or 0, see `query_token`
# 24 key_grads         address, gradients of keys and values, like slot 19; backward only
#
# A panel of a packed matrix has 16 columns. The suffix _t marks keys or values transposed to [head_size, keys],
# whose panels are key_panel_stride bytes apart; panels of [keys, head_size] are head_panel_stride bytes apart.


@kernel
def forward(s):
    """Compute O = (P · M)·V with S = Q·Kᵀ/√head_size, P = softmax(S), and the dropout mask M, element by element.

    Slots: see above.
    """
    is_bf16, q_base, out_base, k_base = s[0], s[1], s[2], s[19]
    num_sequences, num_heads, head_size, direction = s[5], s[6], s[7], s[8]
    num_queries, max_seqlen, workspace_stride = s[13], s[14], s[16]
    q_stride, kv_stride, query_indices = s[20], s[21], s[23]
    workspace = s[15] + _FLOAT_BYTES * thread_index() * workspace_stride
    stats, cu_seqlens = floats(s[3], 2 * num_queries * num_heads), int64s(s[4], num_sequences + 1)
    query_cu_seqlens, dropout = int64s(s[22], num_sequences + 1), load_dropout(s, 9)
    itemsize, hidden_size, max_columns = 2 if is_bf16 else 4, num_heads * head_size, round_up(max_seqlen)
    head_stride, head_bytes = _FLOAT_BYTES * head_size, _FLOAT_BYTES * max_columns * head_size
    keys_t = workspace
    values = keys_t + head_bytes
    buffer = values + head_bytes
    scores = buffer + head_bytes + _BLOCK_QUERIES * head_stride
    one, softmax_scale = float32(1), float32(1) / np.sqrt(float32(head_size))
    for index in range(thread_index(), num_sequences * num_heads, num_threads()):
        sequence, head = index // num_heads, index % num_heads
        first_token, num_keys = cu_seqlens[sequence], cu_seqlens[sequence + 1] - cu_seqlens[sequence]
        first_query, end_query = query_cu_seqlens[sequence], query_cu_seqlens[sequence + 1]
        columns, head_start = round_up(num_keys), itemsize * head * head_size
        score_stride = _FLOAT_BYTES * columns + _ROW_PADDING
        key_panel_stride, head_panel_stride = _VECTOR_BYTES * head_size, _VECTOR_BYTES * num_keys
        key_panels, head_panels = columns // VECTOR_WIDTH, head_size // VECTOR_WIDTH
        k = k_base + itemsize * first_token * kv_stride + head_start
        v = k + itemsize * hidden_size
        if first_query < end_query:
            _pack_transposed(is_bf16, k, kv_stride, num_keys, head_size, buffer, keys_t)
            _pack_rows(
                is_bf16, v, kv_stride, num_keys, head_size, one, values, _VECTOR_BYTES, head_panel_stride
            )
        for start in range(first_query, end_query, _BLOCK_QUERIES):
            rows = min(_BLOCK_QUERIES, end_query - start)
            q = q_base + itemsize * start * q_stride + head_start
            out = out_base + itemsize * start * hidden_size + head_start
            _pack_rows(
                is_bf16, q, q_stride, rows, head_size, softmax_scale, buffer, head_stride, _VECTOR_BYTES
            )
            sizes = rows, key_panels, head_size
            _matmul(buffer, head_stride, keys_t, key_panel_stride, scores, score_stride, sizes)
            for i in range(rows):
                row, token = scores + i * score_stride, query_token(query_indices, start + i)
                first_key, end_key = visible_range(token - first_token, num_keys, direction)
                row_max = masked_row_max(row, columns, first_key, end_key)
                total = simd.splat(0.0)
                for j in range(0, columns, VECTOR_WIDTH):
                    value = exp_nonpositive(simd.load(row + 4 * j) - row_max)
                    simd.store(row + 4 * j, value)
                    total = total + value
                inverse_sum = float32(1) / simd.reduce_sum(total)
                stat = 2 * ((start + i) * num_heads + head)
                stats[stat], stats[stat + 1] = row_max, inverse_sum
                element = (token * num_heads + head) * max_columns  # counter of the row's dropout
                for j in range(0, columns, VECTOR_WIDTH):
                    value = simd.load(row + 4 * j) * inverse_sum
                    if dropout.threshold:
                        value = value * dropout_mask(element + j, dropout)
                    simd.store(row + 4 * j, value)
            sizes = rows, head_panels, num_keys
            _matmul(scores, score_stride, values, head_panel_stride, buffer, head_stride, sizes)
            store_rows(is_bf16, buffer, rows, head_size, one, out, hidden_size)


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

    Slots: see above.
    """
    is_bf16, q_base, q_grad_base, k_base = s[0], s[1], s[2], s[19]
    num_sequences, num_heads, head_size, direction = s[5], s[6], s[7], s[8]
    num_queries, max_seqlen, workspace_stride = s[13], s[14], s[16]
    q_stride, kv_stride, query_indices = s[20], s[21], s[23]
    workspace = s[15] + _FLOAT_BYTES * thread_index() * workspace_stride
    out_grad_base, k_grad_base = s[17], s[24]
    stats, cu_seqlens = floats(s[3], 2 * num_queries * num_heads), int64s(s[4], num_sequences + 1)
    query_cu_seqlens, dropout = int64s(s[22], num_sequences + 1), load_dropout(s, 9)
    itemsize, hidden_size, max_columns = 2 if is_bf16 else 4, num_heads * head_size, round_up(max_seqlen)
    head_stride, head_bytes = _FLOAT_BYTES * head_size, _FLOAT_BYTES * max_columns * head_size
    block_bytes = _BLOCK_QUERIES * (_FLOAT_BYTES * max_columns + _ROW_PADDING)
    keys = workspace
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
    one, softmax_scale = float32(1), float32(1) / np.sqrt(float32(head_size))
    for index in range(thread_index(), num_sequences * num_heads, num_threads()):
        sequence, head = index // num_heads, index % num_heads
        first_token, num_keys = cu_seqlens[sequence], cu_seqlens[sequence + 1] - cu_seqlens[sequence]
        first_query, end_query = query_cu_seqlens[sequence], query_cu_seqlens[sequence + 1]
        columns, head_start = round_up(num_keys), itemsize * head * head_size
        score_stride = _FLOAT_BYTES * columns + _ROW_PADDING
        key_panel_stride, head_panel_stride = _VECTOR_BYTES * head_size, _VECTOR_BYTES * num_keys
        key_panels, head_panels = columns // VECTOR_WIDTH, head_size // VECTOR_WIDTH
        kv_start, v_offset = itemsize * first_token * kv_stride + head_start, itemsize * hidden_size
        if first_query < end_query:
            k = k_base + kv_start
            _pack_rows(
                is_bf16, k, kv_stride, num_keys, head_size, one, keys, _VECTOR_BYTES, head_panel_stride
            )
            _pack_transposed(is_bf16, k, kv_stride, num_keys, head_size, buffer, keys_t)
            _pack_transposed(is_bf16, k + v_offset, kv_stride, num_keys, head_size, buffer, values_t)
        zero_floats(key_grads, columns * head_size)
        zero_floats(value_grads, columns * head_size)
        for start in range(first_query, end_query, _BLOCK_QUERIES):
            rows = min(_BLOCK_QUERIES, end_query - start)
            q_start = itemsize * start * q_stride + head_start
            out_grad = out_grad_base + itemsize * start * hidden_size + head_start
            q = q_base + q_start
            _pack_rows(
                is_bf16, q, q_stride, rows, head_size, softmax_scale, queries, head_stride, _VECTOR_BYTES
            )
            _pack_rows(
                is_bf16, out_grad, hidden_size, rows, head_size, one, grads, head_stride, _VECTOR_BYTES
            )
            sizes = rows, key_panels, head_size
            _matmul(queries, head_stride, keys_t, key_panel_stride, weights, score_stride, sizes)
            _matmul(grads, head_stride, values_t, key_panel_stride, score_grads, score_stride, sizes)
            for i in range(rows):
                row, grad_row = weights + i * score_stride, score_grads + i * score_stride
                dropped_row = dropped_weights + i * score_stride
                token, stat = query_token(query_indices, start + i), 2 * ((start + i) * num_heads + head)
                first_key, end_key = visible_range(token - first_token, num_keys, direction)
                element = (token * num_heads + head) * max_columns  # counter of the row's dropout
                row_max, inverse_sum = simd.splat(stats[stat]), simd.splat(stats[stat + 1])
                total = simd.splat(0.0)
                for j in range(0, columns, VECTOR_WIDTH):
                    score, grad = load_masked_scores(row, j, first_key, end_key), simd.load(grad_row + 4 * j)
                    weight = exp_nonpositive(score - row_max) * inverse_sum
                    dropped_weight = weight
                    if dropout.threshold:
                        dropped_weight = weight * dropout_mask(element + j, dropout)
                    grad = grad * dropped_weight
                    simd.store(row + 4 * j, weight)
                    simd.store(dropped_row + 4 * j, dropped_weight)
                    simd.store(grad_row + 4 * j, grad)
                    total = total + grad
                delta = simd.splat(simd.reduce_sum(total))
                for j in range(0, columns, VECTOR_WIDTH):
                    simd.store(grad_row + 4 * j, simd.load(grad_row + 4 * j) - simd.load(row + 4 * j) * delta)
            sizes = num_keys, head_panels, rows
            _accumulate_transposed(dropped_weights, score_stride, grads, value_grads, head_stride, sizes)
            # The queries are multiplied by softmax_scale already, so the gradient of the keys needs no scale.
            _accumulate_transposed(score_grads, score_stride, queries, key_grads, head_stride, sizes)
            sizes = rows, head_panels, num_keys
            _matmul(score_grads, score_stride, keys, head_panel_stride, grads, head_stride, sizes)
            store_rows(is_bf16, grads, rows, head_size, softmax_scale, q_grad_base + q_start, q_stride)
        k_grad = k_grad_base + kv_start
        store_rows(is_bf16, key_grads, num_keys, head_size, one, k_grad, kv_stride)
        store_rows(is_bf16, value_grads, num_keys, head_size, one, k_grad + v_offset, kv_stride)
