"""Metrics of tags: entities as conlleval counts them, strict entities, and the accuracy of words; and reports."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bertsmith.formatting import pluralize
from bertsmith.metrics.sufficient_statistics import (
    FloatArray,
    SufficientStatistics,
    f1,
    safe_divide,
    sum_counts,
)
from bertsmith.metrics.tagging import (
    OUTSIDE,
    Scheme,
    count_entities,
    extract_entities,
    find_violations,
    infer_scheme,
    infer_spelling,
    split_tag,
)
from bertsmith.models.task_heads import ChainScores, log_partitions, path_scores
from bertsmith.tasks.base import Metadata, TaskMetrics, Vectorize
from bertsmith.tasks.batching import Answers
from bertsmith.tasks.data_checks import LabelCounts, find_respelled, summarize_labels
from bertsmith.tasks.labels import is_integer
from bertsmith.tasks.report import ErrorAnalysis, TaskReport, confusion, reliability
from bertsmith.tasks.results import DataSummary, Diagnostic, Metrics, table_by_label
from bertsmith.tasks.tagging.data import TagMap
from bertsmith.tasks.tagging.model import TagDecoder, TagPrediction, padded_batches
from bertsmith.tasks.tagging.rows import tab_separated
from bertsmith.tasks.tagging.sentences import TagExample, split_as_in_training


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
        predicted = [prediction.tags for prediction in predictions]
        notes = self._notes(predictions, examples, references)
        num_words = sum(map(len, references))
        values: dict[str, float] = {
            "accuracy": sum(map(_count_correct, references, predicted)) / max(1, num_words),
            "words": num_words,
            "examples": len(examples),
        }
        if tag_map.scheme is None:
            return Metrics(values, {}, (), notes)
        by_type = count_entities(references, predicted)
        total = sum_counts(by_type)
        strict_f1 = sum_counts(count_entities(references, predicted, tag_map.scheme)).f1
        scores = {
            "precision": total.precision,
            "recall": total.recall,
            "f1": total.f1,
            "strict_f1": strict_f1,
        }
        types = {entity_type: counts.to_dict() for entity_type, counts in by_type.items()}
        return Metrics({**scores, **values}, {"types": types}, (table_by_label("entity", types),), notes)

    def baseline(self, training: Sequence[TagExample], validation: Sequence[TagExample]) -> Metrics:
        """Return the metrics of always predicting the most frequent tag of the training words."""
        counts = Counter(tag for tags in self.labels(training) for tag in tags)
        tag = min(counts, key=lambda name: (-counts[name], name))
        return self.compute(
            [TagPrediction(list(e.words), [tag] * len(e.words), [1.0] * len(e.words)) for e in validation],
            validation,
        )

    def text_baselines(
        self,
        training: Sequence[TagExample],
        validation: Sequence[TagExample],
        vectorize: Vectorize | None = None,
    ) -> dict[str, Metrics]:
        """Return the metrics of the most frequent tag of each word; of an unknown word, that of all words."""
        tags_of_word: dict[str, Counter[str]] = defaultdict(Counter)
        for example, tags in zip(training, self.labels(training), strict=True):
            for word, tag in zip(example.words, tags, strict=True):
                tags_of_word[word][tag] += 1
        default = sum(tags_of_word.values(), Counter[str]())
        predictions = [
            TagPrediction(
                list(example.words),
                [tags_of_word.get(word, default).most_common(1)[0][0] for word in example.words],
                [1.0] * len(example.words),
            )
            for example in validation
        ]
        return {"frequent tag of each word": self.compute(predictions, validation)}

    def example_losses(self, answers: Answers) -> list[float | None]:
        """Return the loss of each sentence; None if a tag is new, or under a CRF if a word has no token."""
        decoder = self.decoder
        examples = split_as_in_training(answers.examples, self.metadata)
        emissions, has_token = decoder.emissions(answers.outputs, answers.items, examples)
        paths: list[list[int] | None] = []
        for example, mask in zip(examples, has_token, strict=True):
            path = None if example.tags is None else decoder.tag_map.label_ids(example.tags)
            is_defined = path and min(path) >= 0 and not (decoder.has_crf and not mask.all())
            paths.append(path if is_defined else None)
        if decoder.has_crf:
            return path_losses(emissions, paths, decoder.chain(answers.outputs))
        return [
            None if path is None else -float(sentence_emissions[torch.arange(len(path)), path][mask].sum())
            for sentence_emissions, path, mask in zip(emissions, paths, has_token, strict=True)
        ]

    def sufficient_statistics(
        self, predictions: Sequence[TagPrediction], examples: Sequence[TagExample]
    ) -> SufficientStatistics:
        """Return the statistics of all metrics but strict F1."""
        rows = []
        for tags, prediction in zip(self.labels(examples), predictions, strict=True):
            references, predicted = (set(extract_entities(side)) for side in (tags, prediction.tags))
            num_correct = _count_correct(tags, prediction.tags)
            rows.append(
                [len(references & predicted), len(references), len(predicted), num_correct, len(tags)]
            )
        has_entities = self.decoder.tag_map.scheme is not None

        def scores(sums: FloatArray) -> dict[str, FloatArray]:
            correct, references, predicted, correct_words, words = np.moveaxis(sums, -1, 0)
            accuracy = {"accuracy": safe_divide(correct_words, words)}
            if not has_entities:
                return accuracy
            return {
                "precision": safe_divide(correct, predicted),
                "recall": safe_divide(correct, references),
                "f1": f1(correct, references, predicted),
                **accuracy,
            }

        return SufficientStatistics(np.array(rows, dtype=np.float64).reshape(-1, 5), scores)

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
            label = self.metadata["default_label"]
            notes.append(f"words without a token in this vocabulary: {unread:,}; their tag is '{label}'")
        if diagnostic := scheme_violations(examples, references, self.metadata["scheme"]):
            notes.append(diagnostic.text)
        return notes + [diagnostic.text for diagnostic in spelling_diagnostics(examples, tag_map)]


class TagReport(TaskReport):
    """Presents sentences and their tags."""

    metrics: TagMetrics

    def answer_summary(self, train: Sequence[TagExample], validation: Sequence[TagExample]) -> DataSummary:
        """Return the table of the file's tags, and tags that break their scheme.

        Suspicious labels are entity types if labels have another scheme than tags, where a prefix may be rare or
        missing, as B in IOB1.
        """
        tag_map = self.metrics.decoder.tag_map
        train_tags, validation_tags = self.label_counts(train), self.label_counts(validation)
        summary = summarize_labels(train_tags, validation_tags, list(tag_map.tag_names.ids))
        if tag_map.scheme is not None and tag_map.label_scheme not in (None, tag_map.scheme):
            types = summarize_labels(self._type_counts(train), self._type_counts(validation), ())
            summary = replace(summary, diagnostics=types.diagnostics)
        examples = [*train, *validation]
        violations = scheme_violations(examples, self.metrics.labels(examples), tag_map.scheme)
        spelling = spelling_diagnostics(examples, tag_map)
        return summary | DataSummary(diagnostics=[*spelling, *([violations] if violations else [])])

    def error_analysis(
        self, predictions: Sequence[TagPrediction], examples: Sequence[TagExample]
    ) -> ErrorAnalysis:
        """Return the confusion matrix of types (tags without a scheme) and the reliability diagram of words."""
        words = [
            (reference, tag, float(score))
            for tags, prediction in zip(self.metrics.labels(examples), predictions, strict=True)
            for reference, tag, score in zip(tags, prediction.tags, prediction.scores, strict=True)
        ]
        references, types = [self._type(tag) for tag, _, _ in words], [self._type(tag) for _, tag, _ in words]
        names = sorted({*references, *types}, key=lambda name: (name == OUTSIDE, name))
        with_token = [word for word in words if word[2] > 0]
        is_correct = [reference == tag for reference, tag, _ in with_token]
        return {
            "confusion": confusion("words", references, types, names),
            "reliability": reliability("words", [score for _, _, score in with_token], is_correct),
        }

    def describe_error(self, example: TagExample, prediction: TagPrediction) -> tuple[str, str]:
        """Return the words with wrong tags, with the reference tags and with the predicted ones."""
        (references,) = self.metrics.labels([example])
        words = zip(prediction.words, references, prediction.tags, strict=True)
        wrong = [(word, reference, tag) for word, reference, tag in words if reference != tag]
        references_text = " ".join(f"{word}/{reference}" for word, reference, _ in wrong)
        return references_text, " ".join(f"{word}/{tag}" for word, _, tag in wrong)

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
            rows = example.output_rows
            if rows is None or len(rows) != len(words):  # a running text
                rows = tuple(tab_separated([word]) for word in words)
            for row, tag in zip(rows, tags, strict=True):
                yield f"{row}{tag}\n"
            yield "\n"

    def _type(self, tag: str) -> str:
        return split_tag(tag)[1] or tag if self.metadata["scheme"] else tag

    def _type_counts(self, examples: Sequence[TagExample]) -> LabelCounts:
        return LabelCounts.from_pairs(
            (entity.type, example.word_location(entity.start))
            for example, tags in zip(examples, self.metrics.labels(examples), strict=True)
            for entity in extract_entities(tags)
        )


def _count_correct(references: Sequence[str], tags: Sequence[str]) -> int:
    return sum(reference == tag for reference, tag in zip(references, tags, strict=True))


def path_losses(
    emissions: Sequence[Tensor], paths: Sequence[Sequence[int] | None], chain: ChainScores
) -> list[float | None]:
    """Return minus the log-likelihood of a path through each sentence under a CRF; None without a path."""
    losses: list[float | None] = [None] * len(emissions)
    for indices, padded, lengths in padded_batches([i for i, path in enumerate(paths) if path], emissions):
        labels = pad_sequence([torch.tensor(paths[i]) for i in indices], batch_first=True)
        batch_losses = log_partitions(padded, lengths, chain) - path_scores(padded, labels, lengths, chain)
        for i, loss in zip(indices, batch_losses.tolist(), strict=True):
            losses[i] = loss
    return losses


def scheme_violations(
    examples: Sequence[TagExample], references: Sequence[Sequence[str]], scheme: Scheme | None
) -> Diagnostic | None:
    """Return the diagnostic for tags that break their scheme, if there are any.

    Args:
        examples: The sentences.
        references: The names of each sentence's tags.
        scheme: The scheme.
    """
    violations = [
        (violation, example.word_location(min(violation.position, len(example.words) - 1)))
        for example, tags in zip(examples, references, strict=True)
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


def spelling_diagnostics(examples: Sequence[TagExample], tag_map: TagMap) -> list[Diagnostic]:
    """Return the diagnostics for tags and spans that are read as others, and for tags that no scheme has."""
    count = LabelCounts.from_pairs(
        (tag_map.tag_names.name_of_code(tag), example.word_location(i))
        for example in examples
        for i, tag in enumerate(example.tags or ())
    )
    read_as = {tag: tag_map.names([tag])[0] for tag in count.counts}
    diagnostics = [*find_respelled("tag", count, read_as)]
    if all(map(is_integer, tag_map.labels)):
        message = "the tags are numbers, so there are no entities and no F1"
        hint = "name them in the order of their numbers by label_names: O,B-PER,I-PER,…"
        excerpts = [count.with_location(tag) for tag in sorted(read_as)]
        diagnostics.append(Diagnostic("numbers as tags", message, list(count.first.values()), excerpts, hint))
    extended = [example.location for example in examples for _ in range(example.extended_spans)]
    message = f"{pluralize(len(extended), 'span')} cut a word, and extended to the whole word"
    diagnostics.append(Diagnostic("extended spans", message, extended))
    foreign = {tag for tag in read_as.values() if infer_scheme([["B", tag]]) is None}
    if tag_map.scheme is None:
        spelling = infer_spelling({*tag_map.tag_names.ids, *read_as.values()})
        if spelling is not None:
            foreign = {*spelling.others, *spelling.outside}
        elif OUTSIDE not in read_as.values():
            foreign = set()
    words = [
        (tag, example.word_location(i))
        for example in examples
        for i, tag in enumerate(tag_map.names(example.tags) if foreign else ())
        if tag in foreign
    ]
    consequence = "so they count as wrong" if tag_map.scheme else "so there are no entities and no F1"
    message = f"{pluralize(len(foreign), 'tag is', 'tags are')} neither O nor like B-PER, {consequence}"
    excerpts = [f"'{tag}' ({location})" for tag, location in words] or sorted(foreign)
    hint = "write O, or a prefix and a type as in B-PER, or choose another column of tags"
    locations = [location for _, location in words]
    diagnostics.append(Diagnostic("tags without a scheme", message, locations, excerpts, hint))
    return [diagnostic for diagnostic in diagnostics if diagnostic.displayed]
