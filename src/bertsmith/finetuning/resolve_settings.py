"""The settings of a fine-tuning run from arguments, a recipe, and changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError, option
from bertsmith.finetuning.settings import FinetuneSettings, settings_type
from bertsmith.inference.model import Model
from bertsmith.io.sources import Source, name_of
from bertsmith.runs.compute_setup import without_other_budgets
from bertsmith.runs.settings import settings_of_run
from bertsmith.settings import read_yaml
from bertsmith.tasks.base import TaskData
from bertsmith.tasks.fitted_task import check_max_length
from bertsmith.tasks.labels import LabelNames, label_names_to_list, read_label_names
from bertsmith.tasks.registry import Task


def file_settings(
    train: Source,
    validation: Source | None = None,
    validation_split: float | None = None,
    sample: int | None = None,
    label_names: str | Path | LabelNames | None = None,
) -> dict[str, Any]:
    """Return the arguments of `finetune` that name examples as settings, without those that are None."""
    values = {
        "train": name_of(train, "train"),
        "validation": None if validation is None else name_of(validation, "validation"),
        "validation_split": validation_split,
        "sample": sample,
        "label_names": None if label_names is None else label_names_to_list(read_label_names(label_names)),
    }
    return {name: value for name, value in values.items() if value is not None}


def new_settings(
    task: Task, base: Model, files: Mapping[str, Any], recipe: str | Path | None, changes: Mapping[str, Any]
) -> FinetuneSettings:
    """Return the settings of a new run: of the recipe, the files, and the changes.

    Values that the task leaves open are those of the base model.

    Args:
        task: The task.
        base: The base model.
        files: The settings of the group `files`, as from `file_settings`.
        recipe: A YAML file of settings.
        changes: Settings by their full names.

    Raises:
        InputError: The settings name another model, or the model does not support them.
    """
    path, folder = str(base.path), base.folder
    values = read_yaml(recipe) if recipe is not None else {}
    values = {**values, "base": path, "files": {**(values.get("files") or {}), **files}}
    settings = settings_type(task).of(values, str(recipe or "settings"))
    settings = settings.changed(without_other_budgets(changes))
    if settings.base != path:
        message = f"base is {settings.base} in the settings, and the model is {path}"
        hint = f"name the model with {option('model')} only"
        raise InputError("base_differs", message, argument="base", hint=hint)
    _check_no_minutes(settings.train.max_minutes)
    data: TaskData = task.part("data")(settings.task, {})
    task_settings = data.resolve_settings(folder.path, folder.config.max_length)
    check_max_length(task_settings, folder.config.max_length)
    return settings.model_copy(update={"task": task_settings})


def resumed_settings(
    task: Task, out: Path, files: Mapping[str, Any], recipe: str | Path | None, changes: Mapping[str, Any]
) -> tuple[FinetuneSettings, dict[str, Any]]:
    """Return the settings of a run that is resumed, and those of recipe, files, and changes by dotted names.

    Raises:
        InputError: Recipe, files, or changes differ from the run's settings where these must not change.
    """
    run_type = settings_type(task)
    values = read_yaml(recipe) if recipe is not None else {}
    named = {**run_type.dotted(values), **run_type.dotted({"files": dict(files)}), **changes}
    _check_no_minutes(named.get("train.max_minutes"))
    return settings_of_run(run_type, out, named), named


def _check_no_minutes(max_minutes: float | None) -> None:
    if max_minutes is not None:
        message = "train.max_minutes is a setting of pre-training only"
        hint = "set train.num_train_epochs or train.max_steps"
        raise InputError("minutes_in_finetuning", message, argument="train.max_minutes", hint=hint)
