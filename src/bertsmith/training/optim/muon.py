"""Muon: the update of a matrix is its orthogonalized momentum (Jordan et al. 2024).

Unlike `torch.optim.Muon`, which follows the same rule, it orthogonalizes matrices of the same shape in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

# Coefficients of the polynomial a·x + b·x³ + c·x⁵ of the singular values in each iteration (Jordan et al. 2024).
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5
_ADAMW_RMS = 0.2  # root mean square of a usual update of AdamW


class Muon(torch.optim.Optimizer):
    """Muon over matrices [R, C]: W ← W - lr · (decay · W + 0.2 · sqrt(max(R, C)) · orthogonalize(momentum)).

    The factor makes an update as large as one of AdamW with the same learning rate (Liu et al. 2025, section 2.2;
    `match_rms_adamw` in torch). The momentum is Nesterov's.

    Args:
        matrices: Parameters or parameter groups.
        lr: The learning rate.
        momentum: The decay rate of the running mean of gradients.
        weight_decay: The weight decay.
        num_joined: Returns the number of matrices that a parameter joins along its rows; each of them is
            orthogonalized by itself.

    Attributes:
        found_inf: A scalar on the device; if it is 1, the next update changes nothing, as with torch's optimizers.
    """

    found_inf: Tensor | None = None

    def __init__(
        self,
        matrices: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        num_joined: Callable[[nn.Parameter], int] = lambda matrix: 1,
    ) -> None:
        groups: Any = list(matrices)
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._num_joined = num_joined

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every matrix that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        # The factor of the update: 0 to change nothing, 1 otherwise; None: the update is made in any case.
        factor = None if self.found_inf is None else 1 - self.found_inf
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            decay, new_fraction = lr * group["weight_decay"], 1 - momentum
            if factor is not None:
                decay, new_fraction = decay * factor, new_fraction * factor
            by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state, num_joined = self.state[matrix], self._num_joined(matrix)
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(matrix)
                grad = matrix.grad
                if factor is not None:
                    grad = torch.where(factor > 0, grad, 0.0)  # 0 times Inf would be NaN
                mean = state["momentum_buffer"].lerp_(grad, new_fraction)
                direction = grad.lerp(mean, momentum)
                matrix.mul_(1 - decay)
                for weight, part in zip(matrix.chunk(num_joined), direction.chunk(num_joined), strict=True):
                    is_tall = part.shape[0] > part.shape[1]
                    pair = (weight.T, part.T) if is_tall else (weight, part)
                    by_shape.setdefault(pair[1].shape, []).append(pair)
            for shape, members in by_shape.items():
                directions = orthogonalize(torch.stack([direction for _, direction in members]))
                if factor is not None:
                    directions = directions * factor
                for (weight, _), direction in zip(members, directions, strict=True):
                    weight.add_(direction, alpha=-lr * _ADAMW_RMS * shape[1] ** 0.5)
        return loss


def orthogonalize(matrices: Tensor) -> Tensor:
    """Return approximately the nearest matrices with orthonormal rows, by Newton-Schulz iterations.

    Singular values of at least a hundredth of the norm are mapped to values between 0.6 and 1.25, which is as good
    as 1. With autocast the iterations are in bf16, as in Jordan et al. 2024, otherwise in the input's precision.

    Args:
        matrices: Matrices [n, R, C] with R ≤ C.
    """
    x: Tensor = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    if torch.is_autocast_enabled(matrices.device.type):
        x = x.bfloat16()
    for _ in range(_ITERATIONS):  # X ← (a + b·XXᵀ + c·(XXᵀ)²)·X
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x.to(matrices.dtype)
