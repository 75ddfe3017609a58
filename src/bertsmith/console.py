"""Terminal output: tables, progress bars, notes, and JSON. Results go to stdout, everything else to stderr.

Labels, file names, and texts come from users' files. Characters in them that would control the terminal are
printed as escapes (`escape_control_characters`).
"""

from __future__ import annotations

import functools
import importlib
import json
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from io import StringIO
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from bertsmith.formatting import CONTROL, escape_control_characters

if TYPE_CHECKING:  # Rich is imported on first use, so that a short JSON result does not wait for it.
    from rich.console import Console
    from rich.progress import Progress

# A formatted number, such as "1,234", "2.3 %", "1.2 MB", or "0.81 ± 0.02"; "–" is none.
_NUMBER = re.compile(r"–|(?=.*\d)[0-9.,%+±–×<> ()eGMKBis-]+")
_MIN_TEXT_WIDTH = 12  # characters: a column of text in a table
_MIN_WIDTH_WITH_BAR = 60  # characters: a terminal that shows a progress bar next to its text
_BAR_WIDTH = 10  # characters
_MAX_LISTED_CELLS = 20  # listed in place of a square table that is too wide
_NOTE_SECONDS = 15.0  # between lines of progress without a terminal
_SPEED_WINDOW_SECONDS = 60.0  # the time left is estimated from the speed in this last period
_FRAME_SECONDS = 0.25  # between two updates of a notebook's bar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def create_console(stderr: bool = False) -> Console:
    """Return a console of Rich for the current stdout or stderr, which tests and pipes replace.

    Rich honors NO_COLOR and colors only terminals.
    """
    from rich.console import Console

    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    console = Console(stderr=stderr, highlight=False, soft_wrap=not is_terminal, force_jupyter=False)
    # Rich would end the process; a run outlives the reader of its notes.
    console.on_broken_pipe = _raise_broken_pipe  # type: ignore[method-assign]
    return console


def _raise_broken_pipe() -> NoReturn:
    raise BrokenPipeError


def print_note(text: str) -> None:
    """Print a line of information on stderr; a closed stderr is ignored."""
    with suppress(OSError):
        create_console(stderr=True).print(escape_control_characters(text), markup=False)


def in_notebook() -> bool:
    """Return True if this process is the kernel of a notebook, which shows HTML."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def with_progress_bar(title: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Return a decorator that shows a progress bar in a notebook.

    The decorated function must have an argument `progress`, a function that it calls with the number of bytes
    processed. The bar is shown if the caller does not pass `progress`.

    Args:
        title: The title of the bar.
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @functools.wraps(function)
        def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            if kwargs.get("progress") is not None or not in_notebook():
                return function(*args, **kwargs)
            with ProgressBar(title, None) as bar:
                kwargs["progress"] = bar.update_bytes
                return function(*args, **kwargs)

        return wrapper

    return decorate


def print_result(text: str) -> None:
    """Print a line of the result on stdout."""
    create_console().print(escape_control_characters(text), markup=False)


def print_piece(text: str) -> None:
    """Print a part of a line on stdout at once."""
    sys.stdout.write(escape_control_characters(text))
    sys.stdout.flush()


def print_json(document: Any) -> None:
    """Print one JSON document in one line on stdout; control characters become JSON escapes."""
    sys.stdout.write(_to_json(document) + "\n")


def print_json_list(document: Mapping[str, Any], name: str, values: Iterable[Any]) -> None:
    """Print a JSON document with a list at its end, of which only one value at a time is in memory.

    Args:
        document: The entries before the list.
        name: The name of the list.
        values: The values of the list.
    """
    sys.stdout.write(_to_json({**document, name: []}).removesuffix("]}"))
    for i, value in enumerate(values):
        sys.stdout.write((", " if i else "") + _to_json(value))
    sys.stdout.write("]}\n")


def _to_json(document: Any) -> str:
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    line = json.dumps(document, ensure_ascii=not is_unicode, allow_nan=False)
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", line)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table on stdout with numbers aligned right.

    On a terminal that is too narrow, each row becomes a paragraph. A square table, whose columns have the names of
    its rows (a confusion matrix), becomes a list of its largest off-diagonal cells instead. Its first heading
    names rows and columns: "truth, down; prediction, across".

    Args:
        title: The title; empty: none.
        columns: The headings.
        rows: The cells of each row; a tuple is a cell of several lines.
    """
    _print_table(create_console(), title, columns, rows)


def format_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, ruled: bool = False
) -> str:
    """Return the table that `print_table` prints, as plain text as wide as the terminal, or of 100 characters.

    Args:
        title: The title; empty: none.
        columns: The headings.
        rows: The cells of each row.
        ruled: Draw a line between rows.
    """
    from rich.console import Console

    width = shutil.get_terminal_size((100, 24)).columns
    text = StringIO()
    console = Console(file=text, width=width, color_system=None, highlight=False, force_jupyter=False)
    _print_table(console, title, columns, rows, ruled=ruled)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip("\n").split("\n"))


def _print_table(
    console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], ruled: bool = False
) -> None:
    from rich.table import Table

    cells = [[_cell(cell) for cell in row] for row in rows]
    names = [escape_control_characters(column, one_line=True) for column in columns]
    if not _fits(names, cells, console.width) and len(names) > 2:
        is_square = names[1:] == [row[0] for row in cells]
        (_print_largest_confusions if is_square else _print_paragraphs)(console, title, names, cells)
        return
    heading = escape_control_characters(title, one_line=True) or None
    table = Table(
        title=heading, title_justify="left", title_style="bold", header_style="bold", show_lines=ruled
    )
    for i, name in enumerate(names):
        table.add_column(name, justify="right" if _is_numeric_column(cells, i) else "left", overflow="fold")
    for row in cells:
        table.add_row(*row)
    console.print(table, markup=False)


def _is_numeric_column(rows: Sequence[Sequence[str]], column: int) -> bool:
    return bool(rows) and all(_NUMBER.fullmatch(row[column]) for row in rows)


def _fits(names: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> bool:
    """Return True if a width is enough for the words of headings, for numbers, and for 12 characters of texts."""
    from rich.cells import cell_len

    min_width = 1
    for i, name in enumerate(names):
        lines = [line for row in rows for line in row[i].splitlines()]
        max_length = max(map(cell_len, lines), default=0)
        cell_width = max_length if _is_numeric_column(rows, i) else min(max_length, _MIN_TEXT_WIDTH)
        # A space on each side and a border.
        min_width += 3 + max(cell_width, *(cell_len(word) for word in (*name.split(), "")))
    return min_width <= width


def _print_paragraphs(console: Console, title: str, names: list[str], rows: list[list[str]]) -> None:
    """Print each row as a paragraph: its first cell, then the name and the cell of each other column."""
    from rich.text import Text

    if title:
        console.print(Text(escape_control_characters(title, one_line=True), style="bold"))
    for row in rows:
        console.print(Text(row[0] or "–", style="bold"))
        for name, cell in zip(names[1:], row[1:], strict=True):
            if not cell:
                continue
            text = Text((f"{name}: {cell}" if name else cell).replace("\n", " "))
            for line in [text] if console.soft_wrap else text.wrap(console, console.width - 2):
                console.print(Text("  ") + line)


def _print_largest_confusions(console: Console, title: str, names: list[str], rows: list[list[str]]) -> None:
    """Print the largest off-diagonal cells of a square table."""
    cells = [
        (row[0], name, cell)
        for row in rows
        for name, cell in zip(names[1:], row[1:], strict=True)
        if row[0] != name and cell != "0"
    ]
    largest = sorted(cells, key=lambda cell: -int(cell[2].replace(",", "")))[:_MAX_LISTED_CELLS]
    down, _, across = names[0].partition("; ")
    heads = [down.removesuffix(", down") or "row", across.removesuffix(", across") or "column", "times"]
    rest = f"; {len(cells) - len(largest):,} more with --json" if len(cells) > len(largest) else ""
    _print_table(console, title or f"the largest off the diagonal{rest}", heads, largest)


def _cell(cell: object) -> str:
    lines = cell if isinstance(cell, tuple) else (cell,)
    return "\n".join(escape_control_characters(str(line), one_line=True) for line in lines)


def format_duration(seconds: float) -> str:
    """Format a duration: "42 s", "3 min 05 s", "2 h 07 min"."""
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"


class ProgressBar:
    """The progress of a long task: a bar on a terminal or in a notebook, elsewhere a line on stderr every 15 s."""

    def __init__(self, title: str, total: float | None, *, initial: float = 0.0, unit: str = "") -> None:
        """Create the bar; entering it as a context manager starts it.

        Args:
            title: The task.
            total: Units of work; None: unknown.
            initial: Units that were done before the bar was created, such as those of a resumed run.
            unit: The plural name of the units, for "12/60 updates"; empty: a percentage is shown.
        """
        self._title, self._total, self._unit = escape_control_characters(title, one_line=True), total, unit
        self._done, self._text = initial, ""
        self._seconds_left: float | None = None
        self._last_note = time.monotonic()
        self._history = deque([(self._last_note, initial)])
        self._notebook_bar = _NotebookBar() if in_notebook() else None
        self._progress: Progress | None = None
        console = create_console(stderr=True)
        if console.is_terminal and self._notebook_bar is None:
            from rich.progress import BarColumn, Progress, TextColumn
            from rich.table import Column

            text = TextColumn(
                "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")
            )
            bar = [BarColumn(bar_width=_BAR_WIDTH)] if console.width >= _MIN_WIDTH_WITH_BAR else []
            self._progress = Progress(*bar, text, console=console, transient=True)
            self._task = self._progress.add_task(self._title, total=total)

    def __enter__(self) -> ProgressBar:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress:
            with suppress(OSError):  # the terminal was closed
                self._progress.stop()
        if self._notebook_bar and self._text:
            self._notebook_bar.draw(self.line(), 1.0, at_once=True)

    def update(
        self, done: float, text: str = "", *, total: float | None = None, seconds_left: float | None = None
    ) -> None:
        """Show the current state; the display itself is refreshed at most a few times a second.

        Args:
            done: Units that are done.
            text: Further information.
            total: The total, if it has changed.
            seconds_left: Seconds left; None: estimated from the speed.
        """
        self._total = self._total if total is None else total
        self._done, self._text = done, escape_control_characters(text, one_line=True)
        now = time.monotonic()
        self._history.append((now, done))
        while len(self._history) > 2 and now - self._history[1][0] > _SPEED_WINDOW_SECONDS:
            self._history.popleft()
        self._seconds_left = self._estimate_seconds_left() if seconds_left is None else seconds_left
        if self._notebook_bar:
            self._notebook_bar.draw(self.line(), done / self._total if self._total else None)
        elif self._progress:
            self._progress.update(self._task, completed=done, total=self._total, description=self.line())
        elif now - self._last_note >= _NOTE_SECONDS:
            self._last_note = now
            print_note(self.line())

    def update_bytes(self, done: float) -> None:
        """Show the number of bytes that are done."""
        self.update(done, f"{done / 1e6:,.0f} MB")

    def line(self) -> str:
        """Return the state in one line: how much is done, the time left, and further information."""
        done = f"{100 * self._done / self._total:.0f} %" if self._total else ""
        if self._unit and self._total is not None:
            done = f"{self._done:,.0f}/{self._total:,.0f} {self._unit}"
        time_left = "" if self._seconds_left is None else f"time left {format_duration(self._seconds_left)}"
        return " · ".join(filter(None, (f"{self._title} {done}".strip(), time_left, self._text)))

    def _estimate_seconds_left(self) -> float | None:
        (start_time, start), (now, done) = self._history[0], self._history[-1]
        if self._total is None or done <= start:
            return None
        return max(0.0, (now - start_time) * (self._total - done) / (done - start))


class _NotebookBar:
    """A notebook's progress bar: HTML that replaces itself, without widgets, so that a saved notebook shows it."""

    def __init__(self) -> None:
        self._last_frame, self._handle = -_FRAME_SECONDS, None

    def draw(self, line: str, fraction: float | None, *, at_once: bool = False) -> None:
        """Draw the bar, unless it was drawn a moment ago; without a fraction, the total is unknown."""
        import html  # only notebooks need it

        if not at_once and time.monotonic() - self._last_frame < _FRAME_SECONDS:
            return

        display: Any = importlib.import_module("IPython.display")
        self._last_frame = time.monotonic()
        value = "" if fraction is None else f" value='{min(fraction, 1):g}'"
        page = display.HTML(f"<progress{value}></progress> {html.escape(line)}")
        if self._handle is None:
            self._handle = display.display(page, display_id=True)
        else:
            self._handle.update(page)
