"""Run folders: check them, lock them, and write their files whole or not at all."""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bertsmith.artifacts.folder import MODEL_LAYOUT, check_replaceable, write_folder
from bertsmith.artifacts.locate import read_report
from bertsmith.errors import InputError, Stopped, option
from bertsmith.formatting import pluralize
from bertsmith.io import atomic
from bertsmith.io.folder_layout import FolderLayout, in_folder
from bertsmith.io.jsonl import load_json
from bertsmith.models.family import get_family
from bertsmith.objectives.objective import GENERATOR, MODEL, ModelParts
from bertsmith.runs.compute_setup import without_other_budgets
from bertsmith.settings import Settings
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.training.callbacks import TrainerCallback
from bertsmith.training.checkpoint import LAYOUT as CHECKPOINT_LAYOUT
from bertsmith.training.checkpoint import newest_name
from bertsmith.training.settings import TrainSettings
from bertsmith.training.training_job import TrainOutput, TrainState

if TYPE_CHECKING:
    from bertsmith.training.trainer import Trainer

logger = logging.getLogger(__name__)

SETTINGS, CHECKPOINTS, REPORT = "settings.yaml", "checkpoints", "report.json"
_MAX_SAVING_RATIO = 0.01  # of the time may be spent on writing models of the unfinished run

_CHOSEN_AT_START = {  # settings that the run chooses when it starts, with the values that let it
    "train.precision": "auto",
    "train.device": "auto",
    "train.kernels": "auto",
    "train.threads": None,
    "train.eval_steps": None,
}

RUN_LAYOUT = FolderLayout(
    "a run",
    SETTINGS,
    (
        SETTINGS,
        REPORT,
        "report.html",
        "log.jsonl",
        "plan.jsonl",
        "speed.jsonl",
        "trackers.json",
        "figures/*.png",
        "tensorboard/events.*",
        "split/*.jsonl",
        "features/*.f32",
        "checkpoints/best-*.safetensors",
        *in_folder(f"{CHECKPOINTS}/step-*", CHECKPOINT_LAYOUT.patterns),
        *(path for name in (MODEL, GENERATOR) for path in in_folder(name, MODEL_LAYOUT.patterns)),
    ),
)


AnySettings = TypeVar("AnySettings", bound=Settings)


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


def check_resume(out: Path, *, resume: bool, overwrite: bool = False) -> bool:
    """Return True if `output_dir` holds a run to resume, and False if a new one starts.

    A run that was killed before it saved anything is replaced by a new one, unless `resume` is set.

    Raises:
        InputError: The folder holds a run and neither `resume` nor `overwrite` is set, or something else.
    """
    check_resume_or_overwrite(out, resume=resume, overwrite=overwrite)
    settings, checkpoint = out / SETTINGS, newest_name(out / CHECKPOINTS)
    is_saved = checkpoint is not None or any((out / name).exists() for name in (MODEL, GENERATOR, REPORT))
    if holds_run(out) and (overwrite or not (resume or is_saved)):
        RUN_LAYOUT.check_replaceable(out, overwrite=True, in_place=True)
        return False
    check_new_or_resume(out, is_started=holds_run(out), resume=resume, can_overwrite=True)
    if not holds_run(out):
        if resume:
            logger.info("%s: there is no run to resume; a new one starts", out)
        return False
    if not settings.is_file() or not settings.stat().st_size:
        message = (
            f"the file of settings is {'empty' if settings.exists() else 'missing'}, and "
            f"{checkpoint or 'the run'} cannot be continued without it"
        )
        hint = f"restore the file from a backup, or start a new run with another {option('output_dir')}"
        raise InputError("run_settings_missing", message, location=settings, hint=hint)
    if checkpoint is None:
        message = "%s: there is no checkpoint; the run starts again from its first update"
        logger.warning(message, out / CHECKPOINTS)
    return True


def check_new_or_resume(out: Path, *, is_started: bool, resume: bool, can_overwrite: bool = False) -> None:
    """Raise InputError if a folder holds a run or an experiment and `resume` is not set, or something else.

    Args:
        out: The folder.
        is_started: True if the folder holds what can be resumed.
        resume: Continue it.
        can_overwrite: The caller has the argument `overwrite`.
    """
    if not is_started:
        atomic.check_output_folder(out, in_place=True)
        return
    atomic.check_files(out)
    if not resume:
        message = "this folder already holds a run"
        resume_option, output_option = option("resume", True), option("output_dir")
        hint = f"continue it with {resume_option}, choose another {output_option}, or remove the folder"
        hint += "; in Python, overwrite=True replaces it" if can_overwrite else ""
        raise InputError("run_exists", message, location=out, argument="output_dir", hint=hint)


def check_resume_or_overwrite(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Raise InputError if both are set."""
    if resume and overwrite:
        message = f"{option('resume', True)} and {option('overwrite', True)} exclude each other"
        hint = "choose one of the two"
        raise InputError("resume_and_overwrite", message, location=out, hint=hint)


def settings_of_run(settings_class: type[AnySettings], out: Path, changes: Mapping[str, Any]) -> AnySettings:
    """Return the settings with which a run continues.

    Args:
        settings_class: The class of the settings.
        out: The run folder.
        changes: Settings as in the command that started the run, or others that may change. A budget replaces the
            run's. Values that let the run choose, such as train.precision=auto, keep its choice.

    Raises:
        InputError: A changed setting would change the results.
    """
    before = settings_class.from_file(out / SETTINGS)
    changes = without_other_budgets(changes)
    requested = before.changed(changes).flat()
    left_open = {name for name, value in _CHOSEN_AT_START.items() if requested[name] == value}
    after = before.changed({name: value for name, value in changes.items() if name not in left_open})
    old_values = before.flat()
    for name, value in after.flat().items():
        if value == old_values[name]:
            continue
        if name not in settings_class.may_change():
            message = f"this run has {name}={old_values[name]}, and it cannot continue with {name}={value}"
            hint = f"remove {option(name)}, or start a new run with another {option('output_dir')}"
            raise InputError("setting_differs_from_run", message, location=out, argument=name, hint=hint)
        if name == "train.kernels":
            logger.warning(
                "computing with train.kernels=%s from here on, not %s: numbers are rounded differently, so the "
                "run is no longer bit-identical to an uninterrupted one",
                value,
                old_values[name],
            )
    return after


def start_run(out: Path, settings: Settings, *inputs: Any) -> None:
    """Remove the run that is to be replaced, and write the settings of the new one.

    Raises:
        InputError: One of the inputs of the new run is in the folder of the old one.
    """
    if holds_run(out):
        check_inputs_outside(out, *inputs)
        atomic.clear_folder(out)
    write_whole(out / SETTINGS, settings.to_yaml())


def finish_run(
    out: Path, output: TrainOutput, save: Callable[[TrainOutput], None], *, resuming: bool
) -> None:
    """Save the model and the report of a run, unless they are saved and the resumed run had no updates left."""
    step, is_finished = output.state.step, resuming and not output.num_new_updates
    if is_finished and read_report(out / REPORT).get("steps") == step and any(out.glob("model*")):
        message = "%s: the run %s; its model is unchanged. To train it further, set a larger budget"
        logger.info(message, out, output.early_stop or f"is finished after {pluralize(step, 'update')}")
    else:
        save(output)


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


def write_models(
    out: Path, folders: Mapping[str, ModelParts], tokenizer: Tokenizer, record: Mapping[str, Any]
) -> None:
    """Write the model folders of a run, each with the record in bertsmith.json."""
    for name, parts in folders.items():
        write_folder(
            out / name,
            parts.config,
            parts.modules,
            tokenizer=tokenizer,
            labels=parts.labels,
            problem_type=parts.problem_type,
            record=record,
            json_files=parts.files,
        )


class IntermediateSaver(TrainerCallback):
    """Write the model of an unfinished run, so that a run that is killed leaves a model, too.

    It writes when the run stops, and at checkpoints as often as takes a hundredth of the time.

    Args:
        write: Writes the model folder, given the state of the run and what marks the model as unfinished.
    """

    saves_unfinished_model = True

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


def write_whole(path: Path, text: str) -> None:
    """Write a file; the old one stays until the new one is on the disk."""
    with atomic.write_errors(path):
        atomic.write_text(path, text)


def write_json(path: Path, values: Any) -> None:
    """Write values as JSON, as `write_whole` does."""
    write_whole(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def training_record(train: TrainSettings, output: TrainOutput) -> dict[str, Any]:
    """Return the part of report.json about the training."""
    state = output.state
    return {
        "steps": state.step,
        "tokens": state.tokens,
        "seconds": round(state.seconds, 1),
        "tokens_per_second": round(state.tokens / max(state.seconds, 1e-9), 1),
        "precision": train.precision,
        "device": train.device,
        "threads": output.threads,
    }


def write_report(out: Path, report: Mapping[str, Any]) -> None:
    """Write report.json."""
    write_json(out / REPORT, report)


def previous_arguments(file: Path, arguments: Mapping[str, Any], *, resume: bool) -> dict[str, Any]:
    """Return the arguments that an experiment in the folder of a file was started with; {} for a new one.

    Args:
        file: The file of the arguments.
        arguments: The new arguments, which must equal those of the same name in the file.
        resume: Continue the experiment.

    Raises:
        InputError: The folder holds something else, or an experiment with other arguments.
    """
    out = file.parent
    check_new_or_resume(out, is_started=file.exists(), resume=resume)
    if not file.exists():
        return {}
    hint = f"resume with the same arguments, or choose another folder with {option('output_dir')}"
    try:
        previous = dict(load_json(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise InputError("file_damaged", "the file is damaged", location=file, hint=hint) from None
    for name, value in json.loads(json.dumps(arguments)).items():
        if previous.get(name, value) != value:
            message = f"this folder has another {name}: {previous[name]!r:.60}, not {value!r:.60}"
            raise InputError("arguments_differ", message, location=out, argument=name, hint=hint)
    return previous
