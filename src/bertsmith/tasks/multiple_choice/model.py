"""The multiple-choice head: the pooler and one vector, and a softmax over the choices of each example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from bertsmith.loss import Loss, distillation_kl
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import MultipleChoiceHead
from bertsmith.tasks.base import Metadata, TaskModel
from bertsmith.tasks.batching import Item, TaskBatch
from bertsmith.tasks.settings import ChooseSettings


class MultipleChoiceModel(TaskModel):
    """One logit per choice."""

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, metadata: Metadata, settings: ChooseSettings
    ) -> None:
        super().__init__(config, generator, metadata, settings)
        self.head = MultipleChoiceHead(config, generator)

    @property
    def heads(self) -> Mapping[str, nn.Module]:
        """The pooler and the vector."""
        return self.head.parts

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Return `label`, int64 [B]: an index among each item's choices."""
        if any(item.target is None for item in items):
            return {}, {}
        return {"label": torch.tensor([item.target for item in items])}, {"task": len(items)}

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Return the summed cross-entropy over each example's choices."""
        outputs = list(self.outputs(encoder, batch))
        logits = pad_sequence(outputs, batch_first=True, padding_value=-torch.inf)  # [B, most choices]
        labels = batch.tensors["label"]
        num_correct = (logits.detach().argmax(-1) == labels).sum()
        loss_sum = F.cross_entropy(logits, labels, reduction="sum")
        return Loss({"task": loss_sum}, batch.counts, {"task": num_correct})

    def outputs(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """Return the logits [n] of each item's n choices."""
        logits: Tensor = self.head(self.features.sequence_features(encoder, batch.packed))
        return torch.split(logits.float(), list(batch.sizes))

    def distillation_loss(
        self, outputs: Sequence[Tensor], targets: Sequence[Tensor], batch: TaskBatch, temperature: float
    ) -> Tensor:
        """Return the divergence over each example's choices."""
        pairs = zip(outputs, targets, strict=True)
        return torch.stack([distillation_kl(a, b, temperature) for a, b in pairs]).sum()
