"""Products of matrices by compiled bodies, as torch knows functions; with them a feed-forward as a whole."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertsmith.kernels.loops import compiles_for, launch, multiplies_half, processor
from bertsmith.kernels.plain import Products

_KINDS = {torch.float32, torch.bfloat16}

BODIES: Any = (
    import_module("bertsmith.kernels.products")
    if processor().startswith("znver") and compiles_for("avx2") and not compiles_for("avx512f")
    else None
)
"""The bodies of products in fp32 where these are quicker than the libraries': AMD's processors without AVX-512."""

HALF_BODIES: Any = import_module("bertsmith.kernels.products_half") if multiplies_half() else None
"""Those of products in bf16: the libraries need the weights in bf16, and make their slopes so."""

_FEW = 16  # rows, columns or terms: what has fewer is left to the libraries


def has_bodies(kind: torch.dtype) -> bool:
    """Whether there are bodies for products of this kind."""
    return (HALF_BODIES if kind == torch.bfloat16 else BODIES) is not None and kind in _KINDS


def has_products(x: Tensor, y: Tensor, *others: Tensor | None) -> bool:
    """Whether there is a body for x·y; others: what else it is made with, in fp32. Where one of x and y is bf16
    the other may be fp32."""
    known = all(t.is_cpu and t.dtype == torch.float32 for t in others if t is not None)
    enough = x.dim() == y.dim() == 2 and min(*x.shape, *y.shape) >= _FEW
    if not (known and enough and x.is_cpu and y.is_cpu and {x.dtype, y.dtype} <= _KINDS):
        return False
    if torch.bfloat16 not in (x.dtype, y.dtype):
        return has_bodies(torch.float32)
    in_columns = x.stride(0) == 1 and x.stride(1) > 1
    return has_bodies(torch.bfloat16) and (
        in_columns or x.shape[1] % 2 == 0
    )  # in rows pairs of terms lie side by side


def by_rows_or_columns(x: Tensor) -> Tensor:
    """x; a copy where neither its rows nor its columns lie in memory as they are."""
    return x if 1 in x.stride() and 0 not in x.stride() else x.contiguous()


def multiply(
    x: Tensor,
    y: Tensor,
    bias: Tensor | None,
    out: Tensor,
    activated: Tensor | None = None,
    before: Tensor | None = None,
) -> None:
    """Write x·y + bias, and GELU of it to `activated`; or x·y times GELU's slopes at `before`. x has its rows in
    memory as they are, and so has all that is written, `before` too."""
    y, bias = by_rows_or_columns(y), None if bias is None else bias.contiguous()
    threads, (terms, columns) = torch.get_num_threads(), y.shape
    more = [0 if t is None else t.data_ptr() for t in (activated, before)]
    add = 0 if bias is None else bias.data_ptr()
    if torch.bfloat16 in (x.dtype, y.dtype):
        size, own = HALF_BODIES.room(threads, columns, terms)
        room = torch.empty(size, dtype=torch.uint8)
        launch(
            HALF_BODIES.by_rows,
            *(*_rows_at(x), *_both_at(y), *_rows_at(out)),
            *(len(x), columns, terms, room.data_ptr(), own, add, *more, 0),
        )
        return
    room = torch.empty(BODIES.room(threads, columns, terms), dtype=torch.uint8)
    launch(
        BODIES.by_rows,
        *(x.data_ptr(), 4 * x.stride(0), y.data_ptr(), 4 * y.stride(0), 4 * y.stride(1)),
        *(out.data_ptr(), 4 * out.stride(0), len(x), columns, terms, room.data_ptr(), add, 0, *more),
    )


def multiply_columns(x: Tensor, y: Tensor, out: Tensor, sums: Tensor | None = None) -> None:
    """Write xᵀ·y, and the sums of x's columns, in fp32. out has its rows in memory as they are."""
    x, y = (t if t.stride(1) == 1 and t.stride(0) else t.contiguous() for t in (x, y))
    terms, rows, columns = *x.shape, y.shape[1]
    is_half = torch.bfloat16 in (x.dtype, y.dtype)
    bodies = HALF_BODIES if is_half else BODIES
    size, of_rows, of_columns = bodies.room_turned(torch.get_num_threads(), rows, columns)
    room, numbers = torch.empty(size, dtype=torch.uint8), torch.zeros(bodies.turns(terms), dtype=torch.int64)
    some = torch.empty(0 if sums is None else bodies.slices(terms) * rows)
    matrices: list[int] = [*_rows_at(x), *_rows_at(y)] if is_half else [*_rows_at(x)[:2], *_rows_at(y)[:2]]
    launch(
        bodies.by_columns,
        *(*matrices, out.data_ptr(), 4 * out.stride(0)),
        *(rows, columns, terms, room.data_ptr(), of_rows, of_columns, numbers.data_ptr()),
        *(0 if sums is None else sums.data_ptr(), some.data_ptr()),
    )


def _rows_at(x: Tensor) -> tuple[int, int, bool]:
    """Where a matrix lies, how many bytes from one row of it to the next, and whether it is bf16."""
    return x.data_ptr(), x.element_size() * x.stride(0), x.dtype == torch.bfloat16


def _both_at(x: Tensor) -> tuple[int, int, int, bool]:
    """The same, with the bytes from one column to the next."""
    place, row, is_half = _rows_at(x)
    return place, row, x.element_size() * x.stride(1), is_half


class FedForward(torch.autograd.Function):
    """W2·GELU(W1·x + b1) + b2."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        of_output: Tensor,
        output_bias: Tensor,
        kernels: Products,
    ) -> Tensor:
        x = x if x.stride(1) == 1 and x.stride(0) else x.contiguous()
        inner, found = x.new_empty(len(x), len(weight)), x.new_empty(len(x), len(of_output))
        activated = torch.empty_like(inner)
        multiply(x, weight.T, bias, inner, activated=activated)
        multiply(activated, of_output.T, output_bias, found)
        ctx.save_for_backward(x, weight, inner, activated, of_output)
        ctx.kernels = kernels
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, inner, activated, of_output = ctx.saved_tensors
        to_x, to_weight, to_bias, to_output, to_output_bias, _ = ctx.needs_input_grad
        found: list[Tensor | None] = [None] * 6
        if to_output:
            found[3:5] = ctx.kernels.slopes(activated, grad)
        elif to_output_bias:
            found[4] = grad.sum(0, dtype=torch.float32)
        if to_x or to_weight or to_bias:
            grad = grad if grad.stride(1) == 1 and grad.stride(0) else grad.contiguous()
            of_inner = torch.empty_like(inner)
            multiply(grad, of_output, None, of_inner, before=inner)
            if to_weight:
                found[1:3] = ctx.kernels.slopes(x, of_inner)
            elif to_bias:
                found[2] = of_inner.sum(0, dtype=torch.float32)
            found[0] = ctx.kernels.multiplied(of_inner, weight) if to_x else None
        return tuple(
            slope if wanted else None for slope, wanted in zip(found, ctx.needs_input_grad, strict=True)
        )
