"""What a terminal shows: tables, progress, notes, JSON. Results go to stdout, everything else to stderr.

Labels, file names and texts are other people's: what would act on a terminal is shown as the escape that a
programmer would write (`visible`), in all that goes out here.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.table import Table
from rich.text import Text

# Controls (C0, DEL, C1), separators of lines, marks that turn the direction of writing, and surrogates, as which
# Python reads bytes of a file name that are not UTF-8.
_ACTING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_NOTE_SECONDS = 15.0  # without a terminal: a line of progress this often
_SPEED_SECONDS = 60.0  # over which the speed is taken that the time left follows from
_WIDE, _BAR = 60, 10  # columns of a terminal that has room for a bar beside the line, and of the bar


def _console(stderr: bool) -> Console:
    """Made when used, so that it writes to the stream that stands there now (tests and pipes replace it).

    rich honours NO_COLOR and colours only a terminal.
    """
    return Console(
        stderr=stderr, highlight=False, soft_wrap=not (sys.stderr if stderr else sys.stdout).isatty()
    )


def visible(text: str, *, one_line: bool = False) -> str:
    """A text whose characters do nothing but be seen; line ends and tabs stay, unless it is to be one line."""
    kept = "" if one_line else "\n\t"
    return _ACTING.sub(lambda found: found[0] if found[0] in kept else _escape(found[0]), text)


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code < 0xDD00:  # a byte that is not UTF-8 (PEP 383)
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


def note(text: str) -> None:
    """A line about the work, for people: to stderr. Where nobody can hear it any more, the work goes on."""
    with suppress(OSError):
        _console(stderr=True).print(visible(text), markup=False)


def result(text: str) -> None:
    """A line of the result: to stdout."""
    _console(stderr=False).print(visible(text), markup=False)


def result_text(text: Text) -> None:
    """A paragraph of the result with styles, which show on a terminal alone: to stdout."""
    console = _console(stderr=False)
    shown = Text()
    for segment in text.render(console):
        shown.append(visible(segment.text), segment.style)
    console.print(shown)


def has_colours() -> bool:
    """Whether stdout shows colours: a terminal, and no NO_COLOR."""
    console = _console(stderr=False)
    return console.is_terminal and not console.no_color


def result_json(document: Any) -> None:
    """Exactly one JSON document on stdout, in one line; what would act on a terminal is escaped as JSON has it."""
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    line = json.dumps(document, ensure_ascii=not unicode, allow_nan=False)
    sys.stdout.write(_ACTING.sub(lambda found: f"\\u{ord(found[0]):04x}", line) + "\n")


def result_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout; numbers are set right. A tuple is a cell of several lines."""
    kept = [[_cell(cell) for cell in row] for row in rows]
    table = Table(
        title=visible(title, one_line=True) or None,
        title_justify="left",
        title_style="bold",
        header_style="bold",
    )
    for i, column in enumerate(columns):
        numeric = bool(kept) and all(_is_number(row[i]) for row in kept)
        table.add_column(
            visible(column, one_line=True), justify="right" if numeric else "left", overflow="fold"
        )
    for row in kept:
        table.add_row(*row)
    _console(stderr=False).print(table, markup=False)


def _cell(cell: object) -> str:
    lines = cell if isinstance(cell, tuple) else (cell,)
    return "\n".join(visible(str(line), one_line=True) for line in lines)


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


def _roughly(seconds: float) -> str:
    """42 s, 3 min, 2 h 07 min."""
    return duration(seconds) if not 60 <= round(seconds) < 3600 else f"{round(seconds / 60)} min"


class Bar:
    """Progress of one long work on stderr: a bar on a terminal, a line now and then elsewhere.

    total: units of work, None if unknown. begun_at: units that were done before. unit: what is counted, to be
    shown as "12/60 updates"; without one, a share. `advance_to(done, text)` may be called as often as one likes.
    """

    def __init__(
        self, title: str, total: float | None, *, begun_at: float = 0.0, unit: str | None = None
    ) -> None:
        self._title, self._total, self._unit = visible(title, one_line=True), total, unit
        self._done, self._text = begun_at, ""
        self._left: float | None = None
        self._told = time.monotonic()
        self._seen = deque([(self._told, begun_at)])
        self._progress: Progress | None = None
        console = _console(stderr=True)
        if console.is_terminal:
            line = _BarLine(self, console)
            columns = [line] if console.width < _WIDE else [BarColumn(bar_width=_BAR), line]
            self._progress = Progress(*columns, console=console, transient=True)
            self._task = self._progress.add_task(title, total=total)

    def __enter__(self) -> Bar:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress:
            with suppress(OSError):  # the terminal was closed
                self._progress.stop()

    def advance_to(
        self, done: float, text: str = "", *, total: float | None = None, left: float | None = None
    ) -> None:
        """`done` of the total units are done; `text` says something about them.

        total: where it has changed. left: seconds, where the caller knows them; else they follow from the speed.
        """
        self._total = self._total if total is None else total
        self._done, self._text = done, visible(text, one_line=True)
        now = time.monotonic()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] > _SPEED_SECONDS:
            self._seen.popleft()
        self._left = self._remaining() if left is None else left
        if self._progress:
            self._progress.update(self._task, completed=done, total=self._total)
        elif now - self._told >= _NOTE_SECONDS:
            self._told = now
            note(self.line())

    def line(self, width: int | None = None) -> str:
        """What is known, in a line; the least important goes where it would be wider than `width` characters."""
        share, left = self._share(), self._left
        spelt = "" if left is None else f"time left {duration(left)}"
        short = "" if left is None else f"{_roughly(left)} left"
        first = self._text.partition(" · ")[0]
        for parts in (
            (f"{self._title} {share}".strip(), self._text, spelt),
            (share, self._text, spelt),
            (share, self._text, short),
            (share, first, short),
            (share, short),
        ):
            line = " · ".join(part for part in parts if part)
            if width is None or len(line) <= width:
                return line
        return share[:width]

    def _share(self) -> str:
        if self._unit is not None and self._total is not None:
            unit = "" if self._progress else f" {self._unit}"
            return f"{self._done:,.0f}/{self._total:,.0f}{unit}"
        return f"{100 * self._done / self._total:.0f} %" if self._total else ""

    def _remaining(self) -> float | None:
        """Seconds, at the speed of the last minute."""
        (then, before), (now, done) = self._seen[0], self._seen[-1]
        if self._total is None or done <= before:
            return None
        return max(0.0, (now - then) * (self._total - done) / (done - before))


class _BarLine(ProgressColumn):
    """A bar's line, as wide as the terminal has room for."""

    def __init__(self, bar: Bar, console: Console) -> None:
        super().__init__()
        self._bar, self._console = bar, console

    def render(self, task: Task) -> Text:
        width = self._console.width
        room = width - (_BAR + 2 if width >= _WIDE else 1)
        return Text(self._bar.line(room), no_wrap=True, overflow="ellipsis")
