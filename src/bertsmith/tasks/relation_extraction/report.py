"""Tables of relations, and SemEval's file of answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bertsmith.tasks.base import TaskReport
from bertsmith.tasks.data_checks import find_repeats
from bertsmith.tasks.error_analysis import ErrorAnalysis, label_error_analysis
from bertsmith.tasks.relation_extraction.data import RelationExample
from bertsmith.tasks.relation_extraction.decode import RelationPrediction
from bertsmith.tasks.results import DataSummary


class RelationReport(TaskReport):
    """Present texts and their relations."""

    def answer_summary(
        self, train: Sequence[RelationExample], validation: Sequence[RelationExample]
    ) -> DataSummary:
        """Return the table of labels, and repeated examples."""
        repeats = find_repeats(((e.question_key, e.relation), e.location) for e in train)
        diagnostics = [repeats] if repeats else []
        return super().answer_summary(train, validation) | DataSummary(diagnostics=diagnostics)

    def error_analysis(
        self, predictions: Sequence[RelationPrediction], examples: Sequence[RelationExample]
    ) -> ErrorAnalysis:
        """Return which relations are taken for which, and how reliable probabilities are."""
        answered = [(p, e) for p, e in zip(predictions, examples, strict=True) if p.label is not None]
        references = [label for (label,) in self.metrics.labels([e for _, e in answered])]
        predicted, scores = [str(p.label) for p, _ in answered], [p.score or 0.0 for p, _ in answered]
        return label_error_analysis("texts", references, predicted, scores, self.metadata["labels"])

    def table_rows(self, example: RelationExample, prediction: RelationPrediction) -> list[dict[str, Any]]:
        """Return the text with tags, its relation, and the relation's probability."""
        row = {} if example.id is None else {"id": example.id}
        cells = {"prediction": prediction.label, "score": prediction.score}
        return [{**row, **example.display_inputs, **cells}]

    def write_output(
        self, answered: Iterable[tuple[RelationExample, RelationPrediction | None]]
    ) -> Iterator[str]:
        """Yield the lines of SemEval's scorer: the example's id, or else its number from 1, and its relation.

        An empty text has no line.
        """
        for number, (example, prediction) in enumerate(answered, start=1):
            if prediction is not None:
                yield f"{number if example.id is None else example.id}\t{prediction.label}\n"
