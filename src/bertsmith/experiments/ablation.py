"""One model of an ablation, and what stands on it: pre-trained, fine-tuned for each task, scored; and the recipe
that says how.

    python -P -m bertsmith.experiments.ablation

measures the model that is described on stdin, for `side_by_side`, not for people.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from bertsmith import hardware, log_handlers
from bertsmith.artifacts.folder import read_folder
from bertsmith.artifacts.locate import locate
from bertsmith.corpus.shards import Shards
from bertsmith.errors import BertsmithError, InputError, option, render
from bertsmith.experiments.distillation import student_settings
from bertsmith.finetuning.data import gather
from bertsmith.finetuning.run import finetune
from bertsmith.finetuning.settings import FinetuneSettings, settings_type
from bertsmith.inference.model import Model
from bertsmith.models.config import encoder_parameter_terms
from bertsmith.pretraining.job import check_length
from bertsmith.pretraining.model_init import first_weights
from bertsmith.pretraining.resolve_settings import asked_for, resolved
from bertsmith.pretraining.run import pretrain
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.runs.run_folder import holds_run, write_whole
from bertsmith.settings import Settings, read_yaml
from bertsmith.tasks.task import task_type
from bertsmith.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

PAIRS = "minimal pairs"
SEED, PRECISION = "train.seed", "train.precision"
_TEACHER = "objective.teacher"
SMALL = 30e6  # parameters of an encoder: larger ones keep several cores busy by themselves
PRETRAIN = "pretrain"  # the folder of a row's pre-training, beside those of its tasks


class TaskRecipe(Settings):
    """A task that each model is fine-tuned for."""

    verb: str = Field("classify", description="a verb of finetune")
    train: str = Field("", description="its training file")
    validation: str = Field("", description="the file that decides")
    settings: dict[str, Any] = Field(default_factory=dict, description="of fine-tuning, by their names")


class AblationRecipe(Settings):
    """A table: what its rows change, and what the paper found."""

    title: str = Field("", description="what is compared")
    source: str = Field("", description="the paper and its table")
    preset: str | None = Field(None, description="sizes of all models; none: bert-mini-uncased")
    data: str | None = Field(None, description="token shards, where none are named beside the recipe")
    tasks: str | dict[str, dict[str, Any]] | None = Field(
        None,
        description="what each model is fine-tuned for, where none are named beside the recipe: names with verb, "
        "train, validation and settings below them, or a file of these",
    )
    pairs: str | None = Field(None, description="minimal pairs, where none are named beside the recipe")
    settings: dict[str, Any] = Field(default_factory=dict, description="of all rows, by their names")
    rows: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="what each row changes; the first is the one the others are compared with; rows that change "
        "the same share a model",
    )
    task_settings: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="what a row changes in fine-tuning, of every task"
    )
    beside: dict[str, str] = Field(
        default_factory=dict,
        description="beside which row's model a row's is fine-tuned, their states joined",
    )
    losses: list[str] = Field(
        default_factory=lambda: ["mlm_loss"],
        description="held-out figures that all rows have; less is better where a name ends in loss or perplexity",
    )
    paper: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="the paper's figures by their names, row by row; higher is better"
    )


def read_recipe(file: str | Path) -> AblationRecipe:
    """A recipe. InputError for what is no recipe, for rows of one folder, and for a paper's row that is none."""
    values = read_yaml(file)
    if isinstance(rows := values.get("rows"), dict):
        values["rows"] = {name: {} if own is None else own for name, own in rows.items()}
    recipe = AblationRecipe.of(values, str(file))
    if len(recipe.rows) < 2:
        raise InputError(
            "rows_missing",
            "a recipe needs at least two rows",
            location=file,
            hint="list them below 'rows', each with the settings that it changes",
        )
    refuse_one_folder(recipe.rows, str(file))
    for own in (recipe.settings, *recipe.rows.values(), *recipe.task_settings.values()):
        refuse_seed(own, str(file))
    named: dict[str, Mapping[str, Any]] = {
        **recipe.paper,
        "task_settings": recipe.task_settings,
        "beside": {**recipe.beside, **{other: row for row, other in recipe.beside.items()}},
    }
    for name, figures in named.items():
        if strange := [row for row in figures if row not in recipe.rows]:
            raise InputError(
                "row_unknown",
                f"'{name}' names the row '{strange[0]}', which does not exist",
                location=file,
                hint=f"the rows are {', '.join(recipe.rows)}",
            )
    return recipe


@dataclass(frozen=True)
class Measurement:
    """What is measured of some rows with one seed. out: the ablation's folder; data: of the shards; precision: of
    each fine-tuning whose task names none, "auto": each chooses."""

    recipe: AblationRecipe
    rows: Sequence[str]
    seed: int
    out: Path
    data: Path
    tasks: Mapping[str, TaskRecipe]
    pairs: str | None
    settings: Mapping[str, Any]
    precision: str = "auto"

    def measured(self) -> dict[str, dict[str, float]]:
        """The figures of each row. What is finished stays, what was interrupted continues."""
        return {row: self._row(row) for row in self.rows}

    def to_json(self) -> dict[str, Any]:
        """All of it, for another process."""
        return {
            "recipe": self.recipe.model_dump(mode="json"),
            "rows": list(self.rows),
            "seed": self.seed,
            "out": str(self.out),
            "data": str(self.data),
            "tasks": {name: task.model_dump(mode="json") for name, task in self.tasks.items()},
            "pairs": self.pairs,
            "settings": dict(self.settings),
            "precision": self.precision,
        }

    @classmethod
    def of_json(cls, said: Mapping[str, Any]) -> Measurement:
        """What `to_json` gave."""
        tasks = {name: TaskRecipe.of(task, name) for name, task in said["tasks"].items()}
        paths = {"out": Path(said["out"]), "data": Path(said["data"])}
        return cls(**{**said, **paths, "recipe": AblationRecipe.of(said["recipe"], "recipe"), "tasks": tasks})

    def place(self, row: str) -> Path:
        """The folder of a row's runs with this seed."""
        return self.out / folder_of(row) / str(self.seed)

    def _row(self, row: str) -> dict[str, float]:
        place, model = self.place(row), self._model(row)
        beside = None if row not in self.recipe.beside else self._model(self.recipe.beside[row])
        held = model.report["held_out"]
        found = {name: float(held[name]) for name in self.recipe.losses if name in held}
        for name, task in self.tasks.items():
            found[name] = self._fine_tuned(row, place / folder_of(name), model, beside, task)
        if self.pairs is not None:
            found[PAIRS] = _scored(model, self.pairs)
        return found

    def _model(self, row: str) -> Model:
        """A row's pre-trained model, trained now if it is not there."""
        run = self.place(pretrained_as(self.recipe, row)) / PRETRAIN
        preset, own = begun_with(self.recipe, row, self.settings)
        return pretrain(
            Shards.open(self.data),
            run,
            preset=preset,
            settings={**own, SEED: self.seed},
            resume=holds_run(run),
        )

    def _fine_tuned(
        self,
        row: str,
        run: Path,
        model: Model,
        beside: Model | None,
        task: TaskRecipe,
    ) -> float:
        joined = {} if beside is None else {"task.beside": str(beside.path)}
        own = task_settings(self.recipe, row, task)
        settings = {**own, **joined, SEED: self.seed}
        if PRECISION not in own:
            settings[PRECISION] = self.precision
        made = finetune(
            task.verb,
            model,
            run,
            train=task.train,
            validation=task.validation,
            settings=settings,
            resume=holds_run(run),
        )
        return float(made.report["dev"][made.task.decides])


def folder_of(row: str) -> str:
    """A row's name as a folder's."""
    return "".join(c if c.isalnum() else "-" for c in row).strip("-") or "row"


def refuse_one_folder(names: Iterable[str], place: str) -> None:
    """InputError where two names would have the same folder."""
    owners: dict[str, str] = {}
    for name in names:
        if (owner := owners.setdefault(folder_of(name), name)) != name:
            raise InputError(
                "folder_ambiguous",
                f"'{owner}' and '{name}' would have the same folder, {folder_of(name)}",
                location=place,
                hint="choose names that differ in a letter or a digit",
            )


def refuse_seed(settings: Mapping[str, Any], place: str | None, argument: str | None = None) -> None:
    """Raise InputError if settings name the seed, which is different in each run."""
    if SEED in FinetuneSettings.dotted(settings):
        raise InputError(
            "seed_set",
            f"{SEED} is set, but the runs have the seeds 0, 1, …",
            location=place,
            argument=argument,
            hint=f"omit it; {option('seeds')} sets the number of seeds",
        )


def pretrained_as(recipe: AblationRecipe, row: str) -> str:
    """The first row whose settings of pre-training are this row's: their models are one."""
    return next(other for other, settings in recipe.rows.items() if settings == recipe.rows[row])


def begun_with(
    recipe: AblationRecipe, row: str, settings: Mapping[str, Any]
) -> tuple[str | None, dict[str, Any]]:
    """The preset and the settings of a row's pre-training. Where the recipe names no preset, a student has the
    sizes of its teacher's student."""
    own = {
        **PretrainSettings.dotted(recipe.settings),
        **PretrainSettings.dotted(recipe.rows[row]),
        **settings,
    }
    if recipe.preset is None and _TEACHER in own:
        preset, sizes = student_settings(read_folder(locate(own[_TEACHER])))
        return preset, {**sizes, **own}
    return recipe.preset, own


def task_settings(recipe: AblationRecipe, row: str, task: TaskRecipe) -> dict[str, Any]:
    """Those of the task, over them those of the row."""
    kind = settings_type(task_type(task.verb))
    return {**kind.dotted(task.settings), **kind.dotted(recipe.task_settings.get(row, {}))}


def _scored(model: Model, pairs: str) -> float:
    """The accuracy on minimal pairs, kept beside the model's run."""
    file = model.path.parent / "pairs.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if known.get("file") != pairs:
        known = {"file": pairs, "accuracy": model.score_pairs(pairs)["accuracy"]}
        write_whole(file, json.dumps(known) + "\n")
    return float(known["accuracy"])


def check_tasks(
    recipe: AblationRecipe, rows: Sequence[str], tasks: Mapping[str, TaskRecipe], place: str
) -> None:
    """InputError for settings of fine-tuning that a task does not have, and then for files that it cannot read:
    before any model is pre-trained."""
    every: dict[str, tuple[str, str, FinetuneSettings]] = {}
    for name, task in tasks.items():
        with _in_place(f"{place}: '{name}'"):
            refuse_seed(task.settings, "settings")
            chosen = settings_type(task_type(task.verb)).of(
                {"files": {"train": task.train, "validation": task.validation}}, "settings"
            )
        for row in rows:
            with _in_place(f"{place}: '{name}' of the row '{row}': finetune {task.verb}"):
                own = chosen.changed(task_settings(recipe, row, task))
                every.setdefault(f"{name} {own.to_yaml()}", (name, task.verb, own))
    for name, verb, own in every.values():
        with (
            _in_place(f"{place}: '{name}': finetune {verb}"),
            options_as_settings(verb),
        ):
            gather(task_type(verb).variant(own.task), own.files, own.task)


@contextmanager
def options_as_settings(verb: str) -> Iterator[None]:
    """Name settings of the task in place of options of `finetune` in the hint of an InputError."""
    fields = task_type(verb).settings_type.model_fields

    def setting(match: re.Match[str]) -> str:
        name = match[1].replace("-", "_")
        return f"the setting task.{name}" if name in fields else match[0]

    try:
        yield
    except InputError as error:
        if error.hint:
            error.hint = re.sub(r"--([a-z]+(?:-[a-z]+)*)", setting, render(error.hint, "command line"))
        raise


def check_row(
    recipe: AblationRecipe, row: str, tokenizer: Tokenizer, settings: Mapping[str, Any], place: str | Path
) -> PretrainSettings:
    """What a row is pre-trained with. InputError for one that cannot be as it is asked for, before any is. Large
    models are not made for that: of them settings alone are checked."""
    with _in_place(f"{place}: row '{row}'"):
        preset, own = begun_with(recipe, row, settings)
        chosen = resolved(*asked_for(preset, None), None, own, tokenizer)
        check_length(chosen)
        if sum(term.size for term in encoder_parameter_terms(chosen.model)) <= SMALL:
            first_weights(chosen, torch.Generator())[1].check_tokenizer(tokenizer)
    return chosen


@contextmanager
def _in_place(place: str) -> Iterator[None]:
    """Prefix the location of an InputError with a place."""
    try:
        yield
    except InputError as error:
        error.message = error.message.removeprefix("--set: ")
        error.location = place if error.location is None else f"{place}: {error.location}"
        raise


def main() -> None:
    """Measure what stdin describes, and write the figures, or what went wrong, to the file it names."""
    said = json.load(sys.stdin)
    log_handlers.install(log_handlers.ConsoleHandler())
    hardware.configure_process()
    try:
        answer: dict[str, Any] = {"found": Measurement.of_json(said["work"]).measured()}
    except BertsmithError as error:
        answer = {"error": error.to_dict()}
    write_whole(Path(said["answer"]), json.dumps(answer))


if __name__ == "__main__":
    main()
