"""The budget of a run: its length as a command specifies it, and how many updates a budget of minutes allows.

Corrections become entries of the `RunPlan`. The numbers of a run depend on its plan, not on the clock.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bertsmith.console import format_duration
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.training.data_loader import Phase
from bertsmith.training.run_plan import PlanEntry, RunPlan
from bertsmith.training.settings import TrainSettings

logger = logging.getLogger(__name__)

_CHECK_RATIOS = tuple(2**-n for n in range(6, 0, -1)) + tuple(1 - 2**-n for n in range(2, 7))  # of the budget
_MAX_DRIFT = 0.02  # of the budget, by which a run may be ahead or behind before it is replanned
_SMOOTHING_UPDATES = 32
_FORWARD_RATIO = 1 / 3  # of the time of an update with as many tokens: the time of a forward pass
_FINAL_EVALUATIONS = 2.0  # that take as long as the work after the last update
_BYTES_PER_SECOND = 150e6  # to write, read again for a digest, and synchronize


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
            message = (
                f"the run has already made {pluralize(step, 'update')}, and {_describe_limits(self.limits)} "
                f"means {num_updates:,}"
            )
            hint = "set a larger budget, or none to continue with the budget of the run"
            raise InputError("budget_exceeded", message, location=run, hint=hint)
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


@dataclass
class Throughput:
    """The measured or expected seconds of the parts of a run.

    Attributes:
        update_seconds: The seconds of an update, by phase.
        evaluation_seconds: The seconds of an evaluation; None before the first one.
        evaluation_updates: The expected time of an evaluation in updates of the first phase.
        checkpoint_seconds: The seconds of a checkpoint.
        writing_seconds: The seconds to write the model at the end.
    """

    update_seconds: dict[int, float] = field(default_factory=dict)
    evaluation_seconds: float | None = None
    evaluation_updates: float = 0.0
    checkpoint_seconds: float = 0.0
    writing_seconds: float = 0.0
    _num_observed: dict[int, int] = field(default_factory=dict)

    def observe(self, phase: int, seconds: float) -> None:
        """Include the time of an update.

        The first one replaces the measurement before the run, and scales the times of phases to come likewise.
        """
        count = self._num_observed[phase] = self._num_observed.get(phase, 0) + 1
        previous = self.update_seconds.get(phase, seconds)
        if count == 1 and previous > 0:
            for later in self.update_seconds.keys() - self._num_observed.keys():
                self.update_seconds[later] *= seconds / previous
        self.update_seconds[phase] = previous + (seconds - previous) / min(count, _SMOOTHING_UPDATES)

    def seconds_of_update(self, phase: int) -> float:
        """Return the seconds of an update of a phase, or of another phase if it was not measured."""
        return self.update_seconds.get(phase) or next(iter(self.update_seconds.values()), 0.0)

    def expect_evaluation(self, tokens: int, tokens_per_update: float) -> None:
        """Expect an evaluation that reads a number of tokens."""
        self.evaluation_updates = _FORWARD_RATIO * tokens / tokens_per_update

    def expect_writing(self, num_bytes: int) -> None:
        """Expect the model to have a size; a checkpoint has three times as much, with two running means."""
        self.checkpoint_seconds = 3 * num_bytes / _BYTES_PER_SECOND
        self.writing_seconds = num_bytes / _BYTES_PER_SECOND

    @property
    def seconds_of_evaluation(self) -> float:
        """Seconds of an evaluation."""
        if self.evaluation_seconds is None:
            return self.evaluation_updates * self.seconds_of_update(0)
        return self.evaluation_seconds

    @property
    def closing_seconds(self) -> float:
        """Seconds after the last update: evaluations, a checkpoint, and the model."""
        evaluations = _FINAL_EVALUATIONS * self.seconds_of_evaluation
        return evaluations + self.checkpoint_seconds + self.writing_seconds


class TimeBudget:
    """A budget of minutes, and at most `max_updates` updates; it proposes entries of the plan.

    Attributes:
        throughput: The measured speed, to which each update is added.
    """

    def __init__(
        self,
        minutes: float,
        max_updates: float | None,
        phases: Sequence[Phase],
        settings: TrainSettings,
        throughput: Throughput,
    ) -> None:
        self._seconds, self._max_updates = minutes * 60, max_updates
        self._shares = tuple(phase.share for phase in phases)
        self._settings, self.throughput = settings, throughput
        self._last_check: tuple[float, float] = (0.0, 0.0)  # seconds and progress

    def propose(self, plan: RunPlan, step: int, seconds: float) -> PlanEntry | None:
        """Return a new entry if the time allows more or fewer updates than planned.

        Updates that are repeated after a crash follow the entries that exist already.

        Args:
            plan: The plan.
            step: The number of updates.
            seconds: The time of the run.
        """
        is_repeated = any(entry.step >= step for entry in plan.entries[1:])
        if is_repeated or step >= plan.num_updates or not self._is_due(plan.progress(step), seconds):
            return None
        num_updates = self._num_updates(step, plan.progress(step), seconds)
        if num_updates == plan.num_updates:
            return None
        per_update = self.throughput.seconds_of_update(0)
        why = f"{seconds:.1f} s spent, about {per_update:.4g} s an update"
        return plan.changed_entry(step, updates=num_updates, why=why)

    def seconds_left(self, seconds: float, num_updates: int) -> float | None:
        """Return the remaining seconds, if the time and not a number of updates ends the run."""
        if self._max_updates is not None and num_updates >= self._max_updates:
            return None
        return max(0.0, self._seconds - self.throughput.closing_seconds - seconds)

    def _is_due(self, progress: float, seconds: float) -> bool:
        """Return True if the plan should be checked at a progress of the schedule, after `seconds`."""
        total = max(self._seconds - self.throughput.closing_seconds, 1e-9)
        last_seconds, last_progress = self._last_check
        if seconds >= total or any(last_seconds < ratio * total <= seconds for ratio in _CHECK_RATIOS):
            return True
        elapsed_ratio = (seconds - last_seconds) / max(total - last_seconds, 1e-9)
        return abs(progress - (last_progress + (1 - last_progress) * elapsed_ratio)) > _MAX_DRIFT

    def _num_updates(self, step: int, progress: float, seconds: float) -> int:
        """Return how many updates the budget allows in all, at least `step` and at least 1."""
        self._last_check = (seconds, progress)
        throughput, settings = self.throughput, self._settings
        remaining = self._seconds - throughput.closing_seconds - seconds
        per_update = self._mean_update_seconds(progress)
        per_update += throughput.checkpoint_seconds / settings.save_steps
        if settings.eval_steps:
            per_update += throughput.seconds_of_evaluation / settings.eval_steps
        allowed = max(1, step, step + round(remaining / max(per_update, 1e-9)))
        return allowed if self._max_updates is None else min(allowed, max(int(self._max_updates), step))

    def _mean_update_seconds(self, progress: float) -> float:
        """Return the mean seconds of the remaining updates, over all phases."""
        last = len(self._shares) - 1
        if progress >= 1:
            return self.throughput.seconds_of_update(last)
        total, start = 0.0, 0.0
        for phase, share in enumerate(self._shares):
            end = 1.0 if phase == last else start + share
            total += max(0.0, end - max(start, progress)) * self.throughput.seconds_of_update(phase)
            start = end
        return total / (1 - progress)
