"""Callbacks of the trainer: the metric log with a progress bar, early stopping, and a learning rate schedule.

log.jsonl contains only what the run computes, so that the log of a resumed run equals that of an uninterrupted run
byte for byte; `tokens` are those of all updates so far. Tokens per second are in the progress bar, the trackers,
and speed.jsonl.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith.console import ProgressBar
from bertsmith.errors import MachineError
from bertsmith.formatting import pluralize
from bertsmith.io import atomic
from bertsmith.training.trackers import Trackers

if TYPE_CHECKING:
    from bertsmith.training.trainer import Trainer

logger = logging.getLogger(__name__)

LOG, SPEED_LOG = "log.jsonl", "speed.jsonl"
_SPEED_SECONDS = 1.0  # over which tokens per second are measured


@dataclass(frozen=True)
class StepResult:
    """The result of one optimizer update, for callbacks.

    Attributes:
        tokens: The number of tokens, over all ranks.
        learning_rate: The learning rate of the update.
        metrics: The metrics to log; None in updates that are not logged.
    """

    tokens: int
    learning_rate: float
    metrics: dict[str, float] | None


class TrainerCallback:
    """Methods that a `Trainer` calls during a run, on every rank unless said otherwise.

    Attributes:
        saves_unfinished_model: True if `on_save` writes a model when the run stops.
    """

    saves_unfinished_model = False

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        """Run after each optimizer update."""

    def on_evaluate(self, trainer: Trainer) -> None:
        """Run after each evaluation, whose metrics are in `trainer.state.evaluation`."""

    def on_save(self, trainer: Trainer, *, is_stopping: bool) -> None:
        """Run after each checkpoint; `is_stopping` after a signal, before the run is finished."""


class ReduceLROnPlateau(TrainerCallback):
    """Reduces the learning rate after each `lr_patience` evaluations in a row without a better score."""

    def __init__(self, lr_patience: int) -> None:
        self.lr_patience = lr_patience

    def on_evaluate(self, trainer: Trainer) -> None:
        """Count a reduction in the state."""
        state = trainer.state
        if state.num_bad_evals and state.num_bad_evals % self.lr_patience == 0:
            state.num_lr_reductions += 1


class EarlyStopping(TrainerCallback):
    """Ends the run after `patience` evaluations in a row without a better score."""

    def __init__(self, patience: int, metric: str) -> None:
        self.patience, self.metric = patience, metric

    def should_stop_early(self, num_bad_evals: int) -> bool:
        """Return True if enough evaluations in a row were not better."""
        return num_bad_evals >= self.patience

    def on_evaluate(self, trainer: Trainer) -> None:
        """End the plan with this update."""
        state, num_updates = trainer.state, trainer.plan.num_updates
        if not self.should_stop_early(state.num_bad_evals) or state.step >= num_updates:
            return
        evaluations = pluralize(state.num_bad_evals, "evaluation")
        in_a_row = " in a row" if state.num_bad_evals > 1 else ""
        trainer.end_run(
            f"stopped early after update {state.step:,} of {num_updates:,}: {evaluations}{in_a_row} brought no "
            f"better {self.metric} than {state.best_score:.4f} (train.patience={self.patience})"
        )


def last_loss(run: Path, part: str = "loss", num_records: int = 1) -> float | None:
    """Return the mean of the last training losses in a run's log.

    Args:
        run: The run folder.
        part: The part of the loss, such as "mlm".
        num_records: The number of losses.
    """
    try:
        lines = (run / LOG).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    records = (json.loads(line) for line in reversed(lines) if '"kind": "train"' in line)
    losses = list(islice((float(record[part]) for record in records if part in record), num_records))
    return sum(losses) / len(losses) if losses else None


class MetricLogger(TrainerCallback):
    """Writes the log of a run and shows its progress.

    Args:
        run: The run folder.
        title: The title of the progress bar.
        num_updates: The updates of the whole run.
        step: The updates before.
        log_bytes: The size of the log at the checkpoint; the rest is cut off.
        trackers: The trackers that get the metrics, too.
    """

    def __init__(
        self,
        run: Path,
        *,
        title: str,
        num_updates: int,
        step: int,
        log_bytes: int = 0,
        trackers: Sequence[str] = (),
    ) -> None:
        run.mkdir(parents=True, exist_ok=True)
        self._path = run / LOG
        log_bytes = _last_line_end(self._path, log_bytes)
        self._log = atomic.open_for_appending(self._path, log_bytes)
        self._speed_log = atomic.open_for_appending(run / SPEED_LOG)
        self._bar = ProgressBar(title, num_updates, initial=step, unit="updates")
        self._start, self._tokens_since_start, self._tokens_per_second = time.perf_counter(), 0, 0.0
        self._loss: float | None = None
        self._trackers = Trackers(trackers, run, step)

    def __enter__(self) -> MetricLogger:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.__exit__(*error)
        for file in (self._log, self._speed_log):
            with suppress(OSError):  # each line was flushed, and a full disk was reported then
                file.close()
        self._trackers.close(is_finished=error[0] is None)

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        """Log the metrics, if there are any, and move the progress bar."""
        step = trainer.state.step
        if result.metrics is not None:
            self.record(step, "train", {**result.metrics, "tokens": trainer.state.tokens})
        self._tokens_since_start += result.tokens
        seconds = time.perf_counter() - self._start
        if seconds > _SPEED_SECONDS:
            self._tokens_per_second = self._tokens_since_start / seconds
            self._start, self._tokens_since_start = time.perf_counter(), 0
        loss = "" if self._loss is None else f"loss {self._loss:.2f}"
        speed = f"{self._tokens_per_second:,.0f} tokens/s" if self._tokens_per_second else ""
        self._bar.update(
            step,
            " · ".join(part for part in (loss, speed) if part),
            total=trainer.plan.num_updates,
            seconds_left=trainer.seconds_left,
        )

    def on_evaluate(self, trainer: Trainer) -> None:
        """Log the metrics of the evaluation."""
        self.record(trainer.state.step, "evaluation", trainer.state.evaluation)

    def record(self, step: int, kind: str, metrics: Mapping[str, float]) -> None:
        """Write a line of log.jsonl, and pass the metrics to the trackers."""
        self._loss = metrics.get("loss", self._loss)
        line = json.dumps({"step": step, "kind": kind, **metrics}) + "\n"
        speed = {"step": step, "time": time.time(), "tokens_per_second": round(self._tokens_per_second, 1)}
        try:
            self._log.write(line.encode())
            self._log.flush()
            self._speed_log.write((json.dumps(speed) + "\n").encode())
            self._speed_log.flush()
        except OSError as error:
            message = f"the log could not be written ({error.strerror})"
            raise MachineError("log_not_written", message, location=self._path) from None
        values = {f"{kind}/{name}": value for name, value in metrics.items()}
        self._trackers.log(step, {**values, "speed/tokens_per_second": self._tokens_per_second})

    def sync(self) -> int:
        """Write the log to the disk, and return its size for a checkpoint."""
        self._log.flush()
        os.fsync(self._log.fileno())
        return self._log.tell()


def _last_line_end(log: Path, log_bytes: int) -> int:
    """Return the end of the last complete line among the first `log_bytes` bytes."""
    content = log.read_bytes()[:log_bytes] if log.is_file() else b""
    end = content.rfind(b"\n") + 1
    if end != log_bytes:
        logger.warning("%s: lines are missing at the end; new lines are appended", log)
    return end
