"""The log messages and the report of a fine-tuning run."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from bertsmith import console
from bertsmith.errors import InputError, option
from bertsmith.finetuning.data import Examples
from bertsmith.finetuning.settings import FileSettings, FinetuneSettings
from bertsmith.formatting import pluralize
from bertsmith.inference.significance import score_intervals
from bertsmith.runs.compute_setup import budget_limits
from bertsmith.runs.run_folder import training_record
from bertsmith.tasks.batching import Answers
from bertsmith.tasks.fitted_task import FittedTask
from bertsmith.tasks.report import prediction_report
from bertsmith.tasks.results import DataSummary, Metrics
from bertsmith.tasks.windows import TextStats
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.training.callbacks import LOG
from bertsmith.training.training_job import TrainOutput

logger = logging.getLogger(__name__)

FROZEN_ENCODER = "frozen encoder"
"""The name of the baseline that trains only the head."""

_MAX_LOCATIONS = 5  # of a diagnostic in a terminal
_MAX_POINTS = 400  # of a curve
_NUM_RESAMPLES = 1_000  # of the validation examples
_LONGER_FACTOR = 3  # times the budget, if that was too small


def log_examples(summary: DataSummary, files: FileSettings) -> None:
    """Log the tables of a summary, then a table of all diagnostics with their first locations.

    Args:
        summary: The tables and diagnostics of the examples.
        files: The files of the examples; locations omit their folders if the names differ.
    """
    names = {file: Path(file).name for file in (files.train, files.validation) if file}
    short_names = names.items() if len(set(names.values())) == len(names) else ()

    def shorten(text: str) -> str:
        for file, name in short_names:
            text = text.replace(file, name)
        return text

    for table in summary.tables:
        logger.info("%s", console.format_table(table.title, table.columns, table.rows))
    rows: list[Sequence[object]] = []
    for diagnostic in summary.diagnostics:
        lines = list(diagnostic.displayed)
        rest = len(lines) - _MAX_LOCATIONS
        more = [f"and {rest:,} more"] if rest > 0 else []
        text = ": ".join(filter(None, [diagnostic.message, diagnostic.consequence]))
        rows.append([shorten(text), tuple(map(shorten, [*lines[:_MAX_LOCATIONS], *more])) or "–"])
    if rows:
        title = "possible problems in the examples"
        logger.info("%s", console.format_table(title, ["problem", "where"], rows, ruled=True))


def log_texts(task: FittedTask, examples: Examples, stats: TextStats) -> None:
    """Log what is not read of the training texts, and special tokens that occur twice."""
    if getattr(task.settings, "specials_in_text", "text") == "parse":
        both = [*examples.train, *examples.validation]
        texts = [text for example in both for text in example.texts]
        if message := describe_doubled_special_tokens(texts, stats.tokenizer):
            logger.warning("%s, or keep task.specials_in_text=text", message)
    stats.log()


def describe_doubled_special_tokens(texts: Sequence[str], tokenizer: Tokenizer) -> str | None:
    """Return a warning if texts contain the special tokens that the tokenizer adds itself, else None."""
    if not tokenizer.num_separators:
        return None
    cls, sep = tokenizer.tokens[tokenizer.cls_token_id], tokenizer.tokens[tokenizer.sep_token_id]
    count = sum(text.lstrip().startswith(cls) or text.rstrip().endswith(sep) for text in texts)
    if not count:
        return None
    return (
        f"{count:,} of {pluralize(len(texts), 'text')} begin with {cls} or end with {sep}; the tokenizer adds "
        "these tokens itself, so they occur twice: remove them from the texts"
    )


def run_report(
    task: FittedTask,
    examples: Examples,
    settings: FinetuneSettings,
    output: TrainOutput,
    metrics: Metrics,
    run: Path,
    updates_per_epoch: float,
) -> dict[str, Any]:
    """Return the part of report.json about the training, and log its warnings."""
    baseline = task.metrics.baseline(examples.train, examples.validation)
    labels = {label for labels in task.metrics.labels(examples.validation) for label in labels}
    budget, state = budget_limits(settings.train), output.state
    rows = evaluations(run, updates_per_epoch, state.best_step)
    baselines = {task.metrics.baseline_name: dict(baseline.values)}
    baselines |= {
        name: dict(result.values)
        for name, result in task.metrics.text_baselines(examples.train, examples.validation).items()
    }
    if rows and rows[0]["step"] == 0:  # with the head that was trained alone
        baselines[FROZEN_ENCODER] = {name: rows[0][name] for name in task.metrics.logged_metrics}
    warnings = learning_warnings(task.metrics.primary_metric, metrics, baselines, state.step, budget, labels)
    for warning in warnings:
        logger.warning("%s", warning)
    return {
        "task": task.name,
        "base": settings.base,
        "labels": task.labels,
        "decided_by": task.primary_metric,
        "train_examples": len(examples.train),
        **training_record(settings.train, output),
        "best_step": state.best_step,
        "stopped_early": output.early_stop,
        "chosen_on_validation": {k: v for k, v in task.decoder.state.items() if isinstance(v, float)},
        "baseline": dict(baseline.values),
        "baseline_name": task.metrics.baseline_name,
        "baseline_reads": task.metrics.baseline_reads_text,
        "baselines": baselines,
        "validation": metrics.to_dict(),
        "evaluations": rows,
        "examples": dict(examples.summary.details),
        "warnings": [*examples.summary.warnings, *warnings],
        "curve": loss_curve(run),
    }


def data_report(
    task: FittedTask, examples: Examples, stats: Mapping[str, TextStats], metrics: Metrics, answers: Answers
) -> dict[str, Any]:
    """Return the part of report.json about the examples and the predictions.

    Args:
        task: The task.
        examples: The examples.
        stats: The statistics of the training and validation texts.
        metrics: The metrics of the validation examples.
        answers: The answers to the validation examples.
    """
    losses = task.metrics.example_losses(answers)
    statistics = task.metrics.sufficient_statistics(answers.predictions, answers.examples)
    return {
        "intervals": {} if statistics is None else score_intervals(statistics, rounds=_NUM_RESAMPLES),
        "answers": prediction_report(task.report, metrics, answers.predictions, answers.examples, losses),
        "lengths": {part: part_stats.lengths() for part, part_stats in stats.items()},
        "truncation": {part: part_stats.to_dict() for part, part_stats in stats.items()},
        "findings": [diagnostic.to_dict() for diagnostic in examples.summary.diagnostics],
    }


def evaluations(run: Path, updates_per_epoch: float, best_step: int | None) -> list[dict[str, Any]]:
    """Return the evaluations of a run in order, from log.jsonl, so that those of a resumed run are complete.

    Each has the step, the epoch, the mean training loss since the evaluation before (None if none was logged), the
    metrics, and `best`, True if its weights were kept.
    """
    rows, losses = [], []
    for entry in _log_entries(run):
        entry_type, step = entry.pop("kind"), entry.pop("step")
        if entry_type == "train" and "loss" in entry:
            losses.append(entry["loss"])
        if entry_type == "evaluation":
            loss = fmean(losses) if losses else None
            epoch = round(step / updates_per_epoch, 2)
            rows.append({"step": step, "epoch": epoch, "loss": loss, **entry, "best": step == best_step})
            losses = []
    return rows


def loss_curve(run: Path) -> dict[str, Any]:
    """Return loss and learning rate by step, from log.jsonl; of a long run, means of `mean_of` entries."""
    entries = [entry for entry in _log_entries(run) if entry["kind"] == "train" and "loss" in entry]
    size = math.ceil(len(entries) / _MAX_POINTS) or 1
    groups = [entries[i : i + size] for i in range(0, len(entries), size)]
    points = [
        {
            "step": group[-1]["step"],
            **{name: fmean(entry[name] for entry in group) for name in ("loss", "learning_rate")},
        }
        for group in groups
    ]
    return {"mean_of": size, "points": points}


def learning_warnings(
    metric: str,
    metrics: Metrics,
    baselines: Mapping[str, Mapping[str, float]],
    num_updates: int,
    budget: Mapping[str, float],
    labels: Collection[str] = (),
) -> list[str]:
    """Return a warning if the model is no better than the best baseline.

    Args:
        metric: The primary metric of the task.
        metrics: The metrics of the validation examples.
        baselines: The metrics of each baseline by its name.
        num_updates: The number of updates of the run.
        budget: The budget of the run by the names of its settings.
        labels: The different labels of the validation examples; with a single one no score is informative.
    """
    scores = {name: values[metric] for name, values in baselines.items()}
    baseline = max(scores, key=scores.__getitem__)
    score = metrics.values[metric]
    if score > scores[baseline]:
        return []
    if len(labels) == 1:
        return [
            f"all validation examples have the answer '{next(iter(labels))}', so no score is informative: add "
            "examples with other answers"
        ]
    if score >= 1:
        return [
            f"{baseline} also answers all validation examples right, so it may be enough: add harder examples to "
            "find out"
        ]
    if baseline == FROZEN_ENCODER:
        return [
            f"fine-tuning did not improve the {metric} on the validation data, {score:.4f}, which the "
            "frozen encoder has: add examples, or try another train.learning_rate"
        ]
    name, value = next(iter(budget.items()))
    return [
        f"the best {metric} on the validation data, {score:.4f}, is no better than {baseline} "
        f"({scores[baseline]:.4f}) after {pluralize(num_updates, 'update')}: train longer (resume with "
        f"train.{name}={_LONGER_FACTOR * value:.10g}), add examples, try another train.learning_rate or a larger "
        "model, and check the labels"
    ]


def _log_entries(run: Path) -> list[dict[str, Any]]:
    file = run / LOG
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except ValueError:
        hint = f"another program wrote to it: name another {option('output_dir')}"
        raise InputError("invalid_json", "a line is not JSON", location=file, hint=hint) from None
