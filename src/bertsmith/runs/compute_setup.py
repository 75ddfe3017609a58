"""A run's budget, threads and precision: from the settings, the environment and a few timed updates."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
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
_TRIAL_SHARE = 0.02  # of a run: time spent on measuring how long an update takes
_LONGEST_TRIAL = 10.0  # seconds
_FORWARD = 1 / 3  # of an update's time, for as many instances
_BYTES_A_SECOND = 150e6  # written, read again for a digest and synchronised, until a checkpoint was timed
_FEWEST = 20  # planned for at first: a single slow measurement is not to end a run after its first update
_FEW_TO_LEARN = 500


def without_other_budgets(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes of settings that also remove the other budgets, if they set one."""
    if changes.keys().isdisjoint({*_BUDGETS, "train.num_train_epochs"}):
        return dict(changes)
    return {**dict.fromkeys(_BUDGETS), **changes}


def budget_of(train: TrainSettings) -> dict[str, float]:
    """The budget by its settings' names: epochs where no other is given."""
    given = {name: getattr(train, name) for name in ("max_steps", "max_tokens", "max_minutes")}
    return {name: value for name, value in given.items() if value is not None} or {
        "num_train_epochs": train.num_train_epochs
    }


@dataclass(frozen=True)
class Footing:
    """On what a run computes. free: whether the number of threads may change while it goes. processes: that share
    out the work, each on so many threads."""

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
    """Choose the threads and the precision that settings leave open, by timing updates that change nothing, on
    rank 0.

    updates: how many the run is to have, asked where it has no budget of minutes; a fiftieth of its time is spent.
    Where nothing is open, only minutes need a measurement. A run that is resumed has all that already.
    """
    free, among = has_free_threads(train, place), ranks.run_on_main(lambda: ways_of(train, place))
    most, several = among[0].threads, ranks.world_size
    if not resuming and place.is_cpu and most > (cores := hardware.available_cores()):
        logger.warning(
            "this run uses %s on %s: as many threads as cores would be faster",
            pluralize(most, "thread"),
            pluralize(cores, "core"),
        )
    if resuming or (len(among) == 1 and train.max_minutes is None):
        return Footing(place, most, free, processes=several)
    logger.info("measuring the speed of an update ...")
    trained = Trained(encoder, objective)
    minutes = train.max_minutes
    number = 0 if minutes is not None else updates()

    def enough(seconds: float) -> float:
        whole = minutes * 60 if minutes is not None else number * seconds
        return min(_LONGEST_TRIAL, _TRIAL_SHARE * whole) / len(phases)

    found = ranks.run_on_main(lambda: tried(trained, phases[0], train, place, among, enough))
    way = best_way(found)
    place = replace(place, precision=way.precision)
    seconds = found.get(way) or min(found.values())
    speeds = Speeds({0: seconds})
    if minutes is not None:
        for later, phase in enumerate(phases[1:], start=1):
            timed = ranks.run_on_main(partial(tried, trained, phase, train, place, [way], enough))
            speeds.updates[later] = min(timed.values())
    logger.info("%s", _told(found, way, seconds, place))
    return Footing(place, way.threads, free, speeds, several)


def has_free_threads(train: TrainSettings, place: ComputeContext) -> bool:
    """Whether the number of threads is ours to choose: neither the settings nor OMP_NUM_THREADS name one, and no
    other processes of the run are here, whose share a trial would not see."""
    named = train.threads or hardware.omp_num_threads()
    alone = hardware.rank_info().world_size == 1
    return named is None and alone and place.is_cpu and hardware.available_cores() > 1


def ways_of(train: TrainSettings, place: ComputeContext) -> list[Way]:
    """How an update may be computed, as far as settings and environment leave that open. bf16 is tried only where
    its products alone are faster: elsewhere it could win but by other work that slows the updates in fp32."""
    most = train.threads or hardware.omp_num_threads() or hardware.cores_per_process()
    precisions: list[Precision] = [place.precision]
    if train.precision == "auto":
        products = hardware.choose_precision(place.device).precision
        precisions = ["fp32", "bf16"] if products == "bf16" else ["fp32"]
    return ways(numbers_of_threads(most) if has_free_threads(train, place) else [most], precisions)


def _told(found: Mapping[Way, float], way: Way, seconds: float, place: ComputeContext) -> str:
    """What was measured, in a line."""

    def said(one: Way) -> str:
        where = pluralize(one.threads, "thread") if place.is_cpu else hardware.device_name(place.device)
        return f"{one.precision} on {where}"

    others = []
    for other, spent in found.items():
        why = "leave threads idle" if other.precision == way.precision else "give up digits"
        near = f", not enough faster to {why}" if spent < seconds else ""
        if other != way:
            others.append(f"{said(other)}: {spent:.3g} s{near}")
    beside = f" ({'; '.join(others)})" if others else ""
    return f"an update takes about {seconds:.3g} s in {said(way)}{beside}"


def aim_of(
    train: TrainSettings,
    on: Footing,
    updates: Callable[[], int],
    begun: float,
    *,
    named: Collection[str] | None = None,
) -> Aim:
    """What is asked of a run: of a new one, or of one that is resumed with the settings `named`.

    updates: how many its budget comes to, where that is not one of minutes. A budget of minutes that is too short
    to learn anything in is logged.
    """
    budget, names = budget_of(train), set(named or ())
    asked = named is None or not names.isdisjoint({*_BUDGETS, "train.num_train_epochs"})
    threads: int | None = on.threads
    if named is not None:
        threads = (train.threads if "train.threads" in names else None) or hardware.omp_num_threads()
    if train.max_minutes is None:
        number = updates()
    elif named is None:
        number = _in_minutes(train, on.speeds, budget, hardware.clock() - begun)
    else:
        number = _FEWEST
    return Aim(budget, number, threads, asked, on.free, _most(on, threads), begun, on.processes)


def _most(on: Footing, threads: int | None) -> int:
    return hardware.available_cores() if on.free else threads or on.threads


def _in_minutes(
    train: TrainSettings,
    speeds: Speeds,
    budget: Mapping[str, float],
    spent: float,
) -> int:
    """About how many updates there is time for, as the trial has it. spent: seconds that are gone already."""
    minutes, seconds = train.max_minutes or 0.0, speeds.of(0)
    found = max(1, int((minutes * 60 - spent - speeds.closing) / seconds))
    cap = budget.get("max_steps")
    short = found < _FEW_TO_LEARN and (cap is None or found < cap)
    found = found if cap is None else min(found, int(cap))
    if spent < minutes * 60:
        logger.info(
            "%s, of which %s have passed, are enough for about %s; the number is corrected during the run",
            format_duration(minutes * 60),
            format_duration(spent),
            pluralize(found, "update"),
        )
    else:
        logger.warning(
            "the time is over before the first update: the preparation took %s of %s; the run makes one update",
            format_duration(spent),
            format_duration(minutes * 60),
        )
    if short:
        logger.warning(
            "a model learns little in %s; %s updates take about %s on this machine",
            pluralize(found, "update"),
            f"{_FEW_TO_LEARN:,}",
            format_duration(_FEW_TO_LEARN * seconds + speeds.closing),
        )
    planned = max(found, _FEWEST)
    return planned if cap is None else min(planned, int(cap))


def expect_evaluations(speeds: Speeds, held_out: Mapping[str, Sequence[Batch]], tokens: float) -> None:
    """Say what an evaluation is worth in updates of so many tokens."""
    speeds.evaluated = forward(sum(batch.tokens for some in held_out.values() for batch in some), tokens)


def forward(read: int, tokens: float) -> float:
    """What it is worth in updates of so many tokens to read others without learning."""
    return _FORWARD * read / tokens


def expect_writing(speeds: Speeds, *modules: nn.Module) -> None:
    """Say how long a checkpoint and the model take to write, by their sizes: weights, two moments; weights."""
    size = sum(p.numel() * p.element_size() for module in modules for p in module.parameters())
    speeds.checkpoint, speeds.writing = 3 * size / _BYTES_A_SECOND, size / _BYTES_A_SECOND
