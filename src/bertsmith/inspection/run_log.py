"""The curves of a run, read from its logs as they grow."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from bertsmith.io.atomic import open_file
from bertsmith.io.jsonl import load_json
from bertsmith.training.callbacks import LOG, SPEED_LOG

Curve = dict[int, float]
"""The values of a metric by update, in ascending order."""

_NOT_METRICS = ("step", "kind", "time")


class RunLog:
    """The curves of a run, in a folder that need not exist yet.

    Attributes:
        curves: Each curve by its name: that of the metric, with "validation " before it for evaluations.
        num_damaged: The number of lines that are not JSON objects with a step.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._restart()

    def _restart(self) -> None:
        self._files = [_GrowingFile(self._run / name) for name in (LOG, SPEED_LOG)]
        self.curves: dict[str, Curve] = {}
        self.num_damaged = 0

    def update(self) -> bool:
        """Read what was written since the last call; return True if there is anything new.

        A log that was cut or replaced, as by a resumed run, is read again.
        """
        new_lines = [file.read_lines() for file in self._files]
        is_replaced = None in new_lines
        if is_replaced:
            self._restart()
            new_lines = [file.read_lines() for file in self._files]
        for line in chain.from_iterable(lines or () for lines in new_lines):
            self._add(line)
        return is_replaced or any(new_lines)

    @property
    def step(self) -> int:
        """The last logged update; 0 if there is none."""
        return max((next(reversed(curve)) for curve in self.curves.values()), default=0)

    @property
    def validation_metric(self) -> str | None:
        """The name of the first curve of evaluations, which is that of the primary metric."""
        return next((name for name in self.curves if name.startswith("validation ")), None)

    def last(self, name: str) -> float | None:
        """Return the last value of a curve; None if there is none."""
        curve = self.curves.get(name)
        return curve[next(reversed(curve))] if curve else None

    def _add(self, line: bytes) -> None:
        record = _parse(line)
        step = record.get("step")
        if not isinstance(step, int):
            self.num_damaged += 1
            return
        prefix = "validation " if record.get("kind") == "evaluation" else ""
        for name, value in record.items():
            if (
                name in _NOT_METRICS
                or not isinstance(value, int | float)
                or not abs(value) <= sys.float_info.max
            ):
                continue
            if name == "tokens_per_second" and not value:  # not measured yet
                continue
            curve = self.curves.setdefault(f"{prefix}{name}", {})
            while curve and next(reversed(curve)) >= step:  # a resumed run repeats updates
                curve.popitem()
            curve[step] = value


class _GrowingFile:
    """The complete lines of a file that another process appends to, cuts, or replaces."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._last_line, self._inode = path, 0, b"", 0

    def read_lines(self) -> list[bytes] | None:
        """Return the new complete lines; None if what was read before is no longer in the file."""
        try:
            with open_file(self._path) as file:
                inode = os.fstat(file.fileno()).st_ino
                file.seek(self._offset - len(self._last_line))
                if self._offset and (
                    inode != self._inode or file.read(len(self._last_line)) != self._last_line
                ):
                    return None
                self._inode = inode
                complete, newline, _ = file.read().rpartition(b"\n")
        except OSError:  # not written yet, or just removed
            return None if self._offset else []
        if not newline:
            return []
        lines = complete.split(b"\n")
        self._offset += len(complete) + 1
        self._last_line = lines[-1] + b"\n"
        return lines


def _parse(line: bytes) -> Mapping[str, Any]:
    try:
        record = load_json(line.decode("utf-8"))
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
