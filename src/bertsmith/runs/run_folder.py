"""Run folders: check them, lock them, and write their files whole or not at all."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from bertsmith import hardware
from bertsmith.artifacts.folder import check_replaceable
from bertsmith.artifacts.run_collection import run_names
from bertsmith.errors import InputError, MachineError, Stopped, option
from bertsmith.formatting import pluralize
from bertsmith.io import atomic
from bertsmith.models.family import get_family
from bertsmith.objectives.objective import GENERATOR, ModelParts
from bertsmith.training.callbacks import TrainerCallback
from bertsmith.training.checkpoint import newest_name
from bertsmith.training.training_job import TrainOutput, TrainState

if TYPE_CHECKING:
    from bertsmith.training.trainer import Trainer

logger = logging.getLogger(__name__)

SETTINGS, CHECKPOINTS, REPORT = "settings.yaml", "checkpoints", "report.json"
_MAX_SAVING_RATIO = 0.01  # of the time may be spent on writing models of the unfinished run

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

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def run_alone(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Decorate a function of a single process so that it locks its run folder, the argument `output_dir`."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def locked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        hardware.check_single_process(function.__name__)
        bound: dict[str, Any] = signature.bind(*args, **kwargs).arguments
        with exclusive_run(Path(bound["output_dir"]), resume=bound.get("resume", False)):
            return function(*args, **kwargs)

    return locked


@contextmanager
def exclusive_run(out: Path, *, resume: bool) -> Iterator[None]:
    """Lock a run folder; raise InputError if another process has locked it, or there is no run to resume."""
    if resume and not holds_run(out):
        raise _no_run_error(out)
    with atomic.folder_lock(out, "run"):
        yield


@contextmanager
def keeping_runs(out: Path) -> Iterator[None]:
    """Raise Stopped after Ctrl-C between the runs of a folder; a run in training saves itself first."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(
            signal.SIGINT,
            f"{out}: stopped; the runs that have finished are kept",
            f"continue with the same command and {option('resume', True)}",
        ) from None


def holds_run(folder: Path) -> bool:
    """Return True if a run has started in a folder."""
    return (folder / SETTINGS).exists() or newest_name(folder / CHECKPOINTS) is not None


def _no_run_error(out: Path) -> InputError:
    """Return the error for a folder without a run; it suggests runs around it, in it, or next to it."""
    if (names := run_names(out)) is not None:
        message = f"this folder holds {pluralize(len(names), 'run')} and is not a run itself"
        hint = (
            f"to continue all of them, repeat {option('restarts')}, {option('folds')}, or {option('grid')} "
            f"as before; to continue one, use {option('output_dir', _relative(out / names[0]))}"
        )
        return InputError("folder_of_runs", message, location=out, argument="output_dir", hint=hint)
    parents = list(out.absolute().parents)[:3]
    runs = [folder for folder in parents if holds_run(folder)][:1] or _runs_in(out) or _runs_in(parents[0])
    hint = f"to start a new run, remove {option('resume', True)}"
    if runs:
        hint = f"did you mean {' or '.join(map(_relative, runs[:3]))}? {hint[0].upper()}{hint[1:]}"
    message = "this folder holds no run to resume"
    return InputError("run_missing", message, location=out, argument="output_dir", hint=hint)


def _runs_in(folder: Path) -> list[Path]:
    """Return the runs in a folder, the latest first."""
    runs = [path for path in folder.glob("*/") if holds_run(path)]
    return sorted(runs, key=lambda run: run.stat().st_mtime, reverse=True)


def _relative(path: Path) -> str:
    """Return a path relative to the working directory if it is in it."""
    directory = Path.cwd()
    return str(path.relative_to(directory) if path.is_relative_to(directory) else path)


def check_resume(out: Path, *, resume: bool, overwrite: bool = False) -> bool:
    """Return True if `output_dir` holds a run to resume, and False if a new one starts.

    Raises:
        InputError: The folder holds a run and neither `resume` nor `overwrite` is set, or something else.
    """
    check_resume_or_overwrite(out, resume=resume, overwrite=overwrite)
    settings, checkpoint = out / SETTINGS, newest_name(out / CHECKPOINTS)
    if not holds_run(out):
        if out.is_dir():
            atomic.remove_abandoned(out)
        atomic.check_output_folder(out, in_place=True)
        return False
    if overwrite:
        _LAYOUT.check_replaceable(out, overwrite=True, in_place=True)
        return False
    if not resume:
        message = "this folder already holds a run"
        hint = (
            f"continue the run with {option('resume', True)}, or choose another {option('output_dir')}; in "
            "Python, overwrite=True replaces it"
        )
        raise InputError("run_exists", message, location=out, argument="output_dir", hint=hint)
    if not settings.is_file() or not settings.stat().st_size:
        message = (
            f"the file of settings is {'empty' if settings.exists() else 'missing'}, and "
            f"{checkpoint or 'the run'} cannot be continued without it"
        )
        hint = f"restore the file from a backup, or start a new run with another {option('output_dir')}"
        raise InputError("run_settings_missing", message, location=settings, hint=hint)
    if checkpoint is None:
        logger.warning(
            "%s: there is no checkpoint; the run starts again from its first update", out / CHECKPOINTS
        )
    return True


def check_resume_or_overwrite(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Raise InputError if both are set."""
    if resume and overwrite:
        message = f"{option('resume', True)} and {option('overwrite', True)} exclude each other"
        hint = "choose one of the two"
        raise InputError("resume_and_overwrite", message, location=out, hint=hint)


def start_over(out: Path, *inputs: Any) -> None:
    """Remove the run that is to be replaced; raise InputError if inputs of the new run are in it."""
    if holds_run(out):
        check_inputs_outside(out, *inputs)
        atomic.clear_folder(out)


def check_inputs_outside(out: Path, *inputs: Any) -> None:
    """Raise InputError if one of the inputs is a path in the folder to be replaced."""
    for path in inputs:
        if isinstance(path, str | Path) and Path(path).resolve().is_relative_to(out.resolve()):
            message = f"this is an input of the new run, and it is in {out}, which would be replaced"
            hint = f"choose another {option('output_dir')}"
            raise InputError("input_inside_output", message, location=path, argument="output_dir", hint=hint)


def check_folders(out: Path, folders: Mapping[str, ModelParts]) -> None:
    """Raise InputError if a model cannot be written: its folder is not free, or it has no architecture."""
    for name, parts in folders.items():
        check_replaceable(out / name)
        get_family(parts.config.model_type).architecture(parts.modules)


def is_written(out: Path, step: int) -> bool:
    """Return True if the report and the models of a run with this many updates are written."""
    try:
        report = json.loads((out / REPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(report, dict) and report.get("steps") == step and any(out.glob("model*"))


class IntermediateSaver(TrainerCallback):
    """Write the model of an unfinished run, so that a run that is killed leaves a model, too.

    It writes when the run stops, and at checkpoints as often as takes a hundredth of the time.

    Args:
        write: Writes the model folder, given the state of the run and what marks the model as unfinished.
    """

    def __init__(self, write: Callable[[TrainState, dict[str, Any]], None]) -> None:
        self._write, self._next_time = write, 0.0

    def on_save(self, trainer: Trainer, *, is_stopping: bool) -> None:
        """Write the model."""
        if trainer.is_finished:
            return
        with trainer.strategy.unsharded():
            num_updates = trainer.plan.num_updates
            trainer.ranks.run_on_main(lambda: self.save(trainer.state, num_updates, is_stopping=is_stopping))

    def save(self, state: TrainState, num_updates: int, *, is_stopping: bool) -> None:
        """Write the model if it is time to, or if the run stops."""
        start = time.monotonic()
        if not is_stopping and start < self._next_time:
            return
        step = state.step if state.best_step is None else state.best_step
        self._write(state, {"unfinished": {"step": step, "of": num_updates}})
        self._next_time = time.monotonic() + (time.monotonic() - start) / _MAX_SAVING_RATIO


def log_finished(out: Path, output: TrainOutput) -> None:
    """Log that a resumed run has no updates left."""
    logger.info(
        "%s: the run %s; its model is unchanged. To train it further, set a larger budget",
        out,
        output.early_stop or f"is finished after {pluralize(output.state.step, 'update')}",
    )


def write_whole(path: Path, text: str) -> None:
    """Write a file; the old one stays until the new one is on the disk."""
    try:
        atomic.write_text(path, text)
    except OSError as error:
        raise MachineError(
            "file_not_written", f"the file could not be written ({error.strerror})", location=path
        ) from None


def write_json(path: Path, values: Any) -> None:
    """Write values as JSON, as `write_whole` does."""
    write_whole(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def write_report(out: Path, report: Mapping[str, Any]) -> None:
    """Write report.json."""
    write_json(out / REPORT, report)


def read_arguments(file: Path) -> dict[str, Any]:
    """Return the arguments with which the runs of a folder were started."""
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        message = "the file is damaged"
        hint = f"choose another folder with {option('output_dir')}"
        raise InputError("file_damaged", message, location=file, argument="output_dir", hint=hint) from None
