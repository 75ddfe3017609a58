"""One update, whole: forward, backward, check, clip, update. What changes numbers is here and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn

from bertsmith.device import ComputeContext, stored_tensors
from bertsmith.errors import Diverged, InputError, option
from bertsmith.loss import Loss, reduction_factors
from bertsmith.training.checkpoint import optimizer_tensors
from bertsmith.training.data_loader import EmptyRankBatch, Update
from bertsmith.training.optim.optimizer import clip, set_rate, skip_where, skips
from bertsmith.training.settings import TrainSettings


class Trained(nn.Module):
    """All that is trained together: an encoder, and what owns its heads and its loss (an objective or a task)."""

    def __init__(self, encoder: nn.Module, objective: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.objective = objective

    def loss(self, batch: Any) -> Loss:
        """The loss of one batch, as the objective answers it."""
        objective: Any = self.objective
        loss: Loss = objective.loss(self.encoder, batch)
        return loss

    def forward(self, batch: Any) -> dict[str, Tensor]:
        """The sums of a batch's loss by part, as wrappers of modules want them: tensors in a dict."""
        return dict(self.loss(batch).sums)

    def saved(self) -> dict[str, Tensor]:
        """What a checkpoint holds: each tied tensor once, and nothing of what the objective says is frozen."""
        frozen = tuple(f"objective.{name}." for name in getattr(self.objective, "frozen_modules", ()))
        seen: set[int] = set()
        found: dict[str, Tensor] = {}
        for name, tensor in stored_tensors(self).items():
            if not name.startswith(frozen) and id(tensor) not in seen:
                seen.add(id(tensor))
                found[name] = tensor.detach()
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `saved` took. InputError where names or shapes are others."""
        here = self.saved()
        if different := sorted(here.keys() ^ tensors.keys()):
            raise InputError(
                "weights_of_another_model",
                f"the weights are those of another model: '{different[0]}' occurs only in one of the two",
                hint=f"resume with the settings of the run, or choose another {option('output_dir')}",
            )
        with torch.no_grad():
            for name, tensor in here.items():
                tensor.copy_(tensors[name])


class Passes:
    """Forward passes whose gradients make an update: those of one process that trains alone.

    is_sharded: whether parameters and optimizer state are sharded; `unsharded` and `state` are then collective.
    """

    is_sharded: ClassVar[bool] = False

    def __init__(self, trained: Trained) -> None:
        self._passed: nn.Module = trained
        self._tables: list[Any] = [module for module in trained.modules() if hasattr(module, "sparse_grad")]

    def __call__(self, batch: Any) -> Mapping[str, Tensor]:
        """The sums of the batch's loss, by part; zeros for an empty batch, with gradients of zeros."""
        is_empty = isinstance(batch, EmptyRankBatch)
        found: dict[str, Tensor] = self._passed(batch.batch if is_empty else batch)
        return {part: 0 * value for part, value in found.items()} if is_empty else found

    def gradients(
        self, batch: Any, factors: Mapping[str, float], place: ComputeContext, *, last: bool
    ) -> tuple[Mapping[str, Tensor], Tensor]:
        """The sums of a batch's loss by part, and these times their factors, added up, whose gradient is added to
        the parameters'. last: whether it is the update's last batch."""
        here = place.to_device(batch)
        with self.adding(last=last):
            with place.autocast():
                found = self(here)
            total = Loss(found, {}).weighted_sum(factors)
            torch.autograd.backward(total)
        return found, total.detach()

    def adding(self, *, last: bool) -> AbstractContextManager[object]:
        """The context of a pass and its gradient. last: whether it is the update's last."""
        return self._by_rows()

    @contextmanager
    def _by_rows(self) -> Iterator[None]:
        """Where the gradients of tables are those of the rows looked up alone, if that is quicker."""
        for table in self._tables:
            table.sparse_grad = table.benefits_from_sparse_grad
        try:
            yield
        finally:
            for table in self._tables:
                table.sparse_grad = False

    def all_reduce(self, values: Tensor) -> Tensor:
        """Return sums over all ranks, fp64 [n]."""
        return values

    def unsharded(self) -> AbstractContextManager[object]:
        """Return a context in which every rank has all weights, to be read."""
        return nullcontext()

    def unshard(self) -> None:
        """Have all weights on every rank from here on, after the last update."""

    def state(self, optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> dict[str, Tensor]:
        """Return the optimizer's state, unsharded, by `parameter name/state name`."""
        return optimizer_tensors(optimizer, names)

    def shard_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep this rank's part of an optimizer's unsharded state."""


class Checks:
    """Whether updates were finite, where the host does not wait for the device to say so: one that was not has
    changed nothing, and the host learns of it while the next one is computed."""

    def __init__(self) -> None:
        self._open: Callable[[], None] | None = None

    def add(self, finite: Callable[[], Tensor], refuse: Callable[[], NoReturn]) -> None:
        """An update of which `finite` will say whether it was. Raises Diverged where the one before it was not."""
        self.settle()

        def look() -> None:
            if not finite().item():
                refuse()

        self._open = look

    def settle(self) -> None:
        """Wait for the last update's answer. Raises Diverged where it was not made."""
        look, self._open = self._open, None
        if look is not None:
            look()


def update(
    trained: Trained,
    optimizer: torch.optim.Optimizer,
    work: Update,
    rate: float,
    settings: TrainSettings,
    place: ComputeContext,
    step: int,
    passes: Passes | None = None,
    checks: Checks | None = None,
) -> dict[str, Tensor]:
    """One update from several batches; the loss is a mean over all of them together, part by part, or a sum where
    the objective has it so (`summed`). passes: of several processes, where these make the update together; the
    counts of `work` are then of all of them, its batches of this one. checks: of a run whose updates follow each
    other, where the device computes while the host goes on.

    Returns scalar tensors on the device, fp64: `loss`, each part's mean, `gradient_norm`. The host waits for the
    device once, to learn whether all is finite. Raises Diverged, before anything is changed, where it is not. With
    `checks` it does not wait: an update that is not finite changes nothing, and `checks` raises.
    """
    weights: Mapping[str, float] = getattr(trained.objective, "loss_weights", {})
    summed: Collection[str] = getattr(trained.objective, "summed_parts", ())
    passes = passes or Passes(trained)
    optimizer.zero_grad(set_to_none=True)
    own: dict[str, Tensor] = {}
    totals: list[tuple[str, Tensor]] = []
    by = reduction_factors(work.counts, weights, summed)
    for number, batch in enumerate(work.batches, start=1):
        found, total = passes.gradients(batch, by, place, last=number == settings.gradient_accumulation_steps)
        totals.append((batch.place, total))
        for part, value in found.items():
            own[part] = own.get(part, 0) + value.detach().double()
    *of_parts, of_all = passes.all_reduce(
        torch.stack([*own.values(), torch.stack([total.double() for _, total in totals]).sum()])
    )
    sums = dict(zip(own, of_parts, strict=True))
    norm = clip(optimizer, settings.max_grad_norm)
    finite = torch.isfinite(of_all) & torch.isfinite(norm)
    if checks is not None and place.is_async and not passes.is_sharded and skips(optimizer):
        checks.add(place.start_copy_to_host(finite), lambda: _refuse(step, totals))
        skip_where(optimizer, (~finite).float())
    else:
        if checks is not None:
            checks.settle()
        if not finite.item():
            _refuse(step, totals)
        skip_where(optimizer, None)
    set_rate(optimizer, rate)
    with place.autocast():  # Muon's products; all else is fp32
        optimizer.step()
    means = {part: value / max(1, work.counts[part]) for part, value in sums.items()}
    whole = {part: mean * (work.counts[part] if part in summed else 1) for part, mean in means.items()}
    loss_of_all = torch.stack([value * weights.get(part, 1.0) for part, value in whole.items()]).sum()
    return {"loss": loss_of_all, **means, "gradient_norm": norm.double()}


def _refuse(step: int, totals: list[tuple[str, Tensor]]) -> NoReturn:
    """Diverged that names the first batch with a bad loss, or all of them where only the gradient is bad."""
    for place, total in totals:
        if not math.isfinite(value := total.item()):
            raise Diverged(
                "loss_not_finite",
                f"the loss is {value} at step {step} ({place}); the update was not made",
                hint="lower train.learning_rate or train.max_grad_norm, or inspect these instances; continue from "
                f"the last checkpoint with {option('resume', True)}",
            )
    raise Diverged(
        "gradient_not_finite",
        f"the gradient is not finite at step {step} ({'; '.join(place for place, _ in totals)}); "
        "the update was not made",
        hint="lower train.learning_rate, and continue from the last checkpoint with "
        f"{option('resume', True)}",
    )
