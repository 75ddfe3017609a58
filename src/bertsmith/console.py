"""What a terminal shows: tables, progress, notes, JSON. Results go to stdout, everything else to stderr.

Labels, file names and texts are other people's: what would act on a terminal is shown as the escape that a
programmer would write (`visible`), in all that goes out here.

In a notebook, verbs called from Python show a bar and their notes (`tell`, `with_bar`); in a script they are
silent.
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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from io import StringIO
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:  # rich is imported by what shows something: a short answer in JSON does not wait for it
    from rich.console import Console
    from rich.progress import Progress
    from rich.text import Text

# Controls (C0, DEL, C1), separators of lines, marks that turn the direction of writing, and surrogates, as which
# Python reads bytes of a file name that are not UTF-8.
_ACTING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_LEAST_TEXT = 12  # columns that a text needs in a table, unless it is shorter
_LARGEST = 20  # cells listed of a square table that is too wide
_NOTE_SECONDS = 15.0  # without a terminal: a line of progress this often
_SPEED_SECONDS = 60.0  # over which the speed is taken that the time left follows from
_FRAME_SECONDS = 0.25  # between two pictures of a notebook's bar

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def _console(stderr: bool) -> Console:
    """Made when used, so that it writes to the stream that stands there now (tests and pipes replace it).

    rich honours NO_COLOR and colours only a terminal.
    """
    from rich.console import Console

    return Console(
        stderr=stderr,
        highlight=False,
        soft_wrap=not (sys.stderr if stderr else sys.stdout).isatty(),
        force_jupyter=False,
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


def once(tell: Callable[[str], None]) -> Callable[[str], None]:
    """What tells a sentence the first time only: several models may have the same to say."""
    told: set[str] = set()

    def tell_once(text: str) -> None:
        if text not in told:
            told.add(text)
            tell(text)

    return tell_once


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this, whose pages show HTML."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def tell(text: str) -> None:
    """What verbs called from Python do with their notes: a notebook shows them, a script is silent."""
    if in_notebook():
        print(visible(text))


def with_bar(title: str) -> Callable[[Callable[Arguments, Answer]], Callable[Arguments, Answer]]:
    """A verb whose argument `progress` hears the bytes done so far: in a notebook a bar, where nobody else
    listens."""

    def shown(verb: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
        @functools.wraps(verb)
        def with_it(*given: Arguments.args, **named: Arguments.kwargs) -> Answer:
            if named.get("progress") is not None or not in_notebook():
                return verb(*given, **named)
            with Bar(title, None) as bar:
                named["progress"] = lambda done: bar.advance_to(done, f"{done / 1e6:,.1f} MB")
                return verb(*given, **named)

        return with_it

    return shown


def result(text: str) -> None:
    """A line of the result: to stdout."""
    _console(stderr=False).print(visible(text), markup=False)


def result_text(text: Text) -> None:
    """A paragraph of the result with styles, which show on a terminal alone: to stdout."""
    from rich.text import Text

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
    """A table on stdout; numbers are set right. A tuple is a cell of several lines.

    Where the terminal is too narrow for its columns, each row becomes a paragraph. A square table, whose columns
    have the names of its rows, has numbered columns instead, or is a list of its largest cells off the diagonal;
    its first heading says what the two sides are: "truth, down; prediction, across".
    """
    _print_table(_console(stderr=False), title, columns, rows)


def table_text(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    width: int | None = None,
    *,
    ruled: bool = False,
) -> str:
    """The same table as plain lines, for a note: no wider than `width`, the terminal, or else 100 characters.
    ruled: with a line between rows, where cells have several."""
    from rich.console import Console

    width = width or shutil.get_terminal_size((100, 24)).columns
    console = Console(file=StringIO(), width=width, color_system=None, highlight=False, force_jupyter=False)
    with console.capture() as captured:
        _print_table(console, title, columns, rows, ruled=ruled)
    return "\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n"))


def _print_table(
    console: Console,
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    ruled: bool = False,
) -> None:
    from rich.table import Table

    kept = [[_cell(cell) for cell in row] for row in rows]
    names = [visible(column, one_line=True) for column in columns]
    if not _fits(names, kept, console.width) and len(names) > 2:
        if names[1:] != [row[0] for row in kept]:
            _print_paragraphs(console, title, names, kept)
            return
        numbered = [[f"{i} {row[0]}", *row[1:]] for i, row in enumerate(kept, 1)]
        numbers = [names[0], *(str(i) for i in range(1, len(names)))]
        if not _fits(numbers, numbered, console.width):
            _print_largest(console, title, names, kept)
            return
        names, kept = numbers, numbered
    table = Table(
        title=visible(title, one_line=True) or None,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        show_lines=ruled,
    )
    for i, name in enumerate(names):
        table.add_column(name, justify="right" if _is_numeric(kept, i) else "left", overflow="fold")
    for row in kept:
        table.add_row(*row)
    console.print(table, markup=False)


def _is_numeric(rows: Sequence[Sequence[str]], column: int) -> bool:
    return bool(rows) and all(_is_number(row[column]) for row in rows)


def _fits(names: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> bool:
    """Whether a table has room for the words of its headings, for its numbers, and for some words of its texts."""
    from rich.cells import cell_len

    needed = 1
    for i, name in enumerate(names):
        lines = [line for row in rows for line in row[i].splitlines()]
        longest = max(map(cell_len, lines), default=0)
        cell = longest if _is_numeric(rows, i) else min(longest, _LEAST_TEXT)
        needed += 3 + max(cell, *(cell_len(word) for word in (*name.split(), "")))
    return needed <= width


def _print_paragraphs(
    console: Console, title: str, names: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """A table as a paragraph a row: what its first column says, then each other column's name and what it says."""
    from rich.text import Text

    if title:
        console.print(Text(visible(title, one_line=True), style="bold"))
    for row in rows:
        console.print(Text(row[0] if row[0] else "–", style="bold"))
        for name, cell in zip(names[1:], row[1:], strict=True):
            said = f"{name}: {cell}" if name else cell
            if not cell:
                continue
            text = Text(said.replace("\n", " "))
            for line in [text] if console.soft_wrap else text.wrap(console, console.width - 2):
                console.print(Text("  ") + line)


def _print_largest(console: Console, title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The largest cells of a square table that lie off its diagonal."""
    cells = [
        (int(cell.replace(",", "")), row[0], name)
        for i, row in enumerate(rows)
        for j, (name, cell) in enumerate(zip(names[1:], row[1:], strict=True))
        if i != j and int(cell.replace(",", ""))
    ]
    largest = sorted(cells, key=lambda cell: -cell[0])[:_LARGEST]
    down, _, across = names[0].partition("; ")
    heads = [down.removesuffix(", down") or "row", across.removesuffix(", across") or "column", "times"]
    left = f"; {len(cells) - len(largest):,} more with --json" if len(cells) > len(largest) else ""
    _print_table(
        console,
        title or f"the largest off the diagonal{left}",
        heads,
        [(row, column, f"{number:,}") for number, row, column in largest],
    )


def _cell(cell: object) -> str:
    lines = cell if isinstance(cell, tuple) else (cell,)
    return "\n".join(visible(str(line), one_line=True) for line in lines)


def _is_number(cell: str) -> bool:
    return cell == "–" or (
        bool(cell)
        and all(c in "0123456789.,%+-±–×<> ()eGMKBis" for c in cell)
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
    """Progress of one long work on stderr: a bar on a terminal, a line now and then elsewhere; in a notebook a
    bar.

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
        self._page = _PageBar(self._title, total) if in_notebook() else None
        console = _console(stderr=True)
        if console.is_terminal and self._page is None:
            from rich.progress import Progress

            from bertsmith.bar_line import columns_of

            columns = columns_of(self.line, console)
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
        if self._page:
            self._page.end()

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
        if self._page:
            self._page.advance_to(done, self._text, self._share(), self._total, self._left)
        elif self._progress:
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


class _PageBar:
    """The bar of a notebook: HTML that replaces itself. It needs no widgets, and stays as its last picture."""

    def __init__(self, title: str, total: float | None) -> None:
        self._title, self._total = title, total
        self._begin = time.monotonic()
        self._done, self._text, self._drawn = 0.0, "", -_FRAME_SECONDS
        self._share = ""
        self._left: float | None = None
        self._shown: Any = None

    def advance_to(self, done: float, text: str, share: str, total: float | None, left: float | None) -> None:
        self._done, self._text, self._total = done, text, total
        self._share, self._left = share, left
        if time.monotonic() - self._drawn >= _FRAME_SECONDS:
            self._draw(ended=False)

    def end(self) -> None:
        if self._shown is None and not self._done:
            return  # refused before anything was done
        self._draw(ended=True)

    def _draw(self, *, ended: bool) -> None:
        import html  # only a notebook needs it

        pages: Any = importlib.import_module("IPython.display")
        self._drawn = now = time.monotonic()
        size = "" if not self._total else f' max="{self._total:g}" value="{min(self._done, self._total):g}"'
        took = now - self._begin
        if ended:
            clock = f"in {duration(took)}"
        elif self._left is not None:
            clock = f"time left {duration(self._left)}"
        else:
            clock = duration(took)
        bar = (
            "" if ended and not self._total else f"<progress{size} style='vertical-align: middle'></progress>"
        )
        parts = [html.escape(self._title), bar, self._share, html.escape(self._text), clock]
        page = pages.HTML(
            f"<div style='font-variant-numeric: tabular-nums'>{' '.join(filter(None, parts))}</div>"
        )
        if self._shown is None:
            self._shown = pages.display(page, display_id=True)
        else:
            self._shown.update(page)
