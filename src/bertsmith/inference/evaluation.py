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
from bertsmith.tasks.data_checks import empty_texts
from bertsmith.tasks.error_analysis import Answers, judged
from bertsmith.tasks.scores import Finding, Scores

logger = logging.getLogger(__name__)


def evaluate(
    answering: Answering,
    file: Source,
    changes: Changes,
    report: str | Path | None = None,
    model: str = "",
) -> Scores:
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
    task = answering.task.under(settings)
    predictions: list[dict[str, Any]] = []
    losses: list[float | None] = []
    account = task.account([])
    with steps.step("encoding and answering"):
        for answers in answering.in_turn(examples, settings, account):
            predictions += answers.predictions
            losses += task.losses(answers) if folder else []
    with steps.step("scoring"):
        scores = answering.scored(predictions, examples)
    scores = replace(
        scores,
        details={**scores.details, "truncation": account.document()},
        notes=[*scores.notes, *account.told_of_windows()],
    )
    if folder is None:
        return scores
    with steps.step("the report"):
        found = {
            "task": task.name,
            "model": model,
            "data": name_of(file, "data"),
            "decided_by": task.decides,
            "scores": scores.document(),
            "answers": judged(task, scores, Answers([], [], examples, predictions), losses),
            "lengths": {"data": account.lengths()},
            "truncation": {"data": account.document()},
            "findings": [finding.document() for finding in _findings(answering, examples)],
            "settings": {"task": settings.model_dump(mode="json")},
        }
        drawn = write_figures(folder, found)
    write_report(folder, found | {"wall_time": steps.to_list()}, drawn)
    logger.info("%s: open this report in a browser", folder / "report.html")
    return scores


def _findings(answering: Answering, examples: list[Any]) -> list[Finding]:
    """How the file was read, and which examples are empty."""
    empty = [example.place for example in examples if answering.task.is_empty(example)]
    return [*answering.task.remarks(examples), *([empty_texts(empty)] if empty else [])]
