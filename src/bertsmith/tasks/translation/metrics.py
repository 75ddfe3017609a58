"""Metrics of target texts, and reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bertsmith.metrics.chrf import chrf, chrf_counts
from bertsmith.metrics.sufficient_statistics import FloatArray, SufficientStatistics, safe_divide
from bertsmith.tasks.base import TaskMetrics, Vectorize
from bertsmith.tasks.batching import Answers
from bertsmith.tasks.report import TaskReport
from bertsmith.tasks.results import Metrics
from bertsmith.tasks.tfidf import TfIdf
from bertsmith.tasks.translation.data import TranslationExample
from bertsmith.tasks.translation.model import TranslationPrediction, reference_loss


class TranslationMetrics(TaskMetrics):
    """chrF over all texts, and the ratio of texts that equal their references, but for white space."""

    primary_metric = "chrf"
    logged_metrics = ("chrf", "exact_match")
    loss_name = "the loss of the reference"

    def compute(
        self, predictions: Sequence[TranslationPrediction], examples: Sequence[TranslationExample]
    ) -> Metrics:
        """Return chrF and the exact matches."""
        scores = self.sufficient_statistics(predictions, examples).scores()
        return Metrics({**scores, "examples": len(examples)})

    def sufficient_statistics(
        self, predictions: Sequence[TranslationPrediction], examples: Sequence[TranslationExample]
    ) -> SufficientStatistics:
        """Return the counts of both metrics."""
        rows = []
        for prediction, example in zip(predictions, examples, strict=True):
            target = example.target or ""
            is_equal = "".join(prediction.translation.split()) == "".join(target.split())
            rows.append([is_equal, 1, *chrf_counts(prediction.translation, target)])

        def scores(sums: FloatArray) -> dict[str, FloatArray]:
            return {"chrf": chrf(sums[..., 2:]), "exact_match": safe_divide(sums[..., 0], sums[..., 1])}

        return SufficientStatistics(np.array(rows, np.float64), scores)

    def baseline(
        self, training: Sequence[TranslationExample], validation: Sequence[TranslationExample]
    ) -> Metrics:
        """Return the metrics of the most frequent target of the training examples."""
        ((target, _),) = Counter(example.target or "" for example in training).most_common(1)
        return self._metrics_of_texts([target] * len(validation), validation)

    def text_baselines(
        self,
        training: Sequence[TranslationExample],
        validation: Sequence[TranslationExample],
        vectorize: Vectorize | None = None,
    ) -> dict[str, Metrics]:
        """Return the metrics of a translation memory: the target of the nearest source by TF-IDF."""
        sources = [example.text for example in training]
        nearest = TfIdf(sources).rankings([example.text for example in validation], sources, 1)
        targets = [training[index].target or "" for (index,) in nearest]
        return {"translation memory": self._metrics_of_texts(targets, validation)}

    def _metrics_of_texts(self, texts: Sequence[str], examples: Sequence[TranslationExample]) -> Metrics:
        return self.compute([TranslationPrediction(text, 0.0) for text in texts], examples)

    def example_losses(self, answers: Answers) -> list[float | None]:
        """Return the losses of the references, summed over their tokens."""
        return [reference_loss(output) for output in answers.outputs.per_item]


class TranslationReport(TaskReport):
    """Report target texts."""

    def describe_error(
        self, example: TranslationExample, prediction: TranslationPrediction
    ) -> tuple[str, str]:
        """Return the reference and the text of the model."""
        return example.target or "", prediction.translation
