"""The throughput of a run, and how many updates a budget of minutes allows.

Corrections become entries of the `RunPlan`. The numbers of a run depend on its plan, not on the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bertsmith.training.data_loader import Phase
from bertsmith.training.run_plan import PlanEntry, RunPlan
from bertsmith.training.settings import TrainSettings

_CHECK_RATIOS = tuple(2**-n for n in range(6, 0, -1)) + tuple(1 - 2**-n for n in range(2, 7))  # of the budget
_MAX_DRIFT = 0.02  # of the budget, by which a run may be ahead or behind before it is replanned
_SMOOTHING_UPDATES = 32
_FORWARD_RATIO = 1 / 3  # of the time of an update with as many tokens: the time of a forward pass
_FINAL_EVALUATIONS = 2.0  # that take as long as the work after the last update
_BYTES_PER_SECOND = 150e6  # to write, read again for a digest, and synchronize


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
            coming = self.update_seconds.keys() - self._num_observed.keys()
            self.update_seconds |= {
                other: self.update_seconds[other] * seconds / previous for other in coming
            }
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
