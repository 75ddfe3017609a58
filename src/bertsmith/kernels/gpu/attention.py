"""Attention over packed sequences in blocks of tokens, there and back, as programs that Triton compiles for a GPU.

Scores are never written (Dao 2023). Every sum has one order, so that the same batch has the same slopes each
time: those of queries are added up first and then those of keys and values, and scores are computed for both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

MAX_HEAD_SIZE = 64  # of a head: registers hold no more
_LEAST_COLUMNS = 16  # of a product that tensor cores compute


class _TileConfig(NamedTuple):
    """How a kernel is cut: tokens of a program's own, tokens that it reads at a time, warps, how many reads ahead,
    and the most registers of a thread, which decide how many programs a processor has at once."""

    block: int
    step: int
    warps: int
    stages: int
    registers: int

    @property
    def options(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": self.registers}


_LOG2E = tl.constexpr(1.4426950408889634)
_FORWARD = _TileConfig(64, 64, 4, 2, 128)
_OF_QUERIES, _OF_KEYS = _TileConfig(64, 64, 4, 2, 128), _TileConfig(64, 64, 4, 2, 168)
# In the place of a dropped weight. A number that the compiler knew it would put there after rounding, where two
# weights share a register and take three instructions more.
_NOTHING = 0.0
MAX_SEQUENCES = 2**16 - 1  # of the third side of a grid


class AttentionConfig(NamedTuple):
    """What is computed. starts: integers [B + 1], where sequences begin and the last one ends. longest: none is
    longer. causal: a token sees those before it alone. share: of the weights, that dropout drops, None for none.
    seeds: int32 [2], what its masks are made of."""

    cu_seqlens: Tensor
    max_seqlen: int
    heads: int
    causal: bool
    dropout_p: float | None
    seeds: Tensor

    @property
    def dropout_threshold(self) -> int:
        """Of 2**32."""
        return min(round((self.dropout_p or 0.0) * 2**32), 2**32 - 1)


class AttentionActivations(NamedTuple):
    """What attention gives, [N, H]; of each head and row the logarithm to base 2 of the sum of its weights, fp32
    [A, N]; and what dropout drew, int32 [2, A, N], [0, A, N] without it."""

    out: Tensor
    logsumexp: Tensor
    dropout_seeds: Tensor


def attention(qkv: Tensor, asked: AttentionConfig) -> Tensor:
    """[N, 3H] → [N, H]."""
    found: Tensor = _Attention.apply(qkv, asked)
    return found


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, asked: AttentionConfig) -> Tensor:
        made = attention_forward(qkv.contiguous(), asked)
        ctx.save_for_backward(qkv, *made)
        ctx.asked = asked
        return made.out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        qkv, *made = ctx.saved_tensors
        return attention_backward(grad, qkv.contiguous(), AttentionActivations(*made), ctx.asked), None


def attention_forward(qkv: Tensor, asked: AttentionConfig) -> AttentionActivations:
    """Of qkv [N, 3H], one row behind the other."""
    made, cut = _empty(qkv, asked), _FORWARD
    with torch.cuda.device_of(qkv):
        _attend[_grid(cut, asked)](
            *(qkv, *made, asked.cu_seqlens, asked.seeds, len(qkv), _NOTHING),
            *(*_sizes(qkv, asked), cut.block, cut.step),
            **cut.options,
        )
    return made


def attention_backward(
    grad: Tensor, qkv: Tensor, made: AttentionActivations, asked: AttentionConfig
) -> Tensor:
    """The slopes of qkv [N, 3H], from those of what was given, grad [N, H]."""
    grad, slopes, middles = grad.contiguous(), torch.empty_like(qkv), torch.empty_like(made.logsumexp)
    with torch.cuda.device_of(qkv):
        for kernel, cut in ((_of_queries, _OF_QUERIES), (_of_keys, _OF_KEYS)):
            kernel[_grid(cut, asked)](
                *(qkv, made.out, grad, made.logsumexp, middles, made.dropout_seeds, slopes),
                *(asked.cu_seqlens, asked.seeds, len(qkv), _NOTHING),
                *(*_sizes(qkv, asked), cut.block, cut.step),
                **cut.options,
            )
    return slopes


def _grid(cut: _TileConfig, asked: AttentionConfig) -> tuple[int, int, int]:
    return -(-asked.max_seqlen // cut.block), asked.heads, len(asked.cu_seqlens) - 1


def _empty(qkv: Tensor, asked: AttentionConfig) -> AttentionActivations:
    tokens, width = qkv.shape
    return AttentionActivations(
        qkv.new_empty(tokens, width // 3),
        qkv.new_empty(asked.heads, tokens, dtype=torch.float32),
        qkv.new_empty(2 if asked.dropout_threshold else 0, asked.heads, tokens, dtype=torch.int32),
    )


def _sizes(qkv: Tensor, asked: AttentionConfig) -> tuple[int, int, int, bool, int]:
    """Heads, columns of one, columns that are computed, whether a token sees those before it alone, and how many
    of 2**32 weights are dropped."""
    columns = qkv.shape[1] // 3 // asked.heads
    wide = max(_LEAST_COLUMNS, triton.next_power_of_2(columns))
    return asked.heads, columns, wide, asked.causal, asked.dropout_threshold


@triton.jit
def _scrambled(x):
    """lowbias32 (Wellons 2018), uint32."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _rows_drawn(rows, head, seeds, HEADS: tl.constexpr):
    """What decides, with a column's number, whether a row's weight is kept: a + b * number, of 32 bits
    (Dietzfelbinger 1996)."""
    drawn = _scrambled((rows * HEADS + head).to(tl.uint32) ^ tl.load(seeds).to(tl.uint32))
    return drawn, _scrambled(drawn ^ 0x5BD1E995) | 1


@triton.jit
def _rows_kept(drawn, rows, length, tokens, HEADS: tl.constexpr):
    """The same, as the way there has kept it."""
    first = tl.load(drawn + rows, mask=rows < length, other=0)
    slope = tl.load(drawn + HEADS * tokens + rows, mask=rows < length, other=0)
    return first.to(tl.uint32, bitcast=True), slope.to(tl.uint32, bitcast=True)


@triton.jit
def _columns_drawn(columns, seeds):
    """A column's number: scrambled but once, since it is made again for each block."""
    x = (columns.to(tl.uint32) ^ tl.load(seeds + 1).to(tl.uint32)) * 0x7FEB352D
    return x ^ (x >> 15)


@triton.jit
def _bits(first, slope, column, weights):
    """What decides of each weight. Its sign, which is 0, is added, so that the compiler decides when the weight is
    there: what was decided before takes as many registers as the weights."""
    return (first + (weights.to(tl.uint32, bitcast=True) >> 31)) + slope * column


@triton.jit(do_not_specialize=["tokens"])
def _attend(
    qkv,
    out,
    sums,
    drawn,
    starts,
    seeds,
    tokens,
    nothing,
    HEADS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
    CAUSAL: tl.constexpr,
    DROPPED: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
):
    block, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin = tl.load(starts + sequence).to(tl.int32)
    length = tl.load(starts + sequence + 1).to(tl.int32) - begin
    if block * BLOCK >= length:
        return
    wide: tl.constexpr = 3 * HEADS * COLUMNS
    scale: tl.constexpr = COLUMNS**-0.5
    rows = block * BLOCK + tl.arange(0, BLOCK)
    steps = tl.arange(0, STEP)
    columns = tl.arange(0, WIDE)
    real = columns[None, :] < COLUMNS
    here = qkv + begin.to(tl.int64) * wide + head * COLUMNS
    q = tl.load(
        here + rows[:, None] * wide + columns[None, :], mask=(rows[:, None] < length) & real, other=0.0
    )
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    mixed = tl.zeros([BLOCK, WIDE], tl.float32)
    if DROPPED:
        first, slope = _rows_drawn(begin + rows, head, seeds, HEADS)
        drawn += head * tokens + begin
        tl.store(drawn + rows, first.to(tl.int32, bitcast=True), mask=rows < length)
        tl.store(drawn + HEADS * tokens + rows, slope.to(tl.int32, bitcast=True), mask=rows < length)
    end = tl.minimum(length, (block + 1) * BLOCK) if CAUSAL else length
    full = tl.minimum(length, block * BLOCK) // STEP * STEP if CAUSAL else length // STEP * STEP
    for part in tl.static_range(2):  # keys that all rows see, in whole steps; and others
        for at in range(full if part else 0, end if part else full, STEP):
            keys = at + steps
            there = here + keys[:, None] * wide + columns[None, :]
            inside = (keys[:, None] < length) & real if part else real
            k = tl.load(there + HEADS * COLUMNS, mask=inside, other=0.0)
            v = tl.load(there + 2 * HEADS * COLUMNS, mask=inside, other=0.0)
            scores = tl.dot(q, tl.trans(k))
            if part:
                seen = keys[None, :] < length
                if CAUSAL:
                    seen = seen & (keys[None, :] <= rows[:, None])
                scores = tl.where(seen, scores, float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 1) * (scale * _LOG2E))
            weights = tl.exp2(scores * (scale * _LOG2E) - higher[:, None])
            fades = tl.exp2(top - higher)
            total = total * fades + tl.sum(weights, 1)
            if DROPPED:
                bits = _bits(first[:, None], slope[:, None], _columns_drawn(keys, seeds)[None, :], weights)
                weights = tl.where(bits >= DROPPED, weights, nothing)
            mixed = mixed * fades[:, None] + tl.dot(weights.to(v.dtype), v)
            top = higher
    share = total
    if DROPPED:
        share = total * (1.0 - DROPPED * (0.5**32))
    there = out + begin.to(tl.int64) * (HEADS * COLUMNS) + head * COLUMNS
    tl.store(
        there + rows[:, None] * (HEADS * COLUMNS) + columns[None, :],
        (mixed / share[:, None]).to(q.dtype),
        mask=(rows[:, None] < length) & real,
    )
    tl.store(sums + head * tokens + begin + rows, top + tl.log2(total), mask=rows < length)


@triton.jit(do_not_specialize=["tokens"])
def _of_queries(
    qkv,
    out,
    grad,
    sums,
    middles,
    drawn,
    slopes,
    starts,
    seeds,
    tokens,
    nothing,
    HEADS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
    CAUSAL: tl.constexpr,
    DROPPED: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
):
    """Slopes of a block's queries; and of each row what the slopes of its weights have in the middle."""
    block, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin = tl.load(starts + sequence).to(tl.int32)
    length = tl.load(starts + sequence + 1).to(tl.int32) - begin
    if block * BLOCK >= length:
        return
    wide: tl.constexpr = 3 * HEADS * COLUMNS
    scale: tl.constexpr = COLUMNS**-0.5
    rows = block * BLOCK + tl.arange(0, BLOCK)
    columns = tl.arange(0, WIDE)
    real = columns[None, :] < COLUMNS
    inside = (rows[:, None] < length) & real
    here = qkv + begin.to(tl.int64) * wide + head * COLUMNS
    at = rows[:, None] * wide + columns[None, :]
    made = (
        begin.to(tl.int64) * (HEADS * COLUMNS)
        + head * COLUMNS
        + rows[:, None] * (HEADS * COLUMNS)
        + columns[None, :]
    )
    of_head = head * tokens + begin
    q = tl.load(here + at, mask=inside, other=0.0)
    g = tl.load(grad + made, mask=inside, other=0.0)
    o = tl.load(out + made, mask=inside, other=0.0)
    middle = tl.sum(o.to(tl.float32) * g.to(tl.float32), 1)
    tl.store(middles + of_head + rows, middle, mask=rows < length)
    of_row = tl.load(sums + of_head + rows, mask=rows < length, other=float("inf"))
    dq = tl.zeros([BLOCK, WIDE], tl.float32)
    lifts: tl.constexpr = 1.0 / (1.0 - DROPPED * 0.5**32)
    if DROPPED:
        first, slope = _rows_kept(drawn + of_head, rows, length, tokens, HEADS)
    end = tl.minimum(length, (block + 1) * BLOCK) if CAUSAL else length
    full = tl.minimum(length, block * BLOCK) // STEP * STEP if CAUSAL else length // STEP * STEP
    for part in tl.static_range(2):
        for from_key in range(full if part else 0, end if part else full, STEP):
            keys = from_key + tl.arange(0, STEP)
            theirs = (keys[:, None] < length) & real if part else real
            there = here + HEADS * COLUMNS + keys[:, None] * wide + columns[None, :]
            k = tl.load(there, mask=theirs, other=0.0)
            v = tl.load(there + HEADS * COLUMNS, mask=theirs, other=0.0)
            scores = tl.dot(q, tl.trans(k)) * (scale * _LOG2E) - of_row[:, None]
            if part:
                seen = keys[None, :] < length
                if CAUSAL:
                    seen = keys[None, :] <= rows[:, None]
                scores = tl.where(seen, scores, float("-inf"))
            weights = tl.exp2(scores)
            of_weights = tl.dot(g, tl.trans(v))
            if DROPPED:
                bits = _bits(first[:, None], slope[:, None], _columns_drawn(keys, seeds)[None, :], weights)
                of_weights = tl.where(bits >= DROPPED, of_weights, nothing) * lifts
            dq += tl.dot((weights * (of_weights - middle[:, None])).to(k.dtype), k)
    tl.store(slopes + begin.to(tl.int64) * wide + head * COLUMNS + at, (dq * scale).to(q.dtype), mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def _of_keys(
    qkv,
    out,
    grad,
    sums,
    middles,
    drawn,
    slopes,
    starts,
    seeds,
    tokens,
    nothing,
    HEADS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
    CAUSAL: tl.constexpr,
    DROPPED: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
):
    """Slopes of a block's keys and values. Behind the last key weights could be any number, or none: what is made
    of them is not stored."""
    block, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin = tl.load(starts + sequence).to(tl.int32)
    length = tl.load(starts + sequence + 1).to(tl.int32) - begin
    if block * BLOCK >= length:
        return
    wide: tl.constexpr = 3 * HEADS * COLUMNS
    scale: tl.constexpr = COLUMNS**-0.5
    keys = block * BLOCK + tl.arange(0, BLOCK)
    columns = tl.arange(0, WIDE)
    real = columns[None, :] < COLUMNS
    inside = (keys[:, None] < length) & real
    here = qkv + begin.to(tl.int64) * wide + head * COLUMNS
    of_grad = grad + begin.to(tl.int64) * (HEADS * COLUMNS) + head * COLUMNS
    of_head = head * tokens + begin
    at = keys[:, None] * wide + columns[None, :]
    k = tl.load(here + HEADS * COLUMNS + at, mask=inside, other=0.0)
    v = tl.load(here + 2 * HEADS * COLUMNS + at, mask=inside, other=0.0)
    dk = tl.zeros([BLOCK, WIDE], tl.float32)
    dv = tl.zeros([BLOCK, WIDE], tl.float32)
    lifts: tl.constexpr = 1.0 / (1.0 - DROPPED * 0.5**32)
    if DROPPED:
        of_keys = _columns_drawn(keys, seeds)
    for from_row in range(block * BLOCK if CAUSAL else 0, length, STEP):
        rows = from_row + tl.arange(0, STEP)
        theirs = (rows[:, None] < length) & real
        q = tl.load(here + rows[:, None] * wide + columns[None, :], mask=theirs, other=0.0)
        g = tl.load(of_grad + rows[:, None] * (HEADS * COLUMNS) + columns[None, :], mask=theirs, other=0.0)
        of_row = tl.load(sums + of_head + rows, mask=rows < length, other=float("inf"))
        middle = tl.load(middles + of_head + rows, mask=rows < length, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * (scale * _LOG2E) - of_row[:, None]
        if CAUSAL:
            scores = tl.where(keys[None, :] <= rows[:, None], scores, float("-inf"))
        weights = tl.exp2(scores)
        of_weights = tl.dot(g, tl.trans(v))
        left = weights
        if DROPPED:
            first, slope = _rows_kept(drawn + of_head, rows, length, tokens, HEADS)
            kept = first[:, None] + slope[:, None] * of_keys[None, :] >= DROPPED
            left = tl.where(kept, weights, nothing)
            of_weights = tl.where(kept, of_weights, nothing) * lifts
        dv += tl.dot(tl.trans(left.to(g.dtype)), g)
        dk += tl.dot(tl.trans((weights * (of_weights - middle[:, None])).to(q.dtype)), q)
    there = slopes + begin.to(tl.int64) * wide + head * COLUMNS + at
    tl.store(there + HEADS * COLUMNS, (dk * scale).to(k.dtype), mask=inside)
    tl.store(there + 2 * HEADS * COLUMNS, (dv * lifts).to(k.dtype), mask=inside)
