"""AdamW with sparse gradients of embeddings, and with or without bias correction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from bertsmith.kernels import reference
from bertsmith.kernels.reference import AdamWStep, AdamWTensors, KernelBackend

_UNCORRECTED_STEP = 1e30  # a step count at which both bias corrections of torch, 1 - beta^step, are 1


class AdamW(torch.optim.AdamW):
    """torch's AdamW that also takes sparse gradients, which contain only some rows of an embedding.

    The update with a sparse gradient equals that with the dense one: running means and weights of all rows decay.

    Attributes:
        bias_correction: Divide the running means by 1 - beta^step (Kingma and Ba 2015, algorithm 1); BERT's
            released code does not.
        kernels: The kernels for sparse gradients, and for dense ones where they are faster.
        gradient_factor: The factor of the gradients in the next update, if the kernels make the whole update.
        found_inf: A scalar on the device; if it is 1, the next update changes no weight (see
            `supports_found_inf`).
    """

    kernels: KernelBackend = reference.REFERENCE
    gradient_factor = 1.0
    found_inf: Tensor | None = None

    def __init__(self, *args: Any, bias_correction: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bias_correction = bias_correction
        # By embedding: the running mean that the row index was made for, and the row index.
        self._row_indices: dict[Tensor, tuple[Tensor, Tensor]] = {}

    def can_scale_grads(self) -> bool:
        """Return True if the next update can multiply all gradients by `gradient_factor`."""
        return all(grad.is_sparse or self.kernels.has_fused_adamw(grad) for grad in self._grads())

    def supports_found_inf(self) -> bool:
        """Return True if the next update reads `found_inf` on the device, without waiting for it."""
        return not any(grad.is_sparse or self.kernels.has_fused_adamw(grad) for grad in self._grads())

    def _grads(self) -> list[Tensor]:
        return [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one update, as `torch.optim.AdamW.step`."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        removed_grads: list[tuple[Tensor, Tensor]] = []
        sparse = []
        for group in self.param_groups:
            dense = []
            for parameter in group["params"]:
                grad = parameter.grad
                if grad is None:
                    continue
                if grad.is_sparse:
                    sparse.append((parameter, grad.coalesce(), group))
                else:
                    self._row_indices.pop(parameter, None)
                    if not self.kernels.has_fused_adamw(grad):
                        continue
                    dense.append((parameter, grad))
                removed_grads.append((parameter, grad))
                parameter.grad = None
            for step, tensors in self._tensors_by_step(dense).items():
                self.kernels.adamw_step(tensors, self._step_values(group, step), self.gradient_factor)
        if self.bias_correction:
            super().step()
        else:
            self._step_uncorrected()
        for parameter, grad, group in sparse:
            self._step_sparse(parameter, grad, group)
        for parameter, grad in removed_grads:
            parameter.grad = grad
        self.gradient_factor = 1.0
        return loss

    def _tensors_by_step(self, grads: Sequence[tuple[Tensor, Tensor]]) -> dict[int, list[AdamWTensors]]:
        """Return the tensors of an update by step count, with the next update counted."""
        states = self._count_step([parameter for parameter, _ in grads])
        by_step: dict[int, list[AdamWTensors]] = {}
        for (parameter, grad), state in zip(grads, states, strict=True):
            tensors = AdamWTensors(parameter, grad, state["exp_avg"], state["exp_avg_sq"])
            by_step.setdefault(int(state["step"]), []).append(tensors)
        return by_step

    def _count_step(self, parameters: Sequence[Tensor]) -> list[dict[str, Any]]:
        """Return the parameters' states, initialized as torch does, with the next update counted."""
        states = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states, strict=True):
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        if states:
            torch._foreach_add_([state["step"] for state in states], 1)
        return states

    def _step_sparse(self, embedding: Tensor, grad: Tensor, group: Mapping[str, Any]) -> None:
        step, (tensors,) = self._tensors_by_step([(embedding, grad.values())]).popitem()
        rows, row_index = grad.indices()[0], self._row_index(embedding)
        row_index[rows] = torch.arange(len(rows))
        values = tensors.grad if self.gradient_factor == 1 else tensors.grad * self.gradient_factor
        self.kernels.sparse_adamw(
            embedding, tensors.exp_avg, tensors.exp_avg_sq, row_index, values, self._step_values(group, step)
        )
        row_index[rows] = reference.NO_GRAD

    def _row_index(self, embedding: Tensor) -> Tensor:
        """Return NO_GRAD or NEVER_UPDATED for each row, from its running means if they are new."""
        exp_avg, exp_avg_sq = self.state[embedding]["exp_avg"], self.state[embedding]["exp_avg_sq"]
        cached = self._row_indices.get(embedding)
        if cached is None or cached[0] is not exp_avg:
            was_updated = (exp_avg != 0).any(1) | (exp_avg_sq != 0).any(1)
            cached = exp_avg, torch.where(was_updated, reference.NO_GRAD, reference.NEVER_UPDATED)
            self._row_indices[embedding] = cached
        return cached[1]

    def _step_values(self, group: Mapping[str, Any], step: int) -> AdamWStep:
        """Return the scalars of a group's update."""
        beta1, beta2 = group["betas"]
        corrections = (1 - beta1**step, 1 - beta2**step) if self.bias_correction else (1.0, 1.0)
        return AdamWStep(
            betas=(beta1, beta2),
            decay_factor=1 - group["lr"] * group["weight_decay"],
            step_size=group["lr"] / corrections[0],
            sqrt_bias_correction2=corrections[1] ** 0.5,
            epsilon=group["eps"],
        )

    def _step_uncorrected(self) -> None:
        """Update all parameters with a gradient by torch's fused kernel, without bias correction."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            states = self._count_step(parameters)
            step = torch.tensor(_UNCORRECTED_STEP, device=parameters[0].device)
            grads = [p.grad for p in parameters]
            exp_avgs, exp_avg_sqs = ([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq"))
            beta1, beta2 = group["betas"]
            options = {
                key: group[key] for key in ("lr", "weight_decay", "eps", "fused", "amsgrad", "maximize")
            }
            tensors = parameters, grads, exp_avgs, exp_avg_sqs, list[Tensor](), [step] * len(parameters)
            adamw(*tensors, **options, beta1=beta1, beta2=beta2, found_inf=self.found_inf)
