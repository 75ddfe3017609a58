"""AdamW: of a table it moves the rows that have had a gradient; its first updates are corrected or, as in BERT's
release, not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bertsmith.kernels.reference import NEVER_ONE, NO_GRADIENT, TORCH, AdamWStep, Kernels, Moved


class AdamW(torch.optim.AdamW):
    """torch's, which also takes the gradient of some rows of a table, a sparse one. The update is the same: means
    fade and weights decay in all rows.

    kernels: what moves such tables, and all else where it is quicker. factor: what gradients are multiplied by in
    the next update, where these kernels move all parameters. found_inf: see `skips`.
    """

    kernels: Kernels = TORCH
    factor = 1.0
    found_inf: Tensor | None = None

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._where: dict[Tensor, tuple[Tensor, Tensor]] = {}  # beside the mean that it is true of

    def multiplies(self) -> bool:
        """Whether gradients can be multiplied by a factor on the way, in the next update."""
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        return all(gradient.is_sparse or self.kernels.moves(gradient) for gradient in gradients)

    def skips(self) -> bool:
        """Whether the next update changes nothing where `found_inf`, a tensor on the device, is 1: its kernel
        looks, and nobody waits for it."""
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        return not any(gradient.is_sparse or self.kernels.moves(gradient) for gradient in gradients)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update, as `torch.optim.AdamW.step`."""
        answer = None if closure is None else torch.enable_grad()(closure)()
        taken: list[tuple[Tensor, Tensor]] = []
        by_rows = []
        for group in self.param_groups:
            moved = []
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                if gradient.is_sparse:
                    by_rows.append((parameter, gradient.coalesce(), group))
                else:
                    self._where.pop(parameter, None)
                    if not self.kernels.moves(gradient):
                        continue
                    moved.append((parameter, gradient))
                taken.append((parameter, gradient))
                parameter.grad = None
            for made, some in self._begun(moved).items():
                self.kernels.move_all(some, _step_of(group, made), self.factor)
        super().step()
        for parameter, gradient, group in by_rows:
            self._move_rows(parameter, gradient, group)
        for parameter, gradient in taken:
            parameter.grad = gradient
        self.factor = 1.0
        return answer

    def _begun(self, given: Sequence[tuple[Tensor, Tensor]]) -> dict[int, list[Moved]]:
        """Parameters and their gradients with their means, by how often they have been moved: the next update
        counts as made."""
        states = [self.state[parameter] for parameter, _ in given]
        for (parameter, _), state in zip(given, states, strict=True):
            if not state:  # as torch begins it
                state["step"] = torch.zeros((), dtype=torch.float32)
                state["exp_avg"], state["exp_avg_sq"] = (
                    torch.zeros_like(parameter),
                    torch.zeros_like(parameter),
                )
        if states:
            torch._foreach_add_([state["step"] for state in states], 1)
        alike: dict[int, list[Moved]] = {}
        for (parameter, gradient), state in zip(given, states, strict=True):
            own = Moved(parameter, gradient, state["exp_avg"], state["exp_avg_sq"])
            alike.setdefault(int(state["step"]), []).append(own)
        return alike

    def _move_rows(self, table: Tensor, gradient: Tensor, group: Mapping[str, Any]) -> None:
        made, (own,) = self._begun([(table, gradient.values())]).popitem()
        rows, where = gradient.indices()[0], self._where_of(table)
        where[rows] = torch.arange(len(rows))
        values = own.gradient if self.factor == 1 else own.gradient * self.factor
        self.kernels.move_rows(table, own.mean, own.square, where, values, _step_of(group, made))
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


def _step_of(group: Mapping[str, Any], made: int) -> AdamWStep:
    """What a group's update is made with, the one of this number."""
    beta1, beta2 = group["betas"]
    return AdamWStep(
        betas=(beta1, beta2),
        keep=1 - group["lr"] * group["weight_decay"],
        stride=group["lr"] / (1 - beta1**made),
        root=(1 - beta2**made) ** 0.5,
        epsilon=group["eps"],
    )


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
