"""A run folder: its settings written once, never mixed with another run's, whole files only."""

from __future__ import annotations

import difflib
import functools
import inspect
import json
import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from bertsmith import hardware
from bertsmith.artifacts.folder import check_replaceable
from bertsmith.artifacts.run_collection import run_names
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, MachineError, Stopped, option
from bertsmith.formatting import pluralize
from bertsmith.io import atomic
from bertsmith.kernels.backend_selection import select_gpu_backend, select_training_backend
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import get_family
from bertsmith.objectives.objective import GENERATOR, ModelParts
from bertsmith.runs.compute_setup import without_other_budgets
from bertsmith.settings import Settings, read_yaml
from bertsmith.training.checkpoint import newest_name
from bertsmith.training.settings import TrainSettings
from bertsmith.training.train_state import Progress

logger = logging.getLogger(__name__)

SETTINGS, CHECKPOINTS, REPORT = "settings.yaml", "checkpoints", "report.json"
# Settled when the run began.
_LEFT_OPEN = {
    "train.precision": "auto",
    "train.device": "auto",
    "train.kernels": "auto",
    "train.eval_steps": None,
}
_HOW_COMPUTED = ("train.kernels",)  # may change on resume, and change the last digits
_LONG, _LONG_MINUTES = 500, 3.0  # updates, and minutes, in which a minute of compiling is won back
_SHARE_OF_MODELS = 0.01  # of the time: what writing the models of a run under way may take

_LAYOUT = atomic.FolderLayout(
    "a run",
    SETTINGS,
    (
        SETTINGS,
        CHECKPOINTS,
        REPORT,
        "report.html",
        "figures",
        "log.jsonl",
        "plan.jsonl",
        "speed.jsonl",
        "tensorboard",
        "split",
        "features",
        "model*",
        GENERATOR,
    ),
)

AnySettings = TypeVar("AnySettings", bound=Settings)
AnyTrainSettings = TypeVar("AnyTrainSettings", bound=TrainSettings)
Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def run_alone(verb: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Decorate a function of one process that holds its run folder, the argument `out`, as long as it works."""
    signature = inspect.signature(verb)

    @functools.wraps(verb)
    def alone(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        hardware.check_single_process(verb.__name__)
        bound: dict[str, Any] = signature.bind(*args, **kwargs).arguments
        with exclusive_run(Path(bound["output_dir"]), resume=bound.get("resume", False)):
            return verb(*args, **kwargs)

    return alone


@contextmanager
def exclusive_run(out: Path, *, resume: bool) -> Iterator[None]:
    """Hold a run folder. Raises InputError where another process holds it, or there is no run to resume."""
    if resume and not holds_run(out):
        raise _no_run(out)
    with atomic.folder_lock(out, "run"):
        yield


@contextmanager
def keeping_runs(out: Path) -> Iterator[None]:
    """After a Ctrl-C while no update is under way (a run that is training saves first): say what is kept of a
    folder of several runs."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(
            signal.SIGINT,
            f"{out}: stopped; the runs that have finished are kept",
            f"continue with the same command and {option('resume', True)}",
        ) from None


def holds_run(folder: Path) -> bool:
    """Whether a run began in this folder."""
    return (folder / SETTINGS).exists() or newest_name(folder / CHECKPOINTS) is not None


def _no_run(out: Path) -> InputError:
    """What to say where `out` holds no run: the run that is meant is around it, in it, or has a name like it."""
    if (names := run_names(out)) is not None:
        return InputError(
            "folder_of_runs",
            f"this folder holds {pluralize(len(names), 'run')} and is not a run itself",
            location=out,
            argument="output_dir",
            hint=f"to continue all of them, repeat {option('restarts')}, {option('folds')}, or {option('grid')} "
            f"as before; to continue one, use {option('output_dir', _shown(out / names[0]))}",
        )
    around = next((above for above in list(out.absolute().parents)[:3] if holds_run(above)), None)
    near, there = [around] if around else _runs_in(out), _runs_in(out.absolute().parent)
    if not near:
        close = difflib.get_close_matches(out.name, [run.name for run in there], n=2, cutoff=0.5)
        near = [run for run in there if run.name in close]
    new = f"to start a new run, remove {option('resume', True)}"
    if near:
        hint = f"did you mean {' or '.join(_shown(run) for run in near[:3])}? {new[0].upper()}{new[1:]}"
    elif there:
        hint = f"the runs in the parent folder are {', '.join(_shown(run) for run in there[:5])}; {new}"
    else:
        hint = new
    return InputError(
        "run_missing", "this folder holds no run to resume", location=out, argument="output_dir", hint=hint
    )


def _runs_in(folder: Path) -> list[Path]:
    """The runs among the folders in a folder, the latest first."""
    try:
        found = [path for path in folder.iterdir() if path.is_dir() and holds_run(path)]
    except OSError:
        return []
    return sorted(found, key=lambda run: run.stat().st_mtime, reverse=True)


def _shown(path: Path) -> str:
    """A path as people would type it here."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_absolute() and path.is_relative_to(here) else path)


def goes_on(out: Path, *, resume: bool, overwrite: bool = False) -> bool:
    """Whether `out` holds a run to continue, as `resume` asks; what begins anew all the same is logged.

    Raises InputError where a run is not to be continued, or cannot be without its settings, and for a folder
    that holds something else.
    """
    settings, newest = out / SETTINGS, newest_name(out / CHECKPOINTS)
    if not holds_run(out):
        if out.is_dir():
            atomic.remove_abandoned(out)
        atomic.check_output_folder(out, in_place=True)
        return False
    if overwrite and resume:
        raise InputError(
            "resume_and_overwrite",
            f"{option('resume', True)} and {option('overwrite', True)} exclude each other",
            location=out,
            hint="choose one of the two",
        )
    if overwrite:
        _LAYOUT.check_replaceable(out, overwrite=True, in_place=True)
        return False
    if not resume:
        raise InputError(
            "run_exists",
            "this folder already holds a run",
            location=out,
            argument="output_dir",
            hint=f"continue the run with {option('resume', True)}, or choose another {option('output_dir')}; in "
            "Python, overwrite=True replaces it",
        )
    if not settings.is_file() or not settings.stat().st_size:
        raise InputError(
            "run_settings_missing",
            f"the file of settings is {'empty' if settings.exists() else 'missing'}, and {newest or 'the run'} "
            "cannot be continued without it",
            location=settings,
            hint=f"restore the file from a backup, or start a new run with another {option('output_dir')}",
        )
    if newest is None:
        logger.warning(
            "%s: there is no checkpoint; the run starts again from its first update", out / CHECKPOINTS
        )
    return True


def start_over(out: Path, *used: Any) -> None:
    """Remove the run that `goes_on` was allowed to replace, before a new one writes its settings. used: what
    the new one needs; InputError where it is in the folder."""
    if not holds_run(out):
        return
    for path in used:
        if isinstance(path, str | Path) and Path(path).resolve().is_relative_to(out.resolve()):
            raise InputError(
                "input_inside_output",
                f"this is an input of the new run, and it is in {out}, which would be replaced",
                location=path,
                argument="output_dir",
                hint=f"choose another {option('output_dir')}",
            )
    atomic.clear_folder(out)


def settings_of_run(kind: type[AnySettings], out: Path, changes: Mapping[str, Any]) -> AnySettings:
    """A run's own settings; changes may repeat them, or change what leaves its numbers alone, or how they are
    computed, which is logged.

    What was settled when the run began is not compared, so that the same command with --resume continues. A budget
    among the changes stands in place of the run's own.
    """
    kept = kind.from_file(out / SETTINGS)
    changes = without_other_budgets(changes)
    asked = kept.changed(changes).flat()
    settled = {name for name, value in _LEFT_OPEN.items() if asked[name] == value}
    changed = kept.changed({name: value for name, value in changes.items() if name not in settled})
    before, after = kept.flat(), changed.flat()
    for name, value in after.items():
        if value != before[name] and name not in kind.may_change():
            raise InputError(
                "setting_differs_from_run",
                f"this run has {name}={before[name]}, and it cannot continue with {name}={value}",
                location=out,
                argument=name,
                hint=f"remove {option(name)}, or start a new run with another {option('output_dir')}",
            )
        if value != before[name] and name in _HOW_COMPUTED:
            now, was = str(value).lower(), str(before[name]).lower()
            logger.warning(
                "computing with %s=%s from here on, not %s: numbers are rounded differently, so the run is no "
                "longer bit-identical to an uninterrupted one",
                name,
                now,
                was,
            )
    return changed


def with_recipe(
    kind: type[Settings], recipe: str | Path | None, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings that a command names, in its recipe and as changes, by dotted names."""
    values = {} if recipe is None else read_yaml(recipe)
    values.pop("preset", None)
    return {**kind.dotted(values), **changes}


def settled(train: AnyTrainSettings, place: ComputeContext) -> AnyTrainSettings:
    """The settings of the training with what was left open to the machine."""
    here = {"precision": place.precision, "device": str(place.device), "kernels": place.kernels.name}
    return train.model_copy(update=here)


def log_finished(out: Path, progress: Progress) -> None:
    """Log that a resumed run has no updates left."""
    logger.info(
        "%s: the run %s; its model is unchanged. To train it further, set a larger budget",
        out,
        progress.early or f"is finished after {pluralize(progress.step, 'update')}",
    )


def numbers(settings: Settings) -> str:
    """Return the settings that a run's results depend on as JSON, for its fingerprint."""
    may_change = type(settings).may_change()
    return json.dumps({k: v for k, v in settings.flat().items() if k not in may_change}, sort_keys=True)


def check_folders(out: Path, folders: Mapping[str, ModelParts]) -> None:
    """Before the work: InputError where a model could not be written, since a folder of others is in its place or
    the family has no class with these heads."""
    for name, parts in folders.items():
        check_replaceable(out / name)
        get_family(parts.config.model_type).architecture(parts.modules)


def check_accumulation(train: TrainSettings, updates_per_epoch: float) -> None:
    """InputError where one update takes more passes over the data than the whole run was to have."""
    if train.gradient_accumulation_steps > 1 and train.num_train_epochs * updates_per_epoch < 0.5:
        raise InputError(
            "update_longer_than_run",
            f"with train.gradient_accumulation_steps={train.gradient_accumulation_steps}, one update takes "
            f"{1 / updates_per_epoch:,.0f} passes over the data, and train.num_train_epochs is "
            f"{train.num_train_epochs:g}",
            argument="train.gradient_accumulation_steps",
            hint="lower train.gradient_accumulation_steps, or set the number of updates with "
            f"{option('train.max_steps')}",
        )


def place_of(
    train: TrainSettings,
    model: ModelConfig,
    *,
    is_look: bool = False,
) -> ComputeContext:
    """Set the process up; returns where to compute, in fp32 where the precision is to be measured yet.
    is_look: only a few updates are made, to see how long they take. InputError for what is not here."""
    updates = 0 if is_look else train.max_steps
    return with_kernels(bare_place(train), train, model, updates=updates)


def bare_place(train: TrainSettings) -> ComputeContext:
    """The same without the kernels that a run computes with."""
    hardware.configure_process(train.threads)
    precision = "fp32" if train.precision == "auto" else train.precision
    return ComputeContext.create(train.device, precision, train.seed, for_training=True)


def with_kernels(
    place: ComputeContext,
    train: TrainSettings,
    model: ModelConfig,
    *,
    updates: int | None,
) -> ComputeContext:
    """The place with the kernels of a run of so many updates (None: many), of this model: a short one does not
    wait for kernels that have not been compiled yet. InputError for what is not here."""
    is_long = (updates is None or updates >= _LONG) and (train.max_minutes or _LONG_MINUTES) >= _LONG_MINUTES
    if place.is_cpu:
        kernels = select_training_backend(train.kernels, model.hidden_size, is_long=is_long)
        return replace(place, kernels=kernels)
    if train.kernels == "auto" and (train.precision == "fp32" or not place.is_async):
        return place
    return replace(place, kernels=select_gpu_backend(train.kernels, place.device, is_long=is_long))


def is_written(out: Path, step: int) -> bool:
    """Whether a run's report is of so many updates, and its models are there: nothing is left to write."""
    try:
        report = json.loads((out / REPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(report, dict) and report.get("steps") == step and any(out.glob("model*"))


@dataclass
class OnTheWay:
    """Writes the model of a run that has not finished (`Course.unfinished`): where it stops, and at checkpoints as
    often as takes a hundredth of the time, so that also a run that is killed leaves one.

    write: writes the model folder, given where the run stands and what marks the model.
    """

    write: Callable[[Progress, dict[str, Any]], None]
    _next: float = 0.0

    def __call__(self, progress: Progress, stopping: bool) -> None:
        """After a checkpoint."""
        begin = time.monotonic()
        if not stopping and begin < self._next:
            return
        step = progress.step if progress.best_step is None else progress.best_step
        self.write(progress, {"unfinished": {"step": step, "of": progress.planned}})
        self._next = time.monotonic() + (time.monotonic() - begin) / _SHARE_OF_MODELS


def write_whole(path: Path, text: str) -> None:
    """Write a file beside its place and rename it; a full disk leaves what was there."""
    try:
        atomic.write_text(path, text)
    except OSError as error:
        raise MachineError(
            "file_not_written", f"the file could not be written ({error.strerror})", location=path
        ) from None


def write_report(out: Path, report: dict[str, Any]) -> None:
    """report.json."""
    write_whole(out / REPORT, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
