"""Parts that attention in fp32 and in bf16 share: arguments, masks, and the backward pass through the softmax.

The names are those of attention_fp32.py: S the scores, P the weights, M the dropout mask, and D = rowsum(P · dP).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from bertsmith.kernels.cpu import simd
from bertsmith.kernels.cpu.arrays import floats, int64s
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, float32
from bertsmith.kernels.cpu.launcher import thread_index
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH
from bertsmith.kernels.cpu.vector_functions import DropoutParams, dropout_mask, exp_nonpositive, load_dropout

_CAUSAL, _REVERSE_CAUSAL = 1, 2
DIRECTIONS = {"all": 0, "before": _CAUSAL, "behind": _REVERSE_CAUSAL}


class AttentionArgs(NamedTuple):
    """Arguments of the kernels, and what follows from them for a thread.

    Strides count elements; H is num_heads · head_size, and N the number of tokens. In parentheses: the slot.

    Attributes:
        is_bf16: 1 for bf16, 0 for fp32 (0).
        queries: Address, [num_queries, H] with `q_stride` (1).
        output: Address; forward: output, contiguous [num_queries, H]; backward: gradient of the queries, with
            `q_stride` (2).
        stats: fp32 [num_queries, num_heads, 2]: maximum of a row of scaled scores, and 1 / sum of
            exp(score - maximum) (3: address).
        cu_seqlens: int64 [num_sequences + 1] (4: address).
        num_sequences: Count (5).
        num_heads: Count (6).
        head_size: Count (7).
        direction: A value of DIRECTIONS (8).
        dropout: Seed, threshold, and scale (9 to 12, see `load_dropout`).
        max_columns: Length of the longest sequence (14), rounded up to 16.
        workspace: Address of this thread's workspace (15: of all threads, 16: fp32 elements per thread, from
            `workspace_size`).
        out_grad: Address, gradient of the output, contiguous [num_queries, H]; backward only (17).
        tile_config: Address, configuration of AMX tiles; attention_bf16.py only (18).
        key_values: Address, [N, 2H] with `kv_stride`: the keys, with the values behind them in each row (19).
        q_stride: Row stride of the queries (20).
        kv_stride: Row stride of keys and values (21).
        query_cu_seqlens: int64 [num_sequences + 1]: the first query of each sequence and the end of the last (22:
            address).
        query_indices: Address of the index of each query's token, or 0 if each token has a query (23).
        key_value_grads: Address, gradients of keys and values, like `key_values`; backward only (24).
        softmax_scale: 1 / √head_size.
    """

    is_bf16: int
    queries: int
    output: int
    stats: Any
    cu_seqlens: Any
    num_sequences: int
    num_heads: int
    head_size: int
    direction: int
    dropout: DropoutParams
    max_columns: int
    workspace: int
    out_grad: int
    tile_config: int
    key_values: int
    q_stride: int
    kv_stride: int
    query_cu_seqlens: Any
    query_indices: int
    key_value_grads: int
    softmax_scale: float


@njit(**JIT_OPTIONS)
def load_args(s):
    """Return the arguments in the slots of a kernel (13: num_queries)."""
    num_sequences, num_heads, head_size = s[5], s[6], s[7]
    stats, cu_seqlens = floats(s[3], 2 * s[13] * num_heads), int64s(s[4], num_sequences + 1)
    workspace = s[15] + 4 * thread_index() * s[16]
    query_cu_seqlens = int64s(s[22], num_sequences + 1)
    softmax_scale = float32(1) / np.sqrt(float32(head_size))
    sizes = num_sequences, num_heads, head_size, s[8], load_dropout(s, 9), round_up(s[14])
    tensors = s[17], s[18], s[19], s[20], s[21], query_cu_seqlens, s[23], s[24], softmax_scale
    return AttentionArgs(s[0], s[1], s[2], stats, cu_seqlens, *sizes, workspace, *tensors)


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
def head_of_sequence(args, index):
    """Return a head, its sequence's first token and number of keys, and the range of its queries."""
    sequence, head = index // args.num_heads, index % args.num_heads
    first_token, end_token = args.cu_seqlens[sequence], args.cu_seqlens[sequence + 1]
    first_query, end_query = args.query_cu_seqlens[sequence], args.query_cu_seqlens[sequence + 1]
    return head, first_token, end_token - first_token, first_query, end_query


class ScoreRow(NamedTuple):
    """The keys that a query attends to, the counter of its row's dropout, and the index of its statistics."""

    first_key: int
    end_key: int
    dropout_counter: int
    stat: int


@njit(inline="always", **JIT_OPTIONS)
def row_of_query(args, head, query, first_token, num_keys):
    """Return the `ScoreRow` of a query."""
    token = int64s(args.query_indices, query + 1)[query] if args.query_indices else query
    first_key = token - first_token if args.direction == _REVERSE_CAUSAL else 0
    end_key = token - first_token + 1 if args.direction == _CAUSAL else num_keys
    dropout_counter = (token * args.num_heads + head) * args.max_columns
    return ScoreRow(first_key, end_key, dropout_counter, 2 * (query * args.num_heads + head))


@njit(inline="always", **JIT_OPTIONS)
def recompute_weights(args, row, scores, grads, columns, scale, is_bf16, dropped_weights):
    """Recompute a row of weights from its scores, and return its element of D.

    scores: S / scale, becomes P. grads: dO·Vᵀ, becomes P · dP. dropped_weights: memory for P · M.
    """
    row_max, inverse_sum = simd.splat(args.stats[row.stat]), simd.splat(args.stats[row.stat + 1])
    total, itemsize = simd.splat(0.0), 2 if is_bf16 else 4
    for j in range(0, columns, VECTOR_WIDTH):
        score = load_masked_scores(scores, j, row.first_key, row.end_key) * scale
        weight = exp_nonpositive(score - row_max) * inverse_sum
        dropped_weight = weight
        if args.dropout.threshold:
            dropped_weight = weight * dropout_mask(row.dropout_counter + j, args.dropout)
        grad = simd.load(grads + 4 * j) * dropped_weight
        simd.store(scores + 4 * j, weight)
        simd.store_vector(is_bf16, dropped_weights + itemsize * j, dropped_weight)
        simd.store(grads + 4 * j, grad)
        total = total + grad
    return simd.reduce_sum(total)


@njit(inline="always", **JIT_OPTIONS)
def store_score_grads(weights, grads, delta, columns, scale, is_bf16, score_grads):
    """Store a row of dS · scale, dS = P · (dP - D), from P, P · dP, and the row's element of D."""
    delta, itemsize = simd.splat(delta), 2 if is_bf16 else 4
    for j in range(0, columns, VECTOR_WIDTH):
        grad = simd.load(grads + 4 * j) - simd.load(weights + 4 * j) * delta
        simd.store_vector(is_bf16, score_grads + itemsize * j, grad * scale)


@njit(**JIT_OPTIONS)
def store_rows(is_bf16, x, rows, head_size, scale, out, stride):
    """Store contiguous fp32 rows [rows, head_size], times `scale`, as rows of a head, `stride` elements apart."""
    factor, itemsize = simd.splat(scale), 2 if is_bf16 else 4
    for i in range(rows):
        for c in range(i * stride, i * stride + head_size, VECTOR_WIDTH):
            simd.store_vector(is_bf16, out + itemsize * c, simd.load(x) * factor)
            x += 4 * VECTOR_WIDTH


@njit(**JIT_OPTIONS)
def zero_floats(address, size):
    """Set fp32 elements at an address to 0."""
    floats(address, size)[:] = float32(0)
