"""From logits to choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from bertsmith.tasks.base import OMIT_IF_NONE, Decoder, Prediction
from bertsmith.tasks.batching import Item, Outputs, logits_from_probabilities
from bertsmith.tasks.multiple_choice.data import ChoiceExample
from bertsmith.tasks.multiple_choice.encode import most_truncated


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


class MultipleChoiceDecoder(Decoder):
    """The most probable choice; of equal ones the first."""

    def decode(
        self, outputs: Outputs, items: Sequence[Item], examples: Sequence[ChoiceExample]
    ) -> list[ChoicePrediction]:
        """Return the choice of each example."""
        predictions = [ChoicePrediction(example.id, tokens=0, tokens_read=0) for example in examples]
        for logits, item in zip(outputs.per_item, items, strict=True):
            example, scores, sequence = (
                examples[item.example],
                logits.softmax(0).tolist(),
                most_truncated(item),
            )
            best = max(range(len(scores)), key=scores.__getitem__)
            predictions[item.example] = ChoicePrediction(
                example.id,
                best,
                example.choices[best],
                scores[best],
                scores,
                tokens=sequence.tokens,
                tokens_read=sequence.tokens_read,
            )
        return predictions

    def ensemble_output(self, output: Tensor) -> Tensor:
        """Return probabilities."""
        return output.double().softmax(0)

    def combine_outputs(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the mean of probabilities as logits."""
        return logits_from_probabilities(super().combine_outputs(outputs))
