"""AdamW that also takes sparse gradients of embedding tables, with or without bias correction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from bertsmith.kernels.reference import (
    NEVER_UPDATED,
    NO_GRAD,
    REFERENCE,
    AdamWStep,
    AdamWTensors,
    KernelBackend,
)

_NEVER_CORRECTED = 1e30  # a step count at which both of torch's correction factors, 1 - beta^step, are 1


class AdamW(torch.optim.AdamW):
    """torch's, which also takes the gradient of some rows of a table, a sparse one. The update is the same: means
    fade and weights decay in all rows.

    bias_correction: divide the running means by 1 - beta^step (Kingma and Ba 2015, algorithm 1); BERT's release
    does not.

    kernels: what moves such tables, and all else where it is quicker. factor: what gradients are multiplied by in
    the next update, where these kernels move all parameters. found_inf: see `skips`.
    """

    kernels: KernelBackend = REFERENCE
    factor = 1.0
    found_inf: Tensor | None = None

    def __init__(self, *given: Any, bias_correction: bool = True, **named: Any) -> None:
        super().__init__(*given, **named)
        self.bias_correction = bias_correction
        self._where: dict[Tensor, tuple[Tensor, Tensor]] = {}  # beside the mean that it is true of

    def multiplies(self) -> bool:
        """Whether gradients can be multiplied by a factor on the way, in the next update."""
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        return all(gradient.is_sparse or self.kernels.has_fused_adamw(gradient) for gradient in gradients)

    def skips(self) -> bool:
        """Whether the next update changes nothing where `found_inf`, a tensor on the device, is 1: its kernel
        looks, and nobody waits for it."""
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        return not any(gradient.is_sparse or self.kernels.has_fused_adamw(gradient) for gradient in gradients)

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
                    if not self.kernels.has_fused_adamw(gradient):
                        continue
                    moved.append((parameter, gradient))
                taken.append((parameter, gradient))
                parameter.grad = None
            for made, some in self._begun(moved).items():
                self.kernels.adamw_step(some, self._step_of(group, made), self.factor)
        if self.bias_correction:
            super().step()
        else:
            self._step_uncorrected()
        for parameter, gradient, group in by_rows:
            self._move_rows(parameter, gradient, group)
        for parameter, gradient in taken:
            parameter.grad = gradient
        self.factor = 1.0
        return answer

    def _begun(self, given: Sequence[tuple[Tensor, Tensor]]) -> dict[int, list[AdamWTensors]]:
        """Parameters and their gradients with their means, by how often they have been moved: the next update
        counts as made."""
        states = self._counted([parameter for parameter, _ in given])
        alike: dict[int, list[AdamWTensors]] = {}
        for (parameter, gradient), state in zip(given, states, strict=True):
            own = AdamWTensors(parameter, gradient, state["exp_avg"], state["exp_avg_sq"])
            alike.setdefault(int(state["step"]), []).append(own)
        return alike

    def _counted(self, parameters: Sequence[Tensor]) -> list[dict[str, Any]]:
        """Return the parameters' states, begun as torch begins them, with the next update counted."""
        states = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states, strict=True):
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        if states:
            torch._foreach_add_([state["step"] for state in states], 1)
        return states

    def _move_rows(self, table: Tensor, gradient: Tensor, group: Mapping[str, Any]) -> None:
        made, (own,) = self._begun([(table, gradient.values())]).popitem()
        rows, where = gradient.indices()[0], self._where_of(table)
        where[rows] = torch.arange(len(rows))
        values = own.grad if self.factor == 1 else own.grad * self.factor
        self.kernels.sparse_adamw(
            table, own.exp_avg, own.exp_avg_sq, where, values, self._step_of(group, made)
        )
        where[rows] = NO_GRAD

    def _where_of(self, table: Tensor) -> Tensor:
        """Of each row whether it has ever had a gradient: as its means say, where these are new here."""
        mean, square = self.state[table]["exp_avg"], self.state[table]["exp_avg_sq"]
        known = self._where.get(table)
        if known is None or known[0] is not mean:
            ever = (mean != 0).any(1) | (square != 0).any(1)
            known = mean, torch.where(ever, NO_GRAD, NEVER_UPDATED)
            self._where[table] = known
        return known[1]

    def _step_of(self, group: Mapping[str, Any], made: int) -> AdamWStep:
        """What a group's update is made with, the one of this number."""
        beta1, beta2 = group["betas"]
        corrections = (1 - beta1**made, 1 - beta2**made) if self.bias_correction else (1.0, 1.0)
        return AdamWStep(
            betas=(beta1, beta2),
            decay_factor=1 - group["lr"] * group["weight_decay"],
            step_size=group["lr"] / corrections[0],
            sqrt_bias_correction2=corrections[1] ** 0.5,
            epsilon=group["eps"],
        )

    def _step_uncorrected(self) -> None:
        """Update all parameters that have a gradient by torch's fused kernel, without bias correction."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            states = self._counted(parameters)
            step = torch.tensor(_NEVER_CORRECTED, device=parameters[0].device)
            adamw(
                parameters,
                [p.grad for p in parameters],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [step] * len(parameters),
                fused=group["fused"],
                found_inf=self.found_inf,
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )
