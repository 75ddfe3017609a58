"""What a command asks of a run's length and threads, and the plan that makes of a new run or a resumed one."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith.console import format_duration
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.training.lr_schedule import SchedulerType
from bertsmith.training.run_plan import Entry, RunPlan

logger = logging.getLogger(__name__)

_SHAPES = {
    "linear": "falls in a line to 0",
    "linear_google": "falls in a line to 0",
    "cosine": "falls along a cosine to 0",
    "constant_with_warmup": "stays constant",
    "warmup_stable_decay": "stays constant, then falls in a line to 0",
    "one_cycle": "falls along a cosine to nearly 0",
    "step": "falls in steps",
    "inverse_sqrt": "falls with the square root of the updates",
    "reduce_lr_on_plateau": "stays constant as long as evaluations get better",
}


@dataclass(frozen=True)
class Aim:
    """How far a run is to go and on how many threads, as this command has it.

    budget: by the names of settings (`max_steps`, `max_tokens`, `epochs`, `max_minutes`). asked: whether this
    command named it; else a resumed run keeps its own. updates: what it comes to; an estimate for minutes.
    threads: None keeps a resumed run's own. free: whether others may be taken on the way. most: threads that there
    are cores for. begun: the clock when the command began; minutes are counted from there. processes: that share
    out the work.
    """

    budget: Mapping[str, float]
    updates: int
    threads: int | None = None
    asked: bool = True
    free: bool = False
    most: int = 1
    begun: float | None = None
    processes: int = 1

    def first(self) -> RunPlan:
        """The plan of a new run."""
        threads = self.threads or self.most
        return RunPlan([self._entry(0, self.updates, 0.0, threads, self.budget, "the run begins")])

    def resumed(
        self,
        run: Path,
        entries: Sequence[Entry],
        step: int,
        spent: float,
        shape: SchedulerType,
    ) -> RunPlan:
        """The plan of a run that is resumed after `step` updates and `spent` seconds; what is new in it is logged.

        InputError for a budget that the run has used up already.
        """
        plan = RunPlan(entries)
        if self.asked and dict(self.budget) != plan.last.budget:
            plan = self._extended(run, plan, step, spent, shape)
        now, last = plan.at(step + 1), plan.last
        ahead = [entry for entry in plan.entries if entry.step >= step] + [now]
        threads = self.threads or last.threads
        if step < last.updates and any(self._changes(entry) for entry in ahead):
            logger.warning(
                "computing %s from here on, not %s: numbers are added in another order, so the run is no longer "
                "bit-identical to an uninterrupted one",
                _on(threads, self.processes),
                _on(now.threads, now.processes),
            )
            known = RunPlan(plan.entries_until(step))
            other = (
                "in another number of processes" if now.processes != self.processes else "on other threads"
            )
            entry = self._entry(
                step, last.updates, known.progress(step), threads, last.budget, f"resumed {other}"
            )
            plan = RunPlan([*known.entries, entry])
        return plan

    def _changes(self, entry: Entry) -> bool:
        """Whether this command computes otherwise than an entry says."""
        return self.threads not in (None, entry.threads) or entry.processes != self.processes

    def _extended(self, run: Path, plan: RunPlan, step: int, spent: float, shape: SchedulerType) -> RunPlan:
        """The plan with this command's budget in place of the run's own."""
        updates, finished = self._updates(run, step, spent), step >= plan.updates
        if updates < step:
            raise InputError(
                "budget_exceeded",
                f"the run has already made {pluralize(step, 'update')}, and {_said(self.budget)} means "
                f"{updates:,}",
                location=run,
                hint="set a larger budget, or none to continue with the budget of the run",
            )
        if updates == step and finished:
            return plan
        known = RunPlan(plan.entries_until(step))
        threads = known.last.threads
        if finished:
            added = self._about(updates - step)
            logger.info(
                "the run was finished after %s; %s adds %s: the learning rate warms up again, then %s over these",
                pluralize(step, "update"),
                _said(self.budget),
                added,
                _SHAPES[shape],
            )
        else:
            logger.info(
                "the run now ends after %s (%s), not after %s: the learning rate continues at its current value "
                "and %s until then",
                self._about(updates),
                _said(self.budget),
                f"{plan.updates:,}",
                _SHAPES[shape],
            )
        if "max_minutes" in self.budget:
            logger.info(
                "minutes count from the beginning of the run; the number of updates is corrected during the run"
            )
        progress = 0.0 if finished else known.progress(step)
        entry = self._entry(step, updates, progress, threads, self.budget, "resumed with another budget")
        entry = entry.model_copy(update={"processes": known.last.processes})
        return RunPlan([*known.entries, entry])

    def _about(self, updates: int) -> str:
        """So many updates; minutes give an estimate alone."""
        return ("about " if "max_minutes" in self.budget else "") + pluralize(updates, "update")

    def _updates(self, run: Path, step: int, spent: float) -> int:
        """What the budget comes to for a run that has made `step` updates in `spent` seconds."""
        minutes = self.budget.get("max_minutes")
        if minutes is None or not step:
            return self.updates
        if minutes * 60 < spent:
            raise InputError(
                "time_exceeded",
                f"the run has already taken {format_duration(spent)}, more than "
                f"{minutes:g} minutes; minutes count from "
                "the beginning of the run",
                location=run,
                argument="minutes",
                hint=f"set the total number of minutes, such as "
                f"{option('minutes', max(1, round(spent / 60)) + 10)}",
            )
        fit = step + round((minutes * 60 - spent) / max(spent / step, 1e-9))
        return int(min(fit, self.budget.get("max_steps", fit)))

    def _entry(
        self, step: int, updates: int, progress: float, threads: int, budget: Mapping[str, float], why: str
    ) -> Entry:
        return Entry(
            step=step,
            updates=max(1, updates),
            progress=progress,
            threads=threads,
            budget=dict(budget),
            why=why,
            processes=self.processes,
        )


def _on(threads: int, processes: int) -> str:
    """On what a run computes, in words."""
    on = f"on {pluralize(threads, 'thread')}"
    return f"{on} in each of {pluralize(processes, 'process', 'processes')}" if processes > 1 else on


def _said(budget: Mapping[str, float]) -> str:
    return ", ".join(
        f"train.{name}={value:g}" if value < 1e6 else f"train.{name}={value:,}"
        for name, value in budget.items()
    )
