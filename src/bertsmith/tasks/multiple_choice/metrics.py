"""Accuracy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bertsmith.metrics.sufficient_statistics import SufficientStatistics, mean_statistics
from bertsmith.tasks.base import TaskMetrics
from bertsmith.tasks.batching import Answers
from bertsmith.tasks.error_analysis import cross_entropy
from bertsmith.tasks.multiple_choice.data import ChoiceExample
from bertsmith.tasks.multiple_choice.decode import ChoicePrediction
from bertsmith.tasks.results import Metrics, MetricTable


class MultipleChoiceMetrics(TaskMetrics):
    """Accuracy, and accuracy by the number of choices."""

    primary_metric = "accuracy"
    loss_name = "minus the logarithm of the right choice's probability"

    def labels(self, examples: Sequence[ChoiceExample]) -> list[tuple[str, ...]]:
        """Return the texts of the correct choices."""
        return [() if e.label_text is None else (e.label_text,) for e in examples]

    def compute(self, predictions: Sequence[ChoicePrediction], examples: Sequence[ChoiceExample]) -> Metrics:
        """Return accuracy, also by the number of choices, and the accuracy of choosing by chance."""
        is_correct = _is_correct(predictions, examples)
        by_size: dict[int, list[bool]] = {}
        for correct, example in zip(is_correct, examples, strict=True):
            by_size.setdefault(len(example.choices), []).append(correct)
        by_choices = {
            str(size): {"accuracy": sum(correct) / len(correct), "examples": len(correct)}
            for size, correct in sorted(by_size.items())
        }
        rows = [[n, f"{row['accuracy']:.4f}", f"{row['examples']:,}"] for n, row in by_choices.items()]
        tables = [MetricTable("", ["choices", "accuracy", "examples"], rows)] if len(rows) > 1 else []
        total = max(1, len(examples))
        chance = sum(1 / max(1, len(example.choices)) for example in examples) / total
        values = {"accuracy": sum(is_correct) / total, "examples": len(examples)}
        return Metrics(values, {"chance": chance, "choices": by_choices}, tables)

    def example_losses(self, answers: Answers) -> list[float | None]:
        """Return the cross-entropies of the predicted probabilities."""
        return [
            cross_entropy(p.scores[e.label]) if p.scores and e.label is not None else None
            for p, e in zip(answers.predictions, answers.examples, strict=True)
        ]

    def sufficient_statistics(
        self, predictions: Sequence[ChoicePrediction], examples: Sequence[ChoiceExample]
    ) -> SufficientStatistics:
        """Return the statistics of accuracy."""
        return mean_statistics({"accuracy": _is_correct(predictions, examples)})

    def baseline(self, training: Sequence[ChoiceExample], validation: Sequence[ChoiceExample]) -> Metrics:
        """Return the metrics of the position that is correct most often, or the last one of fewer choices."""
        counts = Counter(example.label for example in training if example.label is not None)
        position = min(counts, key=lambda position: (-counts[position], position))
        predictions = [ChoicePrediction(choice=min(position, len(e.choices) - 1)) for e in validation]
        return self.compute(predictions, validation)


def _is_correct(predictions: Sequence[ChoicePrediction], examples: Sequence[ChoiceExample]) -> list[bool]:
    return [p.choice == e.label for p, e in zip(predictions, examples, strict=True)]
