"""Where a run stands, and what its evaluations decide: the best weights, a lower rate, an early end."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from bertsmith.errors import MachineError, option
from bertsmith.formatting import pluralize
from bertsmith.training.data_loader import Position


@dataclass
class Progress:
    """Where a run stands; what a checkpoint's state.json holds beside the tensors, and what this
    command did.

    waited: evaluations since the best one. drops: how often they have lowered the rate.
    """

    step: int = 0
    phase: int = 0
    position: Position = field(default_factory=Position)
    tokens: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_step: int | None = None
    best_sha256: str | None = None
    evaluation: dict[str, float] = field(default_factory=dict)
    waited: int = 0
    drops: int = 0
    made: int = 0  # by this command
    planned: int = 0  # in all
    threads: int = 0  # that the last of them were made on
    processes: int = 1  # and in
    saving: float = 0.0  # seconds of this command's checkpoints
    early: str | None = None  # why the run ended before its budget
    cut_short: str | None = None  # that the time was over with a high rate (`RunPlan.cut_short`)

    def keep_best(self, score: float, sha256: str) -> None:
        """The evaluation of this step is the best so far; sha256: of its weights."""
        self.best, self.best_step, self.best_sha256, self.waited = score, self.step, sha256, 0

    def wait(self, lr_patience: int | None) -> None:
        """An evaluation was no better; the rate falls with each `lr_patience` of them in a row."""
        self.waited += 1
        if lr_patience is not None and self.waited % lr_patience == 0:
            self.drops += 1

    def forget_waiting(self) -> None:
        """The schedule begins again."""
        self.waited = self.drops = 0


@dataclass(frozen=True)
class Evaluation:
    """How a run is judged on its way: `measure` gives named numbers; `best_by` names the one that decides
    which weights are kept as the best (the highest; None keeps the last).

    Where one decides: after `patience` evaluations in a row without a better score the run ends, and after each
    `lr_patience` the rate falls. None: never.
    """

    measure: Callable[[], dict[str, float]]
    best_by: str | None = None
    patience: int | None = None
    lr_patience: int | None = None

    def is_better(self, progress: Progress) -> bool:
        """Whether the last evaluation is the best so far."""
        return self.best_by is not None and (
            progress.best is None or progress.evaluation[self.best_by] > progress.best
        )

    def gives_up(self, progress: Progress) -> bool:
        """Whether enough evaluations in a row were no better."""
        return self.patience is not None and progress.waited >= self.patience

    def said(self, progress: Progress, planned: int) -> str:
        """Why a run of so many planned updates ends here."""
        row = pluralize(progress.waited, "evaluation") + (" in a row" if progress.waited > 1 else "")
        return (
            f"stopped early after update {progress.step:,} of {planned:,}: {row} brought no better {self.best_by} "
            f"than {progress.best:.4f} (train.patience={self.patience})"
        )


def evaluated(trained: nn.Module, evaluation: Evaluation, step: int) -> dict[str, float]:
    """The evaluation's numbers for the weights as they are. MachineError where one is not finite."""
    trained.eval()
    with torch.inference_mode():
        values = evaluation.measure()
    trained.train()
    for name, value in values.items():
        if not math.isfinite(value):
            raise MachineError(
                "evaluation_not_finite",
                f"{name} is {value} in the evaluation after step {step}",
                hint="lower train.learning_rate, and continue from the last checkpoint with "
                f"{option('resume', True)}",
            )
    return values
