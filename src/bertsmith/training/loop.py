"""The one training loop, for pre-training and fine-tuning alike: when to record, to evaluate, to save, to stop.

What changes numbers is `step.update`.
"""

from __future__ import annotations

import hashlib
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.errors import MachineError, Stopped
from bertsmith.place import Place
from bertsmith.training import checkpoint
from bertsmith.training.loader import Position, Stream, Update, updates
from bertsmith.training.optimizer import make_optimizer
from bertsmith.training.progress import LOG, Recorder
from bertsmith.training.schedule import learning_rate, warmup_updates
from bertsmith.training.settings import TrainSettings
from bertsmith.training.signals import stop_signals
from bertsmith.training.step import Trained, update


@dataclass(frozen=True)
class Phase:
    """A stretch of the run: its instances, its number of updates, its batch size."""

    stream: Stream
    updates: int
    batch_size: int


@dataclass
class Progress:
    """Where a run stands; what a checkpoint's state.json holds beside the tensors."""

    step: int = 0
    phase: int = 0
    position: Position = field(default_factory=Position)
    tokens: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_step: int | None = None
    best_sha256: str | None = None
    evaluation: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """How a run is judged on its way: `measure` gives named numbers; `best_by` names the one that decides
    which weights are kept as the best (the highest; None keeps the last)."""

    measure: Callable[[], dict[str, float]]
    best_by: str | None = None


@dataclass(frozen=True)
class Course:
    """What is to be done: the phases, how they are judged, and where what comes of it is kept.

    run: the run folder; log.jsonl and checkpoints/ are written there. title: of the bar. fingerprint: of the
    settings and data; a resume under another one is refused. unfinished: is told of each checkpoint but the last,
    and whether the run stops there, so that a model can be used before the run has finished.
    """

    phases: Sequence[Phase]
    settings: TrainSettings
    run: Path
    title: str
    fingerprint: str
    evaluation: Evaluation | None = None
    unfinished: Callable[[Progress, bool], None] | None = None

    @property
    def updates(self) -> int:
        """Of all phases."""
        return sum(phase.updates for phase in self.phases)

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.run / "checkpoints"

    def rate(self, step: int) -> float:
        """The learning rate of an update."""
        chosen, whole = self.settings, self.updates
        warmup = warmup_updates(chosen.warmup, whole)
        return learning_rate(
            step, peak=chosen.learning_rate, warmup=warmup, updates=whole, shape=chosen.schedule
        )


def train(
    encoder: nn.Module,
    objective: nn.Module,
    course: Course,
    place: Place,
    *,
    resume: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Progress:
    """Train `encoder` and `objective` (which answers `loss` and `counts`) through the course's phases, in place.

    place: where they are; the state of its generator is kept in the checkpoints. resume: go on from the newest
    whole checkpoint, if there is one. Returns the final progress; with `best_by`, the weights are then those of
    the best evaluation.

    Raises MachineError before an update whose loss or gradient is not finite, Stopped after a SIGTERM or
    SIGINT (once saved), InputError where no checkpoint can be read.
    """
    trained = Trained(encoder, objective)
    optimizer = optimizer_of(trained, course.settings)
    progress, log_bytes = Progress(), 0
    expected = checkpoint.Expected(
        course.fingerprint,
        {
            "weights": trained.saved(),
            "optimizer": dict(trained.named_parameters()),
            "generator": {"state": place.generator.get_state()},
        },
    )
    if resume and (found := checkpoint.load_newest(course.checkpoints, tell, expected)) is not None:
        progress, log_bytes = _restore(found, trained, optimizer, place)
        log_bytes = _log_end(course.run / LOG, log_bytes, tell)
        tell(f"resumed at step {progress.step}")
    recorder = Recorder(
        course.run,
        title=course.title,
        steps=course.updates,
        step=progress.step,
        resumed_at=log_bytes,
        tensorboard=course.settings.tensorboard,
    )
    running = _Running(course, trained, optimizer, place, progress, recorder)
    with recorder, stop_signals() as stopped:
        trained.train()
        for phase, last in _remaining(course.phases, progress):
            running.through(phase, last, stopped)
    progress.seconds = running.seconds
    if course.evaluation and course.evaluation.best_by:
        # updates made again after a resume have written the same file again
        trained.restore(checkpoint.load_weights(course.checkpoints, progress.best_step, progress.best_sha256))
    trained.eval()
    return progress


def optimizer_of(trained: nn.Module, settings: TrainSettings) -> torch.optim.AdamW:
    """The settings' optimiser over all parameters."""
    return make_optimizer(
        trained.named_parameters(),
        betas=settings.betas,
        epsilon=settings.epsilon,
        weight_decay=settings.weight_decay,
        bias_correction=settings.bias_correction,
    )


class _Running:
    """A course under way: the updates, and what is due after each."""

    def __init__(
        self,
        course: Course,
        trained: Trained,
        optimizer: torch.optim.Optimizer,
        place: Place,
        progress: Progress,
        recorder: Recorder,
    ) -> None:
        self.course, self.trained, self.optimizer, self.place = course, trained, optimizer, place
        self.progress, self.recorder = progress, recorder
        self._begin = time.perf_counter() - progress.seconds

    @property
    def seconds(self) -> float:
        """Of training, over all parts of the run."""
        return time.perf_counter() - self._begin

    def through(self, phase: Phase, last: int, stopped: Sequence[int]) -> None:
        """All updates of a phase up to number `last`. stopped: the signals that have come in."""
        course, progress, settings = self.course, self.progress, self.course.settings
        counts: Any = self.trained.objective
        stream = updates(
            phase.stream,
            phase.batch_size,
            settings.accumulate,
            progress.position,
            settings.workers,
            counts.counts,
        )
        with closing(stream):
            while progress.step < last:
                work = next(stream)
                step = progress.step + 1
                rate = course.rate(step)
                values = update(self.trained, self.optimizer, work, rate, settings, self.place, step)
                progress.step, progress.position = step, work.behind
                progress.tokens += work.tokens
                ends = step == course.updates
                self._record(work, rate, values, ends)
                self._evaluate_when_due(ends)
                stopping = bool(stopped) and not ends  # asked once: a signal may come at any moment
                if ends or stopping or step % settings.checkpoint_every == 0:
                    self._save()
                    if course.unfinished is not None and not ends:
                        course.unfinished(progress, stopping)
                if stopping:
                    raise self._stopped(stopped[0])

    def _stopped(self, number: int) -> Stopped:
        course = self.course
        return Stopped(
            number,
            f"{course.run}: stopped by {signal.Signals(number).name} after step {self.progress.step} of "
            f"{course.updates}, which is saved",
            "continue with the same command and --resume"
            + (f", or use the unfinished model in {course.run}" if course.unfinished else ""),
        )

    def _record(self, work: Update, rate: float, values: Mapping[str, Tensor], ends: bool) -> None:
        step = self.progress.step
        # An evaluation's scores stand beside a loss, however few updates an epoch has.
        if step % self.course.settings.log_every == 0 or self._is_evaluated(ends):
            numbers = dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))
            norm = numbers.pop("gradient_norm")
            at = {"epoch": work.epoch, "tokens": work.tokens}
            self.recorder.record(
                step, "train", {**at, **numbers, "learning_rate": rate, "gradient_norm": norm}
            )
        self.recorder.stepped(step, work.tokens)

    def _is_evaluated(self, ends: bool) -> bool:
        every = self.course.settings.evaluate_every
        return ends or bool(every and self.progress.step % every == 0)

    def _evaluate_when_due(self, ends: bool) -> None:
        evaluation, progress = self.course.evaluation, self.progress
        if evaluation is None or not self._is_evaluated(ends):
            return
        progress.evaluation = _evaluated(self.trained, evaluation, progress.step)
        self.recorder.record(progress.step, "evaluation", progress.evaluation)
        if evaluation.best_by is None:
            return
        value = progress.evaluation[evaluation.best_by]
        if progress.best is None or value > progress.best:
            sha256 = checkpoint.save_weights(self.course.checkpoints, progress.step, self.trained.saved())
            progress.best, progress.best_step, progress.best_sha256 = value, progress.step, sha256

    def _save(self) -> None:
        self.progress.seconds = self.seconds
        kept = {"fingerprint": self.course.fingerprint, "log_bytes": self.recorder.bytes_on_disk()}
        names: dict[Tensor, str] = {p: name for name, p in self.trained.named_parameters()}
        tensors = {
            "weights": self.trained.saved(),
            "optimizer": checkpoint.optimizer_tensors(self.optimizer, names),
            "generator": {"state": self.place.generator.get_state()},
        }
        found = checkpoint.Checkpoint(self.progress.step, tensors, asdict(self.progress) | kept)
        checkpoint.save(self.course.checkpoints, found, self.course.settings.keep_checkpoints)


def seconds_per_update(
    encoder: nn.Module,
    objective: nn.Module,
    phase: Phase,
    settings: TrainSettings,
    place: Place,
    seconds: float,
) -> float:
    """How long an update of this phase takes here: a few are made, on weights that the caller throws away."""
    trained = Trained(encoder, objective).train()
    optimizer = optimizer_of(trained, settings)
    counts: Any = objective
    took: list[float] = []
    work = updates(phase.stream, phase.batch_size, settings.accumulate, Position(), 0, counts.counts)
    with closing(work) as stream:
        while len(took) < 3 or sum(took) < seconds:
            begin = time.perf_counter()
            update(trained, optimizer, next(stream), 0.0, settings, place, 0)
            took.append(time.perf_counter() - begin)
    steady = took[1:]  # the first one also allocates
    return sum(steady) / len(steady)


def fingerprint(*parts: str) -> str:
    """A digest of what must not change between the parts of one run."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _remaining(phases: Sequence[Phase], progress: Progress) -> Iterator[tuple[Phase, int]]:
    """The phases still to run, each with the number of its last update; enters each new one at its start."""
    last = 0
    for number, phase in enumerate(phases):
        last += phase.updates
        if progress.step >= last:
            continue
        if progress.phase != number:
            progress.phase, progress.position = number, Position()
        yield phase, last


def _restore(
    found: checkpoint.Checkpoint,
    trained: Trained,
    optimizer: torch.optim.Optimizer,
    place: Place,
) -> tuple[Progress, int]:
    state = dict(found.state)
    del state["fingerprint"]
    log_bytes = int(state.pop("log_bytes"))
    names: dict[Tensor, str] = {p: name for name, p in trained.named_parameters()}
    trained.restore(found.tensors["weights"])
    checkpoint.restore_optimizer(optimizer, names, found.tensors["optimizer"])
    place.generator.set_state(found.tensors["generator"]["state"])
    position = Position(**state.pop("position"))
    return Progress(position=position, **state), log_bytes


def _log_end(log: Path, expected: int, tell: Callable[[str], None]) -> int:
    """Where the log goes on: where the checkpoint says, or behind the last whole line of one that lost some."""
    found = log.read_bytes()[:expected] if log.is_file() else b""
    whole = found.rfind(b"\n") + 1
    if whole != expected:
        tell(f"{log}: lines are missing at its end; it continues with what comes now")
    return whole


def _evaluated(trained: nn.Module, evaluation: Evaluation, step: int) -> dict[str, float]:
    trained.eval()
    with torch.inference_mode():
        values = evaluation.measure()
    trained.train()
    for name, value in values.items():
        if not math.isfinite(value):
            raise MachineError(
                f"step {step}: the evaluation's {name} is {value}",
                "lower train.learning_rate; --resume continues from the last checkpoint",
            )
    return values
