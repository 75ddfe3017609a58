"""Muon: each matrix moves by its momentum made orthogonal, matrices of one shape in one batch of products.

After Jordan et al. 2024, whose rule torch's `torch.optim.Muon` follows one matrix at a time and in bf16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

# Of the polynomial a·x + b·x³ + c·x⁵ that each iteration applies to the singular values: the steepest at 0 that
# keeps them near 1 (Jordan et al. 2024).
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5
_WIDE = 2  # times as many columns as rows: from there on the products of rows alone are the cheaper way
_MATCHING = 0.2  # root mean square of AdamW's usual update


class Muon(torch.optim.Optimizer):
    """Muon over matrices [R, C]: W ← W - rate · (decay · W + 0.2 · sqrt(max(R, C)) · orthogonal(momentum)).

    The factor makes an update as large as AdamW's at the same rate (Liu et al. 2025, section 2.2; torch's
    `match_rms_adamw`). The momentum is Nesterov's. matrices: as torch's optimisers take them, in groups or not.
    joined: how many matrices of C columns stand above each other
    in a parameter; each is made orthogonal by itself. found_inf: a scalar on the device; where it is 1, the next
    update changes nothing, as with torch's own optimisers.
    """

    found_inf: Tensor | None = None

    def __init__(
        self,
        matrices: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        joined: Callable[[nn.Parameter], int] = lambda matrix: 1,
    ) -> None:
        groups: Any = list(matrices)
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._joined = joined

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every matrix that has a gradient."""
        answer = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            rate, momentum, made = group["lr"], group["momentum"], _made(self.found_inf)
            share, keep = _of(1 - momentum, made), 1 - _of(rate * group["weight_decay"], made)
            shapes: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state, parts = self.state[matrix], self._joined(matrix)
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(matrix)
                gradient = matrix.grad
                if made is not None:
                    gradient = torch.where(made > 0, gradient, 0.0)  # 0 times what is not finite is not 0
                mean = state["momentum_buffer"].lerp_(gradient, share)
                move = gradient.lerp(mean, momentum)
                matrix.mul_(keep)
                for weight, part in zip(matrix.chunk(parts), move.chunk(parts), strict=True):
                    tall = part.shape[0] > part.shape[1]
                    wide = (weight.T, part.T) if tall else (weight, part)
                    shapes.setdefault(wide[1].shape, []).append(wide)
            for shape, members in shapes.items():
                moves = orthogonal(torch.stack([move for _, move in members]))
                if made is not None:
                    moves = moves * made
                for (weight, _), move in zip(members, moves, strict=True):
                    weight.add_(move, alpha=-rate * _MATCHING * shape[1] ** 0.5)
        return answer


def _made(found_inf: Tensor | None) -> Tensor | None:
    """1 where the update is made, and 0 where it is not; None where it is made in any case."""
    return None if found_inf is None else 1 - found_inf


def _of(share: float, made: Tensor | None) -> Any:
    """A share where the update is made, else 0."""
    return share if made is None else share * made


def orthogonal(matrices: Tensor) -> Tensor:
    """About the nearest matrices with orthonormal rows: [n, R, C], R ≤ C → the same shape.

    Five iterations bring singular values of a hundredth of the norm and more to between 0.6 and 1.25, which
    serves as well as 1. They are computed in bf16 where autocast is on, as in Jordan et al. 2024, else in the
    matrices' own precision.
    """
    low = torch.is_autocast_enabled(matrices.device.type)
    x = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    if low:
        return _by_product(x.bfloat16()).to(matrices.dtype)
    return _by_gram(x) if x.shape[2] > _WIDE * x.shape[1] else _by_product(x)


def _by_product(x: Tensor) -> Tensor:
    """The iterations as they are defined: x ← (a + b·xxᵀ + c·(xxᵀ)²)·x."""
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x


def _by_gram(x: Tensor) -> Tensor:
    """The same on [R, R] alone: each iteration multiplies x from the left by a polynomial in xxᵀ, and such
    polynomials commute. Products of x with itself want more than the eight bits of bf16."""
    gram, whole = x @ x.mT, None
    for left in range(_ITERATIONS, 0, -1):
        factor = torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C)
        factor.diagonal(dim1=1, dim2=2).add_(_A)
        whole = factor if whole is None else factor @ whole
        if left > 1:
            gram = factor @ gram @ factor
    return x if whole is None else whole @ x
