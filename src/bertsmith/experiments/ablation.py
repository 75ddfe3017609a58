"""Repeat a table of a paper at a smaller size: models that differ in one setting, compared over several seeds.

A recipe has the settings that each row changes, and the paper's results. Each pre-training and each fine-tuning is
an ordinary run in a folder of its own, such as out/ROW/SEED/pretrain, so that finished ones are kept.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from scipy.sparse.csgraph import connected_components

from bertsmith import hardware
from bertsmith.artifacts.locate import read_report
from bertsmith.corpus.shards import Shards
from bertsmith.device import ComputeContext, is_cpu
from bertsmith.errors import InputError, command, option
from bertsmith.experiments import ablation_recipe
from bertsmith.experiments.ablation_report import AblationReport, RowSetup, make_report, points_factor
from bertsmith.experiments.process_pool import Call, answer_call, make_calls, run_processes
from bertsmith.finetuning.run import finetune
from bertsmith.inference.minimal_pairs import read_pairs
from bertsmith.inference.model import Model
from bertsmith.instances.holdout_split import DocumentSplit
from bertsmith.io import atomic
from bertsmith.models.parameter_count import encoder_parameter_terms
from bertsmith.objectives.language_modeling import MaskedLM
from bertsmith.objectives.objective import evaluate_objective
from bertsmith.pretraining.data import PretrainData
from bertsmith.pretraining.model import swap_labels
from bertsmith.pretraining.paper_settings import differences_from_paper
from bertsmith.pretraining.resolve_settings import settings_type_of_file
from bertsmith.pretraining.run import pretrain
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.reports.result_plots import plot_paper_values, plot_seeds
from bertsmith.runs.run_folder import (
    REPORT,
    SETTINGS,
    holds_run,
    keeping_runs,
    previous_arguments,
    write_json,
    write_report,
)
from bertsmith.settings import Changes

logger = logging.getLogger(__name__)

_ARGUMENTS = "ablation.json"
_PRECISION = "train.precision"


class Ablation(BaseModel, frozen=True):
    """The arguments of an ablation, which each process receives as JSON.

    Attributes:
        recipe: The recipe.
        out: The folder of all runs.
        data: The folder of the token shards.
        tasks: The tasks by name.
        pairs: The file of minimal pairs.
        changes: Changed settings of all pre-training runs.
        precision: The precision of each fine-tuning whose settings have none; "auto": each run chooses its own.
    """

    recipe: ablation_recipe.AblationRecipe
    out: Path
    data: Path
    tasks: dict[str, ablation_recipe.TaskRecipe]
    pairs: str | None
    changes: dict[str, Any]
    precision: str

    def folder(self, row: str, seed: int) -> Path:
        """Return the folder of a row's runs with one seed."""
        return self.out / ablation_recipe.folder_name(row) / str(seed)

    def measure_row(self, row: str, seed: int) -> dict[str, float]:
        model = self._pretrain(row, seed)
        held_out = model.report["held_out"]
        metrics = {name: float(held_out[name]) for name in self.recipe.losses if name in held_out}
        metrics |= self._measure_other_sentence_task(model)
        second_row = self.recipe.second_encoder.get(row)
        second_encoder = None if second_row is None else self._pretrain(second_row, seed)
        for name, task in self.tasks.items():
            task_settings = self.recipe.finetuning(row, task)
            settings = {_PRECISION: self.precision, **task_settings, ablation_recipe.SEED: seed}
            if second_encoder is not None:
                settings["task.second_encoder"] = str(second_encoder.path)
            run = self.folder(row, seed) / ablation_recipe.folder_name(name)
            data: dict[str, Any] = {"train": task.train, "validation": task.validation}
            tuned = finetune(task.verb, model, run, **data, settings=settings, resume=holds_run(run))
            metrics[name] = float(tuned.report["validation"][tuned.task.primary_metric])
        if self.pairs is not None:
            metrics[ablation_recipe.PAIRS] = _score_pairs(model, self.pairs)
        return metrics

    def _pretrain(self, row: str, seed: int) -> Model:
        run = self.folder(self.recipe.model_row(row), seed) / ablation_recipe.PRETRAIN
        preset, settings = self.recipe.pretraining(row, self.changes)
        settings[ablation_recipe.SEED] = seed
        shards = Shards.open(self.data)
        return pretrain(shards, run, preset=preset, settings=settings, resume=holds_run(run))

    def _measure_other_sentence_task(self, model: Model) -> dict[str, float]:
        """Return the accuracy of the head for pairs on the task that it was not trained on (Lan et al. 2020).

        Empty if the recipe does not ask for it, or if the model has no such head.
        """
        if not model.folder.has("pair"):
            return {}
        other = "sop" if model.folder.sentence_task == "nsp" else "nsp"
        if (name := f"{other}_accuracy") not in self.recipe.losses:
            return {}
        file = model.path / SETTINGS
        changes = {
            "sentence_task": other,
            "nsp_sampling": "other_document",
            "nsp_balance": False,
            "is_next_label": 0,
        }
        settings = settings_type_of_file(file).from_file(file).changed({"data": changes})
        shards = Shards.open(self.data)
        split = DocumentSplit.from_settings(shards, settings.data)
        batches = PretrainData(shards, split, settings).validation_batches.get("")
        if batches is None:  # no document is held out
            return {}
        objective = MaskedLM.from_settings(
            model.encoder, torch.Generator(), settings.data, settings.objective
        )
        for part, module in objective.named_children():
            model.folder.load_into(part, module)
        if model.folder.is_next_label:
            swap_labels(objective.pair)
        return {name: evaluate_objective(objective.eval(), model.encoder, batches, model.context)[name]}

    def row_setup(self, row: str, seed: int) -> RowSetup:
        """Return the pre-training of a row that is finished with this seed."""
        run = self.folder(self.recipe.model_row(row), seed) / ablation_recipe.PRETRAIN
        settings = settings_type_of_file(run / SETTINGS).from_file(run / SETTINGS)
        report = read_report(run / REPORT)
        is_muon = settings.train.optim == "muon"
        return RowSetup(
            parameters=sum(term.size for term in encoder_parameter_terms(settings.model)),
            optimizer="Muon, AdamW" if is_muon else "AdamW",
            learning_rate=settings.train.learning_rate,
            muon_learning_rate=settings.train.muon_learning_rate if is_muon else None,
            updates=report["steps"],
            tokens=report["tokens"],
            sequence_length=settings.data.long_sequence_length or settings.data.sequence_length,
            corpus={name: report["corpus"][name] for name in ("documents", "tokens")},
            differences=differences_from_paper(settings),
        )


def measure_rows(ablation: dict[str, Any], rows: Sequence[str], seed: int) -> dict[str, dict[str, float]]:
    """Make or resume the runs of rows with one seed, and return their metrics."""
    parsed = Ablation.model_validate(ablation)
    return {row: parsed.measure_row(row, seed) for row in rows}


def _score_pairs(model: Model, pairs: str) -> float:
    """Return the accuracy on minimal pairs, which is cached in the folder of the row and seed."""
    file = model.path.parent / "pairs.json"
    scores = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if scores.get("file") != pairs:
        scores = {"file": pairs, "accuracy": model.score_pairs(pairs)["accuracy"]}
        write_json(file, scores)
    return float(scores["accuracy"])


def ablate(
    recipe: str | Path,
    output_dir: str | Path,
    *,
    data: Shards | str | Path | None = None,
    tasks: str | Path | Mapping[str, Any] | None = None,
    pairs: str | Path | None = None,
    rows: Sequence[str] | None = None,
    seeds: int = ablation_recipe.SEEDS,
    settings: Changes = (),
    jobs: int | None = None,
    resume: bool = False,
) -> AblationReport:
    """Pre-train each row of a recipe with each seed, fine-tune it for each task, and compare with the paper.

    Rows whose pre-training is the same share a model. All runs compute in one precision, chosen once, unless
    settings name one.

    Args:
        recipe: YAML as in recipes/ablations/.
        output_dir: The folder for all runs and the report; plots are in output_dir/figures.
        data: Token shards. The default of this and the next two is the recipe's.
        tasks: The tasks of fine-tuning: a YAML file or a mapping of names to {verb, train, validation, settings}.
        pairs: Minimal pairs to score each model on.
        rows: Only these rows, and the first.
        seeds: The number of seeds 0, 1, …, which draw initial weights, data, and heads.
        settings: Settings of all pre-training runs, such as {"train.max_steps": 2000}.
        jobs: The number of models at a time, each in its own process with its share of the cores. The default is
            the number of cores for small models, else one.
        resume: Keep finished runs and continue unfinished ones.

    Returns:
        The report, which is also in output_dir/report.json.

    Raises:
        InputError: An argument, the recipe, a task, or a file is invalid; raised before anything is trained.
    """
    out, table = atomic.output_path(output_dir), ablation_recipe.read_recipe(recipe)
    changes = PretrainSettings.dotted(settings)
    data = data or table.data
    if not data:
        message = "the recipe names no data for pre-training"
        hint = f"create token shards with {command('data prepare')} and give them with {option('data')}"
        raise InputError("data_missing", message, location=recipe, argument="data", hint=hint)
    shards = data if isinstance(data, Shards) else Shards.open(data)
    named_tasks, tasks_location = ablation_recipe.read_tasks(tasks, table, recipe)
    pairs = table.pairs if pairs is None else pairs
    table.check_row_names(rows or (), "rows", recipe)
    chosen_rows = [row for i, row in enumerate(table.rows) if rows is None or i == 0 or row in rows]
    ablation_recipe.check_no_seed(changes, argument="settings")
    row_settings = ablation_recipe.check_rows(table, chosen_rows, shards.tokenizer, changes, recipe)
    ablation_recipe.check_tasks(table, chosen_rows, named_tasks, tasks_location)
    if pairs is not None:
        pairs = str(pairs)
        read_pairs(pairs)
    arguments = {
        "preset": table.preset,
        "settings": {**PretrainSettings.dotted(table.settings), **changes},
        "data": atomic.sha256_of_file(shards.folder / "manifest.json"),
        **{f"row '{row}'": row_changes for row, row_changes in table.rows.items()},
    }
    previous = previous_arguments(out / _ARGUMENTS, arguments, resume=resume)
    precision = previous.get("precision") or _choose_precision(row_settings)
    if precision != "auto" and all(settings.train.precision == "auto" for settings in row_settings):
        changes = {_PRECISION: precision, **changes}
    ablation = Ablation(
        recipe=table,
        out=out,
        data=shards.folder,
        tasks=named_tasks,
        pairs=pairs,
        changes=changes,
        precision=precision,
    )
    with atomic.folder_lock(out, "ablation"), keeping_runs(out):
        write_json(out / _ARGUMENTS, {**previous, **arguments, "precision": precision})
        report = _measure_all(ablation, chosen_rows, seeds, jobs or _default_jobs(row_settings))
        _plot(out / "figures", report)
    return report


def _choose_precision(row_settings: Sequence[PretrainSettings]) -> str:
    """Return one precision for all runs, so that rows do not differ by rounding; "auto" for several devices."""
    devices = {settings.train.device for settings in row_settings}
    if len(devices) > 1:
        return "auto"
    context = ComputeContext.create(devices.pop())
    logger.info("computing in %s on %s", context.precision, hardware.device_name(context.device))
    return context.precision


def _default_jobs(row_settings: Sequence[PretrainSettings]) -> int:
    """Return the number of cores if all models are small and on the CPU, else 1."""
    one_core_each = all(
        is_cpu(settings.train.device) and ablation_recipe.is_small(settings.model)
        for settings in row_settings
    )
    return hardware.available_cores() if one_core_each else 1


def _measure_all(ablation: Ablation, rows: Sequence[str], seeds: int, jobs: int) -> AblationReport:
    """Measure all rows with all seeds; write the report after each model."""
    values = ablation.model_dump(mode="json")
    changes = {name: value for name, value in ablation.changes.items() if name != _PRECISION}
    if seeds != ablation_recipe.SEEDS:
        changes["seeds"] = seeds
    calls = [
        Call(
            {"ablation": values, "rows": group, "seed": seed},
            f"{' and '.join(group)}, seed {seed}",
            ablation.folder(group[0], seed) / "output.txt",
        )
        for seed in range(seeds)
        for group in _group_rows(ablation.recipe, rows)
    ]
    measurements: dict[str, dict[int, dict[str, float]]] = {row: {} for row in rows}
    setups: dict[str, RowSetup] = {}
    results = (
        run_processes("bertsmith.experiments.ablation", calls, min(jobs, len(calls)))
        if jobs > 1 and len(calls) > 1
        else make_calls(measure_rows, calls)
    )
    for index, metrics_by_row in results:
        for row, metrics in metrics_by_row.items():
            seed = calls[index].arguments["seed"]
            measurements[row][seed] = metrics
            setups[row] = ablation.row_setup(row, seed)
        if measurements[rows[0]]:
            report = make_report(ablation.recipe, measurements, setups, changes)
            write_report(ablation.out, report.to_dict())
    names = {name for by_seed in measurements.values() for metrics in by_seed.values() for name in metrics}
    if unknown := [name for name in ablation.recipe.losses if name not in names]:
        logger.warning("losses: no row has a metric '%s'; report.json of a run lists the metrics", unknown[0])
    return report


def _group_rows(recipe: ablation_recipe.AblationRecipe, rows: Sequence[str]) -> list[list[str]]:
    """Group rows that use the same models, including second encoders, so that one process trains each model."""
    names = list(recipe.rows)
    uses_model = np.zeros((len(names), len(names)))
    for i, row in enumerate(names):
        for model_row in (row, recipe.second_encoder.get(row, row)):
            uses_model[i, names.index(recipe.model_row(model_row))] = 1
    _, components = connected_components(uses_model, directed=False)
    groups: dict[int, list[str]] = {}
    for row in rows:
        groups.setdefault(components[names.index(row)], []).append(row)
    return list(groups.values())


def _plot(folder: Path, report: AblationReport) -> None:
    """Plot each metric, and each of the paper's, as a PNG."""
    plots = {}
    for name, rows in report.metrics.items():
        factor = points_factor(name, (value for row in rows.values() for value in row.values))
        in_points = {
            row: {
                "values": [factor * value for value in metric.values],
                "mean": factor * metric.mean,
                "deviation": factor * (metric.deviation or 0.0),
            }
            for row, metric in rows.items()
        }
        plots[name] = plot_seeds(name, in_points, report.paper.get(report.paper_names.get(name, "")))
    paper = {name: rows for name, rows in report.paper.items() if len(rows) > 1}
    plots |= {f"paper {name}": plot_paper_values(name, rows) for name, rows in paper.items()}
    for name, png in plots.items():
        atomic.write_bytes(folder / f"{ablation_recipe.folder_name(name)}.png", png)


if __name__ == "__main__":
    answer_call(measure_rows)
