"""The state of a training run that a checkpoint holds besides tensors."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from bertsmith.training.data_loader import START, Count, DataPosition
from bertsmith.training.run_plan import PlanEntry, is_valid_plan

Digest = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


class TrainState(BaseModel):
    """The state of a training run; `plan`, `fingerprint`, and `log_bytes` are set when it is saved.

    Attributes:
        step: The number of updates.
        phase: The phase of the last update.
        position: The next instance of the phase.
        tokens: The number of tokens in all updates.
        seconds: The time of the run.
        best_score: The score of the best evaluation; None before the first one, or if none is better.
        best_step: The step of the best evaluation, whose weights are saved.
        best_sha256: The digest of these weights.
        best_state: What the best evaluation keeps besides the weights, as JSON.
        evaluation: The metrics of the last evaluation.
        num_bad_evals: The number of evaluations since the best one.
        num_lr_reductions: How often they have reduced the learning rate.
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
