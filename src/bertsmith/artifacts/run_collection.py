"""A folder of several runs, which is none itself: what it says of them, and what to name in its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.formatting import counted

RUNS, OF_RUNS = "runs.json", "report.json"
"""Which runs there are or will be; what came of them, once all are finished."""


def runs_in(folder: Path) -> list[str] | None:
    """The names of the runs that a folder is of, in their order; None where it is no folder of runs."""
    names = _read(folder / RUNS).get("runs")
    return [str(name) for name in names] if isinstance(names, list) else None


def refuse_several(folder: Path) -> None:
    """InputError for a folder of several runs, which names the one that is the best on dev."""
    if (names := runs_in(folder)) is None:
        return
    report = _read(folder / OF_RUNS)
    best, decides = report.get("best"), report.get("decided_by")
    begun = [name for name in names if (folder / name / "model").is_dir()]
    if isinstance(best, str) and best in names:
        remedy = f"name one: {folder / best} is the best by {decides} on dev"
    elif begun:
        remedy = (
            f"name one, such as {folder / begun[0]}; they have not all finished (--resume continues them)"
        )
    else:
        remedy = "continue them: the command they were started with, and --resume"
    raise InputError(f"{folder}: this is a folder of {counted(len(names), 'run')}, not a run itself", remedy)


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
