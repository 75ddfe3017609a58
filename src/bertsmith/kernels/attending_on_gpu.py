"""Attention over packed sequences in blocks of tokens, there and back, as programs that Triton compiles for a GPU.

Scores are never written (Dao 2023). Every sum has one order, so that the same batch has the same slopes each
time: those of keys and values are added up first and then those of queries, and scores are computed for both. Of
a sequence that is one block they are computed once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_COLUMNS = 64  # of a head: registers hold no more
_LEAST_COLUMNS = 16  # of a product that tensor cores compute


class _Cut(NamedTuple):
    """How a kernel is cut: tokens of a program's own, tokens that it reads at a time, warps, and how many reads
    ahead."""

    block: int
    step: int
    warps: int
    stages: int


_LOG2E = tl.constexpr(1.4426950408889634)
_ONE = 128  # a sequence as long as this is one block, also on its way back
_FORWARD, _BACKWARD = _Cut(64, 64, 4, 3), _Cut(64, 64, 4, 1)
_FORWARD_ONE, _BACKWARD_ONE = _Cut(128, 64, 4, 1), _Cut(128, 64, 8, 1)
_WEIGHED = 32  # rows


def attended(
    qkv: Tensor,
    starts: Tensor,
    longest: int,
    heads: int,
    causal: bool,
    dropout: float | None,
    seeds: Tensor,
) -> Tensor:
    """[N, 3H] → [N, H]. starts: int32 [B + 1], the last of them N. longest: no sequence is longer. seeds: int32
    [2], what dropout makes its masks of."""
    dropped = min(round((dropout or 0.0) * 2**32), 2**32 - 1)
    out: Tensor = _attended(qkv, starts, seeds, longest, heads, causal, dropped)[0]
    return out


@torch.library.custom_op(
    "bertsmith::attended",
    mutates_args=(),
    schema="(Tensor qkv, Tensor starts, Tensor seeds, SymInt longest, int heads, bool causal, int dropped)"
    " -> (Tensor, Tensor, Tensor)",
)
def _attended(
    qkv: Tensor, starts: Tensor, seeds: Tensor, longest: int, heads: int, causal: bool, dropped: int
) -> tuple[Tensor, Tensor, Tensor]:
    """And of each head and row the logarithm to base 2 of the sum of its weights, fp32 [A, N], and what dropout
    drew, int32 [2, A, N]."""
    qkv = qkv.contiguous()
    out, sums, drawn = _empty(qkv, heads, dropped)
    cut = _FORWARD_ONE if longest <= _ONE else _FORWARD
    with torch.cuda.device_of(qkv):
        _forward[-(-longest // cut.block), heads, len(starts) - 1](
            *(qkv, out, sums, drawn, starts, seeds, len(qkv)),
            *_sizes(qkv, heads),
            *(causal, dropped, cut.block, cut.step),
            num_warps=cut.warps,
            num_stages=cut.stages,
        )
    return out, sums, drawn


@_attended.register_fake
def _(
    qkv: Tensor, starts: Tensor, seeds: Tensor, longest: int, heads: int, causal: bool, dropped: int
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(qkv, heads, dropped)


@torch.library.custom_op(
    "bertsmith::attended_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor qkv, Tensor out, Tensor sums, Tensor drawn, Tensor starts, Tensor seeds,"
    " SymInt longest, int heads, bool causal, int dropped) -> Tensor",
)
def _attended_backward(
    grad: Tensor,
    qkv: Tensor,
    out: Tensor,
    sums: Tensor,
    drawn: Tensor,
    starts: Tensor,
    seeds: Tensor,
    longest: int,
    heads: int,
    causal: bool,
    dropped: int,
) -> Tensor:
    """The slopes of qkv."""
    qkv, grad = qkv.contiguous(), grad.contiguous()
    slopes, sizes = torch.empty_like(qkv), _sizes(qkv, heads)
    tokens, is_whole = len(qkv), longest <= _ONE
    cut, weighed = (_BACKWARD_ONE, sums) if is_whole else (_BACKWARD, torch.empty_like(sums))
    with torch.cuda.device_of(qkv):
        if not is_whole:
            rows = -(-tokens // _WEIGHED)
            _weigh[rows, heads](out, grad, weighed, tokens, *sizes, _WEIGHED, num_warps=4)
        _backward[-(-longest // cut.block), heads, len(starts) - 1](
            *(qkv, out, grad, sums, weighed, drawn, slopes, starts, seeds, tokens),
            *sizes,
            *(causal, dropped, cut.block, cut.step, is_whole),
            num_warps=cut.warps,
            num_stages=cut.stages,
        )
    return slopes


@_attended_backward.register_fake
def _(grad: Tensor, qkv: Tensor, *more: Any) -> Tensor:
    return torch.empty_like(qkv, memory_format=torch.contiguous_format)


def _kept(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    qkv, starts, seeds, *ctx.numbers = inputs
    ctx.save_for_backward(qkv, *output, starts, seeds)


def _slopes(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    return _attended_backward(grad, *ctx.saved_tensors, *ctx.numbers), *(None,) * 6


_attended.register_autograd(_slopes, setup_context=_kept)


def _empty(qkv: Tensor, heads: int, dropped: int) -> tuple[Tensor, Tensor, Tensor]:
    tokens, width = qkv.shape
    return (
        qkv.new_empty(tokens, width // 3),
        qkv.new_empty(heads, tokens, dtype=torch.float32),
        qkv.new_empty(2 if dropped else 0, heads, tokens, dtype=torch.int32),
    )


def _sizes(qkv: Tensor, heads: int) -> tuple[int, int, int]:
    """Heads, columns of one, and columns that are computed."""
    columns = qkv.shape[1] // 3 // heads
    return heads, columns, max(_LEAST_COLUMNS, triton.next_power_of_2(columns))


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
def _forward(
    qkv,
    out,
    sums,
    drawn,
    starts,
    seeds,
    tokens,
    HEADS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
    CAUSAL: tl.constexpr,
    DROPPED: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
):
    block, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin = tl.load(starts + sequence)
    length = tl.load(starts + sequence + 1) - begin
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
        kept = drawn + head * tokens + begin + rows
        tl.store(kept, first.to(tl.int32, bitcast=True), mask=rows < length)
        tl.store(kept + HEADS * tokens, slope.to(tl.int32, bitcast=True), mask=rows < length)
    end = tl.minimum(length, (block + 1) * BLOCK) if CAUSAL else length
    for at in range(0, end, STEP):
        keys = at + steps
        there = here + keys[:, None] * wide + columns[None, :]
        inside = (keys[:, None] < length) & real
        k = tl.load(there + HEADS * COLUMNS, mask=inside, other=0.0)
        v = tl.load(there + 2 * HEADS * COLUMNS, mask=inside, other=0.0)
        seen = keys[None, :] < length
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None])
        scores = tl.where(seen, tl.dot(q, tl.trans(k)), float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1) * (scale * _LOG2E))
        weights = tl.exp2(scores * (scale * _LOG2E) - higher[:, None])
        fades = tl.exp2(top - higher)
        total = total * fades + tl.sum(weights, 1)
        if DROPPED:
            bits = first[:, None] + slope[:, None] * _columns_drawn(keys, seeds)[None, :]
            weights = tl.where(bits >= DROPPED, weights, 0.0)
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


@triton.jit
def _weigh(
    out,
    grad,
    weighed,
    tokens,
    HEADS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Of each row and head, what the slopes of its weights have in the middle."""
    rows, head = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1)
    columns = tl.arange(0, WIDE)
    inside = (rows[:, None] < tokens) & (columns[None, :] < COLUMNS)
    at = rows[:, None].to(tl.int64) * (HEADS * COLUMNS) + head * COLUMNS + columns[None, :]
    o = tl.load(out + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(weighed + head * tokens + rows, tl.sum(o * g, 1), mask=rows < tokens)


@triton.jit
def _of_keys(
    here,
    of_out,
    of_grad,
    sums,
    weighed,
    drawn,
    there,
    tokens,
    length,
    block,
    head,
    seeds,
    HEADS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
    CAUSAL: tl.constexpr,
    DROPPED: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Slopes of a block's keys and values; where it is a whole sequence, of its queries, too."""
    wide: tl.constexpr = 3 * HEADS * COLUMNS
    scale: tl.constexpr = COLUMNS**-0.5
    keys = block * BLOCK + tl.arange(0, BLOCK)
    columns = tl.arange(0, WIDE)
    real = columns[None, :] < COLUMNS
    inside = (keys[:, None] < length) & real
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
        made = rows[:, None] * (HEADS * COLUMNS) + columns[None, :]
        q = tl.load(here + rows[:, None] * wide + columns[None, :], mask=theirs, other=0.0)
        g = tl.load(of_grad + made, mask=theirs, other=0.0)
        of_row = tl.load(sums + rows, mask=rows < length, other=float("inf"))
        if WHOLE:
            o = tl.load(of_out + made, mask=theirs, other=0.0)
            middle = tl.sum(o.to(tl.float32) * g.to(tl.float32), 1)
        else:
            middle = tl.load(weighed + rows, mask=rows < length, other=0.0)
        # keys in rows, queries in columns; what is behind the last key could be any number, or none
        seen = keys[:, None] < length
        if CAUSAL:
            seen = keys[:, None] <= rows[None, :]
        scores = tl.dot(k, tl.trans(q)) * (scale * _LOG2E) - of_row[None, :]
        weights = tl.exp2(tl.where(seen, scores, float("-inf")))
        of_weights = tl.dot(v, tl.trans(g))
        if DROPPED:
            first, slope = _rows_kept(drawn, rows, length, tokens, HEADS)
            kept = first[None, :] + slope[None, :] * of_keys[:, None] >= DROPPED
            dv += tl.dot(tl.where(kept, weights, 0.0).to(g.dtype), g)
            of_weights = tl.where(kept, of_weights * lifts, 0.0)
        else:
            dv += tl.dot(weights.to(g.dtype), g)
        of_scores = (weights * (of_weights - middle[None, :])).to(q.dtype)
        dk += tl.dot(of_scores, q)
        if WHOLE:
            dq = tl.dot(tl.trans(of_scores), k) * scale
            tl.store(there + rows[:, None] * wide + columns[None, :], dq.to(q.dtype), mask=theirs)
    tl.store(there + HEADS * COLUMNS + at, (dk * scale).to(k.dtype), mask=inside)
    tl.store(there + 2 * HEADS * COLUMNS + at, (dv * lifts).to(k.dtype), mask=inside)


@triton.jit
def _of_queries(
    here,
    of_grad,
    sums,
    weighed,
    drawn,
    there,
    tokens,
    length,
    block,
    head,
    seeds,
    HEADS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
    CAUSAL: tl.constexpr,
    DROPPED: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
):
    """Slopes of a block's queries."""
    wide: tl.constexpr = 3 * HEADS * COLUMNS
    scale: tl.constexpr = COLUMNS**-0.5
    rows = block * BLOCK + tl.arange(0, BLOCK)
    columns = tl.arange(0, WIDE)
    real = columns[None, :] < COLUMNS
    inside = (rows[:, None] < length) & real
    at = rows[:, None] * wide + columns[None, :]
    q = tl.load(here + at, mask=inside, other=0.0)
    g = tl.load(of_grad + rows[:, None] * (HEADS * COLUMNS) + columns[None, :], mask=inside, other=0.0)
    of_row = tl.load(sums + rows, mask=rows < length, other=float("inf"))
    middle = tl.load(weighed + rows, mask=rows < length, other=0.0)
    dq = tl.zeros([BLOCK, WIDE], tl.float32)
    lifts: tl.constexpr = 1.0 / (1.0 - DROPPED * 0.5**32)
    if DROPPED:
        first, slope = _rows_kept(drawn, rows, length, tokens, HEADS)
    end = tl.minimum(length, (block + 1) * BLOCK) if CAUSAL else length
    for from_key in range(0, end, STEP):
        keys = from_key + tl.arange(0, STEP)
        theirs = (keys[:, None] < length) & real
        of_keys = here + HEADS * COLUMNS + keys[:, None] * wide + columns[None, :]
        k = tl.load(of_keys, mask=theirs, other=0.0)
        v = tl.load(of_keys + HEADS * COLUMNS, mask=theirs, other=0.0)
        seen = keys[None, :] < length
        if CAUSAL:
            seen = keys[None, :] <= rows[:, None]
        scores = tl.dot(q, tl.trans(k)) * (scale * _LOG2E) - of_row[:, None]
        weights = tl.exp2(tl.where(seen, scores, float("-inf")))
        of_weights = tl.dot(g, tl.trans(v))
        if DROPPED:
            kept = first[:, None] + slope[:, None] * _columns_drawn(keys, seeds)[None, :] >= DROPPED
            of_weights = tl.where(kept, of_weights * lifts, 0.0)
        dq += tl.dot((weights * (of_weights - middle[:, None])).to(k.dtype), k)
    tl.store(there + at, (dq * scale).to(q.dtype), mask=inside)


@triton.jit
def _backward(
    qkv,
    out,
    grad,
    sums,
    weighed,
    drawn,
    slopes,
    starts,
    seeds,
    tokens,
    HEADS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
    CAUSAL: tl.constexpr,
    DROPPED: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Of a block of tokens: first as keys and values, then as queries. WHOLE: no sequence is longer than one."""
    block, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin = tl.load(starts + sequence)
    length = tl.load(starts + sequence + 1) - begin
    if block * BLOCK >= length:
        return
    here = qkv + begin.to(tl.int64) * (3 * HEADS * COLUMNS) + head * COLUMNS
    away = begin.to(tl.int64) * (HEADS * COLUMNS) + head * COLUMNS
    of_grad = grad + away
    there = slopes + begin.to(tl.int64) * (3 * HEADS * COLUMNS) + head * COLUMNS
    sums += head * tokens + begin
    weighed += head * tokens + begin
    drawn += head * tokens + begin
    _of_keys(
        here,
        out + away,
        of_grad,
        sums,
        weighed,
        drawn,
        there,
        tokens,
        length,
        block,
        head,
        seeds,
        HEADS,
        COLUMNS,
        WIDE,
        CAUSAL,
        DROPPED,
        BLOCK,
        STEP,
        WHOLE,
    )
    if WHOLE:
        return
    _of_queries(
        here,
        of_grad,
        sums,
        weighed,
        drawn,
        there,
        tokens,
        length,
        block,
        head,
        seeds,
        HEADS,
        COLUMNS,
        WIDE,
        CAUSAL,
        DROPPED,
        BLOCK,
        STEP,
    )
