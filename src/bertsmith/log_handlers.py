"""Handlers for the log records of bertsmith: stderr of a terminal, or a notebook's cell.

In a script, Python's own rules hold: warnings on stderr, information where the script asks for it with
`logging.basicConfig(level=logging.INFO)`.
"""

from __future__ import annotations

import logging

from bertsmith import console

logger = logging.getLogger("bertsmith")


class ConsoleHandler(logging.Handler):
    """Print records on stderr through Rich, which is imported when the first record arrives."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(_Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        console.note(self.format(record))


class NotebookHandler(ConsoleHandler):
    """Print records below a notebook's cell."""

    def emit(self, record: logging.LogRecord) -> None:
        print(console.visible(self.format(record)))


class _Formatter(logging.Formatter):
    """Prefix warnings with "warning:"."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        return f"{record.levelname.lower()}: {message}" if record.levelno >= logging.WARNING else message


def install(handler: ConsoleHandler) -> None:
    """Send the records of bertsmith to a handler, once per process."""
    if not any(isinstance(installed, ConsoleHandler) for installed in logger.handlers):
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


def install_in_notebook() -> None:
    """Show the records of bertsmith in a notebook; elsewhere do nothing."""
    if console.in_notebook():
        install(NotebookHandler())
