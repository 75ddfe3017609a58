"""Wall time of the steps of a workflow, such as reading, training, and evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bertsmith import hardware


class StepTimer:
    """Measure the seconds of each step, in order of first start; a step within another pauses the outer one."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._stack: list[str] = []
        self._last_time = hardware.clock()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Return a context manager that adds the time of its block to a step."""
        self._seconds.setdefault(name, 0.0)
        self._add_elapsed()
        self._stack.append(name)
        try:
            yield
        finally:
            self._add_elapsed()
            self._stack.pop()

    def reattribute(self, name: str, to: str, seconds: float) -> None:
        """Move seconds from one step to another."""
        self._seconds[name] = self._seconds.get(name, 0.0) - seconds
        self._seconds[to] = self._seconds.get(to, 0.0) + seconds

    def total(self) -> float:
        """Return the seconds of all steps, including that of the current step so far."""
        self._add_elapsed()
        return sum(self._seconds.values())

    def to_list(self) -> list[dict[str, Any]]:
        """Return a dict for a report per step, with its name and seconds."""
        return [{"step": name, "seconds": round(value, 3)} for name, value in self._seconds.items()]

    def _add_elapsed(self) -> None:
        now = hardware.clock()
        if self._stack:
            self._seconds[self._stack[-1]] += now - self._last_time
        self._last_time = now
