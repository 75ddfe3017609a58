"""The commands that follow training runs: `watch` and `runs`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from bertsmith import console
from bertsmith.cli import options
from bertsmith.cli.commands import Command
from bertsmith.cli.options import DIR, FILE, Integer
from bertsmith.cli.tables import format_value, show
from bertsmith.formatting import escape_control_characters, format_number

if TYPE_CHECKING:
    from rich.console import Console, Group

    from bertsmith.inspection.runs import RunSummary
    from bertsmith.inspection.watch import RunWatcher

_MIN_PAGE_SECONDS = 5  # between two writes of a page
_CHART_WIDTH = 38  # characters: charts are side by side on terminals that are twice as wide
_CHART_HEIGHTS = (6, 16)  # lines: minimum and maximum, on a terminal
_PRINTED_CHART_HEIGHT = 10
_MAX_NAME_LENGTH = 24  # characters of a run; the end of a longer name is shown


@click.command(cls=Command)
@click.argument("runs", nargs=-1, required=True, type=DIR, metavar="RUN...")
@click.option("--once", is_flag=True, help="Print the current state and end.")
@click.option("--page", type=FILE, metavar="FILE.html", help="Write a page that reloads itself.")
@click.option("--interval", type=Integer(1), default=2, help="Seconds between two looks at the runs.")
@options.as_json
def watch(runs: tuple[str, ...], once: bool, page: str | None, interval: int, as_json: bool) -> None:
    """Show the curves of running and finished runs.

    \b
    Example:
      bertsmith watch bert
      bertsmith watch moods-a moods-b --page curves.html

    RUN is the output folder of a run, also of one that starts later, or a folder of runs. The charts have the
    loss, the score on the validation data, the learning rate, and the speed by update. The command ends when no
    run is running any more. --once and --json show the current state, as does output into a file or pipe.
    """
    from bertsmith.inspection.watch import RunWatcher
    from bertsmith.io import atomic
    from bertsmith.reports.page import check_suffix

    if page is not None:
        check_suffix(page, "page", (".html",))
        atomic.check_output_file(Path(page), overwrite=True)
    once = once or as_json or not (sys.stdout.isatty() or page)
    watcher = RunWatcher(runs, waits=not once)
    if not once:
        _follow(watcher, None if page is None else Path(page), interval)
        return
    if page is not None:
        _write_page(watcher, Path(page), None)
    if as_json:
        console.print_json(watcher.to_dict())
    else:
        terminal = console.create_console()
        terminal.print(_render(watcher, terminal), soft_wrap=False)


def _follow(watcher: RunWatcher, page: Path | None, interval: int) -> None:
    """Show the runs until none is running any more."""
    from rich.live import Live

    terminal = console.create_console()
    page_seconds = max(_MIN_PAGE_SECONDS, interval)
    last_page = 0.0
    with Live(console=terminal, auto_refresh=False) as live:
        while True:
            live.update(_render(watcher, terminal), refresh=True)
            is_over = watcher.is_over
            if page is not None and (is_over or time.monotonic() - last_page >= page_seconds):
                _write_page(watcher, page, None if is_over else page_seconds)
                last_page = time.monotonic()
            if is_over:
                break
            time.sleep(interval)
            watcher.update()
    if not terminal.is_terminal:
        terminal.print()  # the end of the last line


def _write_page(watcher: RunWatcher, page: Path, refresh_seconds: int | None) -> None:
    from bertsmith.reports.curves import render_curves_page
    from bertsmith.reports.page import write_page

    runs = [run.to_dict() for run in watcher.runs]
    write_page(page, render_curves_page(runs, watcher.charts(), refresh_seconds))


def _render(watcher: RunWatcher, terminal: Console) -> Group:
    """Return a line for each run, and charts in one or two columns that fit the terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from bertsmith.reports.curves import COLORS, MARKERS, draw_chart

    charts, names = watcher.charts(), [run.run for run in watcher.runs]
    colored = terminal.color_system is not None and terminal.encoding.startswith("utf")
    lines = Text(no_wrap=True, overflow="ellipsis")
    for index, run in enumerate(watcher.runs):
        mark = "●" if colored else MARKERS[index % len(MARKERS)]
        lines.append(mark, style=COLORS[index % len(COLORS)] if colored else "")
        lines.append(f" {_describe(run)}\n")
    num_columns = 2 if terminal.width >= 2 * _CHART_WIDTH else 1
    num_rows = -(-len(charts) // num_columns) or 1
    lowest, highest = _CHART_HEIGHTS
    available = (terminal.height - len(names) - 1) // num_rows
    height = min(highest, max(lowest, available)) if terminal.is_terminal else _PRINTED_CHART_HEIGHT
    grid = Table.grid(*[""] * num_columns, padding=(0, 1))
    width = min(terminal.width, 120) // num_columns - 1
    cells = [
        draw_chart(title, curves, names, width, height, colored=colored) for title, curves in charts.items()
    ]
    for start in range(0, len(cells), num_columns):
        grid.add_row(*cells[start : start + num_columns])
    return Group(lines, grid if cells else Text("no update has been logged yet"))


def _describe(run: RunSummary) -> str:
    updates = f"{run.step:,}" + (f"/{run.num_updates:,}" if run.num_updates else "")
    score = f"{run.metric} {run.score:.4f}" if run.score is not None else None
    name = run.run if len(run.run) <= _MAX_NAME_LENGTH else f"…{run.run[1 - _MAX_NAME_LENGTH :]}"
    parts = [name, run.status, f"{updates} updates", score, run.reason]
    return escape_control_characters(" · ".join(filter(None, parts)), one_line=True)


@click.command(cls=Command)
@click.argument("folder", type=DIR, metavar="DIR")
@options.choice(
    "--sort",
    "run",
    "score",
    "step",
    "seconds",
    default="run",
    help="Order of the runs; the best score is first.",
)
@options.as_json
def runs(folder: str, sort: Any, as_json: bool) -> None:
    """List the runs in DIR and its subfolders, with the settings in which they differ.

    \b
    Example:
      bertsmith runs experiments --sort score

    The score is that of the report on the validation data, with its 95 % interval; of an unfinished run, the last
    one. A damaged run is listed with the reason.
    """
    from bertsmith.inspection.runs import list_runs

    show(list_runs(folder, sort=sort).to_dict(), as_json, _print_runs)


def _print_runs(document: dict[str, Any]) -> None:
    rows = document["runs"]
    settings = list(dict.fromkeys(name for row in rows for name in row["settings"]))
    short = [name.rpartition(".")[2] for name in settings]
    headings = [last if short.count(last) == 1 else name for name, last in zip(settings, short, strict=True)]
    cells = [
        (
            row["run"],
            row["status"],
            f"{row['step']:,}" + (f"/{row['num_updates']:,}" if row["num_updates"] else ""),
            row["metric"] or "–",
            format_number(row["score"]),
            "–" if row["interval"] is None else "{:.3f}–{:.3f}".format(*row["interval"]),
            *(format_value(row["settings"][name]) if name in row["settings"] else "–" for name in settings),
        )
        for row in rows
    ]
    columns = ["run", "status", "updates", "metric", "score", "95 % interval", *headings]
    console.print_table(document["folder"], columns, cells)
    for row in rows:
        if row["reason"]:
            console.print_note(f"{row['run']}: {row['reason']}")
