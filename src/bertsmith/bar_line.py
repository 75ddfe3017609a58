"""A progress bar's line on a terminal, as wide as that has room for."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task
from rich.text import Text

_WIDE, _BAR = 60, 10  # columns of a terminal that has room for a bar beside the line, and of the bar


def columns_of(line: Callable[[int], str], console: Console) -> list[ProgressColumn]:
    """What rich's Progress shows: the line of at most so many characters, and before it a bar where there is
    room."""
    told = _Line(line, console)
    return [told] if console.width < _WIDE else [BarColumn(bar_width=_BAR), told]


class _Line(ProgressColumn):
    def __init__(self, line: Callable[[int], str], console: Console) -> None:
        super().__init__()
        self._line, self._console = line, console

    def render(self, task: Task) -> Text:
        width = self._console.width
        room = width - (_BAR + 2 if width >= _WIDE else 1)
        return Text(self._line(room), no_wrap=True, overflow="ellipsis")
