"""Suppression of log records that several runs on the same data repeat."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


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
def drop_repeated_logs() -> Iterator[RepeatFilter]:
    """Show each text that bertsmith logs only once while the context lasts."""
    # A filter of a logger does not see the records of its children, so the handlers have it.
    handlers = [*logging.getLogger("bertsmith").handlers, *logging.getLogger().handlers]
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
