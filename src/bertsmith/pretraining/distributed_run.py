"""A pre-training run in several processes: on the cores of this machine where that is quicker than threads; and
what a process does that another one leads."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from bertsmith import hardware
from bertsmith.corpus.shards import Shards
from bertsmith.errors import BertsmithError, InputError
from bertsmith.formatting import counted
from bertsmith.pretraining.base_model import base_of
from bertsmith.pretraining.job import Work
from bertsmith.pretraining.settings import PretrainSettings, settings_type
from bertsmith.runs.compute_setup import Footing, budget_of
from bertsmith.runs.run_folder import CHECKPOINTS, settled
from bertsmith.training.autotune import Speeds
from bertsmith.training.checkpoint import newest_name
from bertsmith.training.distributed import Processes, processes
from bertsmith.training.on_cores import (
    ROUNDS,
    can_start,
    help_to_try,
    is_ready,
    joined,
    on_cores,
    tried_together,
)
from bertsmith.training.train_step import Trained
from bertsmith.training.trainer import follow
from bertsmith.training.training_budget import Aim

_START = 5.0  # seconds until another process is there
_TRIAL_SHARE = 0.02  # of a run: what finding out may take
_CLEARLY = 0.95  # what an update must take of its time on threads
_BYTES_A_PROCESS = 0.5e9  # besides weights, gradients and moments: Python, torch, activations
_BYTES_A_PARAMETER = 20  # fp32: the weight, its gradient, both moments, the gradient that all see
_SHARE_OF_MEMORY = 0.5


def check_processes(chosen: PretrainSettings, several: Processes) -> None:
    """InputError where a new run names another number of processes than torchrun has started, which may be on
    several machines; or without it more than there are cores."""
    asked, cores = chosen.train.processes, os.cpu_count()
    if several.count > 1 and asked not in (None, several.count):
        raise InputError(
            f"train.processes={asked}, and torchrun has started {several.count}",
            "leave train.processes out, or start the run without torchrun",
        )
    if several.count == 1 and asked is not None and cores is not None and asked > cores:
        raise InputError(
            f"train.processes={asked}: this machine has {counted(cores, 'core')}",
            "give no more processes than cores, or leave it out: the run then tries what is faster",
        )


@contextmanager
def together(
    work: Work, on: Footing, out: Path, *, several: Processes, resuming: bool, tell: Callable[[str], None]
) -> Iterator[tuple[Processes, Footing]]:
    """The processes that make the run, of which this one leads, and what they compute on.

    several: those of torchrun; where that has started none, they are as many as the settings ask for, or as many
    as threads where an update is clearly quicker that way: tried where the run is long enough for that.
    """
    count = _number(work, on, several, resuming=resuming)
    if count == 1:
        yield several, on
        return
    with ExitStack() as stack:
        found = stack.enter_context(on_cores(__name__, _as_json(work, on, out), count))
        footing = None
        if found is None:
            tell("the other processes of this run could not be started; it goes on in one")
        elif resuming:
            footing = replace(on, processes=count, free=False)
        else:
            footing = _tried(work, on, found, tell)
        if found is None or footing is None:
            stack.close()
            yield several, on
            return
        yield found, footing


def _number(work: Work, on: Footing, several: Processes, *, resuming: bool) -> int:
    """How many processes to start, this one included."""
    asked = work.chosen.train.processes
    if several.count > 1 or (asked is None and resuming):
        return 1
    if asked is not None:
        if asked > 1 and not on.place.uses_threads:
            raise InputError(
                f"train.processes={asked} are processes on the cores of a processor, and this run computes on "
                f"{on.place.device}",
                "leave train.processes out; torchrun starts a process for each GPU",
            )
        return asked
    seconds = on.speeds.of(0)
    minutes, shard = work.chosen.train.max_minutes, work.chosen.train.shard
    if not (on.free and seconds and can_start()) or on.threads < 2 or shard:
        return 1
    whole = minutes * 60 if minutes is not None else work.updates() * seconds
    takes = _START + 2 * (1 + ROUNDS) * seconds
    return on.threads if takes < _TRIAL_SHARE * whole and _have_room(work, on.threads) else 1


def _have_room(work: Work, count: int) -> bool:
    """Whether there is memory for so many processes."""
    allowed = hardware.memory_bytes(work.place.device)
    parameters = sum(p.numel() for part in (work.encoder, work.objective) for p in part.parameters())
    needed = count * (parameters * _BYTES_A_PARAMETER + _BYTES_A_PROCESS)
    return not allowed or needed < _SHARE_OF_MEMORY * allowed


def _tried(work: Work, on: Footing, several: Processes, tell: Callable[[str], None]) -> Footing | None:
    """Time updates in both ways; what the processes compute on, or None where threads are to do it."""
    train = work.chosen.train
    each = train.threads or hardware.asked_threads() or 1
    trained = Trained(work.encoder, work.objective)
    seconds = tried_together(trained, work.source.phases[0], train, on.place, several, (each, on.threads))
    here = f"in {several.count} processes of {counted(each, 'thread')} each"
    if seconds is None:
        return (
            None
            if train.processes is None
            else replace(on, threads=each, processes=several.count, free=False)
        )
    among, alone = seconds
    told = (
        f"an update takes about {among:.3g} s {here}, {alone:.3g} s in one on {counted(on.threads, 'thread')}"
    )
    if train.processes is None and among > _CLEARLY * alone:
        tell(f"{told}: one makes the run")
        return None
    tell(f"{told}: {several.count} make the run" if train.processes is None else told)
    speeds = replace(on.speeds, updates={n: s * among / alone for n, s in on.speeds.updates.items()})
    return replace(on, threads=each, processes=several.count, free=False, speeds=speeds)


def _as_json(work: Work, on: Footing, out: Path) -> dict[str, Any]:
    """What another process needs to know of a run."""
    chosen = work.chosen.model_copy(update={"train": settled(work.chosen.train, on.place)})
    return {
        "data": str(work.source.shards.folder),
        "out": str(out),
        "settings": chosen.model_dump(mode="json"),
        "base": None if work.base is None else str(work.base.path),
    }


def follow_run(work: Work, out: Path, several: Processes, begun: int) -> NoReturn:
    """This process's part in a run that another one leads, which has `begun` updates behind it and knows how far
    it is to go. Raises Left at the end."""
    course = work.course(Aim(budget_of(work.chosen.train), 1), Speeds(), out)
    follow(work.encoder, work.objective, course, work.place, several, begun)


def silent(text: str) -> None:
    """For what the leader tells."""


def main() -> None:
    """A process that a run has started on another core."""
    given, of, meeting = joined()
    hardware.prepare_process()
    out, shards, settings = Path(given["out"]), Shards.open(given["data"]), given["settings"]
    try:
        chosen = settings_type(settings["objective"]["name"]).of(settings, "the run's settings")
        base = base_of(given["base"], None, shards, silent, resuming=False)
        restored = newest_name(out / CHECKPOINTS) is not None
        work = Work.of(shards, chosen, base, silent, restored=restored)
        is_ready()
        with processes(of, meeting) as several:
            trained = Trained(work.encoder, work.objective)
            first = help_to_try(trained, work.source.phases[0], chosen.train, work.place, several)
            follow_run(work, out, several, first.step)
    except BertsmithError as error:  # the leader has the same, or knows that this one is lost
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
