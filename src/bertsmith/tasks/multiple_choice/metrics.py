"""Accuracy, and the report of the positions of the correct choices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from bertsmith.metrics.sufficient_statistics import SufficientStatistics, mean_statistics
from bertsmith.tasks.base import TaskMetrics
from bertsmith.tasks.batching import Answers
from bertsmith.tasks.data_checks import find_repeats, label_table
from bertsmith.tasks.multiple_choice.data import ChoiceExample
from bertsmith.tasks.multiple_choice.model import ChoicePrediction
from bertsmith.tasks.report import ErrorAnalysis, TaskReport, cross_entropy, label_error_analysis
from bertsmith.tasks.results import DataSummary, Diagnostic, Metrics, table_by_label


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
        tables = [table_by_label("choices", by_choices)] if len(by_choices) > 1 else []
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


class MultipleChoiceReport(TaskReport):
    """Present questions and choices."""

    def answer_summary(
        self, train: Sequence[ChoiceExample], validation: Sequence[ChoiceExample]
    ) -> DataSummary:
        """Return how often each position is correct, and repeated examples."""
        train_counts, validation_counts = (
            Counter(str(example.label) for example in part) for part in (train, validation)
        )
        diagnostics = [
            Diagnostic(
                "one position for all",
                f"the right choice of all {part} examples is at position {next(iter(counts))}",
                consequence="is the label read from the right column?",
            )
            for part, counts in (("train", train_counts), ("validation", validation_counts))
            if len(counts) == 1 < counts.total()
        ]
        if repeats := find_repeats(((e.question_key, e.label_text), e.location) for e in train):
            diagnostics.append(repeats)
        details = {"positions": {"train": dict(train_counts), "validation": dict(validation_counts)}}
        table = label_table(train_counts, validation_counts)._replace(title="position of the right choice")
        return DataSummary(details, [table], diagnostics)

    def error_analysis(
        self, predictions: Sequence[ChoicePrediction], examples: Sequence[ChoiceExample]
    ) -> ErrorAnalysis:
        """Return which positions are taken for which, and how reliable probabilities are."""
        pairs = [(p, e) for p, e in zip(predictions, examples, strict=True) if p.choice is not None]
        references, predicted = [str(e.label) for _, e in pairs], [str(p.choice) for p, _ in pairs]
        positions = [str(i) for i in range(max((len(e.choices) for _, e in pairs), default=0))]
        scores = [p.score for p, _ in pairs if p.score is not None]
        return label_error_analysis("positions", references, predicted, scores, positions)

    def table_rows(self, example: ChoiceExample, prediction: ChoicePrediction) -> list[dict[str, Any]]:
        """Return the question, the choice's index and text, and its probability."""
        row = {} if example.id is None else {"id": example.id}
        cells = {"choice": prediction.choice, "prediction": prediction.text, "score": prediction.score}
        return [{**row, **example.display_inputs, **cells}]


def _is_correct(predictions: Sequence[ChoicePrediction], examples: Sequence[ChoiceExample]) -> list[bool]:
    return [p.choice == e.label for p, e in zip(predictions, examples, strict=True)]
