"""Handlers that print the log records of bertsmith on stderr or below a notebook's cell.

The command line and notebooks install them. A script has Python's defaults: warnings on stderr, and information
only after `logging.basicConfig(level=logging.INFO)`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from bertsmith import console

logger = logging.getLogger("bertsmith")


class ConsoleHandler(logging.Handler):
    """Print records on stderr with Rich, which is imported when the first record arrives."""

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
    """Prefix warnings and errors with their level: "warning: …"."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        return f"{record.levelname.lower()}: {message}" if record.levelno >= logging.WARNING else message


class _RepeatFilter(logging.Filter):
    """Drop records whose message was logged before."""

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
    """Return a context manager that prints each message once, since several models may log the same."""
    handlers, repeat_filter = [*logger.handlers], _RepeatFilter()
    for handler in handlers:
        handler.addFilter(repeat_filter)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(repeat_filter)


def install(handler: ConsoleHandler) -> None:
    """Add a handler for the records of bertsmith; do nothing if one is installed."""
    if not any(isinstance(installed, ConsoleHandler) for installed in logger.handlers):
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


def install_in_notebook() -> None:
    """Show the records of bertsmith in a notebook; elsewhere do nothing."""
    if console.in_notebook():
        install(NotebookHandler())
