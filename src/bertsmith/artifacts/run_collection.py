"""Folders that hold several runs: their run names and their best run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize

RUNS_FILE = "runs.json"
"""The file with the names of the runs, finished or not."""
RUNS_REPORT_FILE = "report.json"
"""The file with their results, written when all runs are finished."""


def run_names(folder: Path) -> list[str] | None:
    """Return the names of a folder's runs in order, None if it is not a folder of runs."""
    names = read_report(folder / RUNS_FILE).get("runs")
    return [str(name) for name in names] if isinstance(names, list) else None


def check_single_run(folder: Path) -> None:
    """Raise an InputError for a folder of runs; its hint names the best run on the validation set."""
    names = run_names(folder)
    if names is None:
        return
    report = read_report(folder / RUNS_REPORT_FILE)
    best, metric = report.get("best"), report.get("decided_by")
    started = [name for name in names if (folder / name / "model").is_dir()]
    resume = option("resume", True)
    if isinstance(best, str) and best in names:
        hint = f"name one run: {folder / best} has the best {metric} on the validation set"
    elif started:
        hint = f"name one run, such as {folder / started[0]}; {resume} continues unfinished runs"
    else:
        hint = f"continue the runs: repeat the command that started them with {resume}"
    message = f"this folder holds {pluralize(len(names), 'run')}; it is not a run itself"
    raise InputError("folder_of_runs", message, location=folder, hint=hint)


def read_report(file: Path) -> dict[str, Any]:
    """Return the values of a report; {} if the file is missing or damaged."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
