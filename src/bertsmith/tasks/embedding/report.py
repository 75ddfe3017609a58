"""Reports of embeddings."""

from __future__ import annotations

from collections.abc import Sequence

from bertsmith.tasks.base import TaskReport
from bertsmith.tasks.data_checks import summarize_numbers
from bertsmith.tasks.embedding.data import EmbeddingExample
from bertsmith.tasks.embedding.decode import EmbeddingPrediction, PairMatch, first_cosine
from bertsmith.tasks.embedding.metrics import EmbeddingMetrics
from bertsmith.tasks.error_analysis import ErrorAnalysis, confusion, number_scatter
from bertsmith.tasks.results import DataSummary, MetricTable


class EmbeddingReport(TaskReport):
    """Report pairs, and queries with passages."""

    metrics: EmbeddingMetrics

    def answer_summary(
        self, train: Sequence[EmbeddingExample], validation: Sequence[EmbeddingExample]
    ) -> DataSummary:
        """Return the distribution of scores, the frequencies of labels, or the counts of queries and passages."""
        data_format = self.metadata["data_format"]
        if data_format == "graded":
            return summarize_numbers(*([example.number for example in part] for part in (train, validation)))
        if data_format == "labeled":
            return super().answer_summary(train, validation)
        return summarize_queries(train, validation)

    def error_analysis(
        self, predictions: Sequence[EmbeddingPrediction], examples: Sequence[EmbeddingExample]
    ) -> ErrorAnalysis:
        """Return the cosines beside the scores of graded pairs, or the decisions on labeled pairs."""
        data_format = self.metrics.format_of(examples)
        if data_format == "graded":
            scores, cosines = [e.number for e in examples], [first_cosine(p) for p in predictions]
            return {"numbers": number_scatter(scores, cosines, "score", "cosine")}
        decisions = [p.same for p in predictions if isinstance(p, PairMatch)]
        if data_format == "retrieval" or len(decisions) < len(predictions):
            return {}
        names = ["the same", "others"]
        sides = (self.metrics.matches(examples), decisions)
        references, answers = ([names[0] if same else names[1] for same in side] for side in sides)
        return {"confusion": confusion("pairs", references, answers, names)}

    def describe_error(self, example: EmbeddingExample, prediction: EmbeddingPrediction) -> tuple[str, str]:
        """Return the score, the label, or the first passage, and the cosine."""
        reference = example.positives[0] if example.label is None else example.label
        return reference, f"{first_cosine(prediction):.4f}"


def summarize_queries(
    train: Sequence[EmbeddingExample], validation: Sequence[EmbeddingExample]
) -> DataSummary:
    """Return the counts of queries and passages."""
    counts = {
        part: {
            "queries": len({example.query for example in examples}),
            "positives": len({text for example in examples for text in example.positives}),
            "negatives": len({text for example in examples for text in example.negatives}),
        }
        for part, examples in (("train", train), ("dev", validation))
    }
    rows = [[part, *(f"{count:,}" for count in row.values())] for part, row in counts.items()]
    columns = ["part", "queries", "positive passages", "negative passages"]
    return DataSummary({"queries": counts}, [MetricTable("queries", columns, rows)])
