"""Several runs of one task as tables: each run's score, and what all come to."""

from __future__ import annotations

from typing import Any


def show_repeats(out: str, report: dict[str, Any]) -> None:
    """Each run with its score; what all come to, by cells of the grid where there are several."""
    from bertsmith import console
    from bertsmith.formatting import pluralize

    decides = report["decided_by"]
    rows = [
        (
            row["run"],
            _number(row["score"]),
            _number(row["baseline"]),
            "–" if row["score"] is None else console.format_duration(row["seconds"]),
            "degenerate" if row["degenerate"] else "← best" if row["run"] == report["best"] else "",
        )
        for row in report["runs"]
    ]
    console.print_table(
        f"{out}: {decides} on the validation data", ["run", decides, "baseline", "time", ""], rows
    )
    figures = ("mean", "median", "best", "deviation")
    cells = [cell for cell in report.get("cells", ()) if cell["scores"] > 1]
    named = [(_cell_name(cell["settings"]), cell) for cell in cells]
    summed = named or [("all", report["summary"])]
    of_what = "by cell of the grid" if named else f"of {pluralize(report['summary']['scores'], 'run')}"
    console.print_table(
        f"{decides}, {of_what}",
        ["", *figures, "degenerate"],
        [(name, *(_number(of[figure]) for figure in figures), len(of["degenerate"])) for name, of in summed],
    )
    if "mean_without_degenerate" in report["summary"]:
        console.print_result(
            f"mean without the degenerate: {report['summary']['mean_without_degenerate']:.4f}"
        )
    for name, of in [*named, ("", report)]:
        if "pooled" in of:
            console.print_result(
                f"{name}{': ' if name else ''}all answers on held-out parts together: {decides} "
                f"{of['pooled'][decides]:.4f} ({of['pooled']['examples']:,} examples)"
            )
    if report["best"] is not None:
        console.print_note(f"next: bertsmith evaluate {out}/{report['best']} --data FILE")


def _cell_name(settings: dict[str, Any]) -> str:
    """A cell of a grid, in a few words."""
    return ", ".join(f"{name.rpartition('.')[2]}={value}" for name, value in settings.items())


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
