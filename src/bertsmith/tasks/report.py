"""Present examples and predictions: the part `TaskReport` of a task, and what a page shows about predictions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bertsmith.formatting import shorten
from bertsmith.tasks.base import Metadata, TaskMetrics
from bertsmith.tasks.data_checks import LabelCounts, example_diagnostics, summarize_labels
from bertsmith.tasks.error_analysis import ErrorAnalysis
from bertsmith.tasks.results import DataSummary, Metrics, MetricTable

_MAX_TABLE_ROWS = 200
_MAX_HARDEST = 20
_MAX_TEXT_LENGTH = 400  # characters


class TaskReport:
    """Present examples and predictions. The default covers tasks whose answers are labels."""

    def __init__(self, metadata: Metadata, settings: Any, metrics: TaskMetrics) -> None:
        self.metadata, self.settings, self.metrics = metadata, settings, metrics

    def data_summary(self, train: Sequence[Any], validation: Sequence[Any]) -> DataSummary:
        """Return tables of the answers in the data, and suspected mistakes with their locations."""
        examples = [*train, *validation]
        diagnostics = example_diagnostics(examples, self.metrics.labels(examples))
        return self.answer_summary(train, validation) | DataSummary(diagnostics=diagnostics)

    def answer_summary(self, train: Sequence[Any], validation: Sequence[Any]) -> DataSummary:
        """Return the part of `data_summary` that depends on the form of answers: for labels, their frequencies."""
        train_counts, validation_counts = self.label_counts(train), self.label_counts(validation)
        if not train_counts.counts:
            return DataSummary()
        return summarize_labels(train_counts, validation_counts, self.metadata.get("labels", ()))

    def label_counts(self, examples: Sequence[Any]) -> LabelCounts:
        """Count the labels of examples."""
        return LabelCounts.from_pairs(
            (label, example.location)
            for example, labels in zip(examples, self.metrics.labels(examples), strict=True)
            for label in labels
        )

    def error_analysis(self, predictions: Sequence[Any], examples: Sequence[Any]) -> ErrorAnalysis:
        """Return what a report shows besides the metrics: a confusion matrix, a reliability diagram, tables."""
        return {}

    def describe_error(self, example: Any, prediction: Any) -> tuple[str, str]:
        """Return the reference and the predicted answer as texts."""
        cells = [row.get("prediction") for row in self.table_rows(example, prediction)]
        (labels,) = self.metrics.labels([example])
        return ", ".join(labels), ", ".join(str(cell) for cell in cells if cell is not None)

    def table_rows(self, example: Any, prediction: Any) -> list[dict[str, Any]]:
        """Return a prediction as rows of a table: the inputs, and what of the prediction fits into cells."""
        cells = {
            name: " ".join(map(str, value)) if isinstance(value, list) else value
            for name, value in prediction.to_dict().items()
            if not isinstance(value, dict)
        }
        return [{**example.display_inputs, **cells}]

    def write_output(self, answered: Iterable[tuple[Any, Any | None]]) -> Iterator[str]:
        """Yield the text of a file in the task's official format (`Task.output_format`).

        Args:
            answered: Each example with its prediction; None if the example is empty.

        Raises:
            InputError: An example lacks what the format needs, such as an id.
        """
        raise NotImplementedError


def prediction_report(
    report: TaskReport,
    metrics: Metrics,
    predictions: Sequence[Any],
    examples: Sequence[Any],
    losses: Sequence[float | None],
) -> dict[str, Any]:
    """Return everything that a page shows about predictions besides their metrics.

    Args:
        report: The task's report part.
        metrics: The metrics of the predictions.
        predictions: The predictions.
        examples: The examples.
        losses: The loss of each example, as from `TaskMetrics.example_losses`.
    """
    analysis = dict(report.error_analysis(predictions, examples))
    tables = [*metrics.tables, *analysis.pop("tables", ())]
    return {
        "tables": [_table(table) for table in tables if not _is_confusion_matrix(table)],
        **analysis,
        **_hardest(report, predictions, examples, losses),
    }


def _hardest(
    report: TaskReport, predictions: Sequence[Any], examples: Sequence[Any], losses: Sequence[float | None]
) -> dict[str, Any]:
    ranked = sorted(
        ((loss, i) for i, loss in enumerate(losses) if loss is not None and math.isfinite(loss)),
        key=lambda pair: -pair[0],
    )
    if not ranked:
        return {}
    rows = []
    for loss, i in ranked[:_MAX_HARDEST]:
        example = examples[i]
        reference, prediction = report.describe_error(example, predictions[i])
        inputs = {
            name: shorten(text, _MAX_TEXT_LENGTH)
            for index, (name, text) in enumerate(example.display_inputs.items())
            if index == 0 or text != reference  # a passage that is the reference is shown once
        }
        rows.append(
            {
                "place": example.location,
                "loss": loss,
                "asked": inputs,
                "truth": shorten(reference, _MAX_TEXT_LENGTH),
                "prediction": shorten(prediction, _MAX_TEXT_LENGTH),
            }
        )
    return {"hardest": {"measure": report.metrics.loss_name, "number": len(ranked), "examples": rows}}


def _table(table: MetricTable) -> dict[str, Any]:
    rows = [list(row) for row in table.rows[:_MAX_TABLE_ROWS]]
    return {"title": table.title, "columns": table.columns, "rows": rows, "number": len(table.rows)}


def _is_confusion_matrix(table: MetricTable) -> bool:
    """Return whether a table is a confusion matrix, which a page draws from `confusion`."""
    return len(table.rows) > 1 and table.columns[1:] == [row[0] for row in table.rows]
