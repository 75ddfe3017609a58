"""Presentation of sentences and their tags."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from bertsmith.metrics.tagging import OUTSIDE, extract_entities, split_tag
from bertsmith.tasks.base import TaskReport
from bertsmith.tasks.data_checks import LabelCounts, summarize_labels
from bertsmith.tasks.error_analysis import ErrorAnalysis, confusion, reliability
from bertsmith.tasks.results import DataSummary
from bertsmith.tasks.tagging.decode import TagPrediction
from bertsmith.tasks.tagging.metrics import TagMetrics, scheme_violations
from bertsmith.tasks.tagging.sentences import TagExample, tab_separated
from bertsmith.tasks.tagging.tag_map import TagMap


class TagReport(TaskReport):
    """Presents sentences and their tags."""

    metrics: TagMetrics

    def answer_summary(self, train: Sequence[TagExample], validation: Sequence[TagExample]) -> DataSummary:
        """Return the table of the file's tags, and tags that break their scheme.

        Suspicious labels are entity types if labels have another scheme than tags, where a prefix may be rare or
        missing, as B in IOB1.
        """
        tag_map = TagMap.from_metadata(self.metadata)
        tags = list(tag_map.tag_names.ids)
        counts = (self._tag_counts(train), self._tag_counts(validation))
        summary = summarize_labels(*counts, tags)
        if tag_map.scheme is not None and tag_map.trained not in (None, tag_map.scheme):
            types = summarize_labels(self._type_counts(train), self._type_counts(validation), ())
            summary = replace(summary, diagnostics=types.diagnostics)
        examples = [*train, *validation]
        violations = scheme_violations(examples, self.metrics.labels(examples), tag_map.scheme)
        return summary | DataSummary(diagnostics=[violations] if violations else [])

    def error_analysis(
        self, predictions: Sequence[TagPrediction], examples: Sequence[TagExample]
    ) -> ErrorAnalysis:
        """Return the confusion matrix of types (tags without a scheme) and the reliability diagram of words."""
        words = [
            (reference, tag, float(score))
            for tags, prediction in zip(self.metrics.labels(examples), predictions, strict=True)
            for reference, tag, score in zip(tags, prediction.tags, prediction.scores, strict=True)
        ]
        references = [self._type(reference) for reference, _, _ in words]
        types = [self._type(tag) for _, tag, _ in words]
        names = sorted({*references, *types}, key=lambda name: (name == OUTSIDE, name))
        with_token = [(score, a == b) for a, b, score in words if score > 0]
        return {
            "confusion": confusion("words", references, types, names),
            "reliability": reliability(
                "words", [score for score, _ in with_token], [is_correct for _, is_correct in with_token]
            ),
        }

    def describe_error(self, example: TagExample, prediction: TagPrediction) -> tuple[str, str]:
        """Return the words with wrong tags, with the reference tags and with the predicted ones."""
        (references,) = self.metrics.labels([example])
        rows = zip(prediction.words, references, prediction.tags, strict=True)
        wrong = [(word, reference, tag) for word, reference, tag in rows if reference != tag]
        if not wrong:
            return "all tags are right", "all tags are right"
        return (
            " ".join(f"{word}/{reference}" for word, reference, _ in wrong),
            " ".join(f"{word}/{tag}" for word, _, tag in wrong),
        )

    def table_rows(self, example: TagExample, prediction: TagPrediction) -> list[dict[str, Any]]:
        """Return a row for each word, with its tag and probability, and with the predicate if there is one."""
        predicate = example.display_inputs.get("predicate")
        inputs = {} if prediction.predicate is None else {"predicate": predicate}
        return [
            {**inputs, "word": word, "prediction": tag, "score": score}
            for word, tag, score in zip(prediction.words, prediction.tags, prediction.scores, strict=True)
        ]

    def write_output(self, answered: Iterable[tuple[TagExample, TagPrediction | None]]) -> Iterator[str]:
        """Yield the rows of each sentence with the predicted tag last, and an empty line.

        Columns are separated as in the file; by tabs if it has none.
        """
        for example, prediction in answered:
            words, tags = (prediction.words, prediction.tags) if prediction else ([], [])
            rows = example.rows
            if rows is None or len(rows) != len(words):  # a running text
                rows = tuple(tab_separated([word]) for word in words)
            for row, tag in zip(rows, tags, strict=True):
                yield f"{row}{tag}\n"
            yield "\n"

    def _type(self, tag: str) -> str:
        return split_tag(tag)[1] or tag if self.metadata["scheme"] else tag

    def _tag_counts(self, examples: Sequence[TagExample]) -> LabelCounts:
        return LabelCounts.from_pairs(
            (tag, example.location)
            for example, tags in zip(examples, self.metrics.labels(examples), strict=True)
            for tag in tags
        )

    def _type_counts(self, examples: Sequence[TagExample]) -> LabelCounts:
        return LabelCounts.from_pairs(
            (entity.type, example.word_location(entity.start))
            for example, tags in zip(examples, self.metrics.labels(examples), strict=True)
            for entity in extract_entities(tags)
        )
