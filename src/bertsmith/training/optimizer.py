"""The optimizer of a run: AdamW, or Muon for matrices and AdamW for the rest; clipping, and the optimizer's state.

The update of Muon is the orthogonalized momentum of a matrix (Jordan et al. 2024). Unlike `torch.optim.Muon`,
which follows the same rule, it orthogonalizes matrices of the same shape in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.kernels.reference import REFERENCE, KernelBackend
from bertsmith.training.adamw import AdamW
from bertsmith.training.settings import TrainSettings

# Parts of parameter names: of the layers, and of the product that joins the matrices of query, key, and value.
_LAYER, _QKV = ".blocks.", "qkv.weight"
_LSTM_GATES = 4  # whose matrices torch joins
_ADAMW_STATE = frozenset({"step", "exp_avg", "exp_avg_sq"})
_MUON_STATE = frozenset({"momentum_buffer"})
_CLIP_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_
# Coefficients of the polynomial a·x + b·x³ + c·x⁵ of the singular values in each iteration (Jordan et al. 2024).
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5
_ADAMW_RMS = 0.2  # root mean square of a usual update of AdamW


def create_optimizer(module: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """Create the optimizer of the settings for all parameters that are trainable now.

    A group's `lr_multiplier` multiplies the learning rate of the run: for the matrices of Muon, and for modules
    with an attribute `lr_multiplier` (the innermost module decides).
    """
    named = dict(module.named_parameters())
    matrices = {}
    if settings.optim == "muon":
        matrices = {name: p for name, p in named.items() if _LAYER in f".{name}" and p.dim() == 2}
    multipliers = {
        p: float(multiplier)
        for part in module.modules()
        if (multiplier := getattr(part, "lr_multiplier", None)) is not None
        for p in part.parameters()
    }
    adamw = create_adamw(
        ((name, p) for name, p in named.items() if name not in matrices),
        betas=(settings.adam_beta1, settings.adam_beta2),
        epsilon=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
        bias_correction=settings.bias_correction,
        lr_multipliers=multipliers,
        kernels=next(iter(kernel_backends(module)), REFERENCE),
    )
    gates = {
        p: _LSTM_GATES for part in module.modules() if isinstance(part, nn.LSTM) for p in part.parameters()
    }
    num_joined = {
        p: 3 if name.endswith(_QKV) else gates.get(p, 1) for name, p in matrices.items() if p.requires_grad
    }
    if not num_joined:
        return adamw
    decay = settings.weight_decay if settings.muon_weight_decay is None else settings.muon_weight_decay
    ratio = settings.muon_learning_rate / settings.learning_rate
    by_multiplier = _by_multiplier({p: ratio * multipliers.get(p, 1.0) for p in num_joined})
    muon = Muon(
        [{"params": matrices, "lr_multiplier": multiplier} for multiplier, matrices in by_multiplier],
        lr=0.0,
        momentum=settings.muon_momentum,
        weight_decay=decay,
        num_joined=num_joined.__getitem__,
    )
    return CombinedOptimizer([muon, adamw])


def create_adamw(
    named: Iterable[tuple[str, nn.Parameter]],
    *,
    betas: tuple[float, float],
    epsilon: float,
    weight_decay: float,
    bias_correction: bool = True,
    lr_multipliers: Mapping[nn.Parameter, float] | None = None,
    kernels: KernelBackend = REFERENCE,
) -> AdamW:
    """Create a fused AdamW over named parameters; its learning rate is set before each update.

    Args:
        named: Names and parameters. Those with one dimension, which are biases and the parameters of LayerNorm,
            have no weight decay (Devlin et al. 2019, A.2; `exclude_from_weight_decay` in the released code).
        betas: The decay rates of the running means.
        epsilon: The number added to the denominator.
        weight_decay: The weight decay.
        bias_correction: Divide the running means by 1 - beta^t (Kingma and Ba 2015, algorithm 1). With it the
            first update is as long as the learning rate; without it, as in BERT's released code, 3.16 times as
            long.
        lr_multipliers: Factors of the learning rate of single parameters.
        kernels: The kernels for updates.
    """
    lr_multipliers = lr_multipliers or {}
    multipliers = {p: lr_multipliers.get(p, 1.0) for _, p in named if p.requires_grad}
    groups: list[dict[str, Any]] = []
    for multiplier, parameters in _by_multiplier(multipliers):
        options = {"lr_multiplier": multiplier} if multiplier != 1.0 else {}
        for decay, members in (
            (weight_decay, [p for p in parameters if p.dim() > 1]),
            (0.0, [p for p in parameters if p.dim() <= 1]),
        ):
            groups.append({"params": members, "weight_decay": decay, **options})
    # Fused, an update is 11.6 times faster than with the default on a CPU.
    optimizer = AdamW(
        [group for group in groups if group["params"]],
        lr=0.0,
        betas=betas,
        eps=epsilon,
        fused=True,
        bias_correction=bias_correction,
    )
    optimizer.kernels = kernels
    return optimizer


def _by_multiplier(multipliers: Mapping[nn.Parameter, float]) -> list[tuple[float, list[nn.Parameter]]]:
    """Return the multipliers in ascending order, each with its parameters."""
    return [
        (multiplier, [p for p in multipliers if multipliers[p] == multiplier])
        for multiplier in sorted(set(multipliers.values()))
    ]


def kernel_backends(module: nn.Module) -> list[KernelBackend]:
    """Return the kernels of each module in a model that has some."""
    backends: list[Any] = [getattr(part, "kernels", None) for part in module.modules()]
    return [kernels for kernels in backends if isinstance(kernels, KernelBackend)]


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


class CombinedOptimizer(torch.optim.Optimizer):
    """Several optimizers with common parameter groups and a common state.

    `load_state_dict` would give this object new groups but not its parts, so that a checkpoint fills the state by
    parameter (`load_optimizer_state`).
    """

    def __init__(self, parts: list[torch.optim.Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts
        for part in parts:
            part.state = self.state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one update with each optimizer."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for part in self.parts:
            part.step()
        return loss


def _parts(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    return optimizer.parts if isinstance(optimizer, CombinedOptimizer) else [optimizer]


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of the next update."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get("lr_multiplier", 1.0)


def set_adam_beta1(optimizer: torch.optim.Optimizer, beta1: float) -> None:
    """Set beta 1 of AdamW for the next update."""
    for group in optimizer.param_groups:
        if "betas" in group:
            group["betas"] = (beta1, group["betas"][1])


def supports_found_inf(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if a tensor on the device can make the next update change nothing; see `set_found_inf`."""
    return all(
        isinstance(part, Muon) or (isinstance(part, AdamW) and part.supports_found_inf())
        for part in _parts(optimizer)
    )


def set_found_inf(optimizer: torch.optim.Optimizer, found_inf: Tensor | None) -> None:
    """Let the next update change nothing if `found_inf` is 1; None: make it in any case."""
    for part in _parts(optimizer):
        if isinstance(part, AdamW | Muon):
            part.found_inf = found_inf


def clip_grad_norm(optimizer: torch.optim.Optimizer, max_norm: float) -> Tensor:
    """Scale all gradients, now or in the next update, so that their common norm is at most `max_norm`.

    Returns:
        The norm before scaling, over all ranks if the gradients are sharded.
    """
    groups: list[dict[str, Any]] = optimizer.param_groups
    parameters = [p for group in groups for p in group["params"] if p.grad is not None]
    for p in parameters:
        if p.grad.is_sparse:
            p.grad = p.grad.coalesce()
    gradients = [p.grad.values() if p.grad.is_sparse else p.grad for p in parameters]
    if isinstance(optimizer, AdamW) and optimizer.can_scale_grads():
        norm = optimizer.kernels.grad_norm(gradients)
        optimizer.gradient_factor = min(1.0, max_norm / (norm.item() + _CLIP_EPSILON))
        return norm
    norm = nn.utils.get_total_norm(gradients)
    nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    full_tensor = getattr(norm, "full_tensor", None)  # of a DTensor
    return norm if full_tensor is None else full_tensor()


def state_names(optimizer: torch.optim.Optimizer) -> dict[Tensor, frozenset[str]]:
    """Return the names of the state of each parameter after its first update."""
    return {
        parameter: _MUON_STATE if "momentum" in group else _ADAMW_STATE
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def expected_state(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors with the dtypes and shapes of `optimizer_state` after all parameters were updated."""
    names, step = state_names(optimizer), torch.zeros(())
    return {
        f"{name}/{key}": step if key == "step" else parameter
        for name, parameter in parameters.items()
        for key in names.get(parameter, ())
    }


def optimizer_state(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the optimizer's state of named parameters by `parameter name/state name`."""
    names = {parameter: name for name, parameter in parameters.items()}
    return {
        f"{names[parameter]}/{key}": value
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
) -> None:
    """Replace the optimizer's state with one from `optimizer_state`."""
    optimizer.state.clear()
    for key, value in tensors.items():
        name, _, state_name = key.rpartition("/")
        parameter = parameters[name]
        optimizer.state[parameter][state_name] = value.to(parameter.device, copy=True)
