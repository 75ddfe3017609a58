"""The plan of a run: its length, number of threads, and learning rates, as decided before and during the run.

A plan starts with one entry. Another one is added when the decision changes: a time budget allows more or fewer
updates than expected, or a resumed run has another budget or number of threads. Entries are saved in plan.jsonl
and in each checkpoint. A resumed run repeats lost updates under the same entries, and so equals an uninterrupted
run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bertsmith.console import format_duration
from bertsmith.errors import InputError, MachineError, option
from bertsmith.formatting import pluralize
from bertsmith.io import atomic
from bertsmith.training.lr_schedule import learning_rate, warmup_updates
from bertsmith.training.settings import TrainSettings

logger = logging.getLogger(__name__)

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
        text = file.read_text(encoding="utf-8") if file.stat().st_size <= _MAX_PLAN_BYTES else ""
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
        raise MachineError(
            "file_not_written", f"the file could not be written ({error.strerror})", location=file
        ) from None


def is_valid_plan(entries: Sequence[PlanEntry]) -> bool:
    """Return True if the entries start at step 0, are in order, and none starts after its own end."""
    steps = [entry.step for entry in entries]
    if not steps or steps[0] != 0 or entries[0].progress or steps != sorted(steps):
        return False
    return all(entry.step <= entry.updates for entry in entries)


@dataclass(frozen=True)
class TrainingBudget:
    """The length of a run and its number of threads, as a command specifies them.

    Attributes:
        limits: The budget by the name of the setting (`max_steps`, `max_tokens`, `num_train_epochs`, or
            `max_minutes`).
        num_updates: The updates that it allows; an estimate for minutes.
        threads: The number of threads.
        keeps_threads: True if a resumed run keeps its own number.
        is_explicit: True if the command names a budget; otherwise a resumed run keeps its own.
        start_time: The clock at the start of the command, from which minutes count; None: the start of training.
        num_processes: The number of processes.
    """

    limits: Mapping[str, float]
    num_updates: int
    threads: int = 1
    keeps_threads: bool = False
    is_explicit: bool = True
    start_time: float | None = None
    num_processes: int = 1

    def new_plan(self) -> RunPlan:
        """Return the plan of a new run."""
        entry = PlanEntry(
            step=0,
            updates=max(1, self.num_updates),
            progress=0.0,
            threads=self.threads,
            budget=dict(self.limits),
            why="the run begins",
            processes=self.num_processes,
        )
        return RunPlan([entry])

    def resumed_plan(self, run: Path, entries: Sequence[PlanEntry], step: int, seconds: float) -> RunPlan:
        """Return the plan of a resumed run, and log what has changed.

        Args:
            run: The run folder.
            entries: The plan of the run so far.
            step: The updates of the run so far.
            seconds: The seconds that they took.

        Raises:
            InputError: The run has already used up the budget.
        """
        plan = RunPlan(entries)
        if self.is_explicit and dict(self.limits) != plan.last.budget:
            plan = self._with_new_budget(run, plan, step, seconds)
        current, last = plan.entry_at(step + 1), plan.last
        coming = [entry for entry in plan.entries if entry.step >= step] + [current]
        threads = last.threads if self.keeps_threads else self.threads
        if step < last.updates and any(self._computes_differently(entry) for entry in coming):
            logger.warning(
                "computing %s from here on, not %s: numbers are added in another order, so the run is no longer "
                "bit-identical to an uninterrupted one",
                _describe_threads(threads, self.num_processes),
                _describe_threads(current.threads, current.processes),
            )
            past = RunPlan(plan.entries_until(step))
            same_processes = current.processes == self.num_processes
            change = "on other threads" if same_processes else "in another number of processes"
            entry = past.changed_entry(
                step,
                updates=last.updates,
                threads=threads,
                budget=last.budget,
                why=f"resumed {change}",
                processes=self.num_processes,
            )
            plan = RunPlan([*past.entries, entry])
        return plan

    def _computes_differently(self, entry: PlanEntry) -> bool:
        has_other_threads = not self.keeps_threads and entry.threads != self.threads
        return has_other_threads or entry.processes != self.num_processes

    def _with_new_budget(self, run: Path, plan: RunPlan, step: int, seconds: float) -> RunPlan:
        """Return a plan with this command's budget instead of the run's."""
        num_updates, is_finished = self._resumed_num_updates(run, step, seconds), step >= plan.num_updates
        if num_updates < step:
            raise InputError(
                "budget_exceeded",
                f"the run has already made {pluralize(step, 'update')}, and {_describe_limits(self.limits)} "
                f"means {num_updates:,}",
                location=run,
                hint="set a larger budget, or none to continue with the budget of the run",
            )
        if num_updates == step and is_finished:
            return plan
        past = RunPlan(plan.entries_until(step))
        about = "about " if "max_minutes" in self.limits else ""
        if is_finished:
            logger.info(
                "the run was finished after %s; %s adds %s: the learning rate warms up again, and follows its "
                "schedule over these",
                pluralize(step, "update"),
                _describe_limits(self.limits),
                about + pluralize(num_updates - step, "update"),
            )
        else:
            logger.info(
                "the run now ends after %s (%s), not after %s: the learning rate continues at its current value, "
                "and follows the rest of its schedule until then",
                about + pluralize(num_updates, "update"),
                _describe_limits(self.limits),
                f"{plan.num_updates:,}",
            )
        if about:
            logger.info(
                "minutes count from the beginning of the run; the number of updates is corrected during the run"
            )
        entry = past.changed_entry(
            step,
            updates=max(1, num_updates),
            progress=0.0 if is_finished else past.progress(step),
            budget=dict(self.limits),
            why="resumed with another budget",
        )
        return RunPlan([*past.entries, entry])

    def _resumed_num_updates(self, run: Path, step: int, seconds: float) -> int:
        """Return the updates of the whole run that the budget allows, after `step` updates in `seconds`."""
        minutes = self.limits.get("max_minutes")
        if minutes is None or not step:
            return self.num_updates
        if minutes * 60 < seconds:
            raise InputError(
                "time_exceeded",
                f"the run has already taken {format_duration(seconds)}, more than {minutes:g} minutes; minutes "
                "count from the beginning of the run",
                location=run,
                argument="minutes",
                hint=f"set the total number of minutes, such as "
                f"{option('minutes', max(1, round(seconds / 60)) + 10)}",
            )
        num_updates = step + round((minutes * 60 - seconds) / max(seconds / step, 1e-9))
        return int(min(num_updates, self.limits.get("max_steps", num_updates)))


def _describe_threads(threads: int, processes: int) -> str:
    text = f"on {pluralize(threads, 'thread')}"
    return f"{text} in each of {pluralize(processes, 'process', 'processes')}" if processes > 1 else text


def _describe_limits(limits: Mapping[str, float]) -> str:
    return ", ".join(
        f"train.{name}={value:g}" if value < 1e6 else f"train.{name}={value:,}"
        for name, value in limits.items()
    )
