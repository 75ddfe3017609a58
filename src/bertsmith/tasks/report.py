"""Present examples and predictions: the part `TaskReport` of a task, and what a page shows about predictions.

An error analysis (confusion matrix, reliability diagram, scatter plot) is plain JSON of bounded size, and states
the number of cases that it is computed from.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bertsmith.formatting import shorten
from bertsmith.metrics.calibration import expected_calibration_error, reliability_bins
from bertsmith.tasks.base import Metadata, TaskMetrics
from bertsmith.tasks.data_checks import LabelCounts, example_diagnostics, summarize_labels
from bertsmith.tasks.results import DataSummary, Metrics, MetricTable

_MAX_TABLE_ROWS = 200
_MAX_HARDEST = 20
_MAX_TEXT_LENGTH = 400  # characters
_MAX_MATRIX_LABELS = 25
_MAX_CONFUSED_PAIRS = 30
_MAX_POINTS = 1000  # of a scatter plot
_MIN_PROBABILITY = 1e-12  # whose logarithm is taken

ErrorAnalysis = Mapping[str, Any]
"""By name: `confusion`, `reliability`, and `numbers` from the functions below, and `tables`: `MetricTable`s."""


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


def confusion(
    unit: str, references: Sequence[str], predictions: Sequence[str], labels: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the confusion matrix.

    Args:
        unit: The plural name of the cases, such as "texts".
        references: The reference label of each case.
        predictions: The predicted label of each case.
        labels: The order of labels.

    Returns:
        `counts` with a row for each reference label and a column for each predicted one (None if there are too
        many labels), and `confused`, the most frequent wrong pairs.
    """
    counts = Counter(zip(references, predictions, strict=True))
    names = list(dict.fromkeys([*labels, *references, *predictions]))
    wrong = [(pair, count) for pair, count in counts.most_common() if pair[0] != pair[1]]
    has_matrix = len(names) <= _MAX_MATRIX_LABELS
    return {
        "of": unit,
        "number": len(references),
        "wrong": sum(count for _, count in wrong),
        "labels": names if has_matrix else [],
        "counts": [[counts[row, column] for column in names] for row in names] if has_matrix else None,
        "confused": [
            {"truth": reference, "prediction": prediction, "times": count}
            for (reference, prediction), count in wrong[:_MAX_CONFUSED_PAIRS]
        ],
        "pairs": len(wrong),
    }


def reliability(unit: str, confidences: ArrayLike, is_correct: ArrayLike) -> dict[str, Any]:
    """Return the reliability diagram: how often predictions of similar probability are correct.

    Args:
        unit: The plural name of the predictions.
        confidences: The probability of each prediction.
        is_correct: True for each correct prediction.
    """
    bins = reliability_bins(confidences, is_correct)
    return {
        "of": unit,
        "number": np.size(confidences),
        "error": expected_calibration_error(bins),
        "bins": [one_bin._asdict() for one_bin in bins],
    }


def label_error_analysis(
    unit: str,
    references: Sequence[str],
    predictions: Sequence[str],
    confidences: Sequence[float],
    labels: Sequence[str],
) -> ErrorAnalysis:
    """Return the confusion matrix and the reliability diagram of predicted labels."""
    is_correct = [a == b for a, b in zip(references, predictions, strict=True)]
    return {
        "confusion": confusion(unit, references, predictions, labels),
        "reliability": reliability(unit, confidences, is_correct),
    }


def number_scatter(
    references: Sequence[float],
    predictions: Sequence[float],
    x_name: str = "truth",
    y_name: str = "prediction",
) -> dict[str, Any]:
    """Return a scatter plot of predicted over reference numbers; of very many, every n-th pair."""
    step = math.ceil(len(references) / _MAX_POINTS) or 1
    pairs = list(zip(references, predictions, strict=True))[::step]
    return {
        "across": x_name,
        "up": y_name,
        "number": len(references),
        "pairs": [[float(f"{value:.5g}") for value in pair] for pair in pairs],
    }


def cross_entropy(probability: Any) -> Any:
    """Return minus the logarithm of the probability of the reference answer, or of an array of these."""
    return -np.log(np.maximum(probability, _MIN_PROBABILITY))
