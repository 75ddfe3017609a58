"""The span head: a vector for starts and one for ends, over the tokens of each window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.loss import Loss, distillation_kl
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.task_heads import SpanHead
from bertsmith.tasks.base import Metadata, TaskModel
from bertsmith.tasks.batching import Item, TaskBatch
from bertsmith.tasks.settings import AnswerSettings


class QuestionAnsweringModel(TaskModel):
    """Start and end logits of each token."""

    outputs_per_token = True
    loss_weights: Mapping[str, float] = {"start": 0.5, "end": 0.5}

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, metadata: Metadata, settings: AnswerSettings
    ) -> None:
        super().__init__(config, generator, metadata, settings)
        self.head = SpanHead(config, generator, transform=settings.transform)

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Return `start` and `end`, int64 [B]: token indices within each window."""
        if any(item.target is None for item in items):
            return {}, {}
        start, end = torch.tensor([item.target for item in items]).T
        return {"start": start, "end": end}, {"start": len(items), "end": len(items)}

    def logits(self, encoder: Encoder, batch: TaskBatch) -> Tensor:
        """Return the fp32 logits [N, 2] of an answer's start and end at each token."""
        logits: Tensor = self.head(self.features(encoder, batch.packed))
        return logits.float()

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Return the summed cross-entropies over the tokens of each window, special tokens and question included.

        The target of a window without the whole answer is [CLS], as in the BERT release.
        """
        padded = batch.packed.pad(self.logits(encoder, batch), -torch.inf)  # [B, longest, 2]
        sums, num_correct = {}, {}
        for part, logits in zip(("start", "end"), padded.unbind(-1), strict=True):
            targets = batch.tensors[part]
            sums[part] = F.cross_entropy(logits, targets, reduction="sum")
            num_correct[part] = (logits.detach().argmax(-1) == targets).sum()
        return Loss(sums, batch.counts, num_correct)

    def outputs(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """Return the logits [T, 2] of each window of T tokens."""
        return torch.split(self.logits(encoder, batch), batch.packed.lengths.tolist())

    def distillation_loss(
        self, outputs: Sequence[Tensor], targets: Sequence[Tensor], batch: TaskBatch, temperature: float
    ) -> Tensor:
        """Return the divergence over the tokens of each window, the mean of starts and ends."""
        pairs = zip(outputs, targets, strict=True)
        return torch.stack([distillation_kl(a, b, temperature, 0) for a, b in pairs]).sum() / 2
