"""The budget, threads, and precision of a run, from its settings, the environment, and a few timed updates."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from bertsmith import hardware
from bertsmith.console import format_duration
from bertsmith.device import ComputeContext
from bertsmith.formatting import pluralize
from bertsmith.hardware import Precision
from bertsmith.training.autotune import Speeds
from bertsmith.training.data_loader import Batch, Phase
from bertsmith.training.distributed import SINGLE_RANK, RankGroup
from bertsmith.training.execution_benchmark import Way, best_way, numbers_of_threads, tried, ways
from bertsmith.training.settings import TrainSettings
from bertsmith.training.train_step import Trained
from bertsmith.training.training_budget import Aim

logger = logging.getLogger(__name__)

_BUDGETS = ("train.max_steps", "train.max_tokens", "train.max_minutes")
_BENCHMARK_RATIO = 0.02  # of a run's time is spent on measuring updates
_MAX_BENCHMARK_SECONDS = 10.0
_FORWARD_RATIO = 1 / 3  # time of a forward pass relative to that of an update
_BYTES_PER_SECOND = 150e6  # written, hashed, and synchronized; used until the first checkpoint is timed
_MIN_PLANNED_UPDATES = 20  # so that one slow measurement does not end a run after its first update
_MIN_USEFUL_UPDATES = 500


def without_other_budgets(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes of settings that also remove the other budgets, if they set one."""
    if changes.keys().isdisjoint({*_BUDGETS, "train.num_train_epochs"}):
        return dict(changes)
    return {**dict.fromkeys(_BUDGETS), **changes}


def budget_of(train: TrainSettings) -> dict[str, float]:
    """Return the budget by the names of its settings: num_train_epochs if no other is set."""
    values = {name: getattr(train, name) for name in ("max_steps", "max_tokens", "max_minutes")}
    limits = {name: value for name, value in values.items() if value is not None}
    return limits or {"num_train_epochs": train.num_train_epochs}


@dataclass(frozen=True)
class Footing:
    """The compute setup of a run.

    Attributes:
        place: The compute context.
        threads: The number of threads of each process.
        free: True if the number of threads may change during the run.
        speeds: The measured speeds.
        processes: The number of processes.
    """

    place: ComputeContext
    threads: int
    free: bool
    speeds: Speeds = field(default_factory=Speeds)
    processes: int = 1


def footing(
    encoder: nn.Module,
    objective: nn.Module,
    phases: Sequence[Phase],
    train: TrainSettings,
    place: ComputeContext,
    updates: Callable[[], int],
    *,
    resuming: bool = False,
    ranks: RankGroup = SINGLE_RANK,
) -> Footing:
    """Choose the threads and the precision that settings leave open, by timing updates on rank 0.

    The updates change nothing. Without an open choice they are timed only for a budget of minutes, and never when
    a run resumes.

    Args:
        encoder: The encoder.
        objective: The objective.
        phases: The phases of training.
        train: The training settings.
        place: The compute context.
        updates: Returns the number of updates, of whose time 2 % are spent, if the budget is not one of minutes.
        resuming: True if the run resumes.
        ranks: The group of processes.
    """
    has_choice, configs = has_free_threads(train, place), ranks.run_on_main(lambda: ways_of(train, place))
    threads, minutes = configs[0].threads, train.max_minutes
    if not resuming and place.is_cpu and threads > (cores := hardware.available_cores()):
        logger.warning(
            "this run uses %s on %s: as many threads as cores would be faster",
            pluralize(threads, "thread"),
            pluralize(cores, "core"),
        )
    if resuming or (len(configs) == 1 and minutes is None):
        return Footing(place, threads, has_choice, processes=ranks.world_size)
    logger.info("measuring the speed of an update ...")
    module = Trained(encoder, objective)
    num_updates = 0 if minutes is not None else updates()

    def benchmark_seconds(seconds: float) -> float:
        total = minutes * 60 if minutes is not None else num_updates * seconds
        return min(_MAX_BENCHMARK_SECONDS, _BENCHMARK_RATIO * total) / len(phases)

    def measure(phase: Phase, place: ComputeContext, configs: list[Way]) -> dict[Way, float]:
        return ranks.run_on_main(lambda: tried(module, phase, train, place, configs, benchmark_seconds))

    timings = measure(phases[0], place, configs)
    config = best_way(timings)
    place = replace(place, precision=config.precision)
    seconds = timings.get(config) or min(timings.values())
    speeds = Speeds({0: seconds})
    if minutes is not None:
        for i, phase in enumerate(phases[1:], start=1):
            speeds.updates[i] = min(measure(phase, place, [config]).values())
    logger.info("%s", _describe_timings(timings, config, seconds, place))
    return Footing(place, config.threads, has_choice, speeds, ranks.world_size)


def has_free_threads(train: TrainSettings, place: ComputeContext) -> bool:
    """Return True if neither settings nor OMP_NUM_THREADS set the threads of a single process on a CPU."""
    threads = train.threads or hardware.omp_num_threads()
    is_single = hardware.rank_info().world_size == 1
    return threads is None and is_single and place.is_cpu and hardware.available_cores() > 1


def ways_of(train: TrainSettings, place: ComputeContext) -> list[Way]:
    """Return the configurations that settings and environment leave open.

    bf16 is included only if its matrix products alone are faster: otherwise only other work on the machine during
    the measurement could make it win.
    """
    threads = train.threads or hardware.omp_num_threads() or hardware.cores_per_process()
    precisions: list[Precision] = [place.precision]
    if train.precision == "auto":
        fastest = hardware.choose_precision(place.device).precision
        precisions = ["fp32", "bf16"] if fastest == "bf16" else ["fp32"]
    return ways(numbers_of_threads(threads) if has_free_threads(train, place) else [threads], precisions)


def _describe_timings(
    timings: Mapping[Way, float], config: Way, seconds: float, place: ComputeContext
) -> str:
    """Return a sentence on the time of an update in the fastest configuration and in the others."""

    def describe(other: Way) -> str:
        threads = pluralize(other.threads, "thread")
        return f"{other.precision} on {threads if place.is_cpu else hardware.device_name(place.device)}"

    others = []
    for other, other_seconds in timings.items():
        cost = "leave threads idle" if other.precision == config.precision else "give up digits"
        reason = f", not enough faster to {cost}" if other_seconds < seconds else ""
        if other != config:
            others.append(f"{describe(other)}: {other_seconds:.3g} s{reason}")
    rest = f" ({'; '.join(others)})" if others else ""
    return f"an update takes about {seconds:.3g} s in {describe(config)}{rest}"


def aim_of(
    train: TrainSettings,
    on: Footing,
    updates: Callable[[], int],
    begun: float,
    *,
    named: Collection[str] | None = None,
) -> Aim:
    """Return the goal of a run, and warn if its minutes are too few to learn anything.

    Args:
        train: The training settings.
        on: The compute setup.
        updates: Returns the number of updates of a budget that is not one of minutes.
        begun: The time at which the run started.
        named: The settings that the command that resumes a run names; None for a new run.
    """
    budget, names = budget_of(train), set(named or ())
    has_budget = named is None or not names.isdisjoint({*_BUDGETS, "train.num_train_epochs"})
    threads: int | None = on.threads
    if named is not None:
        threads = (train.threads if "train.threads" in names else None) or hardware.omp_num_threads()
    if train.max_minutes is None:
        num_updates = updates()
    elif named is None:
        num_updates = _updates_in_minutes(train, on.speeds, budget, hardware.clock() - begun)
    else:
        num_updates = _MIN_PLANNED_UPDATES
    max_threads = hardware.available_cores() if on.free else threads or on.threads
    return Aim(budget, num_updates, threads, has_budget, on.free, max_threads, begun, on.processes)


def _updates_in_minutes(
    train: TrainSettings, speeds: Speeds, budget: Mapping[str, float], spent_seconds: float
) -> int:
    """Estimate how many updates the time allows."""
    total_seconds, seconds = 60 * (train.max_minutes or 0.0), speeds.of(0)
    limit = int(budget.get("max_steps", sys.maxsize))
    affordable = max(1, int((total_seconds - spent_seconds - speeds.closing) / seconds))
    num_updates = min(affordable, limit)
    if spent_seconds < total_seconds:
        logger.info(
            "%s, of which %s have passed, are enough for about %s; the number is corrected during the run",
            format_duration(total_seconds),
            format_duration(spent_seconds),
            pluralize(num_updates, "update"),
        )
    else:
        logger.warning(
            "the time is over before the first update: the preparation took %s of %s; the run makes one update",
            format_duration(spent_seconds),
            format_duration(total_seconds),
        )
    if affordable < min(_MIN_USEFUL_UPDATES, limit):
        logger.warning(
            "a model learns little in %s; %s updates take about %s on this machine",
            pluralize(num_updates, "update"),
            f"{_MIN_USEFUL_UPDATES:,}",
            format_duration(_MIN_USEFUL_UPDATES * seconds + speeds.closing),
        )
    return min(max(num_updates, _MIN_PLANNED_UPDATES), limit)


def expect_evaluations(speeds: Speeds, held_out: Mapping[str, Sequence[Batch]], tokens: float) -> None:
    """Set the time of an evaluation, in updates of a number of tokens."""
    speeds.evaluated = forward(sum(b.tokens for batches in held_out.values() for b in batches), tokens)


def forward(read: int, tokens: float) -> float:
    """Return the time of a forward pass over `read` tokens, in updates of `tokens` tokens."""
    return _FORWARD_RATIO * read / tokens


def expect_writing(speeds: Speeds, *modules: nn.Module) -> None:
    """Set the seconds of writing a checkpoint (weights and two moments) and a model (weights)."""
    size = sum(p.numel() * p.element_size() for module in modules for p in module.parameters())
    speeds.checkpoint, speeds.writing = 3 * size / _BYTES_PER_SECOND, size / _BYTES_PER_SECOND
