"""`runs`: list the runs below a folder, with their progress, scores, and the settings in which they differ."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, FiniteFloat

from bertsmith.errors import InputError
from bertsmith.inspection.run_log import RunLog
from bertsmith.io import atomic
from bertsmith.notebook import Result
from bertsmith.runs.run_folder import CHECKPOINTS, REPORT, SETTINGS, holds_run
from bertsmith.settings import read_yaml
from bertsmith.suggestions import not_found_error
from bertsmith.training.checkpoint import newest_state, steps
from bertsmith.training.run_plan import read_plan

Status = Literal["running", "finished", "interrupted", "not started", "damaged"]
Order = Literal["run", "score", "step", "seconds"]
_LOWER_IS_BETTER = ("loss", "perplexity", "error")


@dataclass
class RunSummary(Result):
    """A run of a folder.

    Attributes:
        run: Its path below the folder; "." for the folder itself.
        status: "running", "finished", "interrupted", "not started", or "damaged".
        step: The updates so far.
        num_updates: The updates of the whole run; None if they are unknown.
        metric: The name of the score.
        score: The score on the validation data: of a finished fine-tuning run the best, of others the last one.
        interval: The 95 % interval of the score of a finished fine-tuning run.
        seconds: The seconds of training until the last checkpoint.
        settings: The settings in which the runs of the folder differ, by dotted names.
        reason: What is damaged; None if nothing is.
    """

    run: str
    status: Status
    step: int = 0
    num_updates: int | None = None
    metric: str | None = None
    score: float | None = None
    interval: list[float] | None = None
    seconds: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None


@dataclass
class RunList(Result):
    """The runs of a folder.

    Attributes:
        folder: The folder.
        runs: The runs, in the requested order.
    """

    display_fields: ClassVar = ("runs",)

    folder: str
    runs: list[RunSummary]


def list_runs(folder: str | Path, *, sort: Order = "run") -> RunList:
    """List the runs in a folder and its subfolders; a damaged one is listed with a reason.

    Args:
        folder: The folder.
        sort: "run" for the order of the names, or "score" (best first), "step", or "seconds" (most first).

    Raises:
        InputError: There is no such folder, or it contains no run.
    """
    root = Path(folder)
    paths = find_runs(root)
    if not paths:
        hint = "name a folder that contains the output folders of training runs"
        raise InputError("no_runs", "this folder contains no run", location=root, hint=hint)
    runs = [describe_run(path, name=os.path.relpath(path, root)) for path in paths]
    _keep_differing_settings(runs)
    if sort != "run":
        runs.sort(key=lambda run: _sort_key(run, sort))
    return RunList(str(folder), runs)


def find_runs(folder: Path) -> list[Path]:
    """Return the folders of runs in a folder and its subfolders, or the folder itself, by name; follow no link.

    Raises:
        InputError: There is no such folder.
    """
    if not folder.is_dir():
        raise not_found_error(folder, "folder", "name a run, or a folder that contains runs")
    return sorted(_walk_runs(folder))


def _walk_runs(folder: Path) -> Iterator[Path]:
    for parent, subfolders, _ in os.walk(folder):
        if holds_run(Path(parent)):
            subfolders.clear()
            yield Path(parent)
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]


def describe_run(path: Path, log: RunLog | None = None, *, name: str | None = None) -> RunSummary:
    """Return the summary of a run, with all of its settings; nothing in its folder is changed.

    Args:
        path: The run folder, which need not exist yet.
        log: The log of the run, up to date; None reads it.
        name: The name in the summary; default: the path.
    """
    summary = RunSummary(name or str(path), "not started")
    is_running = _is_locked(path)
    if not path.is_dir() or not holds_run(path):
        summary.status = "running" if is_running else "not started"
        return summary
    if log is None:
        log = RunLog(path)
        log.update()
    report: _RunReport | None = None
    settings: Mapping[str, Any] = {}
    state = newest_state(path / CHECKPOINTS)
    try:
        settings, report = read_yaml(path / SETTINGS), _read_report(path / REPORT)
    except InputError as error:
        summary.reason = error.message
    if state is None and steps(path / CHECKPOINTS):
        summary.reason = "no checkpoint is readable"
    if log.num_damaged:
        summary.reason = f"lines of the log are damaged: {log.num_damaged:,}"
    plan = read_plan(path, [])
    summary.settings = _flatten(settings)
    last_step = 0 if report is None else report.steps
    summary.num_updates = plan[-1].updates if plan else last_step or None
    summary.step = max(log.step, last_step, 0 if state is None else state.step)
    if state is not None:
        summary.seconds = round(state.seconds, 1)
    elif report is not None:
        summary.seconds = report.seconds
    summary.metric, summary.score, summary.interval = _score(report, log)
    is_finished = report is not None and summary.step >= (summary.num_updates or 0)
    summary.status = "running" if is_running else "finished" if is_finished else "interrupted"
    if summary.reason and not is_running:
        summary.status = "damaged"
    return summary


def _is_locked(folder: Path) -> bool:
    """Return True if a process holds the `atomic.folder_lock` of a folder."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # no such folder
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(handle)
    return False


class _RunReport(BaseModel):
    """The values of report.json that a summary shows."""

    steps: int
    seconds: FiniteFloat | None = None
    decided_by: str | None = None
    validation: dict[str, Any] = {}
    intervals: dict[str, tuple[FiniteFloat, FiniteFloat]] = {}

    @property
    def score(self) -> Any:
        """The score on the validation data; None if there is none."""
        return None if self.decided_by is None else self.validation.get(self.decided_by)


def _read_report(file: Path) -> _RunReport | None:
    """Return a report; None if there is none yet. Raise InputError if it is damaged."""
    try:
        report = _RunReport.model_validate_json(atomic.read_file(file), strict=True)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        report = None
    if report is None or not isinstance(report.score, int | float | None):
        raise InputError("file_damaged", f"{file.name} is damaged", location=file)
    return report


def _score(report: _RunReport | None, log: RunLog) -> tuple[str | None, float | None, list[float] | None]:
    """Return the name, value, and interval of the score of a finished run, or of the last evaluation."""
    if report is not None and report.score is not None:
        metric = str(report.decided_by)
        return metric, report.score, list(report.intervals.get(metric, ())) or None
    curve = log.validation_metric
    return (None, None, None) if curve is None else (curve.removeprefix("validation "), log.last(curve), None)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by dotted names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _keep_differing_settings(runs: Sequence[RunSummary]) -> None:
    """Remove the settings that all runs that have them share; runs of other kinds have other settings."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    for name in names:
        values = [run.settings[name] for run in runs if name in run.settings]
        if all(value == values[0] for value in values):
            for run in runs:
                run.settings.pop(name, None)


def _sort_key(run: RunSummary, order: Order) -> tuple[bool, float]:
    """Return the key by which runs without a value are last."""
    value: float | None = getattr(run, order)
    lower_is_better = order == "score" and str(run.metric).endswith(_LOWER_IS_BETTER)
    return value is None, (value or 0.0) * (1 if lower_is_better else -1)
