"""From logits to relations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from bertsmith.tasks.base import OMIT_IF_NONE, Decoder, Prediction
from bertsmith.tasks.batching import Item, Outputs, logits_from_probabilities
from bertsmith.tasks.relation_extraction.data import RelationExample


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


class RelationDecoder(Decoder):
    """The most probable relation; of equal ones the first."""

    def decode(
        self, outputs: Outputs, items: Sequence[Item], examples: Sequence[RelationExample]
    ) -> list[RelationPrediction]:
        """Return the relation of each example."""
        predictions = [RelationPrediction(example.id, tokens=0, tokens_read=0) for example in examples]
        for logits, item in zip(outputs.per_item, items, strict=True):
            scores = dict(zip(self.metadata["labels"], logits[0].softmax(-1).tolist(), strict=True))
            label, (sequence,) = max(scores, key=scores.__getitem__), item.sequences
            predictions[item.example] = RelationPrediction(
                examples[item.example].id,
                label,
                scores[label],
                scores,
                tokens=sequence.tokens,
                tokens_read=sequence.tokens_read,
            )
        return predictions

    def ensemble_output(self, output: Tensor) -> Tensor:
        """Return probabilities."""
        return output.double().softmax(-1)

    def combine_outputs(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the mean of probabilities as logits."""
        return logits_from_probabilities(super().combine_outputs(outputs))
