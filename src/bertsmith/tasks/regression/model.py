"""The family's head for sequences with one output, trained with the mean squared error."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.loss import Loss
from bertsmith.models.encoder import Encoder
from bertsmith.tasks.batching import TaskBatch
from bertsmith.tasks.texts import TextModel


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
