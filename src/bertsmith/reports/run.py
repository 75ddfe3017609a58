"""The report of fine-tuning or of an evaluation: report.json, report.html with the same numbers, PNGs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertsmith.errors import MachineError
from bertsmith.io import atomic
from bertsmith.reports import plots
from bertsmith.reports.page import render, score_name
from bertsmith.reports.run_figures import Drawing, drawings

REPORT, PAGE, FIGURES = "report.json", "report.html", "figures"
_MOST_EVALUATIONS = 50  # rows
_SHOWN = 20  # places of a finding
_CHANCE = "chance"  # what a choice by chance would have, where a task tells it


def write_figures(folder: Path, report: Mapping[str, Any]) -> list[Drawing]:
    """The plots of a report as FOLDER/figures/*.png; those of an earlier report are gone."""
    found = drawings(report)
    with _whole(folder / FIGURES):
        if (folder / FIGURES).is_dir():
            atomic.remove_folder(folder / FIGURES)
        for one in found:
            atomic.write_bytes(folder / FIGURES / f"{one.name}.png", plots.png(one.figure))
    return found


def write_report(folder: Path, report: Mapping[str, Any], drawn: Sequence[Drawing]) -> None:
    """FOLDER/report.html, and with the same numbers FOLDER/report.json, which is written last. drawn: by
    `write_figures`."""
    page = run_page(report, drawn)
    with _whole(folder / REPORT):
        atomic.write_text(folder / PAGE, page)
        atomic.write_text(folder / REPORT, json.dumps(report, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def _whole(place: Path) -> Iterator[None]:
    """MachineError where the disk does not take what is written."""
    try:
        yield
    except OSError as error:
        raise MachineError(f"{place}: could not be written ({error.strerror})") from None


def run_page(report: Mapping[str, Any], drawn: Sequence[Drawing] | None = None) -> str:
    """The page of a report, whose numbers it holds and no others; all that came from files is escaped."""
    pictures = {
        one.name: {"heading": one.heading, "told": one.told, "picture": plots.picture(one.figure, one.told)}
        for one in (drawings(report) if drawn is None else drawn)
        if one.in_page
    }
    findings = {finding["said"] for finding in report.get("findings", [])}
    return render(
        "run.html",
        report=report,
        figures=pictures,
        lengths=[one for name, one in pictures.items() if name.startswith("lengths_")],
        scores=_scores(report),
        warnings=[said for said in report.get("warnings", []) if said not in findings],
        evaluations=_evaluations(report.get("evaluations", [])),
        settings=_flat(report.get("settings", {})),
        seconds=sum(one["seconds"] for one in report.get("wall_time", [])),
        matrix=_matrix(report.get("answers", {}).get("confusion")),
        shown_places=_SHOWN,
    )


def _scores(report: Mapping[str, Any]) -> list[tuple[str, float, float | None]]:
    """Each score with the baseline's, if there is one; not what chance would have, and what was chosen on dev."""
    beside = report.get("baseline", {})
    found = report["dev"] if "dev" in report else report["scores"]
    others = {_CHANCE, *report.get("chosen_on_dev", {})}
    return [
        (score_name(name), value, beside.get(name))
        for name, value in found.items()
        if isinstance(value, float) and name not in others
    ]


def _evaluations(every: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows of a table; of very many the last ones, and the one that was kept."""
    shown = [row for i, row in enumerate(every) if row["best"] or len(every) - i <= _MOST_EVALUATIONS]
    names = [name for name in (every[0] if every else ()) if name not in ("step", "epoch", "loss", "best")]
    heads = ["update", "epoch", "loss", *(score_name(name) for name in names)]
    return {"heads": heads, "names": names, "rows": shown, "number": len(every)}


def _matrix(found: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Rows of a confusion matrix, each cell with its share of the row."""
    if not found or not found["counts"]:
        return []
    return [
        {"label": label, "cells": [(cell, cell / max(1, sum(row))) for cell in row]}
        for label, row in zip(found["labels"], found["counts"], strict=True)
    ]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Settings by their dotted names."""
    found: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{name}.")
        else:
            found.append(
                (
                    f"{prefix}{name}",
                    value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),
                )
            )
    return found
