"""The relation head: the states at both opening markers, joined, and a Linear (Baldini Soares et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bertsmith.loss import Loss, classification_loss
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.task_heads import RelationHead
from bertsmith.tasks.base import OMIT_IF_NONE, Metadata, Prediction, SoftmaxDecoder, TaskModel
from bertsmith.tasks.batching import Item, Outputs, TaskBatch
from bertsmith.tasks.relation_extraction.data import RelationItem
from bertsmith.tasks.relation_extraction.relation_rows import RelationExample
from bertsmith.tasks.settings import RelateSettings


class RelationModel(TaskModel):
    """One logit per relation ("entity start" in the paper)."""

    inherited_heads = ()

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, metadata: Metadata, settings: RelateSettings
    ) -> None:
        super().__init__(config, generator, metadata, settings)
        self.head = RelationHead(config, generator, len(metadata["labels"]))

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Return `marker_indices`, int64 [B, 2], of the opening markers in the batch, and `label`, int64 [B]."""
        marker_indices, start = [], 0
        for item in items:
            assert isinstance(item, RelationItem)
            marker_indices.append([start + index for index in item.marker_indices])
            start += item.size
        tensors = {"marker_indices": torch.tensor(marker_indices)}
        if any(item.target is None for item in items):
            return tensors, {}
        return {**tensors, "label": torch.tensor([item.target for item in items])}, {"task": len(items)}

    def logits(self, encoder: Encoder, batch: TaskBatch) -> Tensor:
        """Return fp32 logits [B, labels]."""
        marker_indices = batch.tensors["marker_indices"].flatten()
        logits: Tensor = self.head(self.features(encoder, batch.packed, marker_indices))
        return logits.float()

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Return the summed cross-entropy."""
        return classification_loss(self.logits(encoder, batch), batch.tensors["label"], batch.counts)

    def outputs(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """Return logits [1, labels] per example."""
        return torch.split(self.logits(encoder, batch), 1)


@dataclass
class RelationPrediction(Prediction):
    """A relation. The counts of tokens are those of the text with markers.

    Attributes:
        id: The file's id of the example.
        label: The relation.
        score: The probability of the relation.
        scores: The probabilities of all relations by name.
    """

    id: str | None = field(default=None, metadata=OMIT_IF_NONE)
    label: str | None = None
    score: float | None = None
    scores: dict[str, float] | None = field(default_factory=dict)


class RelationDecoder(SoftmaxDecoder):
    """The most probable relation; of equal ones the first."""

    def decode(
        self, outputs: Outputs, items: Sequence[Item], examples: Sequence[RelationExample]
    ) -> list[RelationPrediction]:
        """Return the relation of each example."""
        predictions = [RelationPrediction(example.id, tokens=0, tokens_read=0) for example in examples]
        for logits, item in zip(outputs.per_item, items, strict=True):
            scores = dict(zip(self.metadata["labels"], logits[0].softmax(-1).tolist(), strict=True))
            label, id = max(scores, key=scores.__getitem__), examples[item.example].id
            counts = item.sequences[0].token_counts
            predictions[item.example] = RelationPrediction(id, label, scores[label], scores, **counts)
        return predictions
