"""Column sums in fp32 as a Triton kernel. Each program sums its rows in order, so that runs are reproducible."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_COLUMNS = 128  # columns of a program
_BLOCK_ROWS, _NUM_WARPS = 64, 4
_MIN_ROWS = 32  # of a partial sum
_PROGRAMS_PER_MULTIPROCESSOR = 4


def column_sums(x: Tensor) -> Tensor:
    """Return the column sums of x [N, W], fp32 [W]."""
    return grouped_column_sums(x, None, 1)[0]


def grouped_column_sums(x: Tensor, groups: Tensor | None, num_groups: int) -> Tensor:
    """Return the column sums of each group of rows, fp32 [num_groups, W]. All rows are read once per group.

    Args:
        x: [N, W].
        groups: The group of each row, long [N], below num_groups; None if all rows are one group.
        num_groups: The number of groups.
    """
    num_rows, num_columns = x.shape
    partial_sums = x.new_empty(num_partial_sums(x), num_groups, num_columns, dtype=torch.float32)
    with torch.cuda.device_of(x):
        _column_sum_kernel[len(partial_sums), -(-num_columns // BLOCK_COLUMNS), num_groups](
            *(x, groups, partial_sums, num_rows, num_columns, _BLOCK_ROWS, BLOCK_COLUMNS),
            num_warps=_NUM_WARPS,
        )
    return partial_sums.sum(0)


def num_partial_sums(x: Tensor) -> int:
    """Return the number of partial sums for x [N, W], so that the programs just fill the GPU."""
    num_rows, num_columns = x.shape
    column_blocks = -(-num_columns // BLOCK_COLUMNS)
    max_programs = _PROGRAMS_PER_MULTIPROCESSOR * num_multiprocessors(x)
    return max(1, min(-(-num_rows // _MIN_ROWS), max_programs // column_blocks))


def num_multiprocessors(x: Tensor) -> int:
    """Return the number of multiprocessors of x's GPU; 4 on a CPU, where Triton's interpreter runs."""
    return 4 if x.is_cpu else torch.cuda.get_device_properties(x.device).multi_processor_count


@triton.jit(do_not_specialize=["num_rows"])
def _column_sum_kernel(
    x,
    groups,
    partial_sums,
    num_rows,
    NUM_COLUMNS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    columns = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
    for start in range(tl.program_id(0) * BLOCK_ROWS, num_rows, tl.num_programs(0) * BLOCK_ROWS):
        rows = start + tl.arange(0, BLOCK_ROWS)
        row_mask = rows < num_rows
        if groups is not None:
            row_mask = row_mask & (tl.load(groups + rows, mask=row_mask, other=-1) == tl.program_id(2))
        mask = row_mask[:, None] & (columns[None, :] < NUM_COLUMNS)
        pointers = x + rows.to(tl.int64)[:, None] * NUM_COLUMNS + columns[None, :]
        acc += tl.load(pointers, mask=mask, other=0.0)
    partial_sums += (tl.program_id(0) * tl.num_programs(2) + tl.program_id(2)) * NUM_COLUMNS
    tl.store(partial_sums + columns, tl.sum(acc, 0), mask=columns < NUM_COLUMNS)
