"""A run folder: its settings written once, never mixed with another run's, whole files only."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bertsmith import disk, machine
from bertsmith.errors import InputError, MachineError
from bertsmith.place import Place
from bertsmith.settings import Settings
from bertsmith.training.checkpoint import newest_name
from bertsmith.training.settings import TrainSettings

SETTINGS, REPORT, MODEL = "settings.yaml", "report.json", "model"
# What may differ between the parts of one run, since no number of the run depends on it (on what files hold,
# yes: their content is in the fingerprint, wherever they lie now).
FREE_ON_RESUME = frozenset(
    {"train.workers", "train.checkpoint_every", "train.keep_checkpoints", "train.tensorboard"}
    | {"base", "files.train", "files.dev"}
)
# Settled when the run began: these budgets became a number of updates, and what was left open was chosen.
BUDGETS = ("train.max_steps", "train.max_tokens", "train.max_minutes")
_LEFT_OPEN = {
    "train.precision": "auto",
    "train.device": "auto",
    "train.threads": None,
    "train.evaluate_every": None,
}

AnySettings = TypeVar("AnySettings", bound=Settings)


def refuse_existing(out: Path) -> None:
    """InputError where `out` holds a run already, or is a file."""
    if (out / SETTINGS).exists() or newest_name(out / "checkpoints"):
        raise InputError(
            f"{out}: there is a run in this folder", "go on with --resume, or choose another --out"
        )
    if out.is_file():
        raise InputError(f"{out}: this is a file", "name a folder with --out")


def settings_of_run(kind: type[AnySettings], out: Path, assignments: Sequence[str]) -> AnySettings:
    """A run's own settings; assignments may repeat them, or change what leaves its numbers alone.

    What was settled when the run began is not compared, so that the same command with --resume goes on.
    """
    kept = kind.from_file(out / SETTINGS)
    compared = [a for a in assignments if a.partition("=")[0].strip() not in BUDGETS[1:]]
    asked = flat(kept.changed(compared).model_dump(mode="json"))
    settled = {name for name, value in _LEFT_OPEN.items() if asked[name] == value}
    changed = kept.changed([a for a in compared if a.partition("=")[0].strip() not in settled])
    before, after = flat(kept.model_dump(mode="json")), flat(changed.model_dump(mode="json"))
    for name, value in after.items():
        if value != before[name] and name not in FREE_ON_RESUME:
            raise InputError(
                f"{out}: this run has {name}={before[name]}, it cannot go on with {value}",
                f"leave --set {name} out, or start a new run in another --out",
            )
    return changed


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def as_assignments(values: dict[str, Any]) -> list[str]:
    """Nested values as `--set` would give them."""
    return [f"{name}={json.dumps(value)}" for name, value in flat(values).items()]


def numbers(settings: Settings) -> str:
    """The settings that a run's numbers depend on, as text to take a fingerprint of."""
    values = flat(settings.model_dump(mode="json"))
    return json.dumps({k: v for k, v in values.items() if k not in FREE_ON_RESUME}, sort_keys=True)


def place_of(train: TrainSettings, tell: Callable[[str], None]) -> tuple[Place, int]:
    """Set the process up; returns where to compute, and the threads."""
    threads = machine.prepare_process(train.threads)
    return Place.of(train.device, train.precision, train.seed, tell), threads


def write_whole(path: Path, text: str) -> None:
    """Write a file beside its place and rename it; a full disk leaves what was there."""
    try:
        disk.write_text(path, text)
    except OSError as error:
        raise MachineError(f"{path}: could not be written ({error.strerror})") from None


def write_report(out: Path, report: dict[str, Any]) -> None:
    """report.json."""
    write_whole(out / REPORT, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
