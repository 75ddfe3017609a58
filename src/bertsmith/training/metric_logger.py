"""Progress of a run: a bar for people, log.jsonl for programs, TensorBoard for the eye.

log.jsonl holds only what the run computes, so that a resumed run's log equals the uninterrupted one's byte
for byte; what a clock says (tokens a second) goes to the bar, to TensorBoard and to speed.jsonl.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from bertsmith.console import ProgressBar
from bertsmith.errors import MachineError

LOG = "log.jsonl"


def last_loss(run: Path, part: str = "loss", records: int = 1) -> float | None:
    """The training loss that a run's log holds last, or a part of it ("mlm"): the mean over so many records."""
    try:
        lines = (run / LOG).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    train = (json.loads(line) for line in reversed(lines) if '"kind": "train"' in line)
    found = list(islice((float(record[part]) for record in train if part in record), records))
    return sum(found) / len(found) if found else None


class Recorder:
    """One run's log. `resumed_at` is the number of log bytes that the checkpoint saw; the rest is cut off."""

    def __init__(
        self, run: Path, *, title: str, steps: int, step: int, resumed_at: int = 0, tensorboard: bool = True
    ) -> None:
        run.mkdir(parents=True, exist_ok=True)
        self._path = run / LOG
        self._log = self._path.open("r+b" if self._path.exists() else "w+b")
        self._log.truncate(resumed_at)
        self._log.seek(resumed_at)
        self._speed = (run / "speed.jsonl").open("ab")
        self._bar = ProgressBar(title, steps, initial=step, unit="updates")
        self._since, self._tokens_since, self._rate = time.perf_counter(), 0, 0.0
        self._loss: float | None = None
        self._board: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1 if step else None)

    def __enter__(self) -> Recorder:
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)
        for file in (self._log, self._speed):
            with suppress(OSError):  # on a full disk; each line was flushed, and what failed then was told
                file.close()
        if self._board:
            self._board.close()

    def stepped(
        self, step: int, tokens: int, steps: int | None = None, seconds_left: float | None = None
    ) -> None:
        """After each update: move the bar, beside the loss that was recorded last.

        tokens: of this update. steps: in all, where that changed. seconds_left: where a budget of minutes says it.
        """
        self._tokens_since += tokens
        now = time.perf_counter()
        if now - self._since > 1.0:
            self._rate = self._tokens_since / (now - self._since)
            self._since, self._tokens_since = now, 0
        loss = "" if self._loss is None else f"loss {self._loss:.2f}"
        rate = f"{self._rate:,.0f} tokens/s" if self._rate else ""
        self._bar.update(
            step, " · ".join(part for part in (loss, rate) if part), total=steps, seconds_left=seconds_left
        )

    def record(self, step: int, kind: str, values: Mapping[str, float | int]) -> None:
        """A line of log.jsonl and its TensorBoard curves."""
        self._loss = values.get("loss", self._loss)
        line = json.dumps({"step": step, "kind": kind, **values}) + "\n"
        try:
            self._log.write(line.encode())
            self._log.flush()
            self._speed.write(
                (
                    json.dumps({"step": step, "time": time.time(), "tokens_per_second": round(self._rate, 1)})
                    + "\n"
                ).encode()
            )
            self._speed.flush()
        except OSError as error:
            raise MachineError(
                "log_not_written", f"the log could not be written ({error.strerror})", location=self._path
            ) from None
        if self._board:
            for name, value in values.items():
                self._board.add_scalar(f"{kind}/{name}", value, step)
            self._board.add_scalar("speed/tokens_per_second", self._rate, step)

    def bytes_on_disk(self) -> int:
        """Have the log on disk, and say how long it is, for a checkpoint."""
        self._log.flush()
        os.fsync(self._log.fileno())
        return self._log.tell()
