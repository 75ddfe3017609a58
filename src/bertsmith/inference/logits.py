"""Answer examples with logits instead of predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from bertsmith.inference.task_predictor import TaskPredictor
from bertsmith.tasks.batching import Item, Outputs


@dataclass(frozen=True)
class LogitPredictor(TaskPredictor):
    """Answers examples by the logits of labels, or the number of a regression (`Decoder.target`)."""

    def decode(
        self, outputs: Outputs, items: Sequence[Item], requests: Sequence[Any]
    ) -> list[dict[str, float]]:
        """Return the logits by name, the means over the windows of a long text."""
        logits: list[dict[str, list[float]]] = [{} for _ in requests]
        for output, item in zip(outputs.per_item, items, strict=True):
            labels = self.task.labels or []
            for label in labels if len(labels) > 1 else [None]:
                target = self.task.decoder.target(output, item, label)
                logits[item.example].setdefault(target.name, []).append(float(target.score(output)))
        return [{name: fmean(values) for name, values in by_name.items()} for by_name in logits]
