"""Matrix products by the fastest backend; without gradients, results of a row do not depend on the other rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertsmith import hardware
from bertsmith.kernels.linear import MatmulBackend
from bertsmith.kernels.reference import REFERENCE, KernelBackend, compute_dtype

MIN_ROWS = 16
"""The rows of a product whose results do not depend on their number.

MKL computes products of fewer than 4 rows, or 12 with several threads, by another algorithm.
"""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, kernels: KernelBackend = REFERENCE) -> Tensor:
    """Compute `F.linear`; without gradients, a row's result does not depend on the number of rows.

    Libraries compute products of few rows, or of one column, by other algorithms whose sums differ in the last
    bits. So few rows are padded with zeros, and a single column is duplicated.
    """
    if torch.compiler.is_exporting():  # a traced graph has other libraries' products
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return matmul(x, weight, bias, kernels)
    if len(weight) == 1:
        return linear(x, weight.repeat(2, 1), None if bias is None else bias.repeat(2), kernels)[..., :1]
    if x.dim() == 2 and len(x) < MIN_ROWS:
        return matmul(F.pad(x, (0, 0, 0, MIN_ROWS - len(x))), weight, bias, kernels)[: len(x)]
    return matmul(x, weight, bias, kernels)


def matmul_backend(x: Tensor, kernels: KernelBackend) -> MatmulBackend:
    """Return the fastest backend for matrix products of x."""
    if x.is_cpu and kernels.has_fast_matmul(x):
        return kernels
    is_fp32 = x.dtype == compute_dtype(x) == torch.float32
    return ONEDNN if x.is_cpu and is_fp32 and hardware.onednn_is_faster() else REFERENCE


def matmul(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, kernels: KernelBackend = REFERENCE
) -> Tensor:
    """Compute `F.linear` by the fastest backend: x [N, in] times the transpose of weight [out, in]."""
    backend = matmul_backend(x, kernels)
    if backend is REFERENCE or x.dim() != 2 or not x.numel():
        return F.linear(x, weight, bias)
    x = x.to(compute_dtype(x))
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        return _BackendMatmul.apply(x, weight, bias, backend)  # type: ignore[no-any-return, no-untyped-call]
    return backend.matmul(x, weight.T, bias)


class _OneDnn(MatmulBackend):
    """Matrix products by oneDNN; inputs that are neither row-major nor column-major are copied."""

    def matmul(self, x: Tensor, y: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        x, y = (t if 1 in t.stride() and 0 not in t.stride() else t.contiguous() for t in (x, y))
        output: Tensor = torch.ops.mkldnn._linear_pointwise(x, y.T, bias, "none", [], "")
        return output if out is None else out.copy_(output)


ONEDNN = _OneDnn()
"""Matrix products by oneDNN, if torch has it."""


class _BackendMatmul(torch.autograd.Function):
    """A matrix product whose forward and backward pass use one backend."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, backend: MatmulBackend) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.backend = backend
        return backend.matmul(x, weight.T, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        x_grad = ctx.backend.matmul(grad, weight) if needs_x else None
        if needs_weight and needs_bias:
            return x_grad, *ctx.backend.linear_weight_grads(x, grad), None
        weight_grad = ctx.backend.matmul(grad.T, x) if needs_weight else None
        return x_grad, weight_grad, grad.sum(0) if needs_bias else None, None
