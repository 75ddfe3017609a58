"""Flash attention over packed sequences, forward and backward, as Triton kernels.

Scores are never written to memory (Dao 2023). The backward pass computes the query gradients first and then the
key and value gradients, with the scores recomputed in both, instead of adding up query gradients atomically:
every sum has a fixed order, so that the same batch always has the same gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertsmith.kernels.gpu import attention_dropout

MAX_HEAD_SIZE = 64  # Larger heads do not fit into the registers.
_MIN_DOT_SIZE = 16  # of a matrix product on tensor cores
_LOG2E = tl.constexpr(1.4426950408889634)
_BLOCK_SIZE = tl.constexpr(64)  # tokens whose outputs a program computes
_STEP_SIZE = tl.constexpr(64)  # tokens that a program reads per step
_LAUNCH_OPTIONS = {"num_warps": 4, "num_stages": 2}
# Registers of a thread limit how many programs a multiprocessor runs at once.
_MAX_REGISTERS, _KEY_VALUE_MAX_REGISTERS = 128, 168
# Dropped weights are replaced by this argument. A constant would be inserted after the conversion to bf16, where
# two weights share a register, which takes three more instructions.
_ZERO = 0.0
MAX_SEQUENCES = 2**16 - 1  # of the third dimension of a grid


class TritonAttentionConfig(NamedTuple):
    """Configuration of attention over packed sequences.

    Attributes:
        cu_seqlens: Cumulative sequence lengths, integers [B + 1].
        max_seqlen: An upper bound of the sequence lengths.
        num_heads: The number of heads.
        causal: True if a token attends only to itself and to earlier tokens.
        dropout_p: The dropout probability of attention weights; None without dropout.
        seeds: The seeds of dropout masks, int32 [2].
    """

    cu_seqlens: Tensor
    max_seqlen: int
    num_heads: int
    causal: bool
    dropout_p: float | None
    seeds: Tensor

    @property
    def dropout_threshold(self) -> int:
        """Return the value below which a weight's 32 dropout bits drop it."""
        return min(round((self.dropout_p or 0.0) * 2**32), 2**32 - 1)


class AttentionActivations(NamedTuple):
    """Results of the forward pass that the backward pass reads.

    Attributes:
        out: The outputs, [N, H].
        logsumexp: The logarithm to base 2 of each row's sum of exponentials, fp32 [A, N].
        row_hashes: The two dropout hashes of each row, int32 [2, A, N]; [0, A, N] without dropout.
    """

    out: Tensor
    logsumexp: Tensor
    row_hashes: Tensor


def attention(qkv: Tensor, config: TritonAttentionConfig) -> Tensor:
    """Compute attention with autograd support, [N, 3H] → [N, H]."""
    out: Tensor = _Attention.apply(qkv, config)
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, config: TritonAttentionConfig) -> Tensor:
        activations = attention_forward(qkv.contiguous(), config)
        ctx.save_for_backward(qkv, *activations)
        ctx.config = config
        return activations.out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        qkv, *saved = ctx.saved_tensors
        return attention_backward(grad, qkv.contiguous(), AttentionActivations(*saved), ctx.config), None


def attention_forward(qkv: Tensor, config: TritonAttentionConfig) -> AttentionActivations:
    """Compute attention for contiguous qkv [N, 3H]."""
    num_tokens, num_columns = qkv.shape
    activations = AttentionActivations(
        qkv.new_empty(num_tokens, num_columns // 3),
        qkv.new_empty(config.num_heads, num_tokens, dtype=torch.float32),
        qkv.new_empty(2 if config.dropout_threshold else 0, config.num_heads, num_tokens, dtype=torch.int32),
    )
    with torch.cuda.device_of(qkv):
        _attention_kernel[_grid(config)](
            *(qkv, *activations, config.cu_seqlens, config.seeds, num_tokens, _ZERO),
            *_constants(qkv, config),
            maxnreg=_MAX_REGISTERS,
            **_LAUNCH_OPTIONS,
        )
    return activations


def attention_backward(
    grad: Tensor, qkv: Tensor, activations: AttentionActivations, config: TritonAttentionConfig
) -> Tensor:
    """Compute the gradient of qkv [N, 3H] from the gradient of the outputs [N, H]."""
    out, logsumexp, row_hashes = activations
    grad, qkv_grad, deltas = grad.contiguous(), torch.empty_like(qkv), torch.empty_like(logsumexp)
    with torch.cuda.device_of(qkv):
        for kernel, max_registers in (
            (_query_grad_kernel, _MAX_REGISTERS),
            (_key_value_grad_kernel, _KEY_VALUE_MAX_REGISTERS),
        ):
            kernel[_grid(config)](
                *(qkv, out, grad, logsumexp, deltas, row_hashes, qkv_grad),
                *(config.cu_seqlens, config.seeds, len(qkv), _ZERO),
                *_constants(qkv, config),
                maxnreg=max_registers,
                **_LAUNCH_OPTIONS,
            )
    return qkv_grad


def _grid(config: TritonAttentionConfig) -> tuple[int, int, int]:
    return -(-config.max_seqlen // _BLOCK_SIZE.value), config.num_heads, len(config.cu_seqlens) - 1


def _constants(qkv: Tensor, config: TritonAttentionConfig) -> Sequence[int]:
    """Return the kernels' constant arguments, from NUM_HEADS to DROPOUT_THRESHOLD."""
    head_size = qkv.shape[1] // 3 // config.num_heads
    block_columns = max(_MIN_DOT_SIZE, triton.next_power_of_2(head_size))
    return config.num_heads, head_size, block_columns, config.causal, config.dropout_threshold


@triton.jit
def _sequence_range(cu_seqlens):
    """Return the first token and the length of the program's sequence."""
    sequence = tl.program_id(2)
    start = tl.load(cu_seqlens + sequence).to(tl.int32)
    return start, tl.load(cu_seqlens + sequence + 1).to(tl.int32) - start


@triton.jit
def _key_range(block, length, CAUSAL: tl.constexpr):
    """Return the end of the full steps of keys that all rows attend to, and the end of all steps.

    The keys of full steps need no mask; those behind them do.
    """
    end = tl.minimum(length, (block + 1) * _BLOCK_SIZE) if CAUSAL else length
    full_end = (tl.minimum(length, block * _BLOCK_SIZE) if CAUSAL else length) // _STEP_SIZE * _STEP_SIZE
    return full_end, end


@triton.jit
def _head_pointer(tensor, start, head, STRIDE: tl.constexpr, HEAD_SIZE: tl.constexpr):
    """Return the pointer to the head's columns of the sequence's first token."""
    return tensor + start.to(tl.int64) * STRIDE + head * HEAD_SIZE


@triton.jit
def _load_block(tensor, rows, columns, length, STRIDE: tl.constexpr, HEAD_SIZE: tl.constexpr):
    """Load the head's columns of rows; those behind the sequence or the head are 0."""
    mask = (rows[:, None] < length) & (columns[None, :] < HEAD_SIZE)
    return tl.load(tensor + rows[:, None] * STRIDE + columns[None, :], mask=mask, other=0.0)


@triton.jit
def _online_softmax(scores, max_score, sum_exp, SCALE: tl.constexpr):
    """Return the weights, the factor of earlier sums, and the new maximum and sum of each row."""
    new_max = tl.maximum(max_score, tl.max(scores, 1) * (SCALE * _LOG2E))
    weights = tl.exp2(scores * (SCALE * _LOG2E) - new_max[:, None])
    rescale = tl.exp2(max_score - new_max)
    return weights, rescale, new_max, sum_exp * rescale + tl.sum(weights, 1)


@triton.jit
def _recompute_weights(
    q, k, logsumexp, rows, keys, length, SCALE: tl.constexpr, CAUSAL: tl.constexpr, IS_MASKED: tl.constexpr
):
    """Compute the weights of the forward pass from each row's logsumexp."""
    scores = tl.dot(q, tl.trans(k)) * (SCALE * _LOG2E) - logsumexp[:, None]
    if IS_MASKED:
        score_mask = keys[None, :] <= rows[:, None] if CAUSAL else keys[None, :] < length
        scores = tl.where(score_mask, scores, float("-inf"))
    return tl.exp2(scores)


@triton.jit(do_not_specialize=["num_tokens"])
def _attention_kernel(
    qkv,
    out,
    logsumexp,
    row_hashes,
    cu_seqlens,
    seeds,
    num_tokens,
    zero,
    NUM_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    CAUSAL: tl.constexpr,
    DROPOUT_THRESHOLD: tl.constexpr,
):
    """Compute the outputs of a block of queries by online softmax."""
    block, head = tl.program_id(0), tl.program_id(1)
    start, length = _sequence_range(cu_seqlens)
    if block * _BLOCK_SIZE >= length:
        return
    stride: tl.constexpr = NUM_HEADS * HEAD_SIZE
    scale: tl.constexpr = HEAD_SIZE**-0.5
    rows = block * _BLOCK_SIZE + tl.arange(0, _BLOCK_SIZE)
    columns = tl.arange(0, BLOCK_COLUMNS)
    column_mask = columns[None, :] < HEAD_SIZE
    qkv = _head_pointer(qkv, start, head, 3 * stride, HEAD_SIZE)
    q = _load_block(qkv, rows, columns, length, 3 * stride, HEAD_SIZE)
    max_score = tl.full([_BLOCK_SIZE], float("-inf"), tl.float32)
    sum_exp = tl.zeros([_BLOCK_SIZE], tl.float32)
    acc = tl.zeros([_BLOCK_SIZE, BLOCK_COLUMNS], tl.float32)
    if DROPOUT_THRESHOLD:
        a, b = attention_dropout.hash_rows(start + rows, head, seeds, NUM_HEADS)
        row_hashes += head * num_tokens + start
        attention_dropout.store_row_hashes(row_hashes, a, b, rows, length, num_tokens, NUM_HEADS)
    full_end, end = _key_range(block, length, CAUSAL)
    for is_masked in tl.static_range(2):
        for key_start in range(full_end if is_masked else 0, end if is_masked else full_end, _STEP_SIZE):
            keys = key_start + tl.arange(0, _STEP_SIZE)
            key_pointers = qkv + keys[:, None] * (3 * stride) + columns[None, :]
            key_mask = (keys[:, None] < length) & column_mask if is_masked else column_mask
            k = tl.load(key_pointers + stride, mask=key_mask, other=0.0)
            v = tl.load(key_pointers + 2 * stride, mask=key_mask, other=0.0)
            scores = tl.dot(q, tl.trans(k))
            if is_masked:
                score_mask = keys[None, :] < length
                if CAUSAL:
                    score_mask = score_mask & (keys[None, :] <= rows[:, None])
                scores = tl.where(score_mask, scores, float("-inf"))
            weights, rescale, max_score, sum_exp = _online_softmax(scores, max_score, sum_exp, scale)
            if DROPOUT_THRESHOLD:
                keep_mask = attention_dropout.delayed_keep_mask(a, b, keys, seeds, weights, DROPOUT_THRESHOLD)
                weights = tl.where(keep_mask, weights, zero)
            acc = acc * rescale[:, None] + tl.dot(weights.to(v.dtype), v)
    divisor = sum_exp * (1.0 - DROPOUT_THRESHOLD * (0.5**32))
    out = _head_pointer(out, start, head, stride, HEAD_SIZE) + rows[:, None] * stride + columns[None, :]
    tl.store(out, (acc / divisor[:, None]).to(q.dtype), mask=(rows[:, None] < length) & column_mask)
    tl.store(logsumexp + head * num_tokens + start + rows, max_score + tl.log2(sum_exp), mask=rows < length)


@triton.jit(do_not_specialize=["num_tokens"])
def _query_grad_kernel(
    qkv,
    out,
    grad,
    logsumexp,
    deltas,
    row_hashes,
    qkv_grad,
    cu_seqlens,
    seeds,
    num_tokens,
    zero,
    NUM_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    CAUSAL: tl.constexpr,
    DROPOUT_THRESHOLD: tl.constexpr,
):
    """Compute the gradients of a block of queries, and delta = sum(out * grad) of each row (Dao 2023)."""
    block, head = tl.program_id(0), tl.program_id(1)
    start, length = _sequence_range(cu_seqlens)
    if block * _BLOCK_SIZE >= length:
        return
    stride: tl.constexpr = NUM_HEADS * HEAD_SIZE
    scale: tl.constexpr = HEAD_SIZE**-0.5
    rows = block * _BLOCK_SIZE + tl.arange(0, _BLOCK_SIZE)
    columns = tl.arange(0, BLOCK_COLUMNS)
    column_mask = columns[None, :] < HEAD_SIZE
    row_mask = (rows[:, None] < length) & column_mask
    qkv = _head_pointer(qkv, start, head, 3 * stride, HEAD_SIZE)
    query_offsets = rows[:, None] * (3 * stride) + columns[None, :]
    out_offsets = start.to(tl.int64) * stride + head * HEAD_SIZE + rows[:, None] * stride + columns[None, :]
    head_offset = head * num_tokens + start
    q = tl.load(qkv + query_offsets, mask=row_mask, other=0.0)
    g = tl.load(grad + out_offsets, mask=row_mask, other=0.0)
    o = tl.load(out + out_offsets, mask=row_mask, other=0.0)
    delta = tl.sum(o.to(tl.float32) * g.to(tl.float32), 1)
    tl.store(deltas + head_offset + rows, delta, mask=rows < length)
    row_logsumexp = tl.load(logsumexp + head_offset + rows, mask=rows < length, other=float("inf"))
    dq = tl.zeros([_BLOCK_SIZE, BLOCK_COLUMNS], tl.float32)
    dropout_scale: tl.constexpr = 1.0 / (1.0 - DROPOUT_THRESHOLD * 0.5**32)
    if DROPOUT_THRESHOLD:
        row_hashes += head_offset
        a, b = attention_dropout.load_row_hashes(row_hashes, rows, length, num_tokens, NUM_HEADS)
    full_end, end = _key_range(block, length, CAUSAL)
    for is_masked in tl.static_range(2):
        for key_start in range(full_end if is_masked else 0, end if is_masked else full_end, _STEP_SIZE):
            keys = key_start + tl.arange(0, _STEP_SIZE)
            key_mask = (keys[:, None] < length) & column_mask if is_masked else column_mask
            key_pointers = qkv + stride + keys[:, None] * (3 * stride) + columns[None, :]
            k = tl.load(key_pointers, mask=key_mask, other=0.0)
            v = tl.load(key_pointers + stride, mask=key_mask, other=0.0)
            weights = _recompute_weights(q, k, row_logsumexp, rows, keys, length, scale, CAUSAL, is_masked)
            weight_grads = tl.dot(g, tl.trans(v))
            if DROPOUT_THRESHOLD:
                keep_mask = attention_dropout.delayed_keep_mask(a, b, keys, seeds, weights, DROPOUT_THRESHOLD)
                weight_grads = tl.where(keep_mask, weight_grads, zero) * dropout_scale
            dq += tl.dot((weights * (weight_grads - delta[:, None])).to(k.dtype), k)
    qkv_grad = _head_pointer(qkv_grad, start, head, 3 * stride, HEAD_SIZE)
    tl.store(qkv_grad + query_offsets, (dq * scale).to(q.dtype), mask=row_mask)


@triton.jit(do_not_specialize=["num_tokens"])
def _key_value_grad_kernel(
    qkv,
    out,
    grad,
    logsumexp,
    deltas,
    row_hashes,
    qkv_grad,
    cu_seqlens,
    seeds,
    num_tokens,
    zero,
    NUM_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    CAUSAL: tl.constexpr,
    DROPOUT_THRESHOLD: tl.constexpr,
):
    """Compute the gradients of a block of keys and values, after `_query_grad_kernel`.

    Weights of keys behind the last one may be any number or NaN: their gradients are not stored.
    """
    block, head = tl.program_id(0), tl.program_id(1)
    start, length = _sequence_range(cu_seqlens)
    if block * _BLOCK_SIZE >= length:
        return
    stride: tl.constexpr = NUM_HEADS * HEAD_SIZE
    scale: tl.constexpr = HEAD_SIZE**-0.5
    keys = block * _BLOCK_SIZE + tl.arange(0, _BLOCK_SIZE)
    columns = tl.arange(0, BLOCK_COLUMNS)
    column_mask = columns[None, :] < HEAD_SIZE
    key_mask = (keys[:, None] < length) & column_mask
    qkv = _head_pointer(qkv, start, head, 3 * stride, HEAD_SIZE)
    grad = _head_pointer(grad, start, head, stride, HEAD_SIZE)
    head_offset = head * num_tokens + start
    key_offsets = keys[:, None] * (3 * stride) + columns[None, :]
    k = tl.load(qkv + stride + key_offsets, mask=key_mask, other=0.0)
    v = tl.load(qkv + 2 * stride + key_offsets, mask=key_mask, other=0.0)
    dk = tl.zeros([_BLOCK_SIZE, BLOCK_COLUMNS], tl.float32)
    dv = tl.zeros([_BLOCK_SIZE, BLOCK_COLUMNS], tl.float32)
    dropout_scale: tl.constexpr = 1.0 / (1.0 - DROPOUT_THRESHOLD * 0.5**32)
    if DROPOUT_THRESHOLD:
        row_hashes += head_offset
        column_hash = attention_dropout.hash_columns(keys, seeds)
    for row_start in range(block * _BLOCK_SIZE if CAUSAL else 0, length, _STEP_SIZE):
        rows = row_start + tl.arange(0, _STEP_SIZE)
        q = _load_block(qkv, rows, columns, length, 3 * stride, HEAD_SIZE)
        g = _load_block(grad, rows, columns, length, stride, HEAD_SIZE)
        row_logsumexp = tl.load(logsumexp + head_offset + rows, mask=rows < length, other=float("inf"))
        delta = tl.load(deltas + head_offset + rows, mask=rows < length, other=0.0)
        weights = _recompute_weights(q, k, row_logsumexp, rows, keys, length, scale, CAUSAL, IS_MASKED=CAUSAL)
        weight_grads = tl.dot(g, tl.trans(v))
        dropped_weights = weights
        if DROPOUT_THRESHOLD:
            a, b = attention_dropout.load_row_hashes(row_hashes, rows, length, num_tokens, NUM_HEADS)
            keep_mask = a[:, None] + b[:, None] * column_hash[None, :] >= DROPOUT_THRESHOLD
            dropped_weights = tl.where(keep_mask, weights, zero)
            weight_grads = tl.where(keep_mask, weight_grads, zero) * dropout_scale
        dv += tl.dot(tl.trans(dropped_weights.to(g.dtype)), g)
        dk += tl.dot(tl.trans((weights * (weight_grads - delta[:, None])).to(q.dtype)), q)
    qkv_grad = _head_pointer(qkv_grad, start, head, 3 * stride, HEAD_SIZE)
    tl.store(qkv_grad + key_offsets + stride, (dk * scale).to(k.dtype), mask=key_mask)
    tl.store(qkv_grad + key_offsets + 2 * stride, (dv * dropout_scale).to(k.dtype), mask=key_mask)
