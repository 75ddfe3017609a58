"""The one training loop, for pre-training and fine-tuning alike: when to record, to evaluate, to save, to stop.

What changes numbers is `step.update`.
"""

from __future__ import annotations

import hashlib
import logging
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith import hardware
from bertsmith.device import ComputeContext
from bertsmith.errors import MachineError, Stopped, option
from bertsmith.formatting import pluralize
from bertsmith.training import checkpoint
from bertsmith.training.autotune import Pace, Speeds
from bertsmith.training.cuda_graphs import Recorded, pays
from bertsmith.training.data_loader import Phase, Position, Update, updates
from bertsmith.training.distributed import SINGLE_RANK, RankGroup, count_batch
from bertsmith.training.execution_benchmark import Way, numbers_of_threads, tried, ways
from bertsmith.training.metric_logger import LOG, Recorder
from bertsmith.training.optim.optimizer import moments, optimizer_of
from bertsmith.training.run_plan import Entry, RunPlan, read_plan, write_plan
from bertsmith.training.settings import TrainSettings
from bertsmith.training.signals import stop_signals
from bertsmith.training.train_state import Evaluation, Progress, evaluated
from bertsmith.training.train_step import Checks, Passes, Trained, update
from bertsmith.training.training_budget import Aim

logger = logging.getLogger(__name__)

_FEW_LEFT, _SHARE_LEFT = 20, 0.05  # updates: with fewer left another number of threads gains nothing
_TRIAL_UPDATES = 12  # of time, for a look at other numbers of threads
_CLEARLY = 0.9  # what an update must take of its time to change the number of threads


@dataclass(frozen=True)
class Course:
    """What is to be done: how far, the phases, how they are judged, and where what comes of it is kept.

    run: the run folder; log.jsonl, plan.jsonl and checkpoints/ are written there. title: of the bar. fingerprint:
    of the settings and data; a resume under another one is refused. aim: how far, on how many threads. speeds:
    what a trial said of this machine. unfinished: is called with each checkpoint but the last, and whether the run
    stops there, so that a model can be used before the run has finished. thaws: of parameters that are not trained
    from the first update on, the number of the update from which on they are.
    """

    phases: Sequence[Phase]
    settings: TrainSettings
    run: Path
    title: str
    fingerprint: str
    aim: Aim
    evaluation: Evaluation | None = None
    speeds: Speeds = field(default_factory=Speeds)
    unfinished: Callable[[Progress, bool], None] | None = None
    thaws: Mapping[nn.Parameter, int] = field(default_factory=dict)

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.run / "checkpoints"

    @property
    def shares(self) -> list[float]:
        """Of each phase, of the progress."""
        return [phase.share for phase in self.phases]


def train(
    encoder: nn.Module,
    objective: nn.Module,
    course: Course,
    place: ComputeContext,
    *,
    resume: bool = False,
    ranks: RankGroup = SINGLE_RANK,
) -> Progress:
    """Train `encoder` and `objective` (which answers `loss` and `counts`) through the course's phases, in place.

    place: where they are; the state of its generator is kept in the checkpoints. resume: go on from the newest
    whole checkpoint, if there is one. ranks: that train together; each of them calls this. Returns the final
    progress; with `best_by`, the weights are then those of the best evaluation.

    Raises MachineError before an update whose loss or gradient is not finite, Stopped after a SIGTERM or
    SIGINT (once saved), InputError where no checkpoint can be read.
    """
    trained = Trained(encoder, objective)
    progress, log_bytes, sealed, found = Progress(), 0, list[Entry](), None
    if resume and (found := _newest(course, trained, place, ranks)) is not None:
        progress, log_bytes, sealed = _restore(found, trained, place)

    def begin() -> RunPlan:
        plan = _planned(course, progress, sealed) if resume else course.aim.first()
        write_plan(course.run, plan)
        return plan

    plan = ranks.run_on_main(begin)
    if resume and plan.begins_after(progress.step):
        progress.forget_waiting()
    passes, optimizer = _shared_out(trained, course, place, ranks, found)
    if course.settings.fsdp and not passes.is_sharded:
        logger.warning(
            "train.fsdp has no effect: this run has one process, which holds the whole model; start several with "
            "torchrun"
        )
    recorder = None
    if ranks.is_main:
        recorder = Recorder(
            course.run,
            title=course.title,
            steps=plan.updates,
            step=progress.step,
            resumed_at=log_bytes if found is None else _log_end(course.run / LOG, log_bytes),
            tensorboard=course.settings.report_to == "tensorboard",
        )
    running = _Running(course, trained, optimizer, place, progress, recorder, plan, ranks, passes)
    exactly = place.deterministic(course.settings.deterministic)
    with recorder or nullcontext(), exactly, stop_signals() as stopped:
        trained.train()
        try:
            running.to_the_end(stopped)
        finally:
            for parameter in course.thaws:
                parameter.requires_grad_(True)
    progress.seconds, progress.early = running.seconds, running.early
    progress.threads, progress.processes = plan.last.threads, plan.last.processes
    progress.cut_short = None if progress.early else plan.cut_short(course.settings)
    passes.unshard()
    running.use_all_cores()
    if course.evaluation and course.evaluation.best_by:
        # updates made again after a resume have written the same file again
        trained.restore(checkpoint.load_weights(course.checkpoints, progress.best_step, progress.best_sha256))
    trained.eval()
    return progress


def _updates(
    course: Course, phase: Phase, position: Position, trained: Trained, ranks: RankGroup
) -> Generator[Update]:
    """Yield the updates of a phase from a position on: this rank's part of them."""
    objective: Any = trained.objective
    return updates(
        ranks.rank_stream(phase.stream),
        phase.batch_size,
        course.settings.gradient_accumulation_steps,
        position,
        course.settings.dataloader_num_workers,
        partial(count_batch, objective.counts),
    )


def _shared_out(
    trained: Trained,
    course: Course,
    place: ComputeContext,
    ranks: RankGroup,
    found: checkpoint.Checkpoint | None,
) -> tuple[Passes, torch.optim.Optimizer]:
    """Passes through the model and its optimiser, whose state is that of the checkpoint."""
    settings = course.settings
    if settings.cuda_graphs and ranks.world_size == 1 and pays(trained, place, settings, course.thaws):
        passes: Passes = Recorded(trained)
    else:
        passes = ranks.passes(trained, shard=settings.fsdp)
    optimizer = optimizer_of(trained, course.settings)
    if found is not None:
        checkpoint.restore_optimizer(optimizer, _names(trained), found.tensors["optimizer"])
        passes.shard_state(optimizer)
    return passes, optimizer


def _names(trained: Trained) -> dict[Tensor, str]:
    return {parameter: name for name, parameter in trained.named_parameters()}


def _newest(
    course: Course, trained: Trained, place: ComputeContext, ranks: RankGroup
) -> checkpoint.Checkpoint | None:
    """Return the newest whole checkpoint of this run; the same on every rank.

    Raises MachineError where a rank sees another run folder than rank 0.
    """
    expected = _expected(course, trained, optimizer_of(trained, course.settings), place)
    found: checkpoint.Checkpoint | None = None

    def load() -> int | None:
        nonlocal found
        found = checkpoint.load_newest(course.checkpoints, expected)
        return None if found is None else found.step

    step = ranks.run_on_main(load)
    if step is None or ranks.is_main:
        return found
    if load() != step:
        raise MachineError(
            "checkpoint_differs_between_ranks",
            f"rank 0 continues from step-{step}, and another rank sees "
            f"{'no checkpoint' if found is None else f'step-{found.step}'} here",
            location=course.checkpoints,
            hint="give all processes the same run folder, on a file system that they share",
        )
    return found


def _expected(
    course: Course, trained: Trained, optimizer: torch.optim.Optimizer, place: ComputeContext
) -> checkpoint.Expected:
    """What a checkpoint of this run looks like."""
    kept = moments(optimizer)
    named = {name: p for name, p in trained.named_parameters() if p in kept}
    return checkpoint.Expected(
        course.fingerprint,
        {
            "weights": trained.saved(),
            "optimizer": named,
            "generator": {"state": place.generator.get_state()},
        },
        {name: kept[p] for name, p in named.items()},
    )


def _planned(course: Course, progress: Progress, sealed: Sequence[Entry]) -> RunPlan:
    """The plan of a resumed run: its own, and what this command changes in it."""
    entries = read_plan(course.run, sealed) or course.aim.first().entries
    plan = course.aim.resumed(
        course.run, entries, progress.step, progress.seconds, course.settings.lr_scheduler_type
    )
    if 0 < progress.step < plan.updates:  # the caller reports that a run is finished
        logger.info("resumed after update %s of %s", f"{progress.step:,}", f"{plan.updates:,}")
    return plan


class _Running:
    """A course under way: the updates, and what is due after each."""

    def __init__(
        self,
        course: Course,
        trained: Trained,
        optimizer: torch.optim.Optimizer,
        place: ComputeContext,
        progress: Progress,
        recorder: Recorder | None,
        plan: RunPlan,
        ranks: RankGroup,
        passes: Passes,
    ) -> None:
        self.ranks, self._passes, self._names = ranks, passes, _names(trained)
        self.course, self.trained, self.optimizer, self.place = course, trained, optimizer, place
        self.progress, self.recorder, self.plan = progress, recorder, plan
        begun = hardware.clock() if course.aim.begun is None else course.aim.begun
        self._begin = begun - progress.seconds
        self._checks = Checks()
        self.pace = Pace(
            course.settings,
            course.shares,
            course.speeds,
            plan.last.budget,
            course.aim.most if course.aim.free else 1,
        )

    @property
    def seconds(self) -> float:
        """Of the run's commands, over all its parts; updates made again after a crash count again."""
        return hardware.clock() - self._begin

    def use_all_cores(self) -> None:
        """Compute on the cores of all ranks of this machine, while the others wait for rank 0."""
        if self.ranks.is_main:
            hardware.set_num_threads(self.plan.last.threads * self.ranks.info.local_world_size)

    def to_the_end(self, stopped: Sequence[int]) -> None:
        """All updates that are left. stopped: the signals that have come in."""
        while self.progress.step < self.plan.updates:
            number = self._phase()
            if self.progress.phase != number:
                self.progress.phase, self.progress.position = number, Position()
            self._through(self.course.phases[number], stopped)

    def _phase(self) -> int:
        """The phase of the next update. None is entered again: a finished run that is trained further stays in its
        last one."""
        return max(self.progress.phase, self.plan.phase(self.progress.step + 1, self.course.shares))

    def _through(self, phase: Phase, stopped: Sequence[int]) -> None:
        """The updates of one phase."""
        progress, settings = self.progress, self.course.settings
        with closing(_updates(self.course, phase, progress.position, self.trained, self.ranks)) as stream:
            while progress.step < self.plan.updates and self._phase() == progress.phase:
                since = hardware.clock()
                work = next(stream)
                step = progress.step + 1
                threads, rate = self.plan.at(step).threads, self._rate(step)
                work = self.ranks.all_reduce_counts(work)
                hardware.set_num_threads(threads)
                self.ranks.seed_step(self.place, settings.seed, step)
                for parameter, first in self.course.thaws.items():
                    parameter.requires_grad_(step >= first)
                values = update(
                    *(self.trained, self.optimizer, work, rate, settings, self.place, step),
                    *(self._passes, self._checks),
                )
                progress.step, progress.position = step, work.behind
                progress.tokens += work.tokens
                progress.made += 1
                self._look(hardware.clock() - since)
                ends = step == self.plan.updates
                self._record(work, rate, values, ends)
                self._evaluate_when_due(ends)
                ends = step == self.plan.updates  # the evaluation may have ended it
                stop_signal = self.ranks.broadcast(stopped[0] if stopped else 0)
                stopping = stop_signal > 0 and not ends
                if ends or stopping or step % settings.save_steps == 0:
                    self._save()
                    if (course := self.course).unfinished is not None and not ends:
                        progress.planned = self.plan.updates
                        with self._passes.unsharded():
                            self.ranks.run_on_main(partial(course.unfinished, progress, stopping))
                if stopping:
                    raise self._stopped(stop_signal)

    def _rate(self, step: int) -> float:
        """The learning rate of an update: the schedule's, less what evaluations have taken from it."""
        settings = self.course.settings
        return self.plan.rate(step, settings) * settings.lr_decay_factor**self.progress.drops

    @property
    def early(self) -> str | None:
        """Why the run ended before its budget; None where it did not."""
        evaluation, last = self.course.evaluation, self.plan.last
        ended = last.step == last.updates == self.progress.step
        return last.why if ended and evaluation and evaluation.gives_up(self.progress) else None

    def _stopped(self, number: int) -> Stopped:
        course = self.course
        return Stopped(
            number,
            f"{course.run}: stopped by {signal.Signals(number).name} after step {self.progress.step:,} of "
            f"{self.plan.updates:,}, which is saved",
            f"continue with the same command and {option('resume', True)}"
            + (f", or use the unfinished model in {course.run}" if course.unfinished else ""),
        )

    def _look(self, seconds: float) -> None:
        """After an update that took so long: change the plan where rank 0's clock says so, and write that down.

        Updates that are made again after a crash are made as they were.
        """
        entry = self._new_entry(seconds) if self.ranks.is_main else None
        depends_on_time = self.course.aim.free or "max_minutes" in self.plan.last.budget
        if depends_on_time and self.ranks.broadcast(int(entry is not None)):
            entry = self.ranks.run_on_main(lambda: entry)
            assert entry is not None
            self.plan.entries.append(entry)
            self._write_plan()

    def _new_entry(self, seconds: float) -> Entry | None:
        step, pace = self.progress.step, self.pace
        pace.speeds.observe(self.progress.phase, seconds)
        if any(entry.step >= step for entry in self.plan.entries[1:]):
            return None
        entry = self._other_threads(seconds)
        plan = self.plan if entry is None else RunPlan([*self.plan.entries, entry])
        return pace.replanned(plan, step, self.seconds) or entry

    def _write_plan(self) -> None:
        self.ranks.run_on_main(partial(write_plan, self.course.run, self.plan))

    def _other_threads(self, seconds: float) -> Entry | None:
        """Try other numbers of threads where it is time to; an entry where one is clearly quicker."""
        progress, plan, aim = self.progress, self.plan, self.course.aim
        threads = plan.last.threads
        if plan.updates - progress.step < max(_FEW_LEFT, _SHARE_LEFT * plan.updates):
            return None
        if not aim.free or not self.pace.watch.due(progress.phase, seconds, threads):
            return None
        self.pace.watch.rest()
        others = [n for n in numbers_of_threads(aim.most) if n != threads]
        phase = self.course.phases[progress.phase]
        found = tried(
            self.trained,
            phase,
            self.course.settings,
            self.place,
            ways([threads, *others], [self.place.precision]),
            lambda _: _TRIAL_UPDATES * seconds,
            position=progress.position,
        )
        quickest = min(found, key=lambda way: found[way])
        now = found.get(Way(threads, self.place.precision))  # none where it was dropped as hopeless
        if now is not None and found[quickest] > _CLEARLY * now:
            return None
        logger.info(
            "computing on %s from update %s on, not on %d: updates are faster that way now",
            pluralize(quickest.threads, "thread"),
            f"{progress.step + 1:,}",
            threads,
        )
        return plan.last.model_copy(
            update={
                "step": progress.step,
                "progress": plan.progress(progress.step),
                "threads": quickest.threads,
                "why": "updates are quicker on this number of threads",
            }
        )

    def _record(self, work: Update, rate: float, values: Mapping[str, Tensor], ends: bool) -> None:
        step = self.progress.step
        # An evaluation's scores stand beside a loss, however few updates an epoch has.
        if step % self.course.settings.logging_steps == 0 or self._is_evaluated(ends):
            self._checks.settle()
            numbers = dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))
            norm = numbers.pop("gradient_norm")
            at = {"epoch": work.epoch, "tokens": work.tokens}
            if self.recorder is not None:
                self.recorder.record(
                    step, "train", {**at, **numbers, "learning_rate": rate, "gradient_norm": norm}
                )
        if self.recorder is not None:
            left = self.pace.left(self.seconds, self.plan.updates)
            self.recorder.stepped(step, work.tokens, self.plan.updates, left)

    def _is_evaluated(self, ends: bool) -> bool:
        every = self.course.settings.eval_steps
        return ends or bool(every and self.progress.step % every == 0)

    def _evaluate_when_due(self, ends: bool) -> None:
        evaluation, progress = self.course.evaluation, self.progress
        if evaluation is None or not self._is_evaluated(ends):
            return
        since = hardware.clock()
        self.use_all_cores()
        with self._passes.unsharded():
            progress.evaluation = self.ranks.run_on_main(
                lambda: evaluated(self.trained, evaluation, progress.step)
            )
        self.pace.speeds.evaluation = hardware.clock() - since
        if self.recorder is not None:
            self.recorder.record(progress.step, "evaluation", progress.evaluation)
        if evaluation.best_by is None:
            return
        if evaluation.is_better(progress):
            since = hardware.clock()
            with self._passes.unsharded():
                sha256 = self.ranks.run_on_main(
                    lambda: checkpoint.save_weights(
                        self.course.checkpoints, progress.step, self.trained.saved()
                    )
                )
            progress.saving += hardware.clock() - since
            progress.keep_best(progress.evaluation[evaluation.best_by], sha256)
            return
        progress.wait(evaluation.lr_patience)
        if evaluation.gives_up(progress) and progress.step < (planned := self.plan.updates):
            self.plan.end_at(progress.step, evaluation.said(progress, planned))
            self._write_plan()

    def _save(self) -> None:
        self._checks.settle()
        since, self.progress.seconds = hardware.clock(), self.seconds
        of_optimizer = self._passes.state(self.optimizer, self._names)
        with self._passes.unsharded():
            self.ranks.run_on_main(lambda: self._write_checkpoint(of_optimizer))
        self.pace.speeds.checkpoint = hardware.clock() - since
        self.progress.saving += self.pace.speeds.checkpoint

    def _write_checkpoint(self, of_optimizer: Mapping[str, Tensor]) -> None:
        assert self.recorder is not None
        kept = {
            "fingerprint": self.course.fingerprint,
            "log_bytes": self.recorder.bytes_on_disk(),
            "plan": [entry.model_dump() for entry in self.plan.entries_until(self.progress.step)],
        }
        state = {k: v for k, v in asdict(self.progress).items() if k in checkpoint.State.model_fields} | kept
        tensors = {
            "weights": self.trained.saved(),
            "optimizer": of_optimizer,
            "generator": {"state": self.place.generator.get_state()},
        }
        found = checkpoint.Checkpoint(self.progress.step, tensors, state)
        checkpoint.save(self.course.checkpoints, found, self.course.settings.save_total_limit)


def fingerprint(*parts: str) -> str:
    """A digest of what must not change between the parts of one run."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _restore(
    found: checkpoint.Checkpoint, trained: Trained, place: ComputeContext
) -> tuple[Progress, int, list[Entry]]:
    """The weights, the generator and where the run stands, as the checkpoint has them."""
    state = dict(found.state)
    del state["fingerprint"]
    log_bytes = int(state.pop("log_bytes"))
    trained.restore(found.tensors["weights"])
    place.generator.set_state(found.tensors["generator"]["state"])
    position = Position(**state.pop("position"))
    plan = [Entry.model_validate(entry) for entry in state.pop("plan")]
    return Progress(position=position, **state), log_bytes, plan


def _log_end(log: Path, expected: int) -> int:
    """Where the log goes on: where the checkpoint says, or behind the last whole line of one that lost some."""
    found = log.read_bytes()[:expected] if log.is_file() else b""
    whole = found.rfind(b"\n") + 1
    if whole != expected:
        logger.warning("%s: lines are missing at the end; new lines are appended", log)
    return whole
