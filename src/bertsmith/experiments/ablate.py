"""`bertsmith ablate`: a table of a paper at one's own size: models that differ in one thing, pre-trained,
fine-tuned and compared over several seeds.

A recipe names the rows, each by the settings that it changes, and has the paper's figures. Each pre-training run
and each fine-tuning is an ordinary one in a folder of its own, so that what is finished stays.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bertsmith import hardware
from bertsmith.corpus.shards import Shards
from bertsmith.device import ComputeContext, is_cpu
from bertsmith.errors import InputError, command, option
from bertsmith.experiments.ablation import (
    PAIRS,
    PRECISION,
    PRETRAIN,
    SMALL,
    AblationRecipe,
    Measurement,
    TaskRecipe,
    begun_with,
    check_row,
    check_tasks,
    folder_of,
    pretrained_as,
    read_recipe,
    refuse_one_folder,
    refuse_seed,
)
from bertsmith.experiments.ablation_report import report_of
from bertsmith.experiments.process_pool import side_by_side
from bertsmith.inference.minimal_pairs import read_pairs
from bertsmith.io import atomic
from bertsmith.kernels.backend_selection import select_training_backend
from bertsmith.models.config import encoder_parameter_terms
from bertsmith.models.family import preset
from bertsmith.notebook import Report
from bertsmith.pretraining.resolve_settings import USUAL_PRESET
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.reports.ablation import plot_paper_values, plot_seeds
from bertsmith.runs.run_folder import keeping_runs, write_report, write_whole
from bertsmith.settings import Changes, read_yaml

logger = logging.getLogger(__name__)

_ASKED = "ablation.json"


def ablate(
    recipe: str | Path,
    output_dir: str | Path,
    *,
    data: Shards | str | Path | None = None,
    tasks: str | Path | Mapping[str, Any] | None = None,
    pairs: str | Path | None = None,
    rows: Sequence[str] | None = None,
    seeds: int = 3,
    settings: Changes = (),
    jobs: int | None = None,
    resume: bool = False,
) -> Report:
    """Pre-train each row of a recipe with each seed, fine-tune it for each task, and set it beside the paper.

    recipe: YAML as in recipes/ablations/. data: prepared shards. tasks: what each model is fine-tuned for, a YAML
    file or a mapping of names to {verb, train, validation, settings}. pairs: minimal pairs to score each model on.
    None of these three: what the recipe names.
    rows: only these and the first. seeds: 0, 1, …: of first weights, data and heads alike. settings: for all
    pre-training runs, such as {"train.max_steps": 2000}. output_dir: a folder with one of each row and seed. jobs:
    models at a time, each in a process of its own with its share of the cores; None: of small models as many as
    there are cores, else one. resume: what is finished stays, what was interrupted continues.

    Rows that change the same of pre-training, and differ in fine-tuning, share a model that is pre-trained once.

    Returns the report, also in output_dir/report.json, with plots in its figures/: each figure of each row with
    mean and deviation, its difference from the first row's, paired by seed, with the p of a paired t-test, and of
    each pair of rows that the paper orders whether that order holds here, is reversed, or cannot be decided (see
    `ablation_report`). All runs compute in one precision, chosen once, unless settings name one, and wait for
    compiled kernels where they compute with them. InputError for what a user can fix, before anything is trained.
    """
    out, changes = Path(output_dir), PretrainSettings.dotted(settings)
    chosen = read_recipe(recipe)
    shards = _shards_of(data, chosen, recipe)
    wanted_tasks = (chosen.tasks or {}) if tasks is None else tasks
    in_recipe = tasks is None and (chosen.tasks is None or isinstance(chosen.tasks, Mapping))
    tasks_place = _place_of(None if in_recipe else wanted_tasks, recipe)
    named = _tasks_of(wanted_tasks, chosen, tasks_place)
    pairs = chosen.pairs if pairs is None else pairs
    wanted = _rows_of(chosen, rows, recipe)
    _refuse_what_rows_change(chosen, changes, recipe)
    begun = [check_row(chosen, row, shards.tokenizer, changes, recipe) for row in wanted]
    check_tasks(chosen, wanted, named, tasks_place)
    if pairs is not None:
        read_pairs(str(pairs))
    scored_on = None if pairs is None else str(pairs)
    asked = {
        "recipe": chosen.model_dump(mode="json"),
        "tasks": {name: task.model_dump(mode="json") for name, task in named.items()},
        "pairs": scored_on,
        "settings": changes,
        "data": atomic.sha256_of_file(shards.folder / "manifest.json"),
    }
    before = _begin(out, asked, resume=resume)
    precision = before.get("precision") or _precision(chosen, wanted, changes)
    if precision != "auto" and PRECISION not in _named(chosen, changes):
        changes = {PRECISION: precision, **changes}
    _await_kernels(begun)
    works = [
        Measurement(chosen, some, seed, out, shards.folder, named, scored_on, changes, precision)
        for seed in range(seeds)
        for some in _together(chosen, wanted)
    ]
    at_once = min(jobs or _jobs(chosen, wanted, changes), len(works))
    with atomic.folder_lock(out, "ablation"), keeping_runs(out):
        written = {**asked, "precision": precision}
        write_whole(out / _ASKED, json.dumps(written, indent=2, ensure_ascii=False) + "\n")
        found: dict[str, dict[int, dict[str, float]]] = {row: {} for row in wanted}
        for work, figures in _measured(works, at_once):
            for row, of_row in figures.items():
                found[row][work.seed] = of_row
            if len(found[wanted[0]]):
                write_report(out, report_of(chosen, found))
        report = report_of(chosen, found)
        if unknown := [name for name in chosen.losses if name not in _figures_in(found)]:
            logger.warning(
                "%s: losses: no row has a figure '%s'; report.json of a run lists the figures",
                recipe,
                unknown[0],
            )
        _plot(out / "figures", report)
    return Report(report, ("title", "figures", "orderings"))


def _figures_in(found: Mapping[str, Mapping[int, Mapping[str, float]]]) -> set[str]:
    """The figures that any row has with any seed."""
    return {name for of_row in found.values() for of_seed in of_row.values() for name in of_seed}


def _together(recipe: AblationRecipe, rows: Sequence[str]) -> list[list[str]]:
    """The rows in groups that share pre-trained models: one and the same, or one beside another."""
    groups: list[tuple[set[str], list[str]]] = []
    for row in rows:
        models = {pretrained_as(recipe, one) for one in (row, recipe.beside.get(row, row))}
        touched = [group for group in groups if group[0] & models]
        merged = (
            models.union(*(group[0] for group in touched)),
            [*(one for group in touched for one in group[1]), row],
        )
        groups = [*(group for group in groups if group not in touched), merged]
    return [group[1] for group in groups]


def _jobs(recipe: AblationRecipe, rows: Sequence[str], settings: Mapping[str, Any]) -> int:
    """As many models at a time as there are cores where all are small and computed on them, else one."""
    every = [begun_with(recipe, row, settings) for row in rows]
    if not all(is_cpu(_device(of_row)) for _, of_row in every):
        return 1
    sizes = (
        preset(name or USUAL_PRESET).changed(
            {n.removeprefix("model."): value for n, value in of_row.items() if n.startswith("model.")}
        )
        for name, of_row in every
    )
    largest = max(sum(term.size for term in encoder_parameter_terms(size)) for size in sizes)
    return hardware.available_cores() if largest <= SMALL else 1


def _device(settings: Mapping[str, Any]) -> str:
    """The device that a row's settings ask for."""
    return str(settings.get("train.device", "auto"))


def _named(recipe: AblationRecipe, settings: Mapping[str, Any]) -> set[str]:
    """The settings of pre-training that anybody names."""
    return {
        name
        for some in (recipe.settings, *recipe.rows.values(), settings)
        for name in PretrainSettings.dotted(some)
    }


def _await_kernels(begun: Sequence[PretrainSettings]) -> None:
    """Have those compiled that runs begun with these settings compute with: short ones would do without them until
    they are, and rows would differ by when they were trained."""
    for chosen in begun:
        with suppress(InputError):  # the row's own run raises it
            if is_cpu(chosen.train.device):
                select_training_backend(chosen.train.kernels, chosen.model.hidden_size)


def _precision(recipe: AblationRecipe, rows: Sequence[str], settings: Mapping[str, Any]) -> str:
    """One for all runs, so that none differs from another by rounding: what each would choose for itself depends
    on what else the machine does. "auto" where rows are on several devices."""
    devices = {_device(begun_with(recipe, row, settings)[1]) for row in rows}
    if len(devices) > 1:
        return "auto"
    context = ComputeContext.create(devices.pop())
    logger.info("computing in %s on %s", context.precision, hardware.device_name(context.device))
    return context.precision


def _refuse_what_rows_change(recipe: AblationRecipe, settings: Mapping[str, Any], place: str | Path) -> None:
    """InputError for settings of all runs that would take away what rows differ in, or their seeds."""
    refuse_seed(settings, None, "settings")
    for name, value in settings.items():
        if rows := [row for row, own in recipe.rows.items() if name in PretrainSettings.dotted(own)]:
            raise InputError(
                "setting_of_row",
                f"{option('settings', f'{name}={value}')} would override {name} of the row '{rows[0]}' in {place}",
                argument=name,
                hint="change the rows in a copy of the recipe",
            )


def _measured(
    works: Sequence[Measurement], at_once: int
) -> Iterator[tuple[Measurement, dict[str, dict[str, float]]]]:
    """Each with its figures, when it is done."""
    titles = [f"{' and '.join(work.rows)}, seed {work.seed}" for work in works]
    if at_once == 1:
        for number, (work, title) in enumerate(zip(works, titles, strict=True), start=1):
            logger.info("model %d of %d: %s", number, len(works), title)
            yield work, work.measured()
        return
    logs = [work.place(work.rows[0]) / "output.txt" for work in works]
    asked = [work.to_json() for work in works]
    for number, answer in side_by_side("bertsmith.experiments.ablation", asked, titles, logs, at_once):
        yield works[number], answer


def _plot(folder: Path, report: Mapping[str, Any]) -> None:
    """A PNG of each figure, and of each of the paper's."""
    folder.mkdir(exist_ok=True)
    pictures = {
        name: plot_seeds(name, rows, report["paper"].get(report["beside"].get(name)))
        for name, rows in report["figures"].items()
    }
    pictures |= {
        f"paper {name}": plot_paper_values(name, rows)
        for name, rows in report["paper"].items()
        if len(rows) > 1
    }
    for name, picture in pictures.items():
        with atomic.atomic_file(folder / f"{folder_of(name)}.png") as beside:
            beside.write_bytes(picture)


def _shards_of(data: Shards | str | Path | None, recipe: AblationRecipe, place: str | Path) -> Shards:
    if isinstance(data, Shards):
        return data
    if not (named := recipe.data if data is None else data):
        raise InputError(
            "data_missing",
            "the recipe names no data for pre-training",
            location=place,
            argument="data",
            hint=f"create token shards with {command('data prepare')} and give them with {option('data')}",
        )
    return Shards.open(named)


def _place_of(tasks: str | Path | Mapping[str, Any] | None, recipe: str | Path) -> str:
    """Where the tasks stand, for messages."""
    return f"{recipe}: tasks" if tasks is None else "tasks" if isinstance(tasks, Mapping) else str(tasks)


def _tasks_of(
    tasks: str | Path | Mapping[str, Any], recipe: AblationRecipe, place: str
) -> dict[str, TaskRecipe]:
    """The tasks, checked. InputError for what is none."""
    values = dict(tasks) if isinstance(tasks, Mapping) else read_yaml(tasks)
    for name, value in values.items():
        if not isinstance(value, Mapping):
            raise InputError(
                "task_invalid",
                f"'{name}' is {value!r}, not a task",
                location=place,
                hint="write verb, train, and validation below it, indented",
            )
    found = {name: TaskRecipe.of(dict(value), f"{place}: {name}") for name, value in values.items()}
    refuse_one_folder(found, place)
    for name, task in found.items():
        if folder_of(name) == PRETRAIN:
            raise InputError(
                "task_name_reserved",
                f"the task '{name}' would use the folder {PRETRAIN}, which is for pre-training",
                location=place,
                hint="give the task another name",
            )
        if name in (*recipe.losses, PAIRS):
            raise InputError(
                "task_name_reserved",
                f"'{name}' is the name of another figure of the table",
                location=place,
                hint="give the task another name",
            )
        for part in ("train", "validation"):
            if not getattr(task, part):
                raise InputError(
                    "task_file_missing",
                    f"the task has no {part} file",
                    location=f"{place}: {name}",
                    hint=f"write it below {name}, as {part}:",
                )
            if not Path(getattr(task, part)).is_file():
                raise InputError(
                    "file_not_found",
                    f"there is no file '{getattr(task, part)}'",
                    location=f"{place}: {name}: {part}",
                    hint="correct the path",
                )
    return found


def _rows_of(recipe: AblationRecipe, rows: Sequence[str] | None, place: str | Path) -> list[str]:
    if rows is None:
        return list(recipe.rows)
    if strange := [row for row in rows if row not in recipe.rows]:
        raise InputError(
            "row_unknown",
            f"there is no row '{strange[0]}'",
            location=place,
            argument="rows",
            hint=f"the rows are {', '.join(recipe.rows)}",
        )
    first = next(iter(recipe.rows))
    return [row for row in recipe.rows if row == first or row in rows]


def _begin(out: Path, asked: Mapping[str, Any], *, resume: bool) -> dict[str, Any]:
    """What the ablation in the folder was begun with, {} where none is. InputError where the folder holds
    something else, or models that were pre-trained otherwise. Tasks, pairs and rows may come and go."""
    file = out / _ASKED
    if not (resume and file.exists()):
        atomic.check_output_folder(out, in_place=True)
        return {}
    try:
        before = dict(json.loads(file.read_text(encoding="utf-8")))
        rows = dict(before["recipe"]["rows"])
        known = _of_models(before)
    except (ValueError, KeyError, TypeError):
        raise InputError(
            "file_damaged",
            "the file is damaged",
            location=file,
            argument="output_dir",
            hint=f"choose another folder with {option('output_dir')}",
        ) from None
    now, wanted = json.loads(json.dumps(_of_models(asked))), asked["recipe"]["rows"]
    changed = [row for row in rows if row in wanted and rows[row] != wanted[row]]
    other_data = before.get("data") != asked["data"]
    if changed or other_data or now != known:
        what = f"another row '{changed[0]}'" if changed else "other data" if other_data else "other settings"
        raise InputError(
            "ablation_differs",
            f"the models in this folder were started with {what}",
            location=out,
            hint=f"resume with the same arguments, or choose another folder with {option('output_dir')}",
        )
    return before


def _of_models(asked: Mapping[str, Any]) -> list[Any]:
    """What all models of an ablation depend on."""
    return [asked["recipe"]["preset"], asked["recipe"]["settings"], asked["settings"]]
