"""A run in several processes on the cores of its machine: the run starts them itself, where an update is quicker
in them than on threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import torch.distributed as dist

from bertsmith import hardware
from bertsmith.device import Place
from bertsmith.errors import Diverged
from bertsmith.hardware import OfSeveral
from bertsmith.training.data_loader import Phase, Position, updates
from bertsmith.training.distributed import Order, Processes, processes
from bertsmith.training.optim.optimizer import optimizer_of
from bertsmith.training.settings import TrainSettings
from bertsmith.training.shared_memory import InSharedMemory
from bertsmith.training.train_step import Passes, Trained, update

ROUNDS = 3  # of a trial; one more comes first, which also allocates
_READY = "ready\n"
_LEAVING = 10.0  # seconds that a process has to end


def can_start() -> bool:
    """Whether a run can have processes of its own here: they add up gradients in memory that only Linux has."""
    return hasattr(os, "memfd_create") and not dist.is_initialized()


@contextmanager
def on_cores(module: str, work: Mapping[str, Any], count: int) -> Iterator[Processes | None]:
    """This process, which leads, and `count` - 1 others at the work of one run; None where they do not come.

    Each of the others is `python -m module`, which calls `joined`.
    """
    with tempfile.TemporaryDirectory() as folder:
        others: list[subprocess.Popen[str]] = []
        patience = 0.0
        try:
            for number in range(1, count):
                others.append(_begun(module))
                _told(others[-1], {"work": work, "folder": folder, "number": number, "count": count})
            if not all(one.stdout and one.stdout.readline() == _READY for one in others):
                yield None
                return
            patience = _LEAVING
            with processes(OfSeveral(0, count, 0, count), Path(folder) / "meeting") as several:
                yield several
        finally:
            _end(others, patience)


def joined() -> tuple[Any, OfSeveral, Path]:
    """What another process, which started this one, wants of it: the work, which of the processes it is, and where
    they meet."""
    said = json.loads(sys.stdin.read())
    number, count = said["number"], said["count"]
    return said["work"], OfSeveral(number, count, number, count), Path(said["folder"]) / "meeting"


def is_ready() -> None:
    """Tell the process that leads; from here on it waits for this one."""
    print(_READY, end="", flush=True)


def _begun(module: str) -> subprocess.Popen[str]:
    """A new process. Signals are for the one that leads: it saves, and lets the others go."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=hardware.of_child(OMP_NUM_THREADS="1"),
    )


def _told(process: subprocess.Popen[str], what: Mapping[str, Any]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended already, and will not be ready
        process.stdin.write(json.dumps(what))
        process.stdin.close()


def _end(others: Sequence[subprocess.Popen[str]], patience: float) -> None:
    """Wait until the processes have ended; kill those that do not."""
    for one in others:
        try:
            one.wait(patience)
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()
        if one.stdout is not None:
            one.stdout.close()


def tried_together(
    trained: Trained,
    phase: Phase,
    settings: TrainSettings,
    place: Place,
    several: Processes,
    threads: tuple[int, int],
) -> tuple[float, float] | None:
    """Seconds of an update in all processes together and of one in this process alone: medians of updates in turn,
    which change nothing. For the leader; the others are in `help_to_try`.

    threads: of each process, and of this one alone. None where the processes cannot share memory.
    """
    several.order(Order(0, trial=True))
    passes, state, training = InSharedMemory.of(trained), place.generator.get_state(), trained.training
    if passes is None:
        return None
    optimizer = optimizer_of(trained, settings)
    sides: dict[Passes, tuple[Processes, int, list[float]]] = {
        passes: (several, threads[0], []),
        Passes(trained): (Processes(OfSeveral()), threads[1], []),
    }
    trained.train()
    try:
        for _ in range(1 + ROUNDS):
            for way, (among, number, seconds) in sides.items():
                among.order(Order(0, threads=number, trial=True))
                hardware.use_threads(number)
                seconds.append(_timed(trained, optimizer, phase, settings, place, among, way))
    finally:
        hardware.use_threads(threads[1])
        place.generator.set_state(state)
        trained.train(training)
        optimizer.zero_grad(set_to_none=True)
    together, alone = (median(seconds[1:]) for _, _, seconds in sides.values())
    return together, alone


def help_to_try(
    trained: Trained, phase: Phase, settings: TrainSettings, place: Place, several: Processes
) -> Order:
    """This process's part of a trial that another one leads, which may come first; the order behind it. Raises
    Left where that is to leave."""
    order = several.ordered()
    if not order.trial:
        return order
    passes, optimizer = InSharedMemory.of(trained), optimizer_of(trained, settings)
    trained.train()
    while (order := several.ordered()).trial:
        hardware.use_threads(order.threads)
        with suppress(Diverged):  # the leader has the same, and says so
            _timed(trained, optimizer, phase, settings, place, several, passes)
    optimizer.zero_grad(set_to_none=True)
    return order


def _timed(
    trained: Trained,
    optimizer: Any,
    phase: Phase,
    settings: TrainSettings,
    place: Place,
    several: Processes,
    passes: Passes | None,
) -> float:
    """Seconds of this process's part of an update that changes nothing; its batch is there before."""
    objective: Any = trained.objective
    counts, stream = several.counts(objective.counts), several.part(phase.stream)
    with closing(updates(stream, phase.batch_size, settings.accumulate, Position(), 0, counts)) as coming:
        work = next(coming)
        since = hardware.clock()
        update(trained, optimizer, several.together(work), 0.0, settings, place, 0, passes)
    return hardware.clock() - since
