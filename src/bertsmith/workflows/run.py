"""A run folder: its settings written once, never mixed with another run's, whole files only."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from bertsmith import disk, machine
from bertsmith.artifacts.folder import refuse_foreign
from bertsmith.errors import InputError, MachineError
from bertsmith.models.family import family
from bertsmith.objectives.objective import Parts
from bertsmith.place import Place
from bertsmith.settings import Settings
from bertsmith.training.checkpoint import newest_name
from bertsmith.training.settings import TrainSettings
from bertsmith.workflows.budget import in_place_of_budgets, name_of

SETTINGS, CHECKPOINTS, REPORT = "settings.yaml", "checkpoints", "report.json"
# Settled when the run began.
_LEFT_OPEN = {"train.precision": "auto", "train.device": "auto", "train.evaluate_every": None}

AnySettings = TypeVar("AnySettings", bound=Settings)
Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def run_alone(verb: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """A verb that holds its run folder, the argument `out`, as long as it works: InputError where another does."""
    arguments = inspect.signature(verb)

    @functools.wraps(verb)
    def alone(*given: Arguments.args, **named: Arguments.kwargs) -> Answer:
        out: Any = arguments.bind(*given, **named).arguments["out"]
        with disk.locked(Path(out), "run"):
            return verb(*given, **named)

    return alone


def goes_on(out: Path, *, resume: bool, tell: Callable[[str], None]) -> bool:
    """Whether `out` holds a run to go on with, as `resume` asks; what begins anew all the same is told.

    Raises InputError where a run is not to be gone on with, or cannot be without its settings, and for a folder
    that holds something else.
    """
    settings, newest = out / SETTINGS, newest_name(out / CHECKPOINTS)
    if not settings.exists() and newest is None:
        if out.is_dir():
            disk.sweep(out)
        disk.refuse_filled(out, in_place=True)
        if resume:
            tell(f"there is no run in {out} to go on with; a new one starts")
        return False
    if not resume:
        raise InputError(
            f"{out}: there is a run in this folder", "go on with --resume, or choose another --out"
        )
    if not settings.is_file() or not settings.stat().st_size:
        raise InputError(
            f"{settings}: is {'empty' if settings.exists() else 'missing'}, and {newest or 'the run'} cannot be "
            "gone on with without it",
            "copy it back from a backup, or start again in another --out",
        )
    if newest is None:
        tell(f"{out / CHECKPOINTS}: there is no checkpoint; the run starts again from its first update")
    return True


def settings_of_run(kind: type[AnySettings], out: Path, assignments: Sequence[str]) -> AnySettings:
    """A run's own settings; assignments may repeat them, or change what leaves its numbers alone.

    What was settled when the run began is not compared, so that the same command with --resume continues. A budget
    among the assignments stands in place of the run's own.
    """
    kept = kind.from_file(out / SETTINGS)
    assignments = in_place_of_budgets(assignments)
    asked = flat(kept.changed(assignments).model_dump(mode="json"))
    settled = {name for name, value in _LEFT_OPEN.items() if asked[name] == value}
    changed = kept.changed([a for a in assignments if name_of(a) not in settled])
    before, after = flat(kept.model_dump(mode="json")), flat(changed.model_dump(mode="json"))
    for name, value in after.items():
        if value != before[name] and name not in kind.may_change():
            raise InputError(
                f"{out}: this run has {name}={before[name]}, it cannot continue with {value}",
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
    values, free = flat(settings.model_dump(mode="json")), type(settings).may_change()
    return json.dumps({k: v for k, v in values.items() if k not in free}, sort_keys=True)


def check_folders(out: Path, folders: Mapping[str, Parts]) -> None:
    """Before the work: InputError where a model could not be written, since a folder of others is in its place or
    the family has no class with these heads."""
    for name, parts in folders.items():
        refuse_foreign(out / name)
        family(parts.config.model_type).architecture(parts.modules)


def check_accumulation(train: TrainSettings, updates_per_epoch: float) -> None:
    """InputError where one update takes more passes over the data than the whole run was to have."""
    if train.accumulate > 1 and train.epochs * updates_per_epoch < 0.5:
        raise InputError(
            f"train.accumulate={train.accumulate}: one update would take {1 / updates_per_epoch:,.0f} passes over "
            f"the data, and train.epochs is {train.epochs:g}",
            "lower train.accumulate, or say how many updates to make with train.max_steps",
        )


def place_of(train: TrainSettings) -> Place:
    """Set the process up; returns where to compute, in fp32 where the precision is to be measured yet."""
    machine.prepare_process(train.threads)
    return Place.of(train.device, "fp32" if train.precision == "auto" else train.precision, train.seed)


def is_written(out: Path, step: int) -> bool:
    """Whether a run's report is there and is of so many updates, so that nothing is left to write."""
    try:
        report = json.loads((out / REPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(report, dict) and report.get("steps") == step and not report.get("unfinished")


def write_whole(path: Path, text: str) -> None:
    """Write a file beside its place and rename it; a full disk leaves what was there."""
    try:
        disk.write_text(path, text)
    except OSError as error:
        raise MachineError(f"{path}: could not be written ({error.strerror})") from None


def write_report(out: Path, report: dict[str, Any]) -> None:
    """report.json."""
    write_whole(out / REPORT, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
