"""What several runs of one task come to: each one's score, and mean, median, best and deviation of all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev
from typing import Any

from bertsmith.experiments.multirun_plan import Planned
from bertsmith.formatting import join_names, pluralize


def report_of(
    runs: Sequence[Planned],
    reports: Mapping[str, Mapping[str, Any] | str],
    pooled: Mapping[str, Mapping[str, Any]] | None,
) -> dict[str, Any]:
    """The report of all runs. reports: of each by its name, or why it has none; pooled: the scores of all answers
    of a cell's folds, by the name of its first run."""
    done = [report for report in reports.values() if not isinstance(report, str)]
    first: Mapping[str, Any] = done[0] if done else {}
    decides = str(first.get("decided_by", "score"))
    rows = [_row(run, reports[run.name], decides) for run in runs]
    cells: dict[str, list[dict[str, Any]]] = {}
    for run, row in zip(runs, rows, strict=True):
        cells.setdefault(json.dumps(run.cell), []).append(row)
    scored = [row for row in rows if row["score"] is not None]
    best = max(scored, key=lambda row: row["score"], default=None)
    found: dict[str, Any] = {
        "task": first.get("task"),
        "base": first.get("base"),
        "decided_by": decides,
        "runs": rows,
        "summary": summary_of(rows),
        "best": None if best is None else best["run"],
        "warnings": list(_warnings(rows, decides, str(first.get("baseline_name", "")))),
    }
    if len(cells) > 1:
        found["cells"] = [
            {"settings": json.loads(cell), **summary_of(some), **_of_pool(pooled, some)}
            for cell, some in cells.items()
        ]
    return found | (_of_pool(pooled, rows) if len(cells) == 1 else {})


def summary_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of the scores that there are: how many, mean, median, best, standard deviation (of a sample: n - 1; None of
    one alone); the names of degenerate runs, and the mean without them where there are any."""
    scores = [row["score"] for row in rows if row["score"] is not None]
    sound = [row["score"] for row in rows if row["score"] is not None and not row["degenerate"]]
    degenerate = [row["run"] for row in rows if row["degenerate"]]
    found = {
        "scores": len(scores),
        "mean": fmean(scores) if scores else None,
        "median": median(scores) if scores else None,
        "best": max(scores, default=None),
        "deviation": stdev(scores) if len(scores) > 1 else None,
        "degenerate": degenerate,
    }
    return found | ({"mean_without_degenerate": fmean(sound)} if degenerate and sound else {})


def _row(run: Planned, report: Mapping[str, Any] | str, decides: str) -> dict[str, Any]:
    """One run. A run without a score is degenerate, and so is one no better than a baseline that reads no text."""
    if isinstance(report, str):
        none = {"score": None, "baseline": None, "degenerate": True, "failure": report}
        return {"run": run.name, "settings": run.varied, **none}
    score, beside = report["dev"][decides], report["baseline"][decides]
    return {
        "run": run.name,
        "settings": run.varied,
        "score": score,
        "baseline": beside,
        "degenerate": score <= beside and not report.get("baseline_reads", False),
        "best_step": report["best_step"],
        "steps": report["steps"],
        "seconds": report["seconds"],
        "dev": {k: v for k, v in report["dev"].items() if isinstance(v, int | float)},
    }


def _of_pool(
    pooled: Mapping[str, Mapping[str, Any]] | None, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The scores of all held-out answers of a cell."""
    return {} if pooled is None or rows[0]["run"] not in pooled else {"pooled": pooled[rows[0]["run"]]}


def _warnings(rows: Sequence[Mapping[str, Any]], decides: str, beside: str) -> list[str]:
    """A sentence on degenerate runs."""
    found = [row["run"] for row in rows if row["degenerate"]]
    if not found:
        return []
    are, their = ("is", "its") if len(found) == 1 else ("are", "their")
    return [
        f"{len(found)} of {pluralize(len(rows), 'run')} {are} degenerate "
        f"({join_names(found)}): {their} {decides} is no "
        f"better than {beside or 'the baseline'}, or there is none"
    ]
