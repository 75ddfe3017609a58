"""LayerNorm with the dropout and the sum around it, there and back, as programs that Triton compiles for a GPU.

A row is read once. On the way back masks are made again and sums are taken again, from what products have made or
read; slopes of weights and biases are added up on the way, by as many programs as the GPU has room for, each over
its rows in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bertsmith.kernels.gpu.column_sums import num_multiprocessors

MAX_TABLES = 2  # that are looked up on the way
_ELEMENTS, _WARPS = 2048, 4  # of a program at a time
_PROGRAMS, _STAGES = 2, 4  # on the way back: for each of a GPU's processors, and how many reads ahead


class LayerNormParams(NamedTuple):
    """What LayerNorm has beside its input: weight and bias [H], fp32, and what is added to the variance."""

    weight: Tensor
    bias: Tensor
    epsilon: float


class SeededDropout(NamedTuple):
    """Dropout: the share that is dropped, None for none, and what its masks are made of, int32 [2]. Of a hash of
    an element's number, lowbias32 (Wellons 2018), 16 bits decide: a GPU's own generator takes longer for a number
    than memory for the element."""

    p: float | None
    seeds: Tensor

    @property
    def dropped(self) -> int:
        """Of 2**16."""
        return min(round((self.p or 0.0) * 2**16), 2**16 - 1)


class EmbeddingLookup(NamedTuple):
    """Rows of a table [V, H] that are added to x, long [N]: one for each of its rows."""

    table: Tensor
    indices: Tensor


class LayerNormOutput(NamedTuple):
    """What LayerNorm gives, [N, H], and of each row its mean and by what it was multiplied, fp32 [2, N]."""

    out: Tensor
    row_stats: Tensor


class LayerNormGrads(NamedTuple):
    """Of the sum, in its parts' precision, and of what was dropped from, which without dropout is the same tensor;
    and fp32 [3, H] of the LayerNorm's weight and bias, and of the bias that was added to x."""

    sum_grad: Tensor
    x: Tensor
    weights: Tensor


def add_layer_norm(
    residual: Tensor, x: Tensor, bias: Tensor, norm: LayerNormParams, drawn: SeededDropout
) -> LayerNormOutput:
    """LN(residual + dropout(x + bias)), [N, H], of x and residual in one precision."""
    return _there(_Summed(x, residual, bias), norm, drawn, x.dtype, after=False)


def added_norm_backward(
    grad: Tensor,
    residual: Tensor,
    x: Tensor,
    bias: Tensor,
    norm: LayerNormParams,
    drawn: SeededDropout,
    of_rows: Tensor,
) -> LayerNormGrads:
    """From grad [N, H], with what `added_norm` was given."""
    return _back(grad, _Summed(x, residual, bias), norm, drawn, of_rows, after=False)


def embed_layer_norm(
    x: Tensor,
    looked: Sequence[EmbeddingLookup],
    norm: LayerNormParams,
    drawn: SeededDropout,
    kind: torch.dtype,
) -> LayerNormOutput:
    """dropout(LN(x + what is looked up)), [N, H], in this precision; of at most `MOST_TABLES` tables."""
    return _there(_Summed(x, looked=looked), norm, drawn, kind, after=True)


def dropped_norm_backward(
    grad: Tensor,
    x: Tensor,
    looked: Sequence[EmbeddingLookup],
    norm: LayerNormParams,
    drawn: SeededDropout,
    of_rows: Tensor,
) -> LayerNormGrads:
    """From grad [N, H], with what `dropped_norm` was given."""
    return _back(grad, _Summed(x, looked=looked), norm, drawn, of_rows, after=True)


class _Summed(NamedTuple):
    """What is summed up before it is normalised."""

    x: Tensor
    residual: Tensor | None = None
    bias: Tensor | None = None
    looked: Sequence[EmbeddingLookup] = ()

    @property
    def given(self) -> Sequence[Tensor | None]:
        """As the kernels take it."""
        tables = [one for looked in self.looked for one in looked]
        return self.x, self.residual, self.bias, *tables, *[None] * (2 * MAX_TABLES - len(tables))


def _there(
    summed: _Summed, norm: LayerNormParams, drawn: SeededDropout, kind: torch.dtype, *, after: bool
) -> LayerNormOutput:
    rows, width, wide = _sizes(summed.x)
    made = LayerNormOutput(
        torch.empty_like(summed.x, dtype=kind), summed.x.new_empty(2, rows, dtype=torch.float32)
    )
    at_once = max(1, _ELEMENTS // wide)
    with torch.cuda.device_of(summed.x):
        _norm[(-(-rows // at_once),)](
            *(*summed.given, norm.weight, norm.bias, drawn.seeds, *made, rows),
            *(norm.epsilon, drawn.dropped, after, width, wide, at_once),
            num_warps=_WARPS,
        )
    return made


def _back(
    grad: Tensor,
    summed: _Summed,
    norm: LayerNormParams,
    drawn: SeededDropout,
    of_rows: Tensor,
    *,
    after: bool,
) -> LayerNormGrads:
    x, (rows, width, wide) = summed.x, _sizes(summed.x)
    whole = torch.empty_like(x)
    of_x = torch.empty_like(x) if drawn.dropped and not after else whole
    at_once = max(1, _ELEMENTS // wide)
    # what is read ahead lies in shared memory: of wider rows there is not enough. Triton 3.2 cannot, where rows of
    # tables are looked up.
    stages = 1 if after or wide > _ELEMENTS else _STAGES
    programs = max(1, min(-(-rows // at_once), _PROGRAMS * num_multiprocessors(x)))
    parts = x.new_empty(programs, 3, width, dtype=torch.float32)
    with torch.cuda.device_of(x):
        _norm_back[(programs,)](
            *(grad.contiguous(), *summed.given, norm.weight, drawn.seeds, of_rows, whole, of_x, parts, rows),
            *(drawn.dropped, after, width, wide, at_once, stages),
            num_warps=_WARPS,
        )
    return LayerNormGrads(whole, of_x, parts.sum(0))


def _sizes(x: Tensor) -> tuple[int, int, int]:
    """Rows, columns, and columns that are computed."""
    rows, width = x.shape
    return rows, width, triton.next_power_of_2(width)


@triton.jit
def _kept(rows, columns, seeds, WIDTH: tl.constexpr, DROPPED: tl.constexpr):
    number = rows.to(tl.uint32)[:, None] * WIDTH + columns.to(tl.uint32)[None, :]
    bits = number ^ tl.load(seeds).to(tl.uint32)
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) ^ tl.load(seeds + 1).to(tl.uint32)
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    return (bits >> 16) >= DROPPED


@triton.jit
def _looked_up(made, table, which, rows, columns, inside, count, WIDTH: tl.constexpr):
    if table is not None:
        row = tl.load(which + rows, mask=rows < count, other=0)
        made += tl.load(table + row[:, None] * WIDTH + columns[None, :], mask=inside, other=0.0)
    return made


@triton.jit
def _summed(
    x,
    residual,
    bias,
    table,
    which,
    other_table,
    other_which,
    rows,
    columns,
    real,
    inside,
    kept,
    count,
    DROPPED: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """What is normalised. kept: of x, where it is dropped from."""
    at = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
    made = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        made += tl.load(bias + columns, mask=real, other=0.0)[None, :]
    if DROPPED:
        made = tl.where(kept, made * (65536 / (65536 - DROPPED)), 0.0)
    if residual is not None:
        made += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    made = _looked_up(made, table, which, rows, columns, inside, count, WIDTH)
    return _looked_up(made, other_table, other_which, rows, columns, inside, count, WIDTH)


@triton.jit(do_not_specialize=["count"])
def _norm(
    x,
    residual,
    bias,
    table,
    which,
    other_table,
    other_which,
    weight,
    norm_bias,
    seeds,
    out,
    of_rows,
    count,
    epsilon: tl.constexpr,
    DROPPED: tl.constexpr,
    AFTER: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDE)
    real = columns < WIDTH
    inside = (rows[:, None] < count) & real[None, :]
    at = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
    kept = None
    if DROPPED:
        kept = _kept(rows, columns, seeds, WIDTH, DROPPED)
    whole = _summed(
        x,
        residual,
        bias,
        table,
        which,
        other_table,
        other_which,
        rows,
        columns,
        real,
        inside,
        kept,
        count,
        0 if AFTER else DROPPED,
        WIDTH,
    )
    mean = tl.sum(tl.where(real[None, :], whole, 0.0), 1) / WIDTH
    whole = tl.where(real[None, :], whole - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(whole * whole, 1) / WIDTH + epsilon)
    tl.store(of_rows + rows, mean, mask=rows < count)
    tl.store(of_rows + count + rows, scale, mask=rows < count)
    w = tl.load(weight + columns, mask=real, other=0.0)[None, :]
    b = tl.load(norm_bias + columns, mask=real, other=0.0)[None, :]
    made = whole * scale[:, None] * w + b
    if DROPPED and AFTER:
        made = tl.where(kept, made * (65536 / (65536 - DROPPED)), 0.0)
    tl.store(out + at, made.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count"])
def _norm_back(
    grad,
    x,
    residual,
    bias,
    table,
    which,
    other_table,
    other_which,
    weight,
    seeds,
    of_rows,
    of_whole,
    of_x,
    parts,
    count,
    DROPPED: tl.constexpr,
    AFTER: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Each program every so many rows; of what it adds up, its own part."""
    columns = tl.arange(0, WIDE)
    real = columns < WIDTH
    w = tl.load(weight + columns, mask=real, other=0.0)[None, :]
    to_weight = tl.zeros([ROWS, WIDE], tl.float32)
    to_norm_bias = tl.zeros([ROWS, WIDE], tl.float32)
    to_bias = tl.zeros([ROWS, WIDE], tl.float32)
    lift: tl.constexpr = 65536 / (65536 - DROPPED)
    for first in tl.range(tl.program_id(0) * ROWS, count, tl.num_programs(0) * ROWS, num_stages=STAGES):
        rows = first + tl.arange(0, ROWS)
        inside = (rows[:, None] < count) & real[None, :]
        at = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
        kept = None
        if DROPPED:
            kept = _kept(rows, columns, seeds, WIDTH, DROPPED)
        g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        if DROPPED and AFTER:
            g = tl.where(kept, g * lift, 0.0)
        mean = tl.load(of_rows + rows, mask=rows < count, other=0.0)
        scale = tl.load(of_rows + count + rows, mask=rows < count, other=0.0)
        whole = _summed(
            x,
            residual,
            bias,
            table,
            which,
            other_table,
            other_which,
            rows,
            columns,
            real,
            inside,
            kept,
            count,
            0 if AFTER else DROPPED,
            WIDTH,
        )
        whole = tl.where(inside, (whole - mean[:, None]) * scale[:, None], 0.0)
        to_weight += g * whole
        to_norm_bias += g
        g = g * w
        along = tl.sum(g * whole, 1) / WIDTH
        middle = tl.sum(g, 1) / WIDTH
        g = (g - middle[:, None] - whole * along[:, None]) * scale[:, None]
        tl.store(of_whole + at, g.to(of_whole.dtype.element_ty), mask=inside)
        if not AFTER:
            if DROPPED:
                g = tl.where(kept, g * lift, 0.0)
                tl.store(of_x + at, g.to(of_x.dtype.element_ty), mask=inside)
            to_bias += tl.where(inside, g, 0.0)
    parts += tl.program_id(0) * (3 * WIDTH) + columns
    tl.store(parts, tl.sum(to_weight, 0), mask=real)
    tl.store(parts + WIDTH, tl.sum(to_norm_bias, 0), mask=real)
    tl.store(parts + 2 * WIDTH, tl.sum(to_bias, 0), mask=real)
