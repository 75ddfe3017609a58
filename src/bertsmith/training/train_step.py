"""One optimizer update: forward and backward passes, check, clipping, and the optimizer's step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn

from bertsmith.device import ComputeContext, stored_tensors
from bertsmith.errors import Diverged, InputError, option
from bertsmith.loss import Loss, reduction_factors
from bertsmith.training.data_loader import EmptyRankBatch, Update
from bertsmith.training.optimizer import (
    clip_grad_norm,
    create_optimizer,
    load_optimizer_state,
    optimizer_state,
    set_found_inf,
    set_learning_rate,
    supports_found_inf,
)
from bertsmith.training.settings import TrainSettings


def train_step(
    strategy: GradientStrategy,
    update: Update,
    learning_rate: float,
    step: int,
    finite_check: DeferredFiniteCheck | None = None,
) -> dict[str, Tensor]:
    """Make one optimizer update from all batches of an update.

    Each part of the loss is averaged over all batches and ranks, or summed if it is one of the objective's
    `summed_parts`.

    Args:
        strategy: The gradient strategy, with the module, the optimizer, and the settings.
        update: The batches of this rank, with the counts of all ranks.
        learning_rate: The learning rate.
        step: The number of the update, for messages.
        finite_check: Where the device computes asynchronously, check an update for NaN or Inf during the next one;
            None: wait for the device in each update.

    Returns:
        `loss`, the mean of each part, and `gradient_norm`, fp64 scalars on the device.

    Raises:
        Diverged: A loss or gradient of this update, or of the previous update with `finite_check`, is not finite.
            That update has changed nothing.
    """
    optimizer = strategy.optimizer
    optimizer.zero_grad(set_to_none=True)
    result = strategy.forward_backward(update)
    grad_norm = clip_grad_norm(optimizer, strategy.settings.max_grad_norm)
    is_finite = torch.isfinite(result.total) & torch.isfinite(grad_norm)
    if finite_check is not None and strategy.defers_finite_check:
        is_finite_on_host = strategy.context.start_copy_to_host(is_finite)
        finite_check.defer(is_finite_on_host, lambda: _raise_diverged(step, result.batch_losses))
        set_found_inf(optimizer, (~is_finite).float())
    else:
        if finite_check is not None:
            finite_check.wait()
        if not is_finite.item():
            _raise_diverged(step, result.batch_losses)
        set_found_inf(optimizer, None)
    set_learning_rate(optimizer, learning_rate)
    with strategy.context.autocast():  # for the matrix products of Muon; everything else is in fp32
        optimizer.step()
    losses = _mean_losses(strategy.module.objective, result.sums, update.counts)
    return losses | {"gradient_norm": grad_norm.double()}


def _mean_losses(objective: Any, sums: Mapping[str, Tensor], counts: Mapping[str, int]) -> dict[str, Tensor]:
    """Return the total loss and the mean of each part."""
    means = {part: value / max(1, counts[part]) for part, value in sums.items()}
    parts = [
        mean * (counts[part] if part in objective.summed_parts else 1) * objective.loss_weights.get(part, 1.0)
        for part, mean in means.items()
    ]
    return {"loss": torch.stack(parts).sum(), **means}


def _raise_diverged(step: int, batch_losses: list[tuple[str, Tensor]]) -> NoReturn:
    """Raise Diverged for the first batch with a bad loss, or if the gradient or another rank's loss is bad."""
    for location, loss in batch_losses:
        if not math.isfinite(value := loss.item()):
            raise Diverged(
                "loss_not_finite",
                f"the loss is {value} at step {step} ({location}); the update was not made",
                hint="lower train.learning_rate or train.max_grad_norm, or inspect these instances; continue from "
                f"the last checkpoint with {option('resume', True)}",
            )
    message = (
        f"the gradient is not finite at step {step} ({'; '.join(location for location, _ in batch_losses)}); "
        "the update was not made"
    )
    hint = f"lower train.learning_rate, and continue from the last checkpoint with {option('resume', True)}"
    raise Diverged("gradient_not_finite", message, hint=hint)


class DeferredFiniteCheck:
    """Checks updates for NaN and Inf without waiting for the device: a result is read one update later."""

    def __init__(self) -> None:
        self._pending: tuple[Callable[[], Tensor], Callable[[], NoReturn]] | None = None

    def defer(self, is_finite: Callable[[], Tensor], raise_diverged: Callable[[], NoReturn]) -> None:
        """Check the previous update, and remember this one.

        Args:
            is_finite: Waits for the result of this update.
            raise_diverged: Raises the error if it is False.

        Raises:
            Diverged: The previous update was not finite.
        """
        self.wait()
        self._pending = is_finite, raise_diverged

    def wait(self) -> None:
        """Wait for the result of the last update; raise Diverged if it was not finite."""
        pending, self._pending = self._pending, None
        if pending is not None:
            is_finite, raise_diverged = pending
            if not is_finite().item():
                raise_diverged()


class TrainModule(nn.Module):
    """The modules that are trained together: an encoder, and an `Objective` with heads and a loss."""

    objective: Any

    def __init__(self, encoder: nn.Module, objective: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.objective = objective

    def loss(self, batch: Any) -> Loss:
        """Return the loss of a batch."""
        loss: Loss = self.objective.loss(self.encoder, batch)
        return loss

    def forward(self, batch: Any) -> dict[str, Tensor]:
        """Return the loss sums of a batch by part."""
        return dict(self.loss(batch).sums)

    def saved_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint: tied tensors once, without the objective's frozen modules."""
        frozen = tuple(f"objective.{name}." for name in self.objective.frozen_modules)
        seen: set[int] = set()
        tensors: dict[str, Tensor] = {}
        for name, tensor in stored_tensors(self).items():
            if not name.startswith(frozen) and id(tensor) not in seen:
                seen.add(id(tensor))
                tensors[name] = tensor.detach()
        return tensors

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the tensors of a checkpoint; raise InputError if names differ."""
        current = self.saved_tensors()
        if different := sorted(current.keys() ^ tensors.keys()):
            raise InputError(
                "weights_of_another_model",
                f"the weights are those of another model: '{different[0]}' occurs only in one of the two",
                hint=f"resume with the settings of the run, or choose another {option('output_dir')}",
            )
        with torch.no_grad():
            for name, tensor in current.items():
                tensor.copy_(tensors[name])


@dataclass(frozen=True)
class BackwardResult:
    """The losses of one update.

    Attributes:
        sums: The loss sums over all batches and ranks by part, fp64 scalars.
        total: The loss of all batches and ranks, fp64 scalar.
        batch_losses: The location and the loss of each batch of this rank.
    """

    sums: Mapping[str, Tensor]
    total: Tensor
    batch_losses: list[tuple[str, Tensor]]


class GradientStrategy:
    """Computes gradients in one process; subclasses use several processes or CUDA graphs.

    Attributes:
        is_sharded: True if parameters and optimizer state are sharded. `unsharded` and `optimizer_state` are then
            collective operations.
    """

    is_sharded: ClassVar[bool] = False

    def __init__(
        self,
        module: TrainModule,
        context: ComputeContext,
        settings: TrainSettings,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self.module, self.context, self.settings = module, context, settings
        self.optimizer = optimizer or create_optimizer(module, settings)
        self._wrapped_module: nn.Module = module
        self._embeddings: list[Any] = [part for part in module.modules() if hasattr(part, "sparse_grad")]

    @property
    def defers_finite_check(self) -> bool:
        """True if the next update can check its gradients on the device, without the host."""
        return self.context.is_async and not self.is_sharded and supports_found_inf(self.optimizer)

    def forward_backward(self, update: Update) -> BackwardResult:
        """Compute the gradients of an update."""
        objective = self.module.objective
        factors = reduction_factors(update.counts, objective.loss_weights, objective.summed_parts)
        sums: dict[str, Tensor] = {}
        batch_losses: list[tuple[str, Tensor]] = []
        for number, batch in enumerate(update.batches, start=1):
            is_last = number == self.settings.gradient_accumulation_steps
            batch_sums, loss = self.backward_batch(batch, factors, is_last=is_last)
            batch_losses.append((batch.place, loss))
            for part, value in batch_sums.items():
                sums[part] = sums.get(part, 0) + value.detach().double()
        total = torch.stack([loss.double() for _, loss in batch_losses]).sum()
        *reduced, total = self.all_reduce(torch.stack([*sums.values(), total]))
        return BackwardResult(dict(zip(sums, reduced, strict=True)), total, batch_losses)

    def backward_batch(
        self, batch: Any, factors: Mapping[str, float], *, is_last: bool
    ) -> tuple[Mapping[str, Tensor], Tensor]:
        """Add the gradients of a batch to those of the parameters.

        Args:
            batch: The batch, on the CPU.
            factors: The factor of each part of the loss.
            is_last: True for the last batch of the update.

        Returns:
            The loss sums by part, and their sum multiplied by the factors.
        """
        batch = self.context.to_device(batch)
        with self.accumulate(is_last=is_last):
            with self.context.autocast():
                sums = self._forward(batch)
            loss = Loss(sums, {}).weighted_sum(factors)
            torch.autograd.backward(loss)
        return sums, loss.detach()

    def _forward(self, batch: Any) -> Mapping[str, Tensor]:
        """Return the loss sums of a batch by part; zeros with gradients for an empty batch."""
        if not isinstance(batch, EmptyRankBatch):
            sums: dict[str, Tensor] = self._wrapped_module(batch)
            return sums
        sums = self._wrapped_module(batch.batch)
        return {part: 0 * value for part, value in sums.items()}

    def accumulate(self, *, is_last: bool) -> AbstractContextManager[object]:
        """Return the context of a batch's passes; `is_last` as for `backward_batch`."""
        return self._sparse_embedding_grads()

    @contextmanager
    def _sparse_embedding_grads(self) -> Iterator[None]:
        """Compute the gradients of only the rows that are looked up in embeddings, where that is faster."""
        for embedding in self._embeddings:
            embedding.sparse_grad = embedding.benefits_from_sparse_grad
        try:
            yield
        finally:
            for embedding in self._embeddings:
                embedding.sparse_grad = False

    def all_reduce(self, values: Tensor) -> Tensor:
        """Return the sums over all ranks, fp64 [n]."""
        return values

    def unsharded(self) -> AbstractContextManager[object]:
        """Return a context in which every rank has all weights, to be read."""
        return nullcontext()

    def unshard(self) -> None:
        """Give every rank all weights, after the last update."""

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return the unsharded state of the optimizer by `parameter name/state name`."""
        return optimizer_state(self.optimizer, dict(self.module.named_parameters()))

    def load_optimizer_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the unsharded state of the optimizer."""
        load_optimizer_state(self.optimizer, dict(self.module.named_parameters()), tensors)
