"""Tables of choices and of the positions of the correct ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from bertsmith.tasks.base import TaskReport
from bertsmith.tasks.data_checks import find_repeats
from bertsmith.tasks.error_analysis import ErrorAnalysis, label_error_analysis
from bertsmith.tasks.multiple_choice.data import ChoiceExample
from bertsmith.tasks.multiple_choice.decode import ChoicePrediction
from bertsmith.tasks.results import DataSummary, Diagnostic, MetricTable


class MultipleChoiceReport(TaskReport):
    """Present questions and choices."""

    def answer_summary(
        self, train: Sequence[ChoiceExample], validation: Sequence[ChoiceExample]
    ) -> DataSummary:
        """Return how often each position is correct, the numbers of choices, and repeated examples."""
        parts = {"train": train, "dev": validation}
        positions = {name: Counter(str(e.label) for e in part) for name, part in parts.items()}
        sizes = {name: Counter(len(e.choices) for e in part) for name, part in parts.items()}
        all_sizes = sizes["train"] | sizes["dev"]
        low, high = min(all_sizes, default=0), max(all_sizes, default=0)
        rows = []
        for position in map(str, range(high)):
            counts = [(positions[name][position], max(1, len(part))) for name, part in parts.items()]
            rows.append([position, *(cell for n, size in counts for cell in (f"{n:,}", f"{n / size:.1%}"))])
        title = f"position of the right choice ({low if low == high else f'{low} to {high}'} choices)"
        table = MetricTable(title, ["position", "train", "share", "dev", "share"], rows)
        diagnostics = [
            Diagnostic(
                "one position for all",
                f"the right choice of all {name} examples is at position {next(iter(positions[name]))}",
                consequence="is the label read from the right column?",
            )
            for name, part in parts.items()
            if len(part) > 1 and len(positions[name]) == 1
        ]
        if repeats := find_repeats(((e.question_key, e.label_text), e.location) for e in train):
            diagnostics.append(repeats)
        details = {
            "positions": {name: dict(sorted(counts.items())) for name, counts in positions.items()},
            "choices": {
                name: {str(size): n for size, n in sorted(counts.items())} for name, counts in sizes.items()
            },
        }
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
