"""How far a run is to go: what was decided about it, when, and the progress and learning rate that follow.

A run begins with one entry. More are added where the decision changes: minutes that hold more or fewer updates
than expected, another number of threads, a larger budget on resuming. A run that is resumed makes the updates that
were lost under the entries they were made under, so it stays the run that was not interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bertsmith.errors import MachineError
from bertsmith.io import atomic
from bertsmith.training.lr_schedule import learning_rate, warmup_updates
from bertsmith.training.settings import TrainSettings

PLAN = "plan.jsonl"
_LARGEST = 2**22  # bytes of a plan
_HIGH = 0.1  # of the peak: how far above its end the schedule may be left without a word

_Count = Annotated[int, Field(ge=0, lt=2**53)]
_Positive = Annotated[int, Field(ge=1, lt=2**53)]


class Entry(BaseModel):
    """What holds for the updates after `step`: a line of plan.jsonl.

    updates: that the run is to have in all. progress: at `step`, from 0 to 1; 0 begins the schedule. threads: of
    computation, in each of so many processes. budget: what the user asked for, by the setting's name. why: in
    words.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    step: _Count
    updates: _Positive
    progress: Annotated[float, Field(ge=0, le=1)]
    threads: _Positive
    budget: dict[str, float | int]
    why: str
    processes: _Positive = 1


class RunPlan:
    """The entries of a run in order of their steps, at least one; the first is of step 0."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = list(entries)

    @property
    def last(self) -> Entry:
        """What was decided last."""
        return self.entries[-1]

    @property
    def updates(self) -> int:
        """That the run is to have in all."""
        return self.last.updates

    def at(self, step: int) -> Entry:
        """What update number `step` (from 1 on) is made under."""
        return next(entry for entry in reversed(self.entries) if entry.step < max(1, step))

    def position(self, step: int) -> float:
        """Where update number `step` stands among the updates of its entry, from 0 to `updates`.

        With one entry that is the number itself, exactly. Later entries keep the progress that was made, and share
        the rest among the updates that are left.
        """
        entry = self.at(step)
        whole = entry.updates
        left = whole - whole * entry.progress if entry.progress else whole
        return whole - left * (whole - step) / max(1, whole - entry.step)

    def progress(self, step: int) -> float:
        """From 0 before the first update to 1 after the last, after `step` updates."""
        known = self.entries_until(step)[-1]
        return known.progress if known.step == step else self.position(step) / known.updates

    def end_at(self, step: int, why: str) -> None:
        """Have the run end with update number `step`, before the updates that were planned."""
        self.entries.append(
            self.last.model_copy(
                update={"step": step, "updates": step, "progress": self.progress(step), "why": why}
            )
        )

    def begins_after(self, step: int) -> bool:
        """Whether the schedule begins with the update after this one."""
        entry = self.at(step + 1)
        return entry.step == step and not entry.progress

    def entries_until(self, step: int) -> list[Entry]:
        """Those decided after at most `step` updates."""
        return [entry for entry in self.entries if entry.step <= step]

    def rate(self, step: int, settings: TrainSettings) -> float:
        """The learning rate of update number `step`: the schedule of `settings` at the progress made.

        A warm-up that is a share is one of the progress. One that is a number of updates is counted in updates
        from the schedule's beginning, and the decay begins at the progress that was made by then.
        """
        whole, position = self.at(step).updates, self.position(step)
        warmup_steps: float = warmup_updates(settings.warmup_steps, whole)
        if settings.warmup_steps >= 1:
            begun = next(e.step for e in reversed(self.entries) if e.step < step and not e.progress)
            warmup_steps = min(warmup_steps, whole - begun)
            if step - begun <= warmup_steps:
                position = step - begun
            elif self.at(begun + int(warmup_steps)) is not self.at(step) or begun:
                warmup_steps = self.progress(begun + int(warmup_steps)) * whole
        return _rate_at(position, whole, warmup_steps, settings)

    def cut_short(self, settings: TrainSettings) -> str | None:
        """Where the time was over so early that the last rate is high above the schedule's own end, a sentence
        that says so; else None.

        A machine that stands still for the rest of the minutes, as a laptop that sleeps, leaves no updates for the
        rate to come down in.
        """
        last = self.last
        if "max_minutes" not in last.budget or last.progress == 0 or last.step < last.updates:
            return None
        rate = self.rate(last.updates, settings)
        end = _rate_at(
            last.updates, last.updates, warmup_updates(settings.warmup_steps, last.updates), settings
        )
        if rate - end < _HIGH * settings.learning_rate:
            return None
        return (
            f"the time was over after {last.progress:.0%} of the schedule, since updates took longer than "
            f"expected: the last one had a learning rate of {rate:.2g}, "
            f"{rate / settings.learning_rate:.0%} of the highest, and a model is better where it has come down; a "
            "larger --minutes and --resume train it further, to the schedule's end"
        )

    def phase(self, step: int, shares: Sequence[float]) -> int:
        """The phase that update number `step` falls into; shares: of the progress, a later one has an update."""
        bounds, end = [], self.at(step).updates
        for share in reversed(shares[1:]):
            end -= max(1, round(self.at(step).updates * share))
            bounds.append(end)
        return sum(self.position(step) > max(0, bound) for bound in bounds)


def _rate_at(position: float, updates: int, warmup_steps: float, settings: TrainSettings) -> float:
    """The rate of the settings' schedule where an update stands among all."""
    return learning_rate(
        position,
        peak=settings.learning_rate,
        warmup_steps=warmup_steps,
        updates=updates,
        shape=settings.lr_scheduler_type,
        decay_ratio=settings.decay_ratio,
        lr_decay_factor=settings.lr_decay_factor,
        lr_milestones=settings.lr_milestones,
    )


def read_plan(run: Path, sealed: Sequence[Entry]) -> list[Entry]:
    """The entries of a run's plan.jsonl; those of its checkpoint where the file does not continue them."""
    file = run / PLAN
    try:
        text = file.read_text(encoding="utf-8") if file.stat().st_size <= _LARGEST else ""
        entries = [Entry.model_validate_json(line) for line in text.splitlines()]
    except (OSError, UnicodeDecodeError, ValidationError):
        entries = []
    whole = entries[: len(sealed)] == list(sealed) and follows(entries)
    return entries if whole else list(sealed)


def write_plan(run: Path, plan: RunPlan) -> None:
    """plan.jsonl, whole or as it was; it is on the disk when this returns."""
    file = run / PLAN
    try:
        atomic.write_text(file, "".join(entry.model_dump_json() + "\n" for entry in plan.entries))
    except OSError as error:
        raise MachineError(
            "file_not_written", f"the file could not be written ({error.strerror})", location=file
        ) from None


def follows(entries: Sequence[Entry]) -> bool:
    """Whether these could be a run's: from step 0 on, none before its predecessor, none behind its own end."""
    steps = [entry.step for entry in entries]
    ends = all(entry.step <= entry.updates for entry in entries)
    return bool(steps) and steps[0] == 0 and not entries[0].progress and steps == sorted(steps) and ends
