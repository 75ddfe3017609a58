"""Handlers for the log records of bertsmith: stderr of a terminal, or a notebook's cell.

In a script, Python's own rules hold: warnings on stderr, information where the script asks for it with
`logging.basicConfig(level=logging.INFO)`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from bertsmith import console

logger = logging.getLogger("bertsmith")


class ConsoleHandler(logging.Handler):
    """Print records on stderr through Rich, which is imported when the first record arrives."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(_Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        console.print_note(self.format(record))


class NotebookHandler(ConsoleHandler):
    """Print records below a notebook's cell."""

    def emit(self, record: logging.LogRecord) -> None:
        print(console.escape_control_characters(self.format(record)))


class _Formatter(logging.Formatter):
    """Prefix warnings with "warning:"."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        return f"{record.levelname.lower()}: {message}" if record.levelno >= logging.WARNING else message


class _RepeatFilter(logging.Filter):
    """Drop messages that were logged before."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        is_new = message not in self._messages
        self._messages.add(message)
        return is_new


@contextmanager
def without_repeats() -> Iterator[None]:
    """Print each message once: several models of one command may log the same."""
    handlers, repeats = [*logger.handlers], _RepeatFilter()
    for handler in handlers:
        handler.addFilter(repeats)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(repeats)


def install(handler: ConsoleHandler) -> None:
    """Send the records of bertsmith to a handler, once per process."""
    if not any(isinstance(installed, ConsoleHandler) for installed in logger.handlers):
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


def install_in_notebook() -> None:
    """Show the records of bertsmith in a notebook; elsewhere do nothing."""
    if console.in_notebook():
        install(NotebookHandler())
