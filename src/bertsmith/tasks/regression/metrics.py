"""Metrics of regression, and reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertsmith.metrics.sufficient_statistics import SufficientStatistics, regression_statistics
from bertsmith.tasks import tfidf
from bertsmith.tasks.base import TaskMetrics, Vectorize
from bertsmith.tasks.batching import Answers
from bertsmith.tasks.data_checks import summarize_numbers
from bertsmith.tasks.regression.model import NumberPrediction
from bertsmith.tasks.report import ErrorAnalysis, TaskReport, number_scatter
from bertsmith.tasks.results import DataSummary, Metrics
from bertsmith.tasks.texts import TextExample


class RegressionMetrics(TaskMetrics):
    """Correlations and errors of numbers."""

    primary_metric = "pearson"
    logged_metrics = ("pearson", "spearman")
    loss_name = "the squared error"

    def labels(self, examples: Sequence[TextExample]) -> list[tuple[str, ...]]:
        """Return the numbers as texts, equal for 1 and 1.0."""
        return [() if example.label is None else (f"{example.number:g}",) for example in examples]

    def compute(self, predictions: Sequence[NumberPrediction], examples: Sequence[TextExample]) -> Metrics:
        """Return Pearson's and Spearman's correlation (0 if a side is constant), and mean errors."""
        references = np.array([example.number for example in examples])
        numbers = np.array([prediction.number for prediction in predictions])
        notes = []
        pearson = spearman = 0.0
        if len(examples) > 1 and np.ptp(references) > 0 and np.ptp(numbers) > 0:
            from scipy.stats import pearsonr, spearmanr

            pearson, spearman = (float(f(references, numbers)[0]) for f in (pearsonr, spearmanr))
        else:
            notes = ["the numbers do not vary, so there is nothing to correlate: both correlations are 0"]
        errors = numbers - references
        metrics = {
            "pearson": pearson,
            "spearman": spearman,
            "mean_squared_error": float((errors**2).mean()),
            "mean_absolute_error": float(np.abs(errors).mean()),
            "examples": len(examples),
        }
        return Metrics(metrics, notes=notes)

    def baseline(self, training: Sequence[TextExample], validation: Sequence[TextExample]) -> Metrics:
        """Return the metrics of the mean of the training examples."""
        mean = float(np.mean([example.number for example in training]))
        return self.compute([NumberPrediction(mean)] * len(validation), validation)

    def text_baselines(
        self,
        training: Sequence[TextExample],
        validation: Sequence[TextExample],
        vectorize: Vectorize | None = None,
    ) -> dict[str, Metrics]:
        """Return the metrics of TF-IDF or other vectors and ridge regression."""
        numbers = tfidf.predict_numbers(
            training, [example.number for example in training], validation, vectorize
        )
        return {tfidf.NAME: self.compute(list(map(NumberPrediction, numbers)), validation)}

    def example_losses(self, answers: Answers) -> list[float | None]:
        """Return the squared errors."""
        pairs = zip(answers.predictions, answers.examples, strict=True)
        return [(prediction.number - example.number) ** 2 for prediction, example in pairs]

    def sufficient_statistics(
        self, predictions: Sequence[NumberPrediction], examples: Sequence[TextExample]
    ) -> SufficientStatistics:
        """Return the statistics of all metrics but Spearman's correlation."""
        references = [example.number for example in examples]
        return regression_statistics(references, [prediction.number for prediction in predictions])


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
