"""`watch`: the progress and the curves of runs while they train."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.inspection.run_log import Curve, RunLog
from bertsmith.inspection.runs import RunSummary, describe_run, find_runs
from bertsmith.reports.page import score_name
from bertsmith.suggestions import not_found_error

_SHORT_SEARCH = 0.1  # seconds of a search that each update repeats
_PAUSE = 20  # times the seconds of a longer search until the next one


class RunWatcher:
    """The runs in some folders.

    Attributes:
        runs: The summary of each run at the last update.
    """

    def __init__(self, folders: Sequence[str | Path], *, waits: bool = True) -> None:
        """Look for the runs.

        Args:
            folders: Folders of runs, or folders that contain such folders.
            waits: Accept folders that training will create, in a folder that exists.

        Raises:
            InputError: There is no such folder, or it has files and contains no run.
        """
        self._next_search = 0.0
        self._folders = [Path(folder) for folder in folders]
        self._logs: dict[Path, RunLog] = {}
        self._summaries: dict[Path, RunSummary] = {}
        for folder in self._folders:
            _check_folder(folder, waits)
        self.update()

    def update(self) -> bool:
        """Read what is new; return True if anything changed."""
        before = self.runs
        if time.monotonic() >= self._next_search:
            self._search()
        is_new = False
        for run, log in self._logs.items():
            summary = self._summaries.get(run)
            if log.update() or summary is None or summary.status != "finished":
                self._summaries[run] = describe_run(run, log)
                if summary is not None and summary.status != "not started" and not run.is_dir():
                    reason = "the folder was removed"
                    self._summaries[run] = replace(summary, status="interrupted", reason=reason)
                is_new = True
        return is_new and self.runs != before

    def _search(self) -> None:
        """Look for new runs; searches of large folders take at most 5 % of the time."""
        start = time.monotonic()
        for folder in self._folders:
            runs = find_runs(folder) if folder.is_dir() else []
            for run in runs or [folder]:
                if run not in self._logs:
                    self._logs[run] = RunLog(run)
            if runs and folder not in runs:  # until now, it stood for the runs to come
                self._logs.pop(folder, None)
                self._summaries.pop(folder, None)
        seconds = time.monotonic() - start
        self._next_search = start + (_PAUSE * seconds if seconds > _SHORT_SEARCH else 0.0)

    @property
    def runs(self) -> list[RunSummary]:
        """The summaries of the runs."""
        return list(self._summaries.values())

    @property
    def is_over(self) -> bool:
        """True if no run is running, or still to start."""
        return all(run.status not in ("running", "not started") for run in self.runs)

    def charts(self) -> dict[str, dict[str, Curve]]:
        """Return the curves of the runs by title and name of the run: losses, scores, learning rates, and speeds.

        Runs that are scored by different metrics are in different charts.
        """
        metrics = dict.fromkeys(log.validation_metric for log in self._logs.values())
        names = ["loss", *filter(None, metrics), "learning_rate", "tokens_per_second"]
        charts = {
            score_name(name): {
                str(run): log.curves[name] for run, log in self._logs.items() if log.curves.get(name)
            }
            for name in names
        }
        return {title: curves for title, curves in charts.items() if curves}

    def to_dict(self) -> dict[str, Any]:
        """Return the summaries, and all curves of each run as lists of steps and values."""
        curves = {
            str(run): {
                name: {"steps": list(curve), "values": list(curve.values())}
                for name, curve in log.curves.items()
            }
            for run, log in self._logs.items()
        }
        return {"runs": [run.to_dict() for run in self.runs], "curves": curves}


def _check_folder(folder: Path, waits: bool) -> None:
    """Raise InputError if a folder contains no run and will contain none."""
    hint = "name the output folder of a run, or a folder that contains runs"
    if not folder.exists():
        if not waits or not folder.absolute().parent.is_dir():
            raise not_found_error(folder, "folder", hint)
        return
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if not find_runs(folder) and not (waits and is_empty):
        raise InputError("no_runs", "this folder contains no run", location=folder, hint=hint)
