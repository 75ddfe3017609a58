"""Encoding, the family's head for sequences with one output and the mean squared error as loss, and decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.loss import Loss
from bertsmith.models.encoder import Encoder
from bertsmith.tasks.batching import Item, Outputs, TaskBatch
from bertsmith.tasks.results import Prediction
from bertsmith.tasks.texts import TextDecoder, TextEncoder, TextExample, TextModel, token_counts


class RegressionEncoder(TextEncoder):
    """Encode texts; targets are numbers."""

    def target(self, example: TextExample) -> float | None:
        """Return the number."""
        return None if example.label is None else example.number


class RegressionModel(TextModel):
    """Regression head."""

    problem_type = "regression"

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Return the sum of squared errors over the examples."""
        numbers, targets = self.logits(encoder, batch)[:, 0], batch.tensors["targets"].float()
        return Loss({"task": F.mse_loss(numbers, targets, reduction="sum")}, batch.counts)

    def distillation_loss(
        self, outputs: Sequence[Tensor], targets: Sequence[Tensor], batch: TaskBatch, temperature: float
    ) -> Tensor:
        """Return the sum of squared differences from the teacher's numbers; the temperature does not apply."""
        return F.mse_loss(torch.cat(list(outputs)), torch.cat(list(targets)), reduction="sum")


@dataclass
class NumberPrediction(Prediction):
    """The number of a text.

    Attributes:
        number: The predicted number.
    """

    number: float


class RegressionDecoder(TextDecoder):
    """Average the numbers of a text's windows."""

    def decode(
        self, outputs: Outputs, items: Sequence[Item], examples: Sequence[TextExample]
    ) -> list[NumberPrediction]:
        """Return the number of each text, the mean over its windows."""
        return [
            NumberPrediction(float(numbers.mean()), **token_counts(item))
            for numbers, item in self.by_example(outputs, items)
        ]
