"""Error analysis for reports: confusion matrix, reliability diagram, scatter plot, hardest examples.

All results are plain JSON of bounded size, and state the number of cases that they are computed from.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertsmith.metrics.calibration import expected_calibration_error, reliability_bins
from bertsmith.tasks.results import Metrics, MetricTable

if TYPE_CHECKING:
    from bertsmith.tasks.base import TaskReport

_MAX_MATRIX_LABELS = 25
_MAX_CONFUSED_PAIRS = 30
_MAX_POINTS = 1000  # of a scatter plot
_MAX_TABLE_ROWS = 200
_MAX_HARDEST = 20
_MAX_TEXT_LENGTH = 400  # characters
_MIN_PROBABILITY = 1e-12  # whose logarithm is taken

ErrorAnalysis = Mapping[str, Any]
"""By name: `confusion`, `reliability`, and `numbers` from the functions below, and `tables`: `MetricTable`s."""


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


def reliability(unit: str, confidences: Sequence[float], is_correct: Sequence[bool]) -> dict[str, Any]:
    """Return the reliability diagram: how often predictions of similar probability are correct.

    Args:
        unit: The plural name of the predictions.
        confidences: The probability of each prediction.
        is_correct: True for each correct prediction.
    """
    bins = reliability_bins(confidences, is_correct)
    return {
        "of": unit,
        "number": len(confidences),
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


def cross_entropy(probability: float) -> float:
    """Return minus the logarithm of the probability of the reference answer."""
    return -math.log(max(probability, _MIN_PROBABILITY))


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
            name: shorten(text)
            for index, (name, text) in enumerate(example.display_inputs.items())
            if index == 0 or text != reference  # a passage that is the reference is shown once
        }
        rows.append(
            {
                "place": example.location,
                "loss": loss,
                "asked": inputs,
                "truth": shorten(reference),
                "prediction": shorten(prediction),
            }
        )
    return {"hardest": {"measure": report.metrics.loss_name, "number": len(ranked), "examples": rows}}


def shorten(text: str) -> str:
    """Return a text on one line, without the end of a long one."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TEXT_LENGTH else f"{line[: _MAX_TEXT_LENGTH - 1]}…"


def _table(table: MetricTable) -> dict[str, Any]:
    rows = [list(row) for row in table.rows[:_MAX_TABLE_ROWS]]
    return {"title": table.title, "columns": table.columns, "rows": rows, "number": len(table.rows)}


def _is_confusion_matrix(table: MetricTable) -> bool:
    """Return whether a table is a confusion matrix, which a page draws from `confusion`."""
    return len(table.rows) > 1 and table.columns[1:] == [row[0] for row in table.rows]
