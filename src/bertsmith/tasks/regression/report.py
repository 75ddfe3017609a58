"""Reports of regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertsmith.tasks.base import TaskReport
from bertsmith.tasks.data_checks import summarize_numbers
from bertsmith.tasks.error_analysis import ErrorAnalysis, number_scatter
from bertsmith.tasks.regression.decode import NumberPrediction
from bertsmith.tasks.results import DataSummary
from bertsmith.tasks.texts import TextExample


class RegressionReport(TaskReport):
    """Report numbers."""

    def answer_summary(self, train: Sequence[TextExample], validation: Sequence[TextExample]) -> DataSummary:
        """Return the distribution of the numbers."""
        return summarize_numbers(*([example.number for example in part] for part in (train, validation)))

    def error_analysis(
        self, predictions: Sequence[NumberPrediction], examples: Sequence[TextExample]
    ) -> ErrorAnalysis:
        """Return the numbers beside the references."""
        return {"numbers": number_scatter([e.number for e in examples], [p.number for p in predictions])}

    def describe_error(self, example: TextExample, prediction: NumberPrediction) -> tuple[str, str]:
        """Return the reference and the predicted number as texts."""
        return f"{example.number:g}", f"{prediction.number:.4g}"

    def table_rows(self, example: TextExample, prediction: NumberPrediction) -> list[dict[str, Any]]:
        """Return the text and its number."""
        return [{**example.display_inputs, "prediction": prediction.number}]
