"""Targets of regression."""

from __future__ import annotations

from bertsmith.tasks.texts import TextEncoder, TextExample


class RegressionEncoder(TextEncoder):
    """Encode texts; targets are numbers."""

    def target(self, example: TextExample) -> float | None:
        """Return the number."""
        return None if example.label is None else example.number
