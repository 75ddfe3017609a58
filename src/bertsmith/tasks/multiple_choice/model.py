"""The multiple-choice head: the pooler and one vector, and a softmax over the choices of each example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bertsmith.loss import Loss, classification_loss, distillation_kl
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.task_heads import MultipleChoiceHead
from bertsmith.tasks.base import OMIT_IF_NONE, Metadata, Prediction, SoftmaxDecoder, TaskModel
from bertsmith.tasks.batching import Item, Outputs, TaskBatch
from bertsmith.tasks.multiple_choice.choice_rows import ChoiceExample
from bertsmith.tasks.multiple_choice.data import most_truncated
from bertsmith.tasks.settings import ChooseSettings


class MultipleChoiceModel(TaskModel):
    """One logit per choice."""

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, metadata: Metadata, settings: ChooseSettings
    ) -> None:
        super().__init__(config, generator, metadata, settings)
        self.head = MultipleChoiceHead(config, generator)

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Return `label`, int64 [B]: an index among each item's choices."""
        if any(item.target is None for item in items):
            return {}, {}
        return {"label": torch.tensor([item.target for item in items])}, {"task": len(items)}

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Return the summed cross-entropy over each example's choices."""
        outputs = list(self.outputs(encoder, batch))
        logits = pad_sequence(outputs, batch_first=True, padding_value=-torch.inf)  # [B, most choices]
        return classification_loss(logits, batch.tensors["label"], batch.counts)

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


@dataclass
class ChoicePrediction(Prediction):
    """A choice. The counts of tokens are those of the sequence that was cut most.

    Attributes:
        id: The file's id of the example.
        choice: The index of the choice.
        text: The text of the choice.
        score: The probability of the choice.
        scores: The probabilities of all choices.
    """

    id: str | None = field(default=None, metadata=OMIT_IF_NONE)
    choice: int | None = None
    text: str | None = None
    score: float | None = None
    scores: list[float] = field(default_factory=list)


class MultipleChoiceDecoder(SoftmaxDecoder):
    """The most probable choice; of equal ones the first."""

    def decode(
        self, outputs: Outputs, items: Sequence[Item], examples: Sequence[ChoiceExample]
    ) -> list[ChoicePrediction]:
        """Return the choice of each example."""
        predictions = [ChoicePrediction(example.id, tokens=0, tokens_read=0) for example in examples]
        for logits, item in zip(outputs.per_item, items, strict=True):
            example, scores = examples[item.example], logits.softmax(0).tolist()
            best = max(range(len(scores)), key=scores.__getitem__)
            predictions[item.example] = ChoicePrediction(
                example.id,
                best,
                example.choices[best],
                scores[best],
                scores,
                **most_truncated(item).token_counts,
            )
        return predictions
