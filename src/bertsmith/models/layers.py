"""Basic layers: Linear, Embedding, dropout, and activations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bertsmith import hardware
from bertsmith.kernels.linear import MatmulBackend
from bertsmith.kernels.reference import REFERENCE, KernelBackend, compute_dtype, gelu_tanh

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": gelu_tanh,
    "relu": F.relu,
    "tanh": torch.tanh,
}


_MIN_SPARSE_ROWS = 4096  # in smaller embeddings a batch looks up most rows, or a dense update is fast
# MKL computes products of fewer than 4 rows, or 12 with several threads, by another algorithm.
_MIN_ROWS = 16


class Dropout(nn.Module):
    """Dropout that draws from a given generator, so that a checkpoint can save its state.

    16 random bits decide each element, so p is exact to 2**-17; the scale uses the rounded probability. One
    pass multiplies by a mask that includes the scale: over four times as fast as `F.dropout` on a CPU whose
    allocator reuses memory, and equally fast if every tensor is newly mapped.
    """

    def __init__(self, p: float, generator: torch.Generator) -> None:
        super().__init__()
        self.p = p
        self.generator = generator

    @property
    def is_active(self) -> bool:
        """Return True in training if p is not 0."""
        return self.training and self.p > 0

    def forward(self, x: Tensor) -> Tensor:
        """Drop and rescale elements of x in training; return x otherwise."""
        return x * self.draw_mask(x) if self.is_active else x

    def add_residual(self, residual: Tensor, x: Tensor) -> Tensor:
        """Compute residual + dropout(x) in one pass."""
        return torch.addcmul(residual, x, self.draw_mask(x)) if self.is_active else residual + x

    def draw_mask(self, x: Tensor) -> Tensor:
        """Draw a mask of the shape and dtype of x: 0 where dropped, 1 / (1 - p) elsewhere."""
        bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device)
        # random_() without a range leaves the sign bit 0, which biases every fourth 16-bit number.
        bits.random_(-(2**63), None, generator=self.generator)
        num_dropped = min(round(self.p * 2**16), 2**16 - 1)  # of the 2**16 values, the lowest ones
        mask = torch.empty_like(x, memory_format=torch.contiguous_format)
        torch.ge(bits.view(torch.int16)[: x.numel()].view(x.shape), num_dropped - 2**15, out=mask)
        return mask.mul_(2**16 / (2**16 - num_dropped))

    def extra_repr(self) -> str:
        return f"p={self.p}"


def set_generator(module: nn.Module, generator: torch.Generator) -> None:
    """Set the generator of all dropout layers in a module."""
    for part in module.modules():
        if isinstance(part, Dropout):
            part.generator = generator


def has_hooks(*modules: nn.Module) -> bool:
    """Return True if a module has forward or backward hooks, so that it must be called itself."""
    return any(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        for module in modules
    )


class Linear(nn.Linear):
    """A linear layer without initial weights.

    `weight_init.init_weights` draws them from a given generator; torch would use its global one.

    Attributes:
        supports_gelu: True if the layer can apply GELU to its output.
    """

    kernels: KernelBackend = REFERENCE
    supports_gelu: ClassVar[bool] = False

    def reset_parameters(self) -> None:
        """Do nothing."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute […, in] → […, out]."""
        return linear(x, self.weight, self.bias, self.kernels)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, kernels: KernelBackend = REFERENCE) -> Tensor:
    """Compute `F.linear`; without gradients, a row's result does not depend on the number of rows.

    Libraries compute products of few rows, or of one column, by other algorithms whose sums differ in the last
    bits. So few rows are padded with zeros, and a single column is duplicated.
    """
    if torch.is_grad_enabled():
        return matmul(x, weight, bias, kernels)
    if len(weight) == 1:
        return linear(x, weight.repeat(2, 1), None if bias is None else bias.repeat(2), kernels)[..., :1]
    if x.dim() == 2 and len(x) < _MIN_ROWS:
        return matmul(F.pad(x, (0, 0, 0, _MIN_ROWS - len(x))), weight, bias, kernels)[: len(x)]
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
        return _BackendMatmul.apply(x, weight, bias, backend)  # type: ignore
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


class Embedding(nn.Embedding):
    """An embedding without initial weights, which `weight_init.init_weights` draws.

    Attributes:
        sparse_grad: True if its gradient is sparse, with the rows that were looked up.
    """

    kernels: KernelBackend = REFERENCE
    sparse_grad = False
    _joins = False

    def reset_parameters(self) -> None:
        """Do nothing."""

    @property
    def benefits_from_sparse_grad(self) -> bool:
        """Return True if training is faster with a sparse gradient."""
        return (
            self.kernels.sparse_embedding_updates
            and self.weight.is_cpu
            and len(self.weight) >= _MIN_SPARSE_ROWS
        )

    def forward(self, ids: Tensor) -> Tensor:
        """Look up ids […] → […, E]."""
        return F.embedding(ids, self.weight, self.padding_idx, sparse=self._joins or self.sparse_grad)

    @contextmanager
    def tied_decoder_weight(self, is_tied: bool) -> Iterator[Tensor]:
        """Yield the weights for a decoder, so that a tied decoder trains faster on a CPU.

        In this context lookups have sparse gradients, which autograd adds in place to the decoder's dense
        gradient. Otherwise the lookup would make a second dense gradient, mostly of zeros.

        Args:
            is_tied: True if a decoder uses the weights in the same loss; otherwise the context changes nothing.
        """
        self._joins = is_tied and torch.is_grad_enabled() and self.weight.is_cpu
        try:
            yield _GradientLast.apply(self.weight) if self._joins else self.weight  # type: ignore
        finally:
            self._joins = False


class _GradientLast(torch.autograd.Function):
    """The identity, whose gradient arrives last among all uses of its input.

    Among nodes that are ready torch's engine runs the newest first, and this node is created before the other
    uses. The engine adds sparse gradients to a dense one in place if the dense one arrives last, and otherwise
    to a copy.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad
