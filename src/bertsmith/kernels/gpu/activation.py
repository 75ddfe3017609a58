"""The activation of x + bias between two products, there and back, as programs that Triton compiles for a GPU.

Slopes of the bias are added up on the way back, by rows in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from bertsmith.kernels.gpu.column_sums import COLUMNS, parts_of
from bertsmith.kernels.reference import gelu_tanh

_ROWS, _WARPS = 32, 4  # of a program at a time
_STAGES = 2  # reads ahead on the way back
SUPPORTED_ACTIVATIONS: Mapping[Callable[[Tensor], Tensor], int] = {F.gelu: 0, gelu_tanh: 1, F.relu: 2}


def bias_activation(x: Tensor, bias: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """activation(x + bias), [N, I], one of `KINDS`."""
    out, (rows, width) = torch.empty_like(x), x.shape
    with torch.cuda.device_of(x):
        _activate[-(-rows // _ROWS), -(-width // COLUMNS)](
            *(x, bias, out, rows, width, SUPPORTED_ACTIVATIONS[activation], _ROWS, COLUMNS), num_warps=_WARPS
        )
    return out


def bias_activation_backward(
    grad: Tensor, x: Tensor, bias: Tensor, activation: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """The slopes of x [N, I], from grad [N, I], and of the bias, fp32 [I]."""
    made, (rows, width) = torch.empty_like(x), x.shape
    parts = x.new_empty(parts_of(x), width, dtype=torch.float32)
    with torch.cuda.device_of(x):
        _activate_back[len(parts), -(-width // COLUMNS)](
            *(
                grad,
                x,
                bias,
                made,
                parts,
                rows,
                width,
                SUPPORTED_ACTIVATIONS[activation],
                _ROWS,
                COLUMNS,
                _STAGES,
            ),
            num_warps=_WARPS,
        )
    return made, parts.sum(0)


@triton.jit
def _below(x):
    """How much of the normal distribution lies below x, to 4e-7: of -|x| the logarithm to base 2 is a polynomial,
    fitted so that GELU's error, |x| times this one's, is at most 1.4e-7. Behind 9 lies less than 1e-18."""
    a = tl.minimum(tl.abs(x), 9.0)
    power = 2.9632354489e-05 * a - 7.3651476098e-04
    power = power * a + 7.9646523680e-03
    power = power * a - 5.3217757848e-02
    power = power * a - 4.5892832898e-01
    power = power * a - 1.1511461352
    tail = tl.exp2(power * a - 0.99999906513)
    return tl.where(x < 0.0, tail, 1.0 - tail)


@triton.jit
def _tanh_share(x):
    """What GELU's tanh form multiplies x by (Hendrycks and Gimpel 2016): (1 + tanh(u)) / 2, which is a logistic
    function of 2u."""
    return 1.0 / (1.0 + tl.exp2(x * (1.0 + 0.044715 * x * x) * -2.302208198))


@triton.jit
def _within(x):
    """Where the tanh form is not yet 0 or x itself. What is not a number stays so, which a maximum would drop."""
    return tl.where(x < -10.0, -10.0, tl.where(x > 10.0, 10.0, x))


@triton.jit(do_not_specialize=["rows"])
def _activate(
    x,
    bias,
    out,
    rows,
    WIDTH: tl.constexpr,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row[:, None] < rows) & (column[None, :] < WIDTH)
    at = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    given = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    given += tl.load(bias + column, mask=column < WIDTH, other=0.0)[None, :]
    if KIND == 0:
        made = tl.where(given < -9.0, -9.0, given) * _below(given)
    elif KIND == 1:
        made = given * _tanh_share(_within(given))
    else:
        made = tl.where(given < 0.0, 0.0, given)
    tl.store(out + at, made.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _activate_back(
    grad,
    x,
    bias,
    of_x,
    parts,
    rows,
    WIDTH: tl.constexpr,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Each program some columns of every so many rows."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    b = tl.load(bias + column, mask=column < WIDTH, other=0.0)[None, :]
    to_bias = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        inside = (row[:, None] < rows) & (column[None, :] < WIDTH)
        at = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
        given = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + b
        slopes = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        if KIND == 0:
            density = tl.exp2(given * given * -0.7213475204444817) * 0.3989422804014327
            slopes *= _below(given) + given * density
        elif KIND == 1:
            near = _within(given)
            share = _tanh_share(near)
            steep = 1.5957691216057308 * (1.0 + 0.134145 * near * near)
            slopes *= share + near * share * (1.0 - share) * steep
        else:
            slopes = tl.where(given <= 0.0, 0.0, slopes)
        tl.store(of_x + at, slopes.to(of_x.dtype.element_ty), mask=inside)
        to_bias += slopes
    tl.store(parts + tl.program_id(0) * WIDTH + column, tl.sum(to_bias, 0), mask=column < WIDTH)
