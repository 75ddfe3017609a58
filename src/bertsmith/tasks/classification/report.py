"""Reports of classification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertsmith.formatting import join_names
from bertsmith.tasks.base import Metadata, TaskMetrics, TaskReport
from bertsmith.tasks.classification.data import MAX_INTEGER_CLASSES, is_number
from bertsmith.tasks.classification.decode import ClassPrediction, MultilabelPrediction
from bertsmith.tasks.classification.metrics import MultilabelMetrics
from bertsmith.tasks.error_analysis import ErrorAnalysis, label_error_analysis, reliability
from bertsmith.tasks.labels import is_integer
from bertsmith.tasks.results import DataSummary, Diagnostic
from bertsmith.tasks.settings import ClassSettings
from bertsmith.tasks.texts import TextExample


class ClassificationReport(TaskReport):
    """Report texts with one label."""

    def answer_summary(self, train: Sequence[TextExample], validation: Sequence[TextExample]) -> DataSummary:
        """Return the table of labels, and advice for labels that are numbers."""
        advice = _number_advice(self.metadata["labels"])
        diagnostics = [Diagnostic("labels that are numbers", advice)] if advice else []
        return super().answer_summary(train, validation) | DataSummary(diagnostics=diagnostics)

    def error_analysis(
        self, predictions: Sequence[ClassPrediction], examples: Sequence[TextExample]
    ) -> ErrorAnalysis:
        """Return the confusion matrix and the reliability of the probabilities."""
        references = [label for (label,) in self.metrics.labels(examples)]
        labels, scores = [p.label for p in predictions], [p.score or 0.0 for p in predictions]
        return label_error_analysis("texts", references, labels, scores, self.metadata["labels"])

    def table_rows(self, example: TextExample, prediction: ClassPrediction) -> list[dict[str, Any]]:
        """Return the text, its label, and the probability of the label."""
        return [{**example.display_inputs, "prediction": prediction.label, "score": prediction.score}]


class MultilabelReport(TaskReport):
    """Report texts with any number of labels."""

    metrics: MultilabelMetrics

    def error_analysis(
        self, predictions: Sequence[MultilabelPrediction], examples: Sequence[TextExample]
    ) -> ErrorAnalysis:
        """Return the reliability of the probabilities of all labels."""
        scores, targets = self.metrics.score_matrix(predictions), self.metrics.target_matrix(examples)
        pairs = (scores.ravel().tolist(), targets.ravel().tolist())
        return {"reliability": reliability("pairs of a text and a label", *pairs)}

    def describe_error(self, example: TextExample, prediction: MultilabelPrediction) -> tuple[str, str]:
        """Return the labels of the example and the predicted labels."""
        (labels,) = self.metrics.labels([example])
        return ", ".join(labels) or "none", ", ".join(prediction.labels) or "none"

    def table_rows(self, example: TextExample, prediction: MultilabelPrediction) -> list[dict[str, Any]]:
        """Return the text, its labels, and the most probable label with its probability."""
        labels, (likeliest, score) = (
            ", ".join(prediction.labels),
            max(prediction.scores.items(), key=lambda pair: pair[1]),
        )
        return [{**example.display_inputs, "prediction": labels, "likeliest": likeliest, "score": score}]


def make_report(metadata: Metadata, settings: ClassSettings, metrics: TaskMetrics) -> TaskReport:
    """Return the report of one label for each text, or of any number of labels."""
    report_type = MultilabelReport if metadata.get("separator") else ClassificationReport
    return report_type(metadata, settings, metrics)


def _number_advice(labels: Sequence[str]) -> str | None:
    """Return advice for labels that are numbers: name them, or learn them as numbers."""
    examples = join_names(labels, 3)
    if all(map(is_integer, labels)) and len(labels) <= MAX_INTEGER_CLASSES:
        regress = "; if they measure something (stars, grades), try bertsmith finetune regress"
        return (
            f"the labels are numbers ({examples}), and so are the predictions; name them with label_names: A,B,C "
            f"or a file of code,name rows{regress if len(labels) > 2 else ''}"
        )
    if all(map(is_number, labels)):
        return (
            f"the labels are {len(labels):,} different numbers ({examples}), each learned as a label of its own; "
            "to predict a number, use bertsmith finetune regress"
        )
    return None
