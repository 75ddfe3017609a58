"""The recipe of an ablation: the settings of each row, the tasks, and the paper's results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from bertsmith.artifacts.folder import read_folder
from bertsmith.artifacts.locate import locate
from bertsmith.errors import InputError, name_as_settings, option
from bertsmith.experiments.distillation import student_settings
from bertsmith.finetuning.data import load_examples
from bertsmith.finetuning.settings import FinetuneSettings, settings_type
from bertsmith.models.config import ModelConfig
from bertsmith.models.parameter_count import encoder_parameter_terms
from bertsmith.pretraining.data import check_lengths
from bertsmith.pretraining.model import first_weights
from bertsmith.pretraining.resolve_settings import new_settings
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.settings import Settings, read_yaml
from bertsmith.tasks.registry import get_task
from bertsmith.tokenizer.tokenizer import Tokenizer

PAIRS = "minimal pairs"
"""The name of the accuracy on minimal pairs in the report."""
PRETRAIN = "pretrain"
"""The subfolder of a row's pre-training run; those of fine-tuning runs are named after the tasks."""
SEED = "train.seed"
SEEDS = 3
"""The default number of seeds."""
_SMALL_MODEL = 30e6  # parameters of an encoder; larger ones keep several cores busy


class TaskRecipe(Settings):
    """A task for which each model is fine-tuned."""

    verb: str = Field("classify", description="a verb of finetune")
    train: str = Field("", description="the training data")
    validation: str = Field("", description="the validation data")
    settings: dict[str, Any] = Field(default_factory=dict, description="settings of fine-tuning")


class AblationRecipe(Settings):
    """The rows of a table, the settings that each changes, and the paper's results."""

    title: str = Field("", description="the title of the table")
    source: str = Field("", description="the paper and its table")
    preset: str | None = Field(None, description="sizes of all models; none: bert-mini-uncased")
    departures: dict[str, str] = Field(
        default_factory=dict,
        description="what differs from the paper, by subject: data, model, budget, optimizer, seeds, …",
    )
    data: str | None = Field(None, description="token shards, unless named next to the recipe")
    tasks: str | dict[str, dict[str, Any] | None] | None = Field(
        None,
        description="tasks, unless named next to the recipe: names with verb, train, validation, and settings "
        "below, or a file of these",
    )
    pairs: str | None = Field(None, description="minimal pairs, unless named next to the recipe")
    settings: dict[str, Any] = Field(default_factory=dict, description="settings of all pre-training runs")
    rows: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="settings of each row's pre-training; the others are compared with the first; rows with equal "
        "settings share a model",
    )
    task_settings: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="settings of a row's fine-tuning, for every task"
    )
    second_encoder: dict[str, str] = Field(
        default_factory=dict,
        description="the row whose model is a row's second encoder in fine-tuning; hidden states are concatenated",
    )
    losses: list[str] = Field(
        default_factory=lambda: ["mlm_loss"],
        description="metrics on held-out documents; lower is better if a name ends in loss or perplexity",
    )
    paper: dict[str, dict[str, float]] = Field(
        default_factory=dict,
        description="the paper's results by metric and row; lower is better if a name ends in loss or perplexity",
    )
    quoted: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="the paper's results of further rows, which are not run"
    )

    def check_row_names(self, rows: Iterable[str], argument: str, location: str | Path) -> None:
        """Raise InputError if a row does not exist."""
        if unknown := [row for row in rows if row not in self.rows]:
            message = f"'{argument}' names the row '{unknown[0]}', which does not exist"
            hint = f"the rows are {', '.join(self.rows)}"
            raise InputError("row_unknown", message, location=location, argument=argument, hint=hint)

    def model_row(self, row: str) -> str:
        """Return the first row with the same pre-training, in whose folder the model is."""
        return next(other for other, settings in self.rows.items() if settings == self.rows[row])

    def pretraining(self, row: str, changes: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
        """Return the preset and the settings of a row's pre-training; sizes of a student are its teacher's."""
        shared, row_settings = map(PretrainSettings.dotted, (self.settings, self.rows[row]))
        settings = {**shared, **row_settings, **changes}
        if self.preset is None and "objective.teacher" in settings:
            preset, student = student_settings(read_folder(locate(settings["objective.teacher"])))
            return preset, {**student, **settings}
        return self.preset, settings

    def finetuning(self, row: str, task: TaskRecipe) -> dict[str, Any]:
        """Return the settings of a row's fine-tuning: those of the task, changed by those of the row."""
        settings_class = settings_type(get_task(task.verb))
        changes = self.task_settings.get(row, {})
        return {**settings_class.dotted(task.settings), **settings_class.dotted(changes)}


def read_recipe(file: str | Path) -> AblationRecipe:
    """Read a recipe.

    Raises:
        InputError: It is invalid, two rows have the same folder, or it names a row that does not exist.
    """
    values = read_yaml(file)
    if isinstance(rows := values.get("rows"), dict):
        values["rows"] = {name: {} if settings is None else settings for name, settings in rows.items()}
    recipe = AblationRecipe.of(values, str(file))
    if len(recipe.rows) < 2:
        hint = "list them below 'rows', each with the settings that it changes"
        raise InputError("rows_missing", "a recipe needs at least two rows", location=file, hint=hint)
    check_folders_differ(recipe.rows, str(file))
    for settings in (recipe.settings, *recipe.rows.values(), *recipe.task_settings.values()):
        check_no_seed(settings, location=file)
    references: dict[str, Iterable[str]] = {
        **recipe.paper,
        "task_settings": recipe.task_settings,
        "second_encoder": [*recipe.second_encoder, *recipe.second_encoder.values()],
    }
    for name, rows in references.items():
        recipe.check_row_names(rows, name, file)
    return recipe


def read_tasks(
    tasks: str | Path | Mapping[str, Any] | None, recipe: AblationRecipe, recipe_file: str | Path
) -> tuple[dict[str, TaskRecipe], str]:
    """Return the tasks of a mapping or a YAML file, by default the recipe's, and their location for messages.

    Raises:
        InputError: A task is invalid, or its name is used for something else.
    """
    location = f"{recipe_file}: tasks" if tasks is None else "tasks"
    tasks = (recipe.tasks or {}) if tasks is None else tasks
    if not isinstance(tasks, Mapping):
        location, tasks = str(tasks), read_yaml(tasks)
    recipes = {}
    for name, values in tasks.items():
        if not isinstance(values, Mapping):
            message = f"'{name}' is {values!r}, not a task"
            hint = "write verb, train, and validation below it, indented"
            raise InputError("task_invalid", message, location=location, hint=hint)
        if folder_name(name) == PRETRAIN or name in (*recipe.losses, PAIRS):
            message = f"'{name}' is the name of another metric or of the folder of pre-training"
            hint = "give the task another name"
            raise InputError("task_name_reserved", message, location=location, hint=hint)
        recipes[name] = TaskRecipe.of(values, f"{location}: {name}")
    check_folders_differ(recipes, location)
    return recipes, location


def folder_name(name: str) -> str:
    """Return the folder name for a row, a task, or a metric."""
    return "".join(c if c.isalnum() else "-" for c in name).strip("-") or "row"


def check_folders_differ(names: Iterable[str], location: str) -> None:
    name_of_folder: dict[str, str] = {}
    for name in names:
        folder = folder_name(name)
        if (other := name_of_folder.setdefault(folder, name)) != name:
            message = f"'{other}' and '{name}' would have the same folder, {folder}"
            hint = "choose names that differ in a letter or a digit"
            raise InputError("folder_ambiguous", message, location=location, hint=hint)


def check_no_seed(settings: Mapping[str, Any], *, location: Any = None, argument: str | None = None) -> None:
    """Raise InputError if settings name the seed, which is different in each run."""
    if SEED in FinetuneSettings.dotted(settings):
        message = f"{SEED} is set, but the runs have the seeds 0, 1, …"
        hint = f"omit it; {option('seeds')} sets the number of seeds"
        raise InputError("seed_set", message, location=location, argument=argument, hint=hint)


def check_rows(
    recipe: AblationRecipe,
    rows: Sequence[str],
    tokenizer: Tokenizer,
    changes: Mapping[str, Any],
    location: str | Path,
) -> list[PretrainSettings]:
    """Return the complete pre-training settings of each row.

    Raises:
        InputError: A row's model cannot be pre-trained with them. Of large models only the settings are checked.
    """
    all_settings = []
    for row in rows:
        with errors_located_in(f"{location}: row '{row}'"):
            if undone := PretrainSettings.dotted(recipe.rows[row]).keys() & changes.keys():
                name = min(undone)
                message = f"{option('settings', f'{name}={changes[name]}')} would override {name} of this row"
                hint = "change the rows in a copy of the recipe"
                raise InputError("setting_of_row", message, argument=name, hint=hint)
            preset, row_changes = recipe.pretraining(row, changes)
            settings = new_settings(preset, None, row_changes, tokenizer)
            check_lengths(settings)
            if is_small(settings.model):
                first_weights(settings, torch.Generator())[1].check_tokenizer(tokenizer)
        all_settings.append(settings)
    return all_settings


def is_small(config: ModelConfig) -> bool:
    """Return True if one core is enough for a model."""
    return sum(term.size for term in encoder_parameter_terms(config)) <= _SMALL_MODEL


def check_tasks(
    recipe: AblationRecipe, rows: Sequence[str], tasks: Mapping[str, TaskRecipe], location: str
) -> None:
    """Raise InputError for invalid settings of fine-tuning, and for files that a task cannot read."""
    checked = set()
    for name, task in tasks.items():
        check_no_seed(task.settings, location=f"{location}: '{name}'")
        for row in rows:
            with errors_located_in(f"{location}: '{name}' of the row '{row}'"):
                settings_class = settings_type(get_task(task.verb))
                files = {"train": task.train, "validation": task.validation}
                changes = recipe.finetuning(row, task)
                settings = settings_class.of({"files": files}, "settings").changed(changes)
                if (task.verb, yaml := settings.to_yaml()) not in checked:
                    check_task_files(task.verb, settings)
                checked.add((task.verb, yaml))


def check_task_files(verb: str, settings: FinetuneSettings) -> None:
    """Raise InputError if a task cannot read its files; hints name settings instead of options of `finetune`."""
    task = get_task(verb)
    try:
        load_examples(task, settings.files, settings.task)
    except InputError as error:
        error.change_hint(partial(_name_task_settings, task.settings_type.model_fields))
        raise


def _name_task_settings(names: Collection[str], hint: str) -> str:
    """Return a hint whose options of `finetune` are settings, and say where these are."""
    changed = name_as_settings(hint, names, "task")
    return hint if changed == hint else f"{changed}, in the settings of the task"


@contextmanager
def errors_located_in(location: str) -> Iterator[None]:
    """Prefix the location of an InputError."""
    try:
        yield
    except InputError as error:
        error.location = location if error.location is None else f"{location}: {error.location}"
        raise
