"""The budget, threads, and precision of a run, from settings, environment, and timed updates."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from bertsmith import hardware
from bertsmith.console import format_duration
from bertsmith.device import ComputeContext
from bertsmith.formatting import pluralize
from bertsmith.hardware import Precision
from bertsmith.training.autotune import (
    ExecutionConfig,
    benchmark_configs,
    execution_configs,
    fastest_config,
    thread_counts,
)
from bertsmith.training.data_loader import Phase
from bertsmith.training.distributed import SINGLE_RANK, RankGroup
from bertsmith.training.run_plan import TrainingBudget
from bertsmith.training.settings import TrainSettings
from bertsmith.training.time_budget import Throughput
from bertsmith.training.train_step import TrainModule

logger = logging.getLogger(__name__)

_LIMITS = ("train.max_steps", "train.max_tokens", "train.max_minutes")
_MAX_MEASURING_RATIO, _MAX_MEASURING_SECONDS = 0.02, 10.0  # of the run
_MIN_PLANNED_UPDATES = 20  # so that one slow measurement does not end a run after its first update
_MIN_USEFUL_UPDATES = 500


def without_other_budgets(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes of settings that also remove the other budgets, if they set one."""
    if changes.keys().isdisjoint({*_LIMITS, "train.num_train_epochs"}):
        return dict(changes)
    return {**dict.fromkeys(_LIMITS), **changes}


def budget_limits(train: TrainSettings) -> dict[str, float]:
    """Return the budget by the names of settings: epochs if there is no other."""
    limits = {name: getattr(train, name) for name in ("max_steps", "max_tokens", "max_minutes")}
    limits = {name: value for name, value in limits.items() if value is not None}
    return limits or {"num_train_epochs": train.num_train_epochs}


@dataclass(frozen=True)
class ComputeSetup:
    """The compute context of a run with its number of threads.

    Attributes:
        context: The compute context.
        threads: The number of threads of each process.
        may_change_threads: True if the number of threads may change during the run.
        throughput: The measured speed.
        num_processes: The number of processes.
    """

    context: ComputeContext
    threads: int
    may_change_threads: bool
    throughput: Throughput = field(default_factory=Throughput)
    num_processes: int = 1


def choose_compute_setup(
    module: TrainModule,
    phases: Sequence[Phase],
    train: TrainSettings,
    context: ComputeContext,
    num_updates: Callable[[], int],
    *,
    resuming: bool = False,
    ranks: RankGroup = SINGLE_RANK,
) -> ComputeSetup:
    """Choose the threads and the precision that settings leave open, by timing updates on rank 0.

    Nothing is timed if nothing is open and there is no time budget, or if the run is resumed.

    Args:
        module: The module to train.
        phases: The phases of the run.
        train: The settings of the run.
        context: The compute context.
        num_updates: Returns the number of updates, if there is no time budget. Timing takes at most 2 % of the
            run.
        resuming: True if the run is resumed.
        ranks: The ranks that train together.
    """
    may_change_threads = can_choose_threads(train, context)
    configs = ranks.run_on_main(partial(configs_to_measure, train, context))
    max_threads = configs[0].threads
    if not resuming and context.is_cpu and max_threads > (cores := hardware.available_cores()):
        logger.warning(
            "this run uses %s on %s: as many threads as cores would be faster",
            pluralize(max_threads, "thread"),
            pluralize(cores, "core"),
        )
    minutes = train.max_minutes
    if resuming or (len(configs) == 1 and minutes is None):
        return ComputeSetup(context, max_threads, may_change_threads, num_processes=ranks.world_size)
    logger.info("measuring the speed of an update ...")
    updates = 0 if minutes is not None else num_updates()

    def time_limit(update_seconds: float) -> float:
        run_seconds = updates * update_seconds if minutes is None else minutes * 60
        return min(_MAX_MEASURING_SECONDS, _MAX_MEASURING_RATIO * run_seconds) / len(phases)

    seconds = ranks.run_on_main(
        lambda: benchmark_configs(module, phases[0], train, context, configs, time_limit)
    )
    config = fastest_config(seconds)
    context = replace(context, precision=config.precision)
    update_seconds = seconds.get(config) or min(seconds.values())
    throughput = Throughput({0: update_seconds})
    if minutes is not None:
        for index, phase in enumerate(phases[1:], start=1):
            measure = partial(benchmark_configs, module, phase, train, context, [config], time_limit)
            throughput.update_seconds[index] = min(ranks.run_on_main(measure).values())
    logger.info("%s", describe_measurement(seconds, config, update_seconds, context))
    return ComputeSetup(context, config.threads, may_change_threads, throughput, ranks.world_size)


def can_choose_threads(train: TrainSettings, context: ComputeContext) -> bool:
    """Return True if neither settings nor OMP_NUM_THREADS set the number of threads of a single process."""
    is_set = train.threads or hardware.omp_num_threads()
    is_single = hardware.rank_info().world_size == 1
    return is_set is None and is_single and context.is_cpu and hardware.available_cores() > 1


def configs_to_measure(train: TrainSettings, context: ComputeContext) -> list[ExecutionConfig]:
    """Return the configurations that settings and environment leave open.

    bf16 is measured only if its matrix products are faster, since otherwise it could only win by chance.
    """
    max_threads = train.threads or hardware.omp_num_threads() or hardware.cores_per_process()
    precisions: list[Precision] = [context.precision]
    if train.precision == "auto":
        faster = hardware.choose_precision(context.device).precision
        precisions = ["fp32", "bf16"] if faster == "bf16" else ["fp32"]
    threads = thread_counts(max_threads) if can_choose_threads(train, context) else [max_threads]
    return execution_configs(threads, precisions)


def describe_measurement(
    seconds: Mapping[ExecutionConfig, float],
    config: ExecutionConfig,
    update_seconds: float,
    context: ComputeContext,
) -> str:
    """Return a sentence about the measured seconds, and why a faster configuration was not chosen."""

    def describe(config: ExecutionConfig) -> str:
        name = pluralize(config.threads, "thread") if context.is_cpu else hardware.device_name(context.device)
        return f"{config.precision} on {name}"

    others = []
    for other, other_seconds in seconds.items():
        drawback = "leave threads idle" if other.precision == config.precision else "give up digits"
        reason = f", not enough faster to {drawback}" if other_seconds < update_seconds else ""
        if other != config:
            others.append(f"{describe(other)}: {other_seconds:.3g} s{reason}")
    in_parentheses = f" ({'; '.join(others)})" if others else ""
    return f"an update takes about {update_seconds:.3g} s in {describe(config)}{in_parentheses}"


def training_budget(
    train: TrainSettings,
    setup: ComputeSetup,
    num_updates: Callable[[], int],
    start_time: float,
    *,
    explicit: Collection[str] | None = None,
) -> TrainingBudget:
    """Return the budget of a run, and log a time budget that is too short.

    Args:
        train: The settings of the run.
        setup: The compute setup.
        num_updates: Returns the number of updates that a budget without minutes allows.
        start_time: The clock at the start of the command.
        explicit: The settings that a command that resumes a run names; None for a new run.
    """
    limits, names = budget_limits(train), set(explicit or ())
    is_explicit = explicit is None or not names.isdisjoint({*_LIMITS, "train.num_train_epochs"})
    threads: int | None = setup.threads
    if explicit is not None:
        threads = (train.threads if "train.threads" in names else None) or hardware.omp_num_threads()
    if train.max_minutes is None:
        updates = num_updates()
    elif explicit is None:
        updates = _updates_in_minutes(train, setup.throughput, hardware.clock() - start_time)
    else:
        updates = _MIN_PLANNED_UPDATES
    return TrainingBudget(
        limits,
        updates,
        threads,
        is_explicit,
        setup.may_change_threads,
        hardware.available_cores() if setup.may_change_threads else threads or setup.threads,
        start_time,
        setup.num_processes,
    )


def _updates_in_minutes(train: TrainSettings, throughput: Throughput, elapsed_seconds: float) -> int:
    """Return about how many updates a time budget allows after the preparation, and log it."""
    total_seconds = (train.max_minutes or 0.0) * 60
    seconds, closing_seconds = throughput.seconds_of_update(0), throughput.closing_seconds
    updates = max(1, int((total_seconds - elapsed_seconds - closing_seconds) / seconds))
    is_short = updates < _MIN_USEFUL_UPDATES and (train.max_steps is None or updates < train.max_steps)
    if train.max_steps is not None:
        updates = min(updates, train.max_steps)
    if elapsed_seconds < total_seconds:
        logger.info(
            "%s, of which %s have passed, are enough for about %s; the number is corrected during the run",
            format_duration(total_seconds),
            format_duration(elapsed_seconds),
            pluralize(updates, "update"),
        )
    else:
        logger.warning(
            "the time is over before the first update: the preparation took %s of %s; the run makes one update",
            format_duration(elapsed_seconds),
            format_duration(total_seconds),
        )
    if is_short:
        logger.warning(
            "a model learns little in %s; %s updates take about %s on this machine",
            pluralize(updates, "update"),
            f"{_MIN_USEFUL_UPDATES:,}",
            format_duration(_MIN_USEFUL_UPDATES * seconds + closing_seconds),
        )
    planned = max(updates, _MIN_PLANNED_UPDATES)
    return planned if train.max_steps is None else min(planned, train.max_steps)
