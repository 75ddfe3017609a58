"""Handlers that print the log records of bertsmith on stderr or below a notebook's cell.

The command line and notebooks install them. A script has Python's defaults: warnings on stderr, and information
only after `logging.basicConfig(level=logging.INFO)`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from bertsmith import console
from bertsmith.formatting import escape_control_characters, format_message

logger = logging.getLogger("bertsmith")


class ConsoleHandler(logging.Handler):
    """Print records on stderr with Rich, which is imported when the first record arrives."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(_Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        console.print_note(self.format(record))


class JSONHandler(ConsoleHandler):
    """Print a JSON object per record on stderr, with the values that it has in `request`."""

    def emit(self, record: logging.LogRecord) -> None:
        values = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "request", {}),
        }
        if record.exc_info:
            values["exception"] = self.formatter.formatException(record.exc_info) if self.formatter else ""
        try:
            print(json.dumps(values, ensure_ascii=False), file=sys.stderr, flush=True)
        except (OSError, ValueError):  # stderr is full or closed
            self.handleError(record)


class NotebookHandler(ConsoleHandler):
    """Print records below a notebook's cell."""

    def emit(self, record: logging.LogRecord) -> None:
        print(escape_control_characters(self.format(record)))


class _Formatter(logging.Formatter):
    """Prefix warnings and errors with their level: "warning: …"."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.levelno < logging.WARNING:
            return message
        return f"{record.levelname.lower()}: {format_message(message)}"


class RepeatFilter(logging.Filter):
    """Drop records whose text was logged before; after the first run also tables, which differ in details.

    Attributes:
        is_first_run: True as long as tables are logged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_first_run = True
        self._texts: set[str] = set()
        self._record: logging.LogRecord | None = None
        self._is_new = True

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is new; all handlers of one record get the same answer."""
        if record is not self._record:
            text = record.getMessage()
            is_table = "\n" in text
            self._is_new = text not in self._texts and (self.is_first_run or not is_table)
            self._record = record
            self._texts.add(text)
        return self._is_new


@contextmanager
def without_repeats() -> Iterator[RepeatFilter]:
    """Return a context manager that logs each text once, since several models or runs may log the same."""
    # A filter of a logger does not see the records of its children, so the handlers have it.
    handlers = [*logger.handlers, *logging.getLogger().handlers]
    if logging.lastResort is not None:
        handlers.append(logging.lastResort)
    repeat_filter = RepeatFilter()
    for handler in handlers:
        handler.addFilter(repeat_filter)
    try:
        yield repeat_filter
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
