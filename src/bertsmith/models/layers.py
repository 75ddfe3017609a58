"""The small layers that draw, drop or begin the house's way: Linear, Table, Dropout, and the activations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bertsmith import hardware
from bertsmith.kernels.reference import TORCH, Kernels, Products, gelu_new, kind_of

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": gelu_new,
    "relu": F.relu,
    "tanh": torch.tanh,
}


_MANY_ROWS = 4096  # of a table: with fewer most of them are looked up soon, or all are too few to tell
_FEW_ROWS = 16  # fewer are computed another way by the products' libraries: 4 by MKL, 12 by its threads


class Dropout(nn.Module):
    """Dropout that draws from a generator of its own, so that a checkpoint can hold its state.

    16 random bits decide one element, so p is met to 2**-17; the scale uses the probability really met. One
    pass multiplies by a mask that is drawn with its scale in it: over four times as fast as `F.dropout` on a
    CPU whose allocator keeps its memory, and as fast where every tensor is mapped anew.
    """

    def __init__(self, p: float, generator: torch.Generator) -> None:
        super().__init__()
        self.p = p
        self.generator = generator

    @property
    def active(self) -> bool:
        """Whether anything is dropped at all."""
        return self.training and self.p > 0

    def forward(self, x: Tensor) -> Tensor:
        """Drop and rescale elements of x in training; x itself otherwise."""
        return x * self.mask(x) if self.active else x

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + dropout(x), in one pass."""
        return torch.addcmul(residual, x, self.mask(x)) if self.active else residual + x

    def mask(self, x: Tensor) -> Tensor:
        """A fresh mask for x, of its shape and dtype: 0 where dropped, 1 / (1 - p) elsewhere."""
        bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device)
        # The full range by name: plain random_() leaves the sign bit 0 and so every fourth number biased.
        bits.random_(-(2**63), None, generator=self.generator)
        dropped = min(round(self.p * 2**16), 2**16 - 1)
        mask = torch.empty_like(x, memory_format=torch.contiguous_format)
        torch.ge(bits.view(torch.int16)[: x.numel()].view(x.shape), dropped - 2**15, out=mask)
        return mask.mul_(2**16 / (2**16 - dropped))

    def extra_repr(self) -> str:
        return f"p={self.p}"


def use_generator(module: nn.Module, generator: torch.Generator) -> None:
    """Let every dropout inside `module` draw from `generator`."""
    for part in module.modules():
        if isinstance(part, Dropout):
            part.generator = generator


def watched(*parts: nn.Module) -> bool:
    """Whether hooks see what goes in and out of one of these, there or back, so that it must be called itself."""
    return any(
        part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
        for part in parts
    )


class Linear(nn.Linear):
    """A linear layer whose first weights are left to `draw_weights`: torch draws them from a global state.

    activates: whether GELU of what it gives can be asked for.
    """

    kernels: Kernels = TORCH
    activates: ClassVar[bool] = False

    def reset_parameters(self) -> None:
        """Nothing."""

    def forward(self, x: Tensor) -> Tensor:
        """[…, in] → […, out]."""
        return linear(x, self.weight, self.bias, self.kernels)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, kernels: Kernels = TORCH) -> Tensor:
    """`F.linear`; where nothing is trained, a row's answer does not depend on how many rows there are.

    Libraries compute products of few rows, or of one column, another way, and their sums differ in the last bits.
    So few rows are joined by zeros, and one column by itself.
    """
    if torch.is_grad_enabled():
        return product(x, weight, bias, kernels)
    if len(weight) == 1:
        return linear(x, weight.repeat(2, 1), None if bias is None else bias.repeat(2), kernels)[..., :1]
    if x.dim() == 2 and len(x) < _FEW_ROWS:
        return product(F.pad(x, (0, 0, 0, _FEW_ROWS - len(x))), weight, bias, kernels)[: len(x)]
    return product(x, weight, bias, kernels)


def way_of(x: Tensor, kernels: Kernels) -> Products:
    """What makes products of x most quickly."""
    if x.is_cpu and kernels.multiplies(x):
        return kernels
    is_full = x.dtype == kind_of(x) == torch.float32
    return ONEDNN if x.is_cpu and is_full and hardware.onednn_is_faster() else TORCH


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, kernels: Kernels = TORCH) -> Tensor:
    """`F.linear`: x [N, in] times the transpose of weight [out, in], in the quickest way."""
    way = way_of(x, kernels)
    if way is TORCH or x.dim() != 2 or not x.numel():
        return F.linear(x, weight, bias)
    x = x.to(kind_of(x))
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        trained: Any = _Product.apply  # torch says nothing of its types
        made: Tensor = trained(x, weight, bias, way)
        return made
    return way.multiplied(x, weight.T, bias)


class _OneDnn(Products):
    """By oneDNN. What lies neither by rows nor by columns, such as one number told for all, is copied."""

    def multiplied(
        self, x: Tensor, y: Tensor, bias: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        x, y = (t if 1 in t.stride() and 0 not in t.stride() else t.contiguous() for t in (x, y))
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, y.T, bias, "none", [], "")
        return found if out is None else out.copy_(found)


ONEDNN = _OneDnn()
"""Products by oneDNN, where torch has it."""


class _Product(torch.autograd.Function):
    """A product, there and back in one way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, way: Products) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.way = way
        return way.multiplied(x, weight.T, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        to_x, to_weight, to_bias, _ = ctx.needs_input_grad
        of_x = ctx.way.multiplied(grad, weight) if to_x else None
        if to_weight and to_bias:
            return of_x, *ctx.way.slopes(x, grad), None
        of_weight = ctx.way.multiplied(grad.T, x) if to_weight else None
        return of_x, of_weight, grad.sum(0) if to_bias else None, None


class Table(nn.Embedding):
    """A table of vectors whose first values are left to `draw_weights`.

    by_rows: whether its gradient is one of the rows looked up alone, sparse as torch calls it.
    """

    kernels: Kernels = TORCH
    by_rows = False
    _joins = False

    def reset_parameters(self) -> None:
        """Nothing."""

    @property
    def pays_by_rows(self) -> bool:
        """Whether it is trained quicker with such a gradient."""
        return self.kernels.by_rows and self.weight.is_cpu and len(self.weight) >= _MANY_ROWS

    def forward(self, ids: Tensor) -> Tensor:
        """[…] → […, E]."""
        return F.embedding(ids, self.weight, self.padding_idx, sparse=self._joins or self.by_rows)

    @contextmanager
    def beside_decoder(self, decodes: bool) -> Iterator[Tensor]:
        """Where rows are looked up in a table that also `decodes` in the same loss, which gives all its rows a
        gradient: on a processor the gradients of these rows are added to that, in its place, instead of to a table
        of zeros which is then added as a whole. Gives the weights to decode with."""
        self._joins = decodes and torch.is_grad_enabled() and self.weight.is_cpu
        last: Any = _GradientLast.apply  # torch says nothing of its types
        try:
            yield last(self.weight) if self._joins else self.weight
        finally:
            self._joins = False


class _GradientLast(torch.autograd.Function):
    """The same tensor. Of what is ready torch's engine takes first what was made last, so that of all uses of a
    tensor the one through this, made before the others, gives its gradient last. The engine adds gradients of
    single rows to a dense one in place if the dense one comes last; if it comes first, to a copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad
