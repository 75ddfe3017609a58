"""Keeping to a budget of minutes, and noticing that the threads of computation have come into each other's way.

Both only watch a clock; what they find is decided in the loop and written into the plan. So a run's numbers depend
on the plan alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from bertsmith.training.run_plan import Entry, RunPlan
from bertsmith.training.settings import TrainSettings

# Shares of the budget after which the plan is looked at: often while little is known and while little is left.
_MOMENTS = tuple(2**-n for n in range(6, 0, -1)) + tuple(1 - 2**-n for n in range(2, 7))
_DRIFT = 0.02  # of the budget that the run may be ahead or behind before the plan is looked at
_MEMORY = 32  # updates over which the speed is smoothed
_RECENT = 12  # updates whose median is the speed that is compared with the best
_COLLAPSE = 2.5  # times as long as at best: one busy process a core alone doubles it
_FIRST_REST = 64  # updates between two looks at other numbers of threads; doubled after each


@dataclass
class Speeds:
    """Seconds that the parts of a run take, as last seen: an update of each phase, an evaluation, a checkpoint.

    evaluated: how many updates an evaluation is worth, until one was timed. at_end: how many evaluations is worth
    what is measured after the last update. writing: of the model, at the end.
    """

    updates: dict[int, float] = field(default_factory=dict)
    evaluation: float | None = None
    evaluated: float = 0.0
    at_end: float = 2.0
    checkpoint: float = 0.0
    writing: float = 0.0
    _seen: dict[int, int] = field(default_factory=dict)

    def observe(self, phase: int, seconds: float) -> None:
        """An update took so long. It replaces what a trial said; phases to come are expected to be as much off."""
        seen = self._seen[phase] = self._seen.get(phase, 0) + 1
        before = self.updates.get(phase, seconds)
        if seen == 1 and before > 0:
            unseen = self.updates.keys() - self._seen.keys()
            self.updates |= {other: self.updates[other] * seconds / before for other in unseen}
        self.updates[phase] = before + (seconds - before) / min(seen, _MEMORY)

    def of(self, phase: int) -> float:
        """Seconds of an update of a phase; of another one where it was never timed."""
        return self.updates.get(phase) or next(iter(self.updates.values()), 0.0)

    @property
    def an_evaluation(self) -> float:
        """Seconds of one."""
        return self.evaluated * self.of(0) if self.evaluation is None else self.evaluation

    @property
    def closing(self) -> float:
        """What is to be done after the last update: evaluations, a checkpoint, the model."""
        return self.at_end * self.an_evaluation + self.checkpoint + self.writing


class Minutes:
    """A budget of minutes, and at most `cap` updates: how many there is time for, asked after each one."""

    def __init__(self, minutes: float, cap: int | None, shares: Sequence[float]) -> None:
        self.seconds, self.cap = minutes * 60, cap
        self._shares = tuple(shares)
        self._looked: tuple[float, float] = (0.0, 0.0)  # seconds spent and progress made, when last looked

    def updates(
        self, step: int, progress: float, spent: float, speeds: Speeds, between: tuple[int | None, int]
    ) -> int:
        """How many updates fit in all, `step` of them made in `spent` seconds; at least `step`, and at least 1.

        between: updates from one evaluation to the next (none: at the end alone), and from one checkpoint.
        """
        self._looked = (spent, progress)
        left = self.seconds - speeds.closing - spent
        evaluate, checkpoint = between
        each = self._mean(progress, speeds) + speeds.checkpoint / checkpoint
        each += speeds.an_evaluation / evaluate if evaluate else 0.0
        found = max(1, step, step + round(left / max(each, 1e-9)))
        return min(found, max(self.cap, step)) if self.cap is not None else found

    def due(self, plan: RunPlan, step: int, spent: float, speeds: Speeds) -> bool:
        """Whether it is time to look at the plan after so many updates and seconds."""
        whole = max(self.seconds - speeds.closing, 1e-9)
        then, before = self._looked
        progress = plan.progress(step)
        if spent >= whole or any(then < share * whole <= spent for share in _MOMENTS):
            return True
        expected = before + (1 - before) * (spent - then) / max(whole - then, 1e-9)
        return abs(progress - expected) > _DRIFT

    def _mean(self, progress: float, speeds: Speeds) -> float:
        """Seconds of an update, over the progress that is left: phases have their shares of it."""
        total, begin = 0.0, 0.0
        for phase, share in enumerate(self._shares):
            end = 1.0 if phase == len(self._shares) - 1 else begin + share
            total += max(0.0, end - max(begin, progress)) * speeds.of(phase)
            begin = end
        return total / (1 - progress) if progress < 1 else speeds.of(len(self._shares) - 1)


class Watch:
    """Whether updates have become so slow, or were made on fewer threads for so long, that others are tried."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._best: dict[int, float] = {}
        self._recent: dict[int, deque[float]] = {}
        self._rest = _FIRST_REST
        self._resting, self._made = 0, 0

    def due(self, phase: int, seconds: float, threads: int) -> bool:
        """An update took so long on so many threads: is it time to try other numbers?"""
        recent = self._recent.setdefault(phase, deque(maxlen=_RECENT))
        recent.append(seconds)
        self._resting, self._made = max(0, self._resting - 1), self._made + 1
        if len(recent) < _RECENT:
            return False
        now = median(recent)
        best = self._best[phase] = min(now, self._best.get(phase, now))
        slow = threads > 1 and now > _COLLAPSE * best
        return (slow and not self._resting) or (threads < self._most and self._made >= self._rest)

    def rest(self) -> None:
        """Others were tried now; wait longer each time."""
        self._resting, self._rest, self._made = self._rest, 2 * self._rest, 0
        self._recent.clear()


class Pace:
    """The speeds of a run under way, and what they ask of its plan."""

    def __init__(
        self,
        settings: TrainSettings,
        shares: Sequence[float],
        speeds: Speeds,
        budget: Mapping[str, float],
        most: int,
    ) -> None:
        self.speeds, self.watch = speeds, Watch(most)
        minutes, cap = budget.get("max_minutes"), budget.get("max_steps")
        self._minutes = (
            None if minutes is None else Minutes(minutes, None if cap is None else int(cap), shares)
        )
        self._between = (settings.eval_steps, settings.save_steps)

    def replanned(self, plan: RunPlan, step: int, spent: float) -> Entry | None:
        """An entry where minutes hold another number of updates than planned; spent: seconds so far."""
        minutes = self._minutes
        if minutes is None or step >= plan.updates or not minutes.due(plan, step, spent, self.speeds):
            return None
        progress = plan.progress(step)
        updates = minutes.updates(step, progress, spent, self.speeds, self._between)
        if updates == plan.updates:
            return None
        took = self.speeds.of(0)
        return plan.last.model_copy(
            update={
                "step": step,
                "updates": updates,
                "progress": progress,
                "why": f"{spent:.1f} s spent, about {took:.4g} s an update",
            }
        )

    def left(self, spent: float, updates: int) -> float | None:
        """Seconds that a budget of minutes leaves, where it ends the run: `updates` of it are planned."""
        minutes = self._minutes
        if minutes is None or (minutes.cap is not None and updates >= minutes.cap):
            return None
        return max(0.0, minutes.seconds - self.speeds.closing - spent)
