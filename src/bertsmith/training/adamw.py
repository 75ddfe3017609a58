"""AdamW: of a table it moves the rows that have had a gradient; its first updates are corrected or, as in BERT's
release, not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from bertsmith.kernels.plain import NEVER_ONE, NO_GRADIENT, TORCH, AdamWStep, Kernels


class AdamW(torch.optim.AdamW):
    """torch's, which also takes the gradient of some rows of a table, a sparse one. The update is the same: means
    fade and weights decay in all rows.

    kernels: what moves such tables.
    """

    kernels: Kernels = TORCH

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._where: dict[Tensor, tuple[Tensor, Tensor]] = {}  # beside the mean that it is true of

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update, as `torch.optim.AdamW.step`."""
        by_rows = []
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter.grad.is_sparse:
                    by_rows.append((parameter, parameter.grad, group))
                    parameter.grad = None
                else:
                    self._where.pop(parameter, None)
        answer = super().step(closure)
        for parameter, gradient, group in by_rows:
            self._move_rows(parameter, gradient.coalesce(), group)
            parameter.grad = gradient
        return answer

    def _move_rows(self, table: Tensor, gradient: Tensor, group: Mapping[str, Any]) -> None:
        state = self.state[table]
        if not state:  # as torch begins it
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(table), torch.zeros_like(table)
        state["step"] += 1
        made, rate = int(state["step"]), group["lr"]
        beta1, beta2 = group["betas"]
        step = AdamWStep(
            betas=(beta1, beta2),
            keep=1 - rate * group["weight_decay"],
            stride=rate / (1 - beta1**made),
            root=(1 - beta2**made) ** 0.5,
            epsilon=group["eps"],
        )
        rows, where = gradient.indices()[0], self._where_of(table)
        where[rows] = torch.arange(len(rows))
        self.kernels.move_rows(table, state["exp_avg"], state["exp_avg_sq"], where, gradient.values(), step)
        where[rows] = NO_GRADIENT

    def _where_of(self, table: Tensor) -> Tensor:
        """Of each row whether it has ever had a gradient: as its means say, where these are new here."""
        mean, square = self.state[table]["exp_avg"], self.state[table]["exp_avg_sq"]
        known = self._where.get(table)
        if known is None or known[0] is not mean:
            ever = (mean != 0).any(1) | (square != 0).any(1)
            known = mean, torch.where(ever, NO_GRADIENT, NEVER_ONE)
            self._where[table] = known
        return known[1]


class UncorrectedAdamW(AdamW):
    """AdamW without bias correction, by the fused kernel and with its state.

    The kernel computes lr · (m / c1) / (sqrt(v / c2) + eps) with c1 = 1 - beta1^t and c2 = 1 - beta2^t. Given
    lr · c1 / sqrt(c2) and eps / sqrt(c2) in their place that is lr · m / (sqrt(v) + eps); the decay, which it
    multiplies by the rate, is divided by the same factor. All parameters of a group must have been updated equally
    often.
    """

    _made: list[int] | None = None  # updates of each group; asked of the state once, which may lie elsewhere

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update, as `torch.optim.AdamW.step`."""
        if self._made is None:
            own = ([self.state[p] for p in group["params"] if p in self.state] for group in self.param_groups)
            self._made = [max((int(state["step"]) for state in states), default=0) for states in own]
        for number, group in enumerate(self.param_groups):
            self._made[number] += any(p.grad is not None for p in group["params"])
        usual = [(group["lr"], group["eps"], group["weight_decay"]) for group in self.param_groups]
        for group, made, (rate, epsilon, decay) in zip(self.param_groups, self._made, usual, strict=True):
            beta1, beta2 = group["betas"]
            if not made:  # nothing of this group is trained yet
                continue
            root = (1 - beta2**made) ** 0.5
            factor = (1 - beta1**made) / root
            group["lr"], group["eps"], group["weight_decay"] = rate * factor, epsilon / root, decay / factor
        try:
            return super().step(closure)
        finally:
            for group, values in zip(self.param_groups, usual, strict=True):
                group["lr"], group["eps"], group["weight_decay"] = values
