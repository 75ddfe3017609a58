"""The input, the state, and the output of a training run."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator
from torch import nn

from bertsmith.errors import MachineError, option
from bertsmith.training.budget import Throughput, TrainingBudget
from bertsmith.training.callbacks import TrainerCallback
from bertsmith.training.data_loader import START, Count, DataPosition, Phase
from bertsmith.training.run_plan import PlanEntry, is_valid_plan
from bertsmith.training.settings import TrainSettings
from bertsmith.training.train_step import TrainModule

Digest = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class EvaluationResult:
    """The result of an evaluation during training.

    Attributes:
        metrics: Metrics by name.
        state: What the model needs besides its weights, such as a threshold of its decoder, as JSON. That of the
            best evaluation is saved in checkpoints.
    """

    metrics: dict[str, float]
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """Evaluation during training.

    Attributes:
        evaluate: Evaluates the current weights.
        best_metric: The metric whose maximum decides which weights are best and restored after the run; None: the
            last weights are used.
        at_start: True to evaluate also before the first update.
    """

    evaluate: Callable[[], EvaluationResult]
    best_metric: str | None = None
    at_start: bool = False

    def run(self, module: TrainModule, step: int) -> EvaluationResult:
        """Evaluate in evaluation mode.

        Raises:
            MachineError: A metric is not finite.
        """
        module.eval()
        with torch.inference_mode():
            result = self.evaluate()
        module.train()
        for name, value in result.metrics.items():
            if not math.isfinite(value):
                raise MachineError(
                    "evaluation_not_finite",
                    f"{name} is {value} in the evaluation after step {step}",
                    hint="lower train.learning_rate, and continue from the last checkpoint with "
                    f"{option('resume', True)}",
                )
        return result


@dataclass(frozen=True)
class TrainingJob:
    """Everything one training run needs, besides the model.

    Attributes:
        phases: The parts of the run, each with its instances and batch size.
        settings: The settings `train`.
        run: The run folder, for log.jsonl, plan.jsonl, and checkpoints.
        title: The title of the progress bar.
        fingerprint: The digest of settings and data; a run is not resumed with another one.
        budget: The length of the run and its number of threads.
        evaluation: The evaluation during training.
        throughput: The speed that was measured before the run.
        callbacks: The callbacks, in the order of their calls.
        unfreeze_steps: For parameters that are frozen at first, the first update that trains them.
    """

    phases: Sequence[Phase]
    settings: TrainSettings
    run: Path
    title: str
    fingerprint: str
    budget: TrainingBudget
    evaluation: Evaluation | None = None
    throughput: Throughput = field(default_factory=Throughput)
    callbacks: Sequence[TrainerCallback] = ()
    unfreeze_steps: Mapping[nn.Parameter, int] = field(default_factory=dict)

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.run / "checkpoints"


class TrainState(BaseModel):
    """The state of a training run; `plan`, `log_bytes`, and `seconds` are set when it is saved.

    Attributes:
        step: The number of updates.
        phase: The phase of the last update.
        position: The next instance of the phase.
        tokens: The number of tokens in all updates.
        seconds: The time of the run.
        best_score: The score of the best evaluation; None before the first one, or without a metric
            for the best.
        best_step: The step of the best evaluation, whose weights are saved.
        best_sha256: The digest of these weights.
        best_state: What the best evaluation keeps besides the weights, as JSON.
        evaluation: The metrics of the last evaluation.
        num_bad_evals: The number of evaluations since the best one.
        num_lr_reductions: How often bad evaluations have reduced the learning rate (`ReduceLROnPlateau`).
        plan: The entries of the plan that were decided until this step.
        fingerprint: The digest of settings and data.
        log_bytes: The size of log.jsonl.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    step: Count = 0
    phase: Count = 0
    position: DataPosition = START
    tokens: Count = 0
    seconds: Annotated[float, Field(ge=0)] = 0.0
    best_score: float | None = None
    best_step: Count | None = None
    best_sha256: Digest | None = None
    best_state: dict[str, Any] = Field(default_factory=dict)
    evaluation: dict[str, float] = Field(default_factory=dict)
    num_bad_evals: Count = 0
    num_lr_reductions: Count = 0
    plan: list[PlanEntry] = Field(default_factory=list)
    fingerprint: str = ""
    log_bytes: Count = 0

    @field_validator("plan")
    @classmethod
    def _check_plan(cls, plan: list[PlanEntry]) -> list[PlanEntry]:
        if not is_valid_plan(plan):
            raise ValueError("these entries are not the plan of a run")
        return plan


@dataclass(frozen=True)
class TrainOutput:
    """The end of a training run.

    Attributes:
        state: The final state.
        num_new_updates: The updates that this command made.
        threads: The number of threads per process in the last update.
        processes: The number of processes in the last update.
        saving_seconds: The time of this command's checkpoints.
        early_stop: The reason if `EarlyStopping` ended the run before its budget.
    """

    state: TrainState
    num_new_updates: int
    threads: int
    processes: int
    saving_seconds: float
    early_stop: str | None


def fingerprint(*parts: str) -> str:
    """Return a digest of settings and data, which must be the same when a run is resumed."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
