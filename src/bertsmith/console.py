"""What a terminal shows: tables, progress, notes, JSON. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

_NOTE_SECONDS = 15.0  # without a terminal: a line of progress this often


def _console(stderr: bool) -> Console:
    """Made when used, so that it writes to the stream that stands there now (tests and pipes replace it).

    rich honours NO_COLOR and colours only a terminal.
    """
    return Console(
        stderr=stderr, highlight=False, soft_wrap=not (sys.stderr if stderr else sys.stdout).isatty()
    )


def note(text: str) -> None:
    """A line about the work, for people: to stderr."""
    _console(stderr=True).print(text, markup=False)


def result(text: str) -> None:
    """A line of the result: to stdout."""
    _console(stderr=False).print(text, markup=False)


def result_text(text: Text) -> None:
    """A paragraph of the result with styles, which show on a terminal alone: to stdout."""
    _console(stderr=False).print(text)


def has_colours() -> bool:
    """Whether stdout shows colours: a terminal, and no NO_COLOR."""
    console = _console(stderr=False)
    return console.is_terminal and not console.no_color


def result_json(document: Any) -> None:
    """Exactly one JSON document on stdout."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n")


def result_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout; numbers are set right."""
    kept = [[str(cell) for cell in row] for row in rows]
    table = Table(title=title or None, title_justify="left", title_style="bold", header_style="bold")
    for i, column in enumerate(columns):
        numeric = bool(kept) and all(_is_number(row[i]) for row in kept)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in kept:
        table.add_row(*row)
    _console(stderr=False).print(table, markup=False)


def _is_number(cell: str) -> bool:
    return (
        bool(cell)
        and all(c in "0123456789.,%+-±–× ()eGMKBis" for c in cell)
        and any(c.isdigit() for c in cell)
    )


def duration(seconds: float) -> str:
    """42 s, 3 min 05 s, 2 h 07 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Bar:
    """Progress of one long work on stderr: a bar on a terminal, a line now and then elsewhere.

    total: units of work, None if unknown. `advance_to(done, text)` may be called as often as one likes.
    """

    def __init__(self, title: str, total: float | None) -> None:
        self._title, self._total = title, total
        self._begin = self._told = time.monotonic()
        self._progress: Progress | None = None
        console = _console(stderr=True)
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                TaskProgressColumn(),
                TextColumn("{task.fields[text]}"),
                TimeRemainingColumn(compact=True),
                console=console,
                transient=True,
            )
            self._task = self._progress.add_task(title, total=total, text="")

    def __enter__(self) -> Bar:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress:
            self._progress.stop()

    def advance_to(self, done: float, text: str = "") -> None:
        """`done` of the total units are done; `text` says something about them."""
        if self._progress:
            self._progress.update(self._task, completed=done, text=text)
            return
        now = time.monotonic()
        if now - self._told >= _NOTE_SECONDS:
            self._told = now
            share, left = "", ""
            if self._total and done:
                share = f" {100 * done / self._total:.0f} %"
                left = f", {duration((now - self._begin) * (self._total - done) / done)} left"
            note(f"{self._title}{share} {text}{left}")
