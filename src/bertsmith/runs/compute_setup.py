"""The budget and the threads of a run, and the settings and the digest that follow from them."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from bertsmith import hardware
from bertsmith.console import format_duration
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.settings import Settings
from bertsmith.training.budget import Throughput, TrainingBudget
from bertsmith.training.data_loader import START, Phase, iterate_updates
from bertsmith.training.distributed import SINGLE_RANK, RankGroup
from bertsmith.training.settings import TrainSettings
from bertsmith.training.train_step import GradientStrategy, TrainModule, train_step
from bertsmith.training.training_job import fingerprint

logger = logging.getLogger(__name__)

_LIMITS = ("train.max_steps", "train.max_tokens", "train.max_minutes")
_FIRST_BATCH_RATIO = 8  # the first measured updates use this fraction of a batch
_MAX_MEASURING_RATIO, _MAX_MEASURING_SECONDS = 0.02, 10.0  # of the run
_MIN_PLANNED_UPDATES = 20  # so that one slow measurement does not end a run after its first update
_MIN_USEFUL_UPDATES = 500
_MIN_DECAY = 2.0**-25  # 1 minus less than this is 1 in fp32


def without_other_budgets(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes of settings that also remove the other budgets, if they set one."""
    if changes.keys().isdisjoint({*_LIMITS, "train.num_train_epochs"}):
        return dict(changes)
    return {**dict.fromkeys(_LIMITS), **changes}


def budget_limits(train: TrainSettings) -> dict[str, float]:
    """Return the budget by the names of settings: epochs if there is no other."""
    limits = {name: getattr(train, name) for name in ("max_steps", "max_tokens", "max_minutes")}
    limits = {name: value for name, value in limits.items() if value is not None}
    return limits or {"num_train_epochs": train.num_train_epochs or 1.0}


def with_context(train: TrainSettings, context: ComputeContext) -> TrainSettings:
    """Return the settings with the precision, device, and kernels of a context, and the number of threads."""
    values = {"precision": context.precision, "device": str(context.device), "kernels": context.kernels.name}
    return train.model_copy(update={**values, "threads": hardware.num_threads(train.threads)})


def run_fingerprint(settings: Settings, *digests: str) -> str:
    """Return a digest of the settings that a run's results depend on, and of its inputs."""
    may_change = type(settings).may_change()
    fixed = {name: value for name, value in settings.flat().items() if name not in may_change}
    return fingerprint(json.dumps(fixed, sort_keys=True), *digests)


def updates_in_budget(train: TrainSettings, updates_per_epoch: float, tokens_per_update: float) -> int:
    """Return the number of updates of a budget that is not in minutes.

    Raises:
        InputError: One update takes more passes over the data than the run has.
    """
    if train.max_steps:
        return train.max_steps
    if train.max_tokens:
        return math.ceil(train.max_tokens / tokens_per_update)
    epochs = train.num_train_epochs or 1.0
    if train.gradient_accumulation_steps > 1 and epochs * updates_per_epoch < 0.5:
        raise InputError(
            "update_longer_than_run",
            f"with train.gradient_accumulation_steps={train.gradient_accumulation_steps}, one update takes "
            f"{1 / updates_per_epoch:,.0f} passes over the data, and train.num_train_epochs is {epochs:g}",
            argument="train.gradient_accumulation_steps",
            hint="lower train.gradient_accumulation_steps, or set the number of updates with "
            f"{option('train.max_steps')}",
        )
    return math.ceil(epochs * updates_per_epoch)


def measure_throughput(
    module: TrainModule,
    phases: Sequence[Phase],
    train: TrainSettings,
    context: ComputeContext,
    *,
    resuming: bool = False,
    ranks: RankGroup = SINGLE_RANK,
) -> Throughput:
    """Measure the seconds of an update of each phase on rank 0, if a new run has a time budget."""
    if train.max_minutes is None or resuming:
        return Throughput()
    logger.info("measuring the speed of an update ...")
    run_seconds = 60 * train.max_minutes
    limit = min(_MAX_MEASURING_SECONDS, _MAX_MEASURING_RATIO * run_seconds) / len(phases)
    measure = partial(measure_update_seconds, module, settings=train, context=context, max_seconds=limit)
    seconds = {index: ranks.run_on_main(partial(measure, phase)) for index, phase in enumerate(phases)}
    device = hardware.device_name(context.device)
    logger.info("an update takes about %.3g s in %s on %s", seconds[0], context.precision, device)
    return Throughput(seconds)


def measure_update_seconds(
    module: TrainModule, phase: Phase, settings: TrainSettings, context: ComputeContext, max_seconds: float
) -> float:
    """Return the estimated seconds of an update; weights, optimizer state, and generator stay as they are.

    Growing parts of a batch are measured, up to a whole one or until the time is over. A larger size is estimated
    from the last two, since a part of an update, such as Muon's, does not depend on the size.

    Args:
        module: The module to train.
        phase: The instances.
        settings: The settings of the run.
        context: The compute context.
        max_seconds: The seconds that may be spent; at least two updates are made.
    """
    strategy = GradientStrategy(module, context, settings)
    state, was_training = context.generator.get_state(), module.training

    def seconds_of(size: int) -> float:
        start = hardware.clock()
        updates = iterate_updates(phase.stream, size, 1, START, 0, module.objective.counts)
        with closing(updates):
            train_step(strategy, next(updates), 0.0, 0)
        return hardware.clock() - start

    has_fixed_tokens = getattr(settings, "batch_tokens", None) is not None  # such batches have only one size
    size = phase.batch_size if has_fixed_tokens else max(1, phase.batch_size // _FIRST_BATCH_RATIO)
    smaller_size, smaller_seconds = 0, 0.0
    module.train()
    start = hardware.clock()
    try:
        seconds_of(size)  # the first update also allocates memory and loads kernels
        seconds = seconds_of(size)
        while size < phase.batch_size and hardware.clock() - start + 2 * seconds <= max_seconds:
            smaller_size, smaller_seconds = size, seconds
            size = min(2 * size, phase.batch_size)
            seconds = seconds_of(size)
    finally:
        context.generator.set_state(state)
        module.train(was_training)
        strategy.optimizer.zero_grad(set_to_none=True)
    per_sequence = max(0.0, (seconds - smaller_seconds) / (size - smaller_size))
    update_size = settings.gradient_accumulation_steps * phase.batch_size
    return seconds + min(per_sequence, seconds / size) * (update_size - size)


def training_budget(
    train: TrainSettings,
    throughput: Throughput,
    num_updates: Callable[[], int],
    start_time: float,
    num_processes: int = 1,
    *,
    explicit: Collection[str] | None = None,
) -> TrainingBudget:
    """Return the budget of a run, and log a time budget that is too short and threads that are too many.

    Args:
        train: The settings of the run.
        throughput: The measured speed of a new run with a time budget.
        num_updates: Returns the number of updates that a budget without minutes allows.
        start_time: The clock at the start of the command.
        num_processes: The number of processes.
        explicit: The settings that a command that resumes a run names; None for a new run.
    """
    is_new, names = explicit is None, set(explicit or ())
    names_threads = "train.threads" in names and train.threads is not None
    threads = hardware.num_threads(train.threads)
    if is_new and threads > (cores := hardware.available_cores()):
        message = "this run uses %s on %s: as many threads as cores would be faster"
        logger.warning(message, pluralize(threads, "thread"), pluralize(cores, "core"))
    if is_new:
        warn_about_weight_decay(train)
    if train.max_minutes is None:
        updates = num_updates()
    elif is_new:
        updates = _updates_in_minutes(train, throughput, hardware.clock() - start_time)
    else:
        updates = _MIN_PLANNED_UPDATES
    return TrainingBudget(
        budget_limits(train),
        updates,
        threads,
        keeps_threads=not (is_new or names_threads),
        is_explicit=is_new or not names.isdisjoint({*_LIMITS, "train.num_train_epochs"}),
        start_time=start_time,
        num_processes=num_processes,
    )


def warn_about_weight_decay(train: TrainSettings) -> None:
    """Log a warning if weight decay is lost by rounding: weights are fp32, and 1 - rate · decay becomes 1."""
    rates = {"learning_rate": (train.learning_rate, train.weight_decay)}
    if train.optim == "muon":
        decay = train.weight_decay if train.muon_weight_decay is None else train.muon_weight_decay
        rates["muon_learning_rate"] = (train.muon_learning_rate, decay)
    for name, (rate, decay) in rates.items():
        if 0 < rate * decay < _MIN_DECAY:
            logger.warning(
                "weight decay has no effect: train.%s=%g times a weight decay of %g is less than fp32 resolves "
                "(%.1g of a weight); raise one of them, or set the decay to 0",
                name,
                rate,
                decay,
                _MIN_DECAY,
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
