"""A fine-tuned model's scores on a labelled file, and their report: a folder with a page, plots and numbers."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertsmith.inference.answering import Answering, Changes
from bertsmith.io import atomic
from bertsmith.io.sources import Source, name_of
from bertsmith.reports.run import write_figures, write_report
from bertsmith.reports.step_times import StepTimer
from bertsmith.tasks.data_checks import empty_text_diagnostic
from bertsmith.tasks.error_analysis import prediction_report
from bertsmith.tasks.results import Diagnostic, Metrics

logger = logging.getLogger(__name__)


def evaluate(
    answering: Answering,
    file: Source,
    changes: Changes,
    report: str | Path | None = None,
    model: str = "",
) -> Metrics:
    """The task's scores on a labelled file or data in memory, with what truncation has cost and would have.

    report: a new folder for report.html, report.json and figures/*.png. model: what it is called there.
    InputError where the folder is not empty.
    """
    folder = None if report is None else Path(report)
    if folder is not None:
        atomic.check_output_folder(folder, in_place=True, argument="report")
    steps = StepTimer()
    with steps.step("reading the file"):
        settings, examples = answering.labelled(file, changes)
    task = answering.task.with_settings(settings)
    predictions: list[Any] = []
    losses: list[float | None] = []
    stats = task.truncation([])
    with steps.step("encoding and answering"):
        for answers in answering.in_turn(examples, settings, stats):
            predictions += answers.predictions
            losses += task.metrics.example_losses(answers) if folder else []
    with steps.step("scoring"):
        scores = answering.scored(predictions, examples)
    scores = replace(
        scores,
        details={**scores.details, "truncation": stats.to_dict()},
        notes=[*scores.notes, *stats.window_messages()],
    )
    if folder is None:
        return scores
    with steps.step("the report"):
        found = {
            "task": task.name,
            "model": model,
            "data": name_of(file, "data"),
            "decided_by": task.primary_metric,
            "scores": scores.to_dict(),
            "answers": prediction_report(task.report, scores, predictions, examples, losses),
            "lengths": {"data": stats.lengths()},
            "truncation": {"data": stats.to_dict()},
            "findings": [finding.to_dict() for finding in _findings(answering, examples)],
            "settings": {"task": settings.model_dump(mode="json")},
        }
        drawn = write_figures(folder, found)
    write_report(folder, found | {"wall_time": steps.to_list()}, drawn)
    logger.info("%s: open this report in a browser", folder / "report.html")
    return scores


def _findings(answering: Answering, examples: list[Any]) -> list[Diagnostic]:
    """How the file was read, and which examples are empty."""
    empty = [example.location for example in examples if example.is_empty]
    return [*answering.task.data.read_warnings(examples), *([empty_text_diagnostic(empty)] if empty else [])]
