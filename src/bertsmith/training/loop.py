"""The one training loop, for pre-training and fine-tuning alike.

What changes numbers stands in `update`, whole: forward, backward, check, clip, update. Everything else here
only says when: to record, to evaluate, to save, to stop.
"""

from __future__ import annotations

import hashlib
import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.errors import InputError, MachineError, Stopped
from bertsmith.loss import Loss
from bertsmith.training import checkpoint
from bertsmith.training.loader import Batch, Position, Stream, batches
from bertsmith.training.optimizer import clip, make_optimizer
from bertsmith.training.progress import LOG, Recorder
from bertsmith.training.schedule import learning_rate, warmup_updates
from bertsmith.training.settings import TrainSettings
from bertsmith.training.signals import stop_signals


class Trained(nn.Module):
    """All that is trained together: an encoder and what owns its heads and its loss (an objective or a task)."""

    def __init__(self, encoder: nn.Module, objective: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.objective = objective

    def loss(self, batch: Any) -> Loss:
        """The loss of one batch, as the objective answers it."""
        objective: Any = self.objective
        loss: Loss = objective.loss(self.encoder, batch)
        return loss


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


def train(
    encoder: nn.Module,
    objective: nn.Module,
    phases: Sequence[Phase],
    settings: TrainSettings,
    run: Path,
    *,
    title: str,
    generator: torch.Generator,
    fingerprint: str,
    precision: str,
    evaluation: Evaluation | None = None,
    resume: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Progress:
    """Train `encoder` and `objective` (which answers `loss`) through the phases, in place.

    run: the run folder; log.jsonl and checkpoints/ are written there. generator: what dropout draws from, its
    state stands in the checkpoints. fingerprint: of the settings and data; a resume under another one is
    refused. resume: go on from the newest whole checkpoint, if there is one. Returns the final progress; with
    `best_by`, the weights are then those of the best evaluation.

    Raises MachineError before an update whose loss or gradient is not finite, Stopped after a SIGTERM or
    SIGINT (once saved), InputError where no checkpoint can be read.
    """
    trained = Trained(encoder, objective)
    names: dict[Tensor, str] = {parameter: name for name, parameter in trained.named_parameters()}
    optimizer = make_optimizer(
        trained.named_parameters(),
        betas=settings.betas,
        epsilon=settings.epsilon,
        weight_decay=settings.weight_decay,
        bias_correction=settings.bias_correction,
    )
    folder, best_file = run / "checkpoints", run / "checkpoints" / "best.safetensors"
    progress, log_bytes = Progress(), 0
    if resume and (found := checkpoint.load_newest(folder, tell)) is not None:
        progress, log_bytes = _restore(found, trained, optimizer, names, generator, fingerprint)
        log_bytes = _log_end(run / LOG, log_bytes, tell)
        tell(f"resumed at step {progress.step}")
    updates = sum(phase.updates for phase in phases)
    warmup = warmup_updates(settings.warmup, updates)
    begin = time.perf_counter() - progress.seconds

    def save() -> None:
        progress.seconds = time.perf_counter() - begin
        state = asdict(progress) | {"fingerprint": fingerprint, "log_bytes": recorder.bytes_on_disk()}
        tensors = {
            "weights": trained.state_dict(),
            "optimizer": checkpoint.optimizer_tensors(optimizer, names),
            "generator": {"state": generator.get_state()},
        }
        checkpoint.save(
            folder, checkpoint.Checkpoint(progress.step, tensors, state), settings.keep_checkpoints
        )

    recorder = Recorder(
        run,
        title=title,
        steps=updates,
        step=progress.step,
        resumed_at=log_bytes,
        tensorboard=settings.tensorboard,
    )
    with recorder, stop_signals() as stopped:
        trained.train()
        for phase, last in _remaining(phases, progress):
            stream = batches(phase.stream, phase.batch_size, progress.position, settings.workers)
            with closing(stream):
                while progress.step < last:
                    micro = [next(stream) for _ in range(settings.accumulate)]
                    step = progress.step + 1
                    rate = learning_rate(
                        step,
                        peak=settings.learning_rate,
                        warmup=warmup,
                        updates=updates,
                        shape=settings.schedule,
                    )
                    values = update(
                        trained, optimizer, [batch for batch, _ in micro], rate, settings, precision, step
                    )
                    tokens = sum(batch.tokens for batch, _ in micro)
                    progress.step, progress.position = step, micro[-1][1]
                    progress.tokens += tokens
                    ends = step == updates
                    recorder.stepped(step, tokens, values["loss"])
                    if step % settings.log_every == 0 or ends:
                        at = {"epoch": micro[-1][0].epoch, "tokens": tokens}
                        recorder.record(step, "train", {**at, **values})
                    if evaluation and (
                        ends or (settings.evaluate_every and step % settings.evaluate_every == 0)
                    ):
                        progress.evaluation = _evaluated(trained, evaluation, step)
                        recorder.record(step, "evaluation", progress.evaluation)
                        _keep_best(trained, evaluation, progress, best_file)
                    stopping = bool(stopped) and not ends  # asked once: a signal may come at any moment
                    if ends or stopping or step % settings.checkpoint_every == 0:
                        save()
                    if stopping:
                        raise Stopped(
                            stopped[0],
                            f"{run}: stopped by {signal.Signals(stopped[0]).name} after step {step} of {updates}, "
                            "which is saved",
                            "go on with the same command and --resume",
                        )
    progress.seconds = time.perf_counter() - begin
    if evaluation and evaluation.best_by:  # replayed updates after a resume have written the same file again
        trained.load_state_dict(checkpoint.load_weights(best_file, progress.best_sha256))
    trained.eval()
    return progress


def update(
    trained: Trained,
    optimizer: torch.optim.Optimizer,
    micro: Sequence[Batch],
    rate: float,
    settings: TrainSettings,
    precision: str,
    step: int,
) -> dict[str, float]:
    """One update from several batches. The loss is a mean over all of them together, part by part."""
    totals: dict[str, int] = {}
    for batch in micro:
        for part, count in batch.counts.items():
            totals[part] = totals.get(part, 0) + count
    sums: dict[str, float] = dict.fromkeys(totals, 0.0)
    optimizer.zero_grad(set_to_none=True)
    for batch in micro:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = trained.loss(batch)
        total = loss.over(totals)
        if not math.isfinite(total.item()):
            raise MachineError(
                f"step {step}: the loss is {total.item()} ({batch.place}); the update was not made",
                "lower train.learning_rate or train.clip_norm, or look at these instances; "
                "--resume goes on from the last checkpoint",
            )
        torch.autograd.backward(total)
        for part, value in loss.sums.items():
            sums[part] += float(value.detach())
    norm = clip((p for p in trained.parameters() if p.requires_grad), settings.clip_norm).item()
    if not math.isfinite(norm):
        raise MachineError(
            f"step {step}: the gradient is not finite ({'; '.join(batch.place for batch in micro)}); "
            "the update was not made",
            "lower train.learning_rate; --resume goes on from the last checkpoint",
        )
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    means = {part: value / max(1, totals[part]) for part, value in sums.items()}
    return {"loss": sum(means.values()), **means, "learning_rate": rate, "gradient_norm": norm}


def seconds_per_update(
    encoder: nn.Module,
    objective: nn.Module,
    phase: Phase,
    settings: TrainSettings,
    precision: str,
    seconds: float,
) -> float:
    """How long an update of this phase takes here: a few are made, on weights that the caller throws away."""
    trained = Trained(encoder, objective).train()
    optimizer = make_optimizer(
        trained.named_parameters(),
        betas=settings.betas,
        epsilon=settings.epsilon,
        weight_decay=settings.weight_decay,
        bias_correction=settings.bias_correction,
    )
    took: list[float] = []
    with closing(batches(phase.stream, phase.batch_size, Position(), 0)) as stream:
        while len(took) < 3 or sum(took) < seconds:
            begin = time.perf_counter()
            micro = [next(stream)[0] for _ in range(settings.accumulate)]
            update(trained, optimizer, micro, 0.0, settings, precision, 0)
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
    trained: nn.Module,
    optimizer: torch.optim.Optimizer,
    names: dict[Tensor, str],
    generator: torch.Generator,
    expected: str,
) -> tuple[Progress, int]:
    state = dict(found.state)
    if state.pop("fingerprint") != expected:
        raise InputError(
            f"step-{found.step}: this checkpoint was made with other settings or data",
            "resume with the settings and data of the run (settings.yaml in its folder), or choose another --out",
        )
    log_bytes = int(state.pop("log_bytes"))
    trained.load_state_dict(dict(found.tensors["weights"]))
    checkpoint.restore_optimizer(optimizer, names, found.tensors["optimizer"])
    generator.set_state(found.tensors["generator"]["state"])
    position = Position(**state.pop("position"))
    return Progress(position=position, **state), log_bytes


def _log_end(log: Path, expected: int, tell: Callable[[str], None]) -> int:
    """Where the log goes on: where the checkpoint says, or behind the last whole line of one that lost some."""
    found = log.read_bytes()[:expected] if log.is_file() else b""
    whole = found.rfind(b"\n") + 1
    if whole != expected:
        tell(f"{log}: lines are missing at its end; it goes on with what comes now")
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
                "lower train.learning_rate; --resume goes on from the last checkpoint",
            )
    return values


def _keep_best(trained: nn.Module, evaluation: Evaluation, progress: Progress, file: Path) -> None:
    if evaluation.best_by is None:
        return
    value = progress.evaluation[evaluation.best_by]
    if progress.best is None or value > progress.best:
        sha256 = checkpoint.save_weights(file, trained.state_dict())
        progress.best, progress.best_step, progress.best_sha256 = value, progress.step, sha256
