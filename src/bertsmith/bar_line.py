"""Columns of a Rich progress display: one line of text, with a bar where the terminal is wide enough."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task
from rich.text import Text

_MIN_WIDTH_WITH_BAR = 60  # characters
_BAR_WIDTH = 10  # characters


def progress_columns(line: Callable[[int], str], console: Console) -> list[ProgressColumn]:
    """Return the columns of a Rich `Progress`.

    Args:
        line: Returns the text of the current state in at most the given number of characters.
        console: The console that shows the progress; its width decides on the bar.
    """
    text = _TextColumn(line, console)
    if console.width < _MIN_WIDTH_WITH_BAR:
        return [text]
    return [BarColumn(bar_width=_BAR_WIDTH), text]


class _TextColumn(ProgressColumn):
    def __init__(self, line: Callable[[int], str], console: Console) -> None:
        super().__init__()
        self._line, self._console = line, console

    def render(self, task: Task) -> Text:
        width = self._console.width
        max_length = width - (_BAR_WIDTH + 2 if width >= _MIN_WIDTH_WITH_BAR else 1)
        return Text(self._line(max_length), no_wrap=True, overflow="ellipsis")
