"""Bias and activation between two matrix products, forward and backward, and column sums, as Triton kernels.

Column sums are the gradients of biases; the backward kernel of the activation computes that of its bias too. They
are in fp32, and each program sums its rows in order, so that runs are reproducible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from bertsmith.kernels.reference import gelu_tanh

_BLOCK_ROWS, _BLOCK_COLUMNS, _NUM_WARPS = 32, 128, 4
_NUM_STAGES = 2  # of the backward kernel's loop
_SUM_BLOCK_ROWS = 64
_MIN_ROWS = 32  # of a partial sum
_PROGRAMS_PER_MULTIPROCESSOR = 4  # that sum columns
SUPPORTED_ACTIVATIONS: Mapping[Callable[[Tensor], Tensor], int] = {F.gelu: 0, gelu_tanh: 1, F.relu: 2}
"""The kernels' number of each activation."""


def bias_activation(x: Tensor, bias: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute activation(x + bias), [N, I], for one of `SUPPORTED_ACTIVATIONS`."""
    out, (num_rows, num_columns) = torch.empty_like(x), x.shape
    with torch.cuda.device_of(x):
        _bias_activation_kernel[-(-num_rows // _BLOCK_ROWS), -(-num_columns // _BLOCK_COLUMNS)](
            *(x, bias, out, num_rows, num_columns),
            *(SUPPORTED_ACTIVATIONS[activation], _BLOCK_ROWS, _BLOCK_COLUMNS),
            num_warps=_NUM_WARPS,
        )
    return out


def bias_activation_backward(
    grad: Tensor, x: Tensor, bias: Tensor, activation: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of x [N, I] and of the bias, fp32 [I], from the output's gradient [N, I]."""
    x_grad, (num_rows, num_columns) = torch.empty_like(x), x.shape
    bias_grads = x.new_empty(_num_partial_sums(x), num_columns, dtype=torch.float32)
    with torch.cuda.device_of(x):
        _bias_activation_backward_kernel[len(bias_grads), -(-num_columns // _BLOCK_COLUMNS)](
            *(grad, x, bias, x_grad, bias_grads, num_rows, num_columns),
            *(SUPPORTED_ACTIVATIONS[activation], _BLOCK_ROWS, _BLOCK_COLUMNS, _NUM_STAGES),
            num_warps=_NUM_WARPS,
        )
    return x_grad, bias_grads.sum(0)


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
    partial_sums = x.new_empty(_num_partial_sums(x), num_groups, num_columns, dtype=torch.float32)
    with torch.cuda.device_of(x):
        _column_sum_kernel[len(partial_sums), -(-num_columns // _BLOCK_COLUMNS), num_groups](
            *(x, groups, partial_sums, num_rows, num_columns, _SUM_BLOCK_ROWS, _BLOCK_COLUMNS),
            num_warps=_NUM_WARPS,
        )
    return partial_sums.sum(0)


def _num_partial_sums(x: Tensor) -> int:
    """Return the number of partial sums for x [N, W], so that the programs just fill the GPU."""
    num_rows, num_columns = x.shape
    column_blocks = -(-num_columns // _BLOCK_COLUMNS)
    max_programs = _PROGRAMS_PER_MULTIPROCESSOR * num_multiprocessors(x)
    return max(1, min(-(-num_rows // _MIN_ROWS), max_programs // column_blocks))


def num_multiprocessors(x: Tensor) -> int:
    """Return the number of multiprocessors of x's GPU; 4 on a CPU, where Triton's interpreter runs."""
    return 4 if x.is_cpu else torch.cuda.get_device_properties(x.device).multi_processor_count


@triton.jit
def _normal_cdf(x):
    """Compute the normal distribution function to 4e-7.

    log2(cdf(-|x|)) is a polynomial, fitted so that the error of GELU, |x| times this error, is at most 1.4e-7.
    The tail beyond 9 is below 1e-18.
    """
    a = tl.minimum(tl.abs(x), 9.0)
    exponent = 2.9632354489e-05 * a - 7.3651476098e-04
    exponent = exponent * a + 7.9646523680e-03
    exponent = exponent * a - 5.3217757848e-02
    exponent = exponent * a - 4.5892832898e-01
    exponent = exponent * a - 1.1511461352
    tail = tl.exp2(exponent * a - 0.99999906513)
    return tl.where(x < 0.0, tail, 1.0 - tail)


@triton.jit
def _tanh_gate(x):
    """Compute gelu_tanh(x) / x (Hendrycks and Gimpel 2016): (1 + tanh(u)) / 2, the logistic function of 2u."""
    return 1.0 / (1.0 + tl.exp2(x * (1.0 + 0.044715 * x * x) * -2.302208198))


@triton.jit
def _clamp_for_tanh(x):
    """Clamp x to the range beyond which gelu_tanh is 0 or x. NaN stays NaN, which tl.maximum would drop."""
    return tl.where(x < -10.0, -10.0, tl.where(x > 10.0, 10.0, x))


@triton.jit(do_not_specialize=["num_rows"])
def _bias_activation_kernel(
    x,
    bias,
    out,
    num_rows,
    NUM_COLUMNS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    mask = (rows[:, None] < num_rows) & (columns[None, :] < NUM_COLUMNS)
    offsets = rows.to(tl.int64)[:, None] * NUM_COLUMNS + columns[None, :]
    z = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
    z += tl.load(bias + columns, mask=columns < NUM_COLUMNS, other=0.0)[None, :]
    if ACTIVATION == 0:
        y = tl.where(z < -9.0, -9.0, z) * _normal_cdf(z)
    elif ACTIVATION == 1:
        y = z * _tanh_gate(_clamp_for_tanh(z))
    else:
        y = tl.where(z < 0.0, 0.0, z)
    tl.store(out + offsets, y.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def _bias_activation_backward_kernel(
    grad,
    x,
    bias,
    x_grad,
    bias_grads,
    num_rows,
    NUM_COLUMNS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """Compute the gradients of some columns; the programs of a column block take its row blocks in turn."""
    columns = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    b = tl.load(bias + columns, mask=columns < NUM_COLUMNS, other=0.0)[None, :]
    bias_grad = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
    for start in tl.range(
        tl.program_id(0) * BLOCK_ROWS, num_rows, tl.num_programs(0) * BLOCK_ROWS, num_stages=NUM_STAGES
    ):
        rows = start + tl.arange(0, BLOCK_ROWS)
        mask = (rows[:, None] < num_rows) & (columns[None, :] < NUM_COLUMNS)
        offsets = rows.to(tl.int64)[:, None] * NUM_COLUMNS + columns[None, :]
        z = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32) + b
        z_grad = tl.load(grad + offsets, mask=mask, other=0.0).to(tl.float32)
        if ACTIVATION == 0:
            density = tl.exp2(z * z * -0.7213475204444817) * 0.3989422804014327
            z_grad *= _normal_cdf(z) + z * density
        elif ACTIVATION == 1:
            clamped = _clamp_for_tanh(z)
            gate = _tanh_gate(clamped)
            double_u_grad = 1.5957691216057308 * (1.0 + 0.134145 * clamped * clamped)
            z_grad *= gate + clamped * gate * (1.0 - gate) * double_u_grad
        else:
            z_grad = tl.where(z <= 0.0, 0.0, z_grad)
        tl.store(x_grad + offsets, z_grad.to(x_grad.dtype.element_ty), mask=mask)
        bias_grad += z_grad
    partial_sums = bias_grads + tl.program_id(0) * NUM_COLUMNS + columns
    tl.store(partial_sums, tl.sum(bias_grad, 0), mask=columns < NUM_COLUMNS)


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
