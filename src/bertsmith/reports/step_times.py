"""Wall time by step of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bertsmith import hardware


class StepTimer:
    """Measure seconds by step, in the order of their first start; a nested step pauses the outer one."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._stack: list[str] = []
        self._last_time = hardware.clock()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Attribute the time of the block to a step."""
        self._seconds.setdefault(name, 0.0)
        self._add_elapsed()
        self._stack.append(name)
        try:
            yield
        finally:
            self._add_elapsed()
            self._stack.pop()

    def reattribute(self, name: str, to: str, seconds: float) -> None:
        """Reattribute seconds of a step to another one."""
        self._seconds[name] = self._seconds.get(name, 0.0) - seconds
        self._seconds[to] = self._seconds.get(to, 0.0) + seconds

    def to_list(self) -> list[dict[str, Any]]:
        """Return the steps and their seconds as rows of a report."""
        return [{"step": name, "seconds": round(value, 3)} for name, value in self._seconds.items()]

    def _add_elapsed(self) -> None:
        now = hardware.clock()
        if self._stack:
            self._seconds[self._stack[-1]] += now - self._last_time
        self._last_time = now
