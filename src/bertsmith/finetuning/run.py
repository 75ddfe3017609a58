"""`bertsmith finetune TASK`: a pre-trained model and labelled examples → a model for the task, in a run folder."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertsmith import hardware
from bertsmith.errors import InputError
from bertsmith.finetuning.data import write_split
from bertsmith.finetuning.feature_cache import FEATURES, forget_states
from bertsmith.finetuning.job import FineTuning
from bertsmith.finetuning.settings import OWN_ARGUMENTS, FinetuneSettings, new_settings, settings_type
from bertsmith.inference.model import Model, load
from bertsmith.io.memory import Source, is_path, name_of
from bertsmith.models.parameter_count import count_parameters
from bertsmith.runs.compute_setup import aim_of, footing, without_other_budgets
from bertsmith.runs.run_folder import (
    SETTINGS,
    bare_place,
    check_folders,
    goes_on,
    is_written,
    log_finished,
    run_alone,
    settings_of_run,
    start_over,
    with_recipe,
    write_whole,
)
from bertsmith.settings import Changes, read_yaml, resolve
from bertsmith.tasks.label_names import as_listed, names_of
from bertsmith.tasks.labels import Names
from bertsmith.tasks.task import Task, refuse_too_long, task_type
from bertsmith.training.trainer import train

logger = logging.getLogger(__name__)


@run_alone
def finetune(
    task: str,
    model: str | Path | Model,
    output_dir: str | Path,
    *,
    train: Source,
    validation: Source | None = None,
    validation_split: float | None = None,
    sample: int | None = None,
    label_names: str | Path | Names | None = None,
    recipe: str | Path | None = None,
    settings: Changes = (),
    states: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    **keywords: Any,
) -> Model:
    """Fine-tune a model for a task, and keep the weights of the best epoch.

    task: a name in `bertsmith.tasks.registry.TASKS`. train, validation: files as the task reads them, or data in
    memory with the same columns: a table (pandas, polars, pyarrow), a dataset, a dict of columns, a list of
    dicts, or of tuples such as (text, label). Without it, `validation_split` of train is held out, each label in
    its proportion and equal texts on one side, and both parts are written into output_dir/split. sample: use that
    many examples of train. Sample and split depend on files.seed; train.seed draws the head and the order.
    label_names: names for labels that are numbers, in their order, or the name of each code, or a file of either.
    settings and keywords: as in `pretrain` (num_train_epochs=3, text_column="title"); `bertsmith finetune TASK
    --help` lists them. states: with freeze_encoder=True a folder for the hidden states, where further runs on the
    same data find them; without it they are in `output_dir` until the run has finished. resume, overwrite: as in
    `pretrain`; what was in memory must be given again, and is compared. Returns the finished model, with its
    report.

    Raises InputError for what a user can fix, MachineError, or Stopped after a signal.
    """
    out, kind, begun = Path(output_dir), task_type(task), hardware.clock()
    base = model if isinstance(model, Model) else load(model)
    changes = resolve(settings_type(kind), settings, keywords, finetune, hidden=OWN_ARGUMENTS)
    resuming = goes_on(out, resume=resume, overwrite=overwrite)
    given = {
        "train": name_of(train, "train"),
        "validation": None if validation is None else name_of(validation, "validation"),
        "validation_split": validation_split,
        "sample": sample,
        "label_names": None if label_names is None else as_listed(names_of(label_names)),
    }
    chosen = _settings(kind, base, out, given, recipe, changes, resuming=resuming)
    kind = kind.variant(chosen.task)
    if not resuming:
        if chosen.train.max_minutes:
            raise InputError(
                "minutes_in_finetuning",
                "train.max_minutes is a setting of pre-training only",
                argument="train.max_minutes",
                hint="set train.num_train_epochs or train.max_steps",
            )
        refuse_too_long(chosen.task, base.folder.config.max_length)
    place = bare_place(chosen.train)
    parameters = sum(term.size for term in count_parameters(base.folder.config))
    hardware.check_memory(parameters, hardware.memory_bytes(place.device))
    work = FineTuning.of(kind, base, chosen, {"train": train, "validation": validation}, place)
    work = work.with_kernels().with_teacher()
    place = work.place
    check_folders(out, work.head.export(work.encoder))
    if not resuming:
        start_over(
            out, base.path, train if is_path(train) else None, validation if is_path(validation) else None
        )
        if chosen.files.validation is None:
            write_split(work.examples, kind, chosen.task, out / "split")
        work = work.with_evaluations()
    work = work.with_states(out, None if states is None else Path(states), resuming=resuming)
    on = footing(
        work.read,
        work.objective,
        [work.phase()],
        work.chosen.train,
        place,
        work.updates,
        resuming=resuming,
    )
    named = with_recipe(FinetuneSettings, recipe, changes) if resuming else None
    aim = aim_of(work.chosen.train, on, work.updates, begun, named=named)
    if resuming:
        work = replace(work, place=on.place)
    else:
        work = work.settled(on.place)
        write_whole(out / SETTINGS, work.chosen.to_yaml())
    with work.steps.step("training"):
        progress = _train(work.read, work.objective, work.course(aim, out), on.place, resume=resume)
    if resuming and not progress.made and is_written(out, progress.step):
        log_finished(out, progress)
    else:
        work.leave(out, progress)
    forget_states(out / FEATURES)
    return load(out)


_train = train  # `train` is also the name of the file of examples, which people know


def _settings(
    kind: type[Task],
    base: Model,
    out: Path,
    files: dict[str, Any],
    recipe: str | Path | None,
    changes: Mapping[str, Any],
    *,
    resuming: bool,
) -> FinetuneSettings:
    """The run's settings: kept where it goes on; else of the recipe, the changes and the files given."""
    values = read_yaml(recipe) if recipe is not None else {}
    files = {name: value for name, value in files.items() if value is not None}
    if resuming:
        own = settings_type(kind)
        named = {**own.dotted(values), **own.dotted({"files": files}), **changes}
        return settings_of_run(own, out, named)
    return new_settings(kind, base, files, recipe, values, without_other_budgets(changes))
