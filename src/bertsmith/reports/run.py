"""The report of fine-tuning or of an evaluation: report.json, report.html with the same numbers, and figures.

`StepTimer` measures the wall time of the steps that a report lists.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertsmith import hardware
from bertsmith.io import atomic
from bertsmith.reports import plots
from bertsmith.reports.page import render, report_write_errors, score_name
from bertsmith.reports.run_figures import ReportFigure, report_figures

REPORT, PAGE, FIGURES = "report.json", "report.html", "figures"
_MAX_EVALUATIONS = 50  # rows
_MAX_LOCATIONS = 20  # of a finding
_CHANCE = "chance"  # key of the accuracy of random choices, which some tasks report


class StepTimer:
    """Measure the seconds of each step, in order of first start; a step within another pauses the outer one."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._stack: list[str] = []
        self._last_time = hardware.clock()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Return a context manager that adds the time of its block to a step."""
        self._seconds.setdefault(name, 0.0)
        self._add_elapsed()
        self._stack.append(name)
        try:
            yield
        finally:
            self._add_elapsed()
            self._stack.pop()

    def reattribute(self, name: str, to: str, seconds: float) -> None:
        """Move seconds from one step to another."""
        self._seconds[name] = self._seconds.get(name, 0.0) - seconds
        self._seconds[to] = self._seconds.get(to, 0.0) + seconds

    def total(self) -> float:
        """Return the seconds of all steps, including that of the current step so far."""
        self._add_elapsed()
        return sum(self._seconds.values())

    def to_list(self) -> list[dict[str, Any]]:
        """Return a dict for a report per step, with its name and seconds."""
        return [{"step": name, "seconds": round(value, 3)} for name, value in self._seconds.items()]

    def _add_elapsed(self) -> None:
        now = hardware.clock()
        if self._stack:
            self._seconds[self._stack[-1]] += now - self._last_time
        self._last_time = now


def write_figures(folder: Path, report: Mapping[str, Any]) -> list[ReportFigure]:
    """Write the figures of a report to FOLDER/figures/*.png, replacing earlier ones, and return them."""
    figures = list(report_figures(report))
    with report_write_errors(folder / FIGURES):
        if (folder / FIGURES).is_dir():
            atomic.remove_folder(folder / FIGURES)
        for figure in figures:
            atomic.write_bytes(folder / FIGURES / f"{figure.name}.png", plots.to_png(figure.figure))
    return figures


def write_report(folder: Path, report: Mapping[str, Any], figures: Sequence[ReportFigure]) -> None:
    """Write FOLDER/report.html and FOLDER/report.json with the same numbers.

    Args:
        folder: The folder of the run or of the evaluation.
        report: The report.
        figures: The figures that `write_figures` returned.
    """
    page = render_run_page(report, figures)
    with report_write_errors(folder / REPORT):
        atomic.write_text(folder / PAGE, page)
        atomic.write_text(folder / REPORT, json.dumps(report, indent=2, ensure_ascii=False) + "\n")


def render_run_page(report: Mapping[str, Any], figures: Sequence[ReportFigure] | None = None) -> str:
    """Return the HTML page of a report; text from files is escaped.

    Args:
        report: The report.
        figures: The figures of the report; None: they are drawn here.
    """
    page_figures = {
        figure.name: {
            "heading": figure.heading,
            "caption": figure.caption,
            "picture": plots.to_svg(figure.figure, figure.caption),
        }
        for figure in (report_figures(report) if figures is None else figures)
        if figure.in_page
    }
    finding_messages = {finding["said"] for finding in report.get("findings", [])}
    return render(
        "run.html",
        report=report,
        figures=page_figures,
        lengths=[figure for name, figure in page_figures.items() if name.startswith("lengths_")],
        scores=_scores(report),
        warnings=[warning for warning in report.get("warnings", []) if warning not in finding_messages],
        evaluations=_evaluations(report.get("evaluations", [])),
        settings=_flatten(report.get("settings", {})),
        seconds=sum(step["seconds"] for step in report.get("wall_time", [])),
        matrix=_matrix(report.get("answers", {}).get("confusion")),
        max_locations=_MAX_LOCATIONS,
    )


def _scores(report: Mapping[str, Any]) -> list[tuple[str, float, float | None]]:
    """Return the name, value, and baseline's value of each score, except chance and tuned thresholds."""
    baseline = report.get("baseline", {})
    scores = report["validation"] if "validation" in report else report["scores"]
    excluded = {_CHANCE, *report.get("chosen_on_validation", {})}
    return [
        (score_name(name), value, baseline.get(name))
        for name, value in scores.items()
        if isinstance(value, float) and name not in excluded
    ]


def _evaluations(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the table of the last evaluations and the best one."""
    rows = [
        row for i, row in enumerate(evaluations) if row["best"] or len(evaluations) - i <= _MAX_EVALUATIONS
    ]
    first = evaluations[0] if evaluations else ()
    names = [name for name in first if name not in ("step", "epoch", "loss", "best")]
    heads = ["update", "epoch", "loss", *(score_name(name) for name in names)]
    return {"heads": heads, "names": names, "rows": rows, "number": len(evaluations)}


def _matrix(confusion: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the rows of a confusion matrix, each cell with its count and its fraction of the row."""
    if not confusion or not confusion["counts"]:
        return []
    return [
        {"label": label, "cells": [(cell, cell / max(1, sum(row))) for cell in row]}
        for label, row in zip(confusion["labels"], confusion["counts"], strict=True)
    ]


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return settings and their values by dotted names."""
    rows: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            rows += _flatten(value, f"{prefix}{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            rows.append((f"{prefix}{name}", text))
    return rows
