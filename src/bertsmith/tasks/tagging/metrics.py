"""Metrics of tags: entities as conlleval counts them, strict entities, and the accuracy of words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bertsmith.formatting import pluralize
from bertsmith.metrics.entities import count_entities, extract_entities, sum_counts
from bertsmith.metrics.sufficient_statistics import (
    FloatArray,
    SufficientStatistics,
    count_statistics,
    f1,
    safe_divide,
)
from bertsmith.metrics.tagging_schemes import Scheme, find_violations
from bertsmith.models.crf import ChainScores, log_partitions, path_scores
from bertsmith.tasks.base import Metadata, TaskMetrics
from bertsmith.tasks.batching import Answers
from bertsmith.tasks.results import Diagnostic, Metrics, table_by_label
from bertsmith.tasks.tagging.decode import TagDecoder, TagPrediction, padded_batches
from bertsmith.tasks.tagging.encode import label_ids, words_as_trained
from bertsmith.tasks.tagging.sentences import TagExample


class TagMetrics(TaskMetrics):
    """Scores tags. The decoder is a `TagDecoder`."""

    decoder: TagDecoder

    def __init__(self, metadata: Metadata, settings: Any, decoder: TagDecoder) -> None:
        super().__init__(metadata, settings, decoder)
        self.loss_name = (
            "minus the log-likelihood of its tags"
            if decoder.has_crf
            else "the cross-entropy, summed over its words"
        )

    @property
    def primary_metric(self) -> str:
        """Return the F1 of entities, or accuracy if tags have no scheme."""
        return "f1" if self.metadata["scheme"] else "accuracy"

    @property
    def logged_metrics(self) -> tuple[str, ...]:
        """Return F1 and accuracy."""
        return ("f1", "accuracy") if self.metadata["scheme"] else ("accuracy",)

    def labels(self, examples: Sequence[TagExample]) -> list[tuple[str, ...]]:
        """Return the names of the tags."""
        return [self.decoder.tag_map.names(example.tags) for example in examples]

    def compute(self, predictions: Sequence[TagPrediction], examples: Sequence[TagExample]) -> Metrics:
        """Return precision, recall, and F1 of entities, in total and by type, strict F1, and accuracy."""
        tag_map, references = self.decoder.tag_map, self.labels(examples)
        notes = self._notes(predictions, examples, references)
        pairs = [
            pair
            for tags, prediction in zip(references, predictions, strict=True)
            for pair in zip(tags, prediction.tags, strict=True)
        ]
        accuracy = sum(a == b for a, b in pairs) / max(1, len(pairs))
        sizes = {"words": len(pairs), "examples": len(examples)}
        if tag_map.scheme is None:
            return Metrics({"accuracy": accuracy, **sizes}, {}, (), notes)
        predicted = [prediction.tags for prediction in predictions]
        counts_by_type = count_entities(references, predicted)
        total = sum_counts(counts_by_type)
        values = {
            "precision": total.precision,
            "recall": total.recall,
            "f1": total.f1,
            "strict_f1": sum_counts(count_entities(references, predicted, tag_map.scheme)).f1,
            "accuracy": accuracy,
        }
        by_type = {entity_type: counts.to_dict() for entity_type, counts in counts_by_type.items()}
        return Metrics({**values, **sizes}, {"types": by_type}, (table_by_label("entity", by_type),), notes)

    def baseline(self, training: Sequence[TagExample], validation: Sequence[TagExample]) -> Metrics:
        """Return the metrics of always predicting the most frequent tag of the training words."""
        counts = Counter(tag for tags in self.labels(training) for tag in tags)
        tag = min(counts, key=lambda name: (-counts[name], name))
        return self.compute(
            [TagPrediction(list(e.words), [tag] * len(e.words), [1.0] * len(e.words)) for e in validation],
            validation,
        )

    def example_losses(self, answers: Answers) -> list[float | None]:
        """Return the loss of each sentence; None if a tag is new, or under a CRF if a word has no token."""
        decoder = self.decoder
        examples = words_as_trained(answers.examples, self.metadata)
        emissions, has_token = decoder.emissions(answers.outputs, answers.items, examples)
        paths: list[list[int] | None] = []
        for example, mask in zip(examples, has_token, strict=True):
            path = None if example.tags is None else label_ids(example.tags, decoder.tag_map, decoder.ids)
            is_defined = path and min(path) >= 0 and not (decoder.has_crf and not mask.all())
            paths.append(path if is_defined else None)
        if decoder.has_crf:
            return path_losses(emissions, paths, decoder.chain(answers.outputs))
        return [
            None if path is None else -float(rows[torch.arange(len(path)), path][mask].sum())
            for rows, path, mask in zip(emissions, paths, has_token, strict=True)
        ]

    def sufficient_statistics(
        self, predictions: Sequence[TagPrediction], examples: Sequence[TagExample]
    ) -> SufficientStatistics:
        """Return the statistics of all metrics but strict F1."""
        correct, references, predicted, words = [], [], [], []
        for tags, prediction in zip(self.labels(examples), predictions, strict=True):
            reference_entities = set(extract_entities(tags))
            predicted_entities = set(extract_entities(prediction.tags))
            correct.append([len(reference_entities & predicted_entities)])
            references.append([len(reference_entities)])
            predicted.append([len(predicted_entities)])
            words.append([sum(a == b for a, b in zip(tags, prediction.tags, strict=True)), len(tags)])
        has_entities = self.decoder.tag_map.scheme is not None

        def scores(
            correct: FloatArray, references: FloatArray, predicted: FloatArray, words: FloatArray
        ) -> dict[str, FloatArray]:
            accuracy = {"accuracy": safe_divide(words[..., 0], words[..., 1])}
            if not has_entities:
                return accuracy
            return {
                "precision": safe_divide(correct, predicted)[..., 0],
                "recall": safe_divide(correct, references)[..., 0],
                "f1": f1(correct, references, predicted)[..., 0],
                **accuracy,
            }

        return count_statistics(correct, references, predicted, words, scores)

    def _notes(
        self,
        predictions: Sequence[TagPrediction],
        examples: Sequence[TagExample],
        references: Sequence[Sequence[str]],
    ) -> list[str]:
        notes = []
        tag_map = self.decoder.tag_map
        if new_tags := Counter(tag for tags in references for tag in tags if tag_map.is_new(tag)):
            listed = ", ".join(sorted(new_tags)[:5])
            notes.append(
                f"words with a tag that the model never saw: {new_tags.total():,} ({listed}); all are wrong"
            )
        if unread := sum(score == 0 for prediction in predictions for score in prediction.scores):
            usual = self.metadata["usual"]
            notes.append(f"words without a token in this vocabulary: {unread:,}; their tag is '{usual}'")
        if diagnostic := scheme_violations(examples, references, self.metadata["scheme"]):
            notes.append(diagnostic.text)
        return notes


def path_losses(
    emissions: Sequence[Tensor], paths: Sequence[Sequence[int] | None], chain: ChainScores
) -> list[float | None]:
    """Return minus the log-likelihood of a path through each sentence under a CRF; None without a path."""
    losses: list[float | None] = [None] * len(emissions)
    for indices, rows, lengths in padded_batches([i for i, path in enumerate(paths) if path], emissions):
        labels = pad_sequence([torch.tensor(paths[i]) for i in indices], batch_first=True)
        batch_losses = log_partitions(rows, lengths, chain) - path_scores(rows, labels, lengths, chain)
        for i, loss in zip(indices, batch_losses.tolist(), strict=True):
            losses[i] = loss
    return losses


def scheme_violations(
    examples: Sequence[TagExample], rows: Sequence[Sequence[str]], scheme: Scheme | None
) -> Diagnostic | None:
    """Return the diagnostic for tags that break their scheme, if there are any.

    Args:
        examples: The sentences.
        rows: The names of each sentence's tags.
        scheme: The scheme.
    """
    violations = [
        (violation, example.word_location(min(violation.position, len(example.words) - 1)))
        for example, tags in zip(examples, rows, strict=True)
        for violation in (find_violations(tags, scheme) if scheme is not None else ())
    ]
    if not violations:
        return None
    return Diagnostic(
        "tags that break the scheme",
        f"{pluralize(len(violations), 'violation')} of the scheme {str(scheme).upper()}",
        [location for _, location in violations],
        [
            f"{v.tag or 'the end'} after {v.previous or 'the start'} ({location})"
            for v, location in violations
        ],
        "read as conlleval reads them, an entity begins or ends there",
    )
