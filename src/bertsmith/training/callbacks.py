"""Callbacks of the trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bertsmith.formatting import pluralize

if TYPE_CHECKING:
    from bertsmith.training.trainer import Trainer


@dataclass(frozen=True)
class StepResult:
    """The result of one optimizer update, for callbacks.

    Attributes:
        tokens: The number of tokens, over all ranks.
        metrics: The metrics to log; None in updates that are not logged.
    """

    tokens: int
    metrics: dict[str, float] | None


class TrainerCallback:
    """Methods that a `Trainer` calls during a run, on every rank unless said otherwise."""

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        """Run after each optimizer update."""

    def on_evaluate(self, trainer: Trainer) -> None:
        """Run after each evaluation, whose metrics are in `trainer.state.evaluation`."""

    def on_save(self, trainer: Trainer, *, is_stopping: bool) -> None:
        """Run after each checkpoint; `is_stopping` after a signal, before the run is finished."""


class ReduceLROnPlateau(TrainerCallback):
    """Reduces the learning rate after each `lr_patience` evaluations in a row without a better score."""

    def __init__(self, lr_patience: int) -> None:
        self.lr_patience = lr_patience

    def on_evaluate(self, trainer: Trainer) -> None:
        """Count a reduction in the state."""
        state = trainer.state
        if state.num_bad_evals and state.num_bad_evals % self.lr_patience == 0:
            state.num_lr_reductions += 1


class EarlyStopping(TrainerCallback):
    """Ends the run after `patience` evaluations in a row without a better score."""

    def __init__(self, patience: int, metric: str) -> None:
        self.patience, self.metric = patience, metric

    def should_stop_early(self, num_bad_evals: int) -> bool:
        """Return True if enough evaluations in a row were not better."""
        return num_bad_evals >= self.patience

    def on_evaluate(self, trainer: Trainer) -> None:
        """End the plan with this update."""
        state, num_updates = trainer.state, trainer.plan.num_updates
        if not self.should_stop_early(state.num_bad_evals) or state.step >= num_updates:
            return
        evaluations = pluralize(state.num_bad_evals, "evaluation")
        in_a_row = " in a row" if state.num_bad_evals > 1 else ""
        trainer.end_run(
            f"stopped early after update {state.step:,} of {num_updates:,}: {evaluations}{in_a_row} brought no "
            f"better {self.metric} than {state.best_score:.4f} (train.patience={self.patience})"
        )
