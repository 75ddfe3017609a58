"""The plan of a run: its length, number of threads, and learning rates, as decided before and during the run.

A plan starts with one entry. Another one is added when the decision changes: a time budget allows more or fewer
updates than expected, or a resumed run has another budget or number of threads. Entries are saved in plan.jsonl
and in each checkpoint. A resumed run repeats lost updates under the same entries, and so equals an uninterrupted
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bertsmith.errors import MachineError
from bertsmith.io import atomic
from bertsmith.training.lr_schedule import adam_beta1, learning_rate, warmup_updates
from bertsmith.training.settings import TrainSettings

PLAN = "plan.jsonl"
_MAX_PLAN_BYTES = 2**22

_Count = Annotated[int, Field(ge=0, lt=2**53)]
_PositiveCount = Annotated[int, Field(ge=1, lt=2**53)]


class PlanEntry(BaseModel):
    """The decision for the updates after `step`: a line of plan.jsonl.

    Attributes:
        step: The updates before this entry.
        updates: The updates of the whole run.
        progress: The position in the learning rate schedule at `step`, from 0 to 1; 0 starts the schedule.
        threads: The number of threads of each process.
        budget: The user's budget, by the name of the setting.
        why: The reason for the entry.
        processes: The number of processes.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    step: _Count
    updates: _PositiveCount
    progress: Annotated[float, Field(ge=0, le=1)]
    threads: _PositiveCount
    budget: dict[str, float | int]
    why: str
    processes: _PositiveCount = 1


class RunPlan:
    """The entries of a run in the order of their steps; the first one is of step 0."""

    def __init__(self, entries: Sequence[PlanEntry]) -> None:
        self.entries = list(entries)

    @property
    def last(self) -> PlanEntry:
        """The latest entry."""
        return self.entries[-1]

    @property
    def num_updates(self) -> int:
        """The updates of the whole run."""
        return self.last.updates

    def entry_at(self, step: int) -> PlanEntry:
        """Return the entry that holds for update `step`, from 1 on."""
        return next(entry for entry in reversed(self.entries) if entry.step < max(1, step))

    def entries_until(self, step: int) -> list[PlanEntry]:
        """Return the entries that were decided after at most `step` updates."""
        return [entry for entry in self.entries if entry.step <= step]

    def position(self, step: int) -> float:
        """Return the position of update `step` among the updates of its entry, from 0 to `updates`.

        With one entry, this is exactly `step`. A later entry starts at its `progress`, and divides the remaining
        schedule among the remaining updates.
        """
        entry = self.entry_at(step)
        total = entry.updates
        remaining = total - total * entry.progress if entry.progress else total
        return total - remaining * (total - step) / max(1, total - entry.step)

    def progress(self, step: int) -> float:
        """Return the progress after `step` updates, from 0 to 1."""
        entry = self.entries_until(step)[-1]
        return entry.progress if entry.step == step else self.position(step) / entry.updates

    def changed_entry(self, step: int, **changes: Any) -> PlanEntry:
        """Return the latest entry with changes, for the updates after `step`; its schedule continues."""
        return self.last.model_copy(update={"step": step, "progress": self.progress(step), **changes})

    def restarts_schedule_after(self, step: int) -> bool:
        """Return True if the learning rate schedule starts with the update after `step`."""
        entry = self.entry_at(step + 1)
        return entry.step == step and not entry.progress

    def learning_rate(self, step: int, settings: TrainSettings) -> float:
        """Return the learning rate of update `step`.

        A warm-up that is a fraction is one of the progress. A warm-up that is a number of updates counts updates
        from the start of the schedule, and the decay starts at the progress that these updates made.
        """
        total, position = self.entry_at(step).updates, self.position(step)
        warmup_steps: float = warmup_updates(settings.warmup_steps, total)
        if settings.warmup_steps >= 1:
            start = next(e.step for e in reversed(self.entries) if e.step < step and not e.progress)
            warmup_steps = min(warmup_steps, total - start)
            if step - start <= warmup_steps:
                position = step - start
            elif self.entry_at(start + int(warmup_steps)) is not self.entry_at(step) or start:
                warmup_steps = self.progress(start + int(warmup_steps)) * total
        return learning_rate(position, warmup_steps, total, settings)

    def adam_beta1(self, step: int, settings: TrainSettings) -> float:
        """Return beta 1 of AdamW in update `step`."""
        return adam_beta1(self.position(step), self.entry_at(step).updates, settings)

    def phase_index(self, step: int, shares: Sequence[float]) -> int:
        """Return the phase of update `step`; each phase has at least one update.

        Args:
            step: The update, from 1 on.
            shares: The fraction of the updates of each phase.
        """
        total = self.entry_at(step).updates
        ends, end = [], total
        for share in reversed(shares[1:]):
            end -= max(1, round(total * share))
            ends.append(end)
        return sum(self.position(step) > max(0, end) for end in ends)


def read_plan(run: Path, sealed: Sequence[PlanEntry]) -> list[PlanEntry]:
    """Return the entries of a run's plan.jsonl, or those of its checkpoint if the file does not continue them."""
    file = run / PLAN
    try:
        text = atomic.read_file(file, _MAX_PLAN_BYTES).decode()
        entries = [PlanEntry.model_validate_json(line) for line in text.splitlines()]
    except (OSError, UnicodeDecodeError, ValidationError):
        entries = []
    continues = entries[: len(sealed)] == list(sealed) and is_valid_plan(entries)
    return entries if continues else list(sealed)


def write_plan(run: Path, plan: RunPlan) -> None:
    """Write a run's plan.jsonl atomically."""
    file = run / PLAN
    try:
        atomic.write_text(file, "".join(entry.model_dump_json() + "\n" for entry in plan.entries))
    except OSError as error:
        message = f"the file could not be written ({error.strerror})"
        raise MachineError("file_not_written", message, location=file) from None


def is_valid_plan(entries: Sequence[PlanEntry]) -> bool:
    """Return True if the entries start at step 0, are in order, and none starts after its own end."""
    steps = [entry.step for entry in entries]
    if not steps or steps[0] != 0 or entries[0].progress or steps != sorted(steps):
        return False
    return all(entry.step <= entry.updates for entry in entries)
