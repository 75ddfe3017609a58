"""From outputs to numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bertsmith.tasks.base import Prediction
from bertsmith.tasks.batching import Item, Outputs
from bertsmith.tasks.texts import TextDecoder, TextExample, token_counts


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
            NumberPrediction(float(rows[:, 0].mean()), **token_counts(item))
            for rows, item in self.by_example(outputs, items)
        ]
