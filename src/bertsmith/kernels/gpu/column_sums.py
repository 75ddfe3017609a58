"""Sums of columns, in fp32, as programs that Triton compiles for a GPU: each sums up some rows, in their order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 128  # of a program
_ROWS, _WARPS = 64, 4  # that it reads at a time
_LEAST = 32  # rows of a part
_PROGRAMS = 4  # for each of a GPU's processors


def column_sums(x: Tensor) -> Tensor:
    """[N, W] → fp32 [W]."""
    return _summed(x, None, 1)[0]


def grouped_column_sums(x: Tensor, which: Tensor, count: int) -> Tensor:
    """Rows [N, W] of each kind by themselves, long [N] below count: fp32 [count, W]. All are read for each of
    them."""
    return _summed(x, which, count)


def _summed(x: Tensor, which: Tensor | None, count: int) -> Tensor:
    rows, width = x.shape
    parts = x.new_empty(parts_of(x), count, width, dtype=torch.float32)
    with torch.cuda.device_of(x):
        _sum[len(parts), -(-width // COLUMNS), count](
            *(x, which, parts, rows, width, _ROWS, COLUMNS), num_warps=_WARPS
        )
    return parts.sum(0)


def parts_of(x: Tensor) -> int:
    """In how many parts x [N, W] is summed up: as many as a GPU computes at once, each of some rows."""
    rows, width = x.shape
    across = -(-width // COLUMNS)
    return max(1, min(-(-rows // _LEAST), _PROGRAMS * num_multiprocessors(x) // across))


def num_multiprocessors(x: Tensor) -> int:
    """Of its GPU; without one, as by Triton's interpreter, few programs are as good as many."""
    return 4 if x.is_cpu else torch.cuda.get_device_properties(x.device).multi_processor_count


@triton.jit(do_not_specialize=["rows"])
def _sum(x, which, parts, rows, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        counts = row < rows
        if which is not None:
            counts = counts & (tl.load(which + row, mask=counts, other=-1) == tl.program_id(2))
        inside = counts[:, None] & (column[None, :] < WIDTH)
        total += tl.load(x + row.to(tl.int64)[:, None] * WIDTH + column[None, :], mask=inside, other=0.0)
    parts += (tl.program_id(0) * tl.num_programs(2) + tl.program_id(2)) * WIDTH
    tl.store(parts + column, tl.sum(total, 0), mask=column < WIDTH)
