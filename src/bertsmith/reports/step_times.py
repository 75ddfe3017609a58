"""The wall time of each step of a run, as its report has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bertsmith import hardware


class Steps:
    """Seconds by step, in the order in which they began. A step within another one counts alone."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = hardware.clock()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """As long as this lasts, time is that step's."""
        self._seconds.setdefault(name, 0.0)
        self._count()
        self._open.append(name)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def moved(self, name: str, to: str, seconds: float) -> None:
        """What of a step's time was another's, which could not be told from outside."""
        self._seconds[name] = self._seconds.get(name, 0.0) - seconds
        self._seconds[to] = self._seconds.get(to, 0.0) + seconds

    def document(self) -> list[dict[str, Any]]:
        """As a report holds it."""
        return [{"step": name, "seconds": round(value, 3)} for name, value in self._seconds.items()]

    def _count(self) -> None:
        now = hardware.clock()
        if self._open:
            self._seconds[self._open[-1]] += now - self._since
        self._since = now
