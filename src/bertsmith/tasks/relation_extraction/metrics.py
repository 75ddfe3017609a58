"""F1 of relations, as SemEval-2010 task 8's scorer and TACRED's script compute it; reports of relations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bertsmith.metrics.relations import count_relations, has_direction, macro_f1, relation_statistics
from bertsmith.metrics.sufficient_statistics import SufficientStatistics, sum_counts
from bertsmith.tasks import tfidf
from bertsmith.tasks.base import TaskMetrics, Vectorize
from bertsmith.tasks.batching import Answers
from bertsmith.tasks.data_checks import find_repeats
from bertsmith.tasks.labels import LabelMap
from bertsmith.tasks.relation_extraction.data import RelationExample, no_relation_label
from bertsmith.tasks.relation_extraction.model import RelationPrediction
from bertsmith.tasks.report import ErrorAnalysis, TaskReport, cross_entropy, label_error_analysis
from bertsmith.tasks.results import DataSummary, Metrics, table_by_label
from bertsmith.tasks.settings import RelateSettings


class RelationMetrics(TaskMetrics):
    """Macro F1, micro F1, and accuracy."""

    settings: RelateSettings
    logged_metrics = ("macro_f1", "micro_f1", "accuracy")
    loss_name = "minus the logarithm of the right relation's probability"

    @property
    def primary_metric(self) -> str:
        """SemEval's macro F1 if relations have directions, else micro F1, as for TACRED."""
        return "macro_f1" if any(map(has_direction, self.metadata["labels"])) else "micro_f1"

    @property
    def no_relation(self) -> str | None:
        """The label that means no relation, as the settings have it, or else the metadata."""
        none_label = self.settings.none_label or self.metadata.get("none")
        return None if none_label is None else no_relation_label(self.metadata["labels"], none_label)

    def labels(self, examples: Sequence[RelationExample]) -> list[tuple[str, ...]]:
        """Return the relations by name."""
        label_map = LabelMap(self.metadata)
        return [() if e.relation is None else (label_map.name(e.relation),) for e in examples]

    def compute(
        self, predictions: Sequence[RelationPrediction], examples: Sequence[RelationExample]
    ) -> Metrics:
        """Return the metrics, and precision, recall, and F1 of each relation.

        Macro F1 is the mean over the relations of the references, both directions pooled (SemEval's official
        score). Micro F1 is over all relations but "no relation" (TACRED's).
        """
        references, predicted = self._pairs(predictions, examples)
        relations = count_relations(references, predicted, self.no_relation)
        notes = []
        if num_reversed := sum(counts.num_reversed for counts in relations.values()):
            notes.append(
                f"answers of the right relation in the wrong direction, which are wrong: {num_reversed:,}"
            )
        unknown = [label for label in references if label not in self.metadata["labels"]]
        if unknown:
            notes.append(
                f"examples with a relation that the model never saw: {len(unknown):,} "
                f"({', '.join(sorted(set(unknown))[:5])}); each counts as wrong"
            )
        num_correct = sum(a == b for a, b in zip(references, predicted, strict=True))
        values = {
            "macro_f1": macro_f1(relations),
            "micro_f1": sum_counts(relations).f1,
            "accuracy": num_correct / max(1, len(references)),
            "examples": len(examples),
        }
        table = table_by_label("relation", {name: counts.to_dict() for name, counts in relations.items()})
        by_relation = {
            name: {**counts.to_dict(), "wrong_direction": counts.num_reversed}
            for name, counts in relations.items()
        }
        details = {"none_label": self.no_relation, "relations": by_relation}
        return Metrics(values, details, (table,), notes)

    def example_losses(self, answers: Answers) -> list[float | None]:
        """Return the cross-entropies of the predicted probabilities; an unknown relation has the probability 0."""
        references, _ = self._pairs(answers.predictions, answers.examples)
        return [
            cross_entropy(p.scores.get(label, 0.0)) if p.scores else None
            for p, label in zip(answers.predictions, references, strict=True)
        ]

    def sufficient_statistics(
        self, predictions: Sequence[RelationPrediction], examples: Sequence[RelationExample]
    ) -> SufficientStatistics:
        """Return the statistics of all metrics."""
        return relation_statistics(
            *self._pairs(predictions, examples), self.metadata["labels"], self.no_relation
        )

    def baseline(self, training: Sequence[RelationExample], validation: Sequence[RelationExample]) -> Metrics:
        """Return the metrics of the most frequent training relation except "no relation", which F1 leaves out."""
        counts = Counter(label for (label,) in self.labels(training) if label != self.no_relation)
        default = self.metadata["labels"][0]
        label = min(counts, key=lambda label: (-counts[label], label), default=default)
        prediction = RelationPrediction(label=label)
        return self.compute([prediction] * len(validation), validation)

    def text_baselines(
        self,
        training: Sequence[RelationExample],
        validation: Sequence[RelationExample],
        vectorize: Vectorize | None = None,
    ) -> dict[str, Metrics]:
        """Return the metrics of TF-IDF or other vectors and logistic regression."""
        labels = [label for (label,) in self.labels(training)]
        if (predicted := tfidf.predict_labels(training, labels, validation, vectorize)) is None:
            return {}
        return {tfidf.NAME: self.compute([RelationPrediction(label=p) for p in predicted], validation)}

    def _pairs(
        self, predictions: Sequence[RelationPrediction], examples: Sequence[RelationExample]
    ) -> tuple[list[str], list[str]]:
        """Return the names of the reference and the predicted relations."""
        references = [label for (label,) in self.labels(examples)]
        return references, [str(prediction.label) for prediction in predictions]


class RelationReport(TaskReport):
    """Present texts and their relations."""

    def answer_summary(
        self, train: Sequence[RelationExample], validation: Sequence[RelationExample]
    ) -> DataSummary:
        """Return the table of labels, and repeated examples."""
        repeats = find_repeats(((e.question_key, e.relation), e.location) for e in train)
        diagnostics = [repeats] if repeats else []
        return super().answer_summary(train, validation) | DataSummary(diagnostics=diagnostics)

    def error_analysis(
        self, predictions: Sequence[RelationPrediction], examples: Sequence[RelationExample]
    ) -> ErrorAnalysis:
        """Return which relations are taken for which, and how reliable probabilities are."""
        answered = [(p, e) for p, e in zip(predictions, examples, strict=True) if p.label is not None]
        references = [label for (label,) in self.metrics.labels([e for _, e in answered])]
        predicted, scores = [str(p.label) for p, _ in answered], [p.score or 0.0 for p, _ in answered]
        return label_error_analysis("texts", references, predicted, scores, self.metadata["labels"])

    def table_rows(self, example: RelationExample, prediction: RelationPrediction) -> list[dict[str, Any]]:
        """Return the text with tags, its relation, and the relation's probability."""
        row = {} if example.id is None else {"id": example.id}
        cells = {"prediction": prediction.label, "score": prediction.score}
        return [{**row, **example.display_inputs, **cells}]

    def write_output(
        self, answered: Iterable[tuple[RelationExample, RelationPrediction | None]]
    ) -> Iterator[str]:
        """Yield the lines of SemEval's scorer: the example's id, or else its number from 1, and its relation.

        An empty text has no line.
        """
        for number, (example, prediction) in enumerate(answered, start=1):
            if prediction is not None:
                yield f"{number if example.id is None else example.id}\t{prediction.label}\n"
