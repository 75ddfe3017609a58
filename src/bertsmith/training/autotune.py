"""Choose threads and precision by timing updates, before and during a run.

Decisions become entries of the `RunPlan`. The numbers of a run depend on its plan, not on the clock.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import median, median_high
from typing import Any

import torch

from bertsmith import hardware
from bertsmith.device import ComputeContext
from bertsmith.formatting import pluralize
from bertsmith.hardware import Precision
from bertsmith.training.data_loader import START, DataPosition, Phase, iterate_updates
from bertsmith.training.optim.optimizer import create_optimizer
from bertsmith.training.run_plan import PlanEntry, RunPlan, TrainingBudget
from bertsmith.training.settings import TrainSettings
from bertsmith.training.time_budget import Throughput, TimeBudget
from bertsmith.training.train_step import GradientStrategy, TrainModule, train_step

logger = logging.getLogger(__name__)

_FIRST_BATCH_RATIO = 8  # the first updates use this fraction of a batch
_QUICK_SECONDS = 0.5  # if the first batch size takes less, a second size is measured in any case
_MAX_SLOWDOWN = 2.0  # a configuration that takes this many times as long as the fastest is dropped
_MAX_FEWER_THREADS_TIME = 0.75  # of the time of an update, for which fewer threads are preferred
_MAX_BF16_TIME = 0.95  # of the time of an update, for which bf16 is preferred
_RETUNE_UPDATES = 12  # time to spend on trying other numbers of threads during a run
_MAX_RETUNE_TIME = 0.9  # of the time of an update, for which the number of threads changes
_MIN_REMAINING_UPDATES, _MIN_REMAINING_RATIO = 20, 0.05  # with fewer, the number of threads stays
_RECENT_UPDATES = 12
_COLLAPSE_RATIO = 2.5  # of the time of an update to the best: one busy process per core alone doubles it
_FIRST_PAUSE_UPDATES = 64  # between two tries of other numbers of threads; doubled after each


@dataclass(frozen=True)
class ExecutionConfig:
    """A number of threads and a precision for updates."""

    threads: int
    precision: Precision


def execution_configs(threads: Sequence[int], precisions: Sequence[Precision]) -> list[ExecutionConfig]:
    """Return the configurations to measure: each number of threads, and each precision with the first number."""
    return [
        *(ExecutionConfig(number, precisions[0]) for number in threads),
        *(ExecutionConfig(threads[0], precision) for precision in precisions[1:]),
    ]


def thread_counts(max_threads: int) -> list[int]:
    """Return the numbers of threads to measure, the largest first: all up to 4, above that each half."""
    if max_threads <= 4:
        return list(range(max_threads, 0, -1))
    return [max_threads, *thread_counts(max_threads // 2)]


def fastest_config(seconds: Mapping[ExecutionConfig, float]) -> ExecutionConfig:
    """Return the fastest configuration, but keep the first one's threads and precision unless others pay."""
    first = next(iter(seconds))
    fastest = min((c for c in seconds if c.precision == first.precision), key=lambda c: seconds[c])
    is_faster = seconds[fastest] < _MAX_FEWER_THREADS_TIME * seconds[first]
    precision = first.precision
    for config in seconds:
        if config.precision != first.precision and seconds[config] < _MAX_BF16_TIME * seconds[first]:
            precision = config.precision
    return ExecutionConfig(fastest.threads if is_faster else first.threads, precision)


def benchmark_configs(
    module: TrainModule,
    phase: Phase,
    settings: TrainSettings,
    context: ComputeContext,
    configs: Sequence[ExecutionConfig],
    time_limit: Callable[[float], float],
    position: DataPosition = START,
) -> dict[ExecutionConfig, float]:
    """Return the seconds of an update by configuration, for at least the first one.

    All configurations make updates in turn: on a part of a batch, then on larger parts, then on whole batches,
    until the time is over. The median of the largest size counts. If that is not a whole batch, the time of a
    whole one is estimated from the two largest sizes, since a part of it, such as Muon's, does not depend on the
    size. If the first size takes less than half a second, two sizes are measured in any case, since one update of
    each configuration is too few. Weights, optimizer state, and generator stay as they are.

    Args:
        module: The module to train.
        phase: The instances.
        settings: The settings of the run.
        context: The compute context, whose precision is replaced.
        configs: The configurations.
        time_limit: Returns the seconds that may be spent, given the seconds of an update.
        position: The first instance.
    """
    optimizer = create_optimizer(module, settings)
    state, was_training, threads = context.generator.get_state(), module.training, torch.get_num_threads()
    batch_size = settings.gradient_accumulation_steps * phase.batch_size
    objective: Any = module.objective

    def seconds_of(config: ExecutionConfig, size: int) -> float:
        hardware.set_num_threads(config.threads)
        strategy = GradientStrategy(module, replace(context, precision=config.precision), settings, optimizer)
        start = hardware.clock()
        updates = iterate_updates(phase.stream, size, 1, position, 0, objective.counts)
        with closing(updates):
            train_step(strategy, next(updates), 0.0, 0)
        return hardware.clock() - start

    times: dict[ExecutionConfig, list[float]] = {}  # of batches of `measured_size`
    smaller: dict[ExecutionConfig, tuple[int, float]] = {}  # the size before that, and its seconds
    remaining, size, measured_size = list(configs), _first_size(phase, settings), 0
    module.train()
    begin = hardware.clock()
    try:
        for config in {config.precision: config for config in reversed(remaining)}.values():
            seconds_of(config, size)  # the first update also allocates memory and loads kernels
        while True:
            start = hardware.clock()
            if measured_size != size:
                smaller |= {config: (measured_size, median_high(ts)) for config, ts in times.items()}
                times, measured_size = {}, size
            for config in remaining:
                times.setdefault(config, []).append(seconds_of(config, size))
            round_seconds = hardware.clock() - start
            next_size = min(2 * size, phase.batch_size)
            fastest = min(times, key=lambda config: min(times[config]))
            best = min(times[fastest])
            estimate = estimate_update_seconds(size, best, smaller.get(fastest), batch_size)
            is_compared = bool(smaller) or round_seconds > _QUICK_SECONDS or size == phase.batch_size
            next_end = hardware.clock() - begin + round_seconds * next_size / size
            if is_compared and next_end > time_limit(estimate):
                break
            remaining = [config for config in remaining if min(times[config]) <= _MAX_SLOWDOWN * best]
            size = next_size
    finally:
        hardware.set_num_threads(threads)
        context.generator.set_state(state)
        module.train(was_training)
        optimizer.zero_grad(set_to_none=True)
    return {
        config: estimate_update_seconds(size, median_high(ts), smaller.get(config), batch_size)
        for config, ts in times.items()
    }


def estimate_update_seconds(
    size: int, seconds: float, smaller: tuple[int, float] | None, batch_size: int
) -> float:
    """Return the estimated seconds of an update.

    The estimate is on the line through both measurements, but at least `seconds`, and at most proportional to the
    size.

    Args:
        size: The sequences of the measured update.
        seconds: Its time.
        smaller: The sequences and the time of a smaller update, if one was measured.
        batch_size: The sequences of the whole update.
    """
    proportional = seconds / size
    slope = proportional if smaller is None else (seconds - smaller[1]) / (size - smaller[0])
    return seconds + min(max(slope, 0.0), proportional) * (batch_size - size)


def _first_size(phase: Phase, settings: TrainSettings) -> int:
    """Return the batch size to start with; batches of a number of tokens have only one size."""
    if getattr(settings, "batch_tokens", None) is not None:
        return phase.batch_size
    return max(1, phase.batch_size // _FIRST_BATCH_RATIO)


class ThreadMonitor:
    """Decides when to try other numbers of threads: after a collapse of the speed, or after a while on few."""

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._best: dict[int, float] = {}
        self._recent: dict[int, deque[float]] = {}
        self._pause = _FIRST_PAUSE_UPDATES
        self._remaining_pause, self._num_updates = 0, 0

    def is_due(self, phase: int, seconds: float, threads: int) -> bool:
        """Include the time of an update, and return True if it is time to try other numbers of threads."""
        recent = self._recent.setdefault(phase, deque(maxlen=_RECENT_UPDATES))
        recent.append(seconds)
        self._remaining_pause, self._num_updates = max(0, self._remaining_pause - 1), self._num_updates + 1
        if len(recent) < _RECENT_UPDATES:
            return False
        current = median(recent)
        best = self._best[phase] = min(current, self._best.get(phase, current))
        has_collapsed = threads > 1 and current > _COLLAPSE_RATIO * best
        may_use_more = threads < self._max_threads and self._num_updates >= self._pause
        return (has_collapsed and not self._remaining_pause) or may_use_more

    def pause(self) -> None:
        """Start a pause, twice as long as the previous one."""
        self._remaining_pause, self._pause, self._num_updates = self._pause, 2 * self._pause, 0
        self._recent.clear()


class Autotuner:
    """Proposes entries of the plan during a run: other numbers of updates and threads."""

    def __init__(
        self,
        module: TrainModule,
        phases: Sequence[Phase],
        settings: TrainSettings,
        context: ComputeContext,
        budget: TrainingBudget,
        limits: Mapping[str, float],
        throughput: Throughput,
    ) -> None:
        self._module, self._phases, self._settings, self._context = module, phases, settings, context
        self._budget, self.throughput = budget, throughput
        self._monitor = ThreadMonitor(budget.max_threads if budget.may_change_threads else 1)
        minutes, max_steps = limits.get("max_minutes"), limits.get("max_steps")
        max_updates = None if max_steps is None else int(max_steps)
        self._time_budget = None if minutes is None else TimeBudget(minutes, max_updates, phases)

    @property
    def is_active(self) -> bool:
        """True if there may be proposals."""
        return self._budget.may_change_threads or self._time_budget is not None

    def propose(
        self,
        plan: RunPlan,
        step: int,
        phase: int,
        position: DataPosition,
        update_seconds: float,
        seconds: float,
    ) -> PlanEntry | None:
        """Return a new entry of the plan after an update, if it should change.

        Updates that are repeated after a crash follow the entries that exist already.

        Args:
            plan: The plan.
            step: The number of the update.
            phase: Its phase.
            position: The next instance.
            update_seconds: The time of the update.
            seconds: The time of the run.
        """
        self.throughput.observe(phase, update_seconds)
        if any(entry.step >= step for entry in plan.entries[1:]):
            return None
        entry = self._other_threads(plan, step, phase, position, update_seconds)
        changed_plan = plan if entry is None else RunPlan([*plan.entries, entry])
        return self._other_length(changed_plan, step, seconds) or entry

    def seconds_left(self, seconds: float, num_updates: int) -> float | None:
        """Return the remaining seconds, if the time budget and not a number of updates ends the run."""
        budget = self._time_budget
        if budget is None or (budget.max_updates is not None and num_updates >= budget.max_updates):
            return None
        return max(0.0, budget.seconds - self.throughput.closing_seconds - seconds)

    def _other_length(self, plan: RunPlan, step: int, seconds: float) -> PlanEntry | None:
        """Return an entry if the time budget allows more or fewer updates than planned."""
        budget = self._time_budget
        if budget is None or step >= plan.num_updates:
            return None
        if not budget.is_due(plan, step, seconds, self.throughput):
            return None
        progress = plan.progress(step)
        num_updates = budget.num_updates(step, progress, seconds, self.throughput, self._settings)
        if num_updates == plan.num_updates:
            return None
        per_update = self.throughput.seconds_of_update(0)
        why = f"{seconds:.1f} s spent, about {per_update:.4g} s an update"
        return plan.last.model_copy(
            update={"step": step, "updates": num_updates, "progress": progress, "why": why}
        )

    def _other_threads(
        self, plan: RunPlan, step: int, phase: int, position: DataPosition, update_seconds: float
    ) -> PlanEntry | None:
        """Try other numbers of threads if it is time to, and return an entry if one is faster."""
        threads = plan.last.threads
        min_remaining = max(_MIN_REMAINING_UPDATES, _MIN_REMAINING_RATIO * plan.num_updates)
        if plan.num_updates - step < min_remaining or not self._budget.may_change_threads:
            return None
        if not self._monitor.is_due(phase, update_seconds, threads):
            return None
        self._monitor.pause()
        others = [number for number in thread_counts(self._budget.max_threads) if number != threads]
        seconds = benchmark_configs(
            self._module,
            self._phases[phase],
            self._settings,
            self._context,
            execution_configs([threads, *others], [self._context.precision]),
            lambda _: _RETUNE_UPDATES * update_seconds,
            position,
        )
        fastest = min(seconds, key=lambda config: seconds[config])
        current = seconds.get(ExecutionConfig(threads, self._context.precision))  # None: dropped as too slow
        if current is not None and seconds[fastest] > _MAX_RETUNE_TIME * current:
            return None
        logger.info(
            "computing on %s from update %s on, not on %d: updates are faster that way now",
            pluralize(fastest.threads, "thread"),
            f"{step + 1:,}",
            threads,
        )
        changes = {"step": step, "progress": plan.progress(step), "threads": fastest.threads}
        why = "updates are quicker on this number of threads"
        return plan.last.model_copy(update={**changes, "why": why})
