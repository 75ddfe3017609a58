"""Texts that match or do not match: pairs, triples, and queries with passages.

The content of the data decides the loss. Pairs with a score are graded, pairs with one of two labels are labeled.
Pairs without a label, triples, and queries with passages are for retrieval: each query has passages to find.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from bertsmith.artifacts.sentence_transformers import SentenceEmbeddingConfig, read_sentence_embedding_config
from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names
from bertsmith.io.sources import Source
from bertsmith.io.tables import Table, warn_of_printed_lists
from bertsmith.io.values import MISSING_SPELLINGS, is_blank, to_label
from bertsmith.tasks.base import Example, Metadata, TaskData
from bertsmith.tasks.data_checks import check_examples
from bertsmith.tasks.labels import LabelNames, check_length, missing_label_error, parse_number
from bertsmith.tasks.rows import is_query_file, read_queries, read_task_table
from bertsmith.tasks.settings import EmbedSettings
from bertsmith.tasks.texts import input_texts

logger = logging.getLogger(__name__)

DataFormat = Literal["graded", "labeled", "retrieval"]

MATCH_LABELS = ("1", "1.0", "true", "yes", "same", "duplicate", "paraphrase", "entailment", "equivalent")
"""Labels that say that two texts match, in lower case."""

_FORMAT_OF_LOSS: Mapping[str, DataFormat] = {
    "cosine": "graded",
    "cosent": "graded",
    "contrastive": "labeled",
    "softmax": "retrieval",
}
_TEXT_COLUMNS = (
    ("text", "second"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("anchor", "positive"),
    ("query", "passage"),
    ("query", "positive"),
    ("question", "passage"),
)


@dataclass(frozen=True)
class EmbeddingExample(Example):
    """A text, with texts to compare it with.

    Attributes:
        query: The text.
        positives: The other text of a pair, or the passages of a query; empty for a text alone.
        negatives: Texts that do not match.
        label: The label or score of a pair.
        location: The file and line.
        table_row: The row of the table that the example was read from.
    """

    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    label: str | None
    location: str
    table_row: Mapping[str, str] | None = field(default=None, compare=False, repr=False)

    @property
    def texts(self) -> tuple[str, ...]:
        """The query, the positives, and the negatives."""
        return (self.query, *self.positives, *self.negatives)

    @property
    def number(self) -> float:
        """The label as a number."""
        return parse_number(self.label, self.location)

    @property
    def group_key(self) -> tuple[str, ...]:
        """The texts of a labeled pair; the passages of a query, so that a passage is on one side of a split."""
        return self.positives if self.label is None else (self.query, *self.positives)

    @property
    def is_empty(self) -> bool:
        """True if a text is empty, which cannot be compared."""
        return any(map(is_blank, self.texts))

    @property
    def display_inputs(self) -> dict[str, str]:
        """The text, and the other text if there is a single one."""
        others = self.texts[1:]
        return {"text": self.query} | ({"second": others[0]} if len(others) == 1 else {})


class EmbeddingMetadata(BaseModel):
    """Metadata of the task.

    Attributes:
        data_format: The format of the training examples.
        same_label: Of labeled pairs, the label of those that match.
        lowest_score: Of graded pairs, the score that corresponds to a cosine of 0.
        highest_score: Of graded pairs, the score that corresponds to a cosine of 1.
    """

    data_format: DataFormat
    same_label: str | None = None
    lowest_score: float | None = None
    highest_score: float | None = None


class EmbeddingData(TaskData):
    """Read pairs, triples, and queries."""

    def resolve_settings(self, base: Path, max_length: int) -> EmbedSettings:
        """Return the settings with the base model's pooling, normalization, and maximum length if these are open.

        Raises:
            InputError: The pooling of the base model is unknown, and the settings name none.
        """
        settings: EmbedSettings = self.settings
        try:
            config = read_sentence_embedding_config(base)
        except InputError:
            if settings.pooling is None:
                raise
            config = None
        pooling, normalize, length = config or SentenceEmbeddingConfig("mean", True)
        length = length if length is not None and 3 <= length < max_length else None
        defaults = {"pooling": pooling, "normalize": normalize, "max_length": length}
        update = {name: value for name, value in defaults.items() if getattr(settings, name) is None}
        if config is not None and update:
            values = ", ".join(f"task.{name}={value}" for name, value in update.items() if value is not None)
            logger.info("settings taken from the base model: %s", values)
        return settings.model_copy(update=update)

    def read(self, source: Source, *, labeled: bool = True) -> list[EmbeddingExample]:
        """Return the pairs, triples, or queries of a file; without labels also single texts."""
        settings = self.settings
        if settings.text_column is None and is_query_file(source, settings.encoding):
            queries = list(read_queries(source, settings.encoding, labeled=labeled))
            warn_of_printed_lists("positive", [(p, q.location) for q in queries for p in q.positives])
            examples = [EmbeddingExample(*query[:3], None, query.location) for query in queries]
        else:
            examples = _read_rows(
                read_task_table(source, settings, labeled=labeled), settings, labeled=labeled
            )
        check_examples(examples, source, "examples")
        return examples

    def from_inputs(
        self, columns: Mapping[str, Sequence[Any]], locations: Sequence[str]
    ) -> list[EmbeddingExample]:
        """Return the examples of texts, or of pairs: in two columns, or in one with a tab between them."""
        columns = input_texts(columns, locations)
        rows: Iterable[Sequence[str]] = (text.split("\t") for text in columns["text"])
        if "text_pair" in columns:
            rows = zip(columns["text"], columns["text_pair"], strict=True)
        examples = []
        for (query, *others), location in zip(rows, locations, strict=True):
            if len(others) > 1:
                message = f"this line has {len(others)} tabs"
                hint = "separate the two texts of a pair by one tab"
                raise InputError("too_many_tabs", message, location=location, hint=hint)
            examples.append(EmbeddingExample(query, tuple(others), (), None, location))
        return examples

    def tuple_columns(self, num_values: int) -> list[str]:
        """Return text, second, and label; or the negative if its column is named."""
        settings = self.settings
        label = settings.negative_column or settings.label_column or "label"
        names = [settings.text_column or "text", settings.second_column or "second", label]
        return names[: max(2, num_values)]

    def to_row(self, example: EmbeddingExample) -> dict[str, Any]:
        """Return the row of the table, or a query with its passages."""
        if example.table_row is not None:
            return dict(example.table_row)
        return {"query": example.query, "positives": example.positives, "negatives": example.negatives}

    def fit_metadata(self, examples: Sequence[EmbeddingExample], label_names: LabelNames | None) -> Metadata:
        """Return the format of the examples, and the meaning of their labels."""
        super().fit_metadata(examples, label_names)
        settings = self.settings
        metadata: dict[str, Any] = {"data_format": detect_format(examples, settings)}
        if metadata["data_format"] == "labeled":
            return metadata | {"same_label": detect_same_label(examples, settings)}
        if metadata["data_format"] == "retrieval":
            return metadata
        scores = [example.number for example in examples]
        return metadata | {"lowest_score": min(scores), "highest_score": max(scores)}

    def check_validation(self, examples: Sequence[EmbeddingExample], metadata: Metadata) -> None:
        """Check that the examples have the format of the training examples."""
        is_retrieval = metadata["data_format"] == "retrieval"
        for example in examples:
            if (example.label is None) != is_retrieval:
                message = f"only the {'validation' if is_retrieval else 'training'} examples have labels"
                hint = "give files of the same form to train and validation, with the same column names"
                location = example.location
                raise InputError("examples_differ_from_training", message, location=location, hint=hint)
            if metadata["data_format"] == "graded":
                parse_number(example.label, example.location)


def target(example: EmbeddingExample, metadata: Metadata) -> float | None:
    """Return the cosine to learn, between 0 and 1; None for a text alone, or a pair whose label is unknown."""
    if metadata["data_format"] == "retrieval" or example.label is None:
        return 1.0 if example.positives else None
    if metadata["data_format"] == "labeled":
        return float(example.label == metadata["same_label"])
    lowest: float = metadata["lowest_score"]
    return (example.number - lowest) / (metadata["highest_score"] - lowest or 1.0)


def detect_format(examples: Sequence[EmbeddingExample], settings: EmbedSettings) -> DataFormat:
    """Return the format of training examples.

    Raises:
        InputError: Labels are neither scores nor one of two, or the settings' loss needs another format.
    """
    labels = {example.label for example in examples if example.label is not None}
    required = _FORMAT_OF_LOSS.get(settings.loss)
    data_format: DataFormat = "retrieval"
    if len(labels) == 1 and settings.same_label is None:
        message, hint = f"all pairs have the label {next(iter(labels))!r}", f"check {option('label_column')}"
        location = examples[0].location
        raise InputError("single_label", message, location=location, argument="label_column", hint=hint)
    if labels:
        has_two_labels = len(labels) == 2 or settings.same_label is not None
        data_format = "labeled" if has_two_labels and required != "graded" else "graded"
    if data_format == "graded":
        matching = [label for label in sorted(labels) if label.isalpha() and label.casefold() in MATCH_LABELS]
        if matching and required != "graded":
            raise _same_label_error(examples, sorted(labels), matching[0])
        for example in examples:
            parse_number(example.label, example.location)
    if required not in (None, data_format):
        message = f"the loss '{settings.loss}' takes {required} examples, and these are {data_format}"
        location, hint = examples[0].location, f"choose another {option('loss')}, or remove it"
        raise InputError("loss_not_applicable", message, location=location, argument="loss", hint=hint)
    return data_format


def detect_same_label(examples: Sequence[EmbeddingExample], settings: EmbedSettings) -> str:
    """Return the label of pairs that match: the one of the settings, or the one that is in `MATCH_LABELS`."""
    labels = sorted({str(example.label) for example in examples if example.label is not None})
    if settings.same_label is not None:
        if settings.same_label not in labels:
            message = f"no pair has the label '{settings.same_label}'"
            hint = f"the labels are {join_names(labels)}"
            raise InputError("unknown_label", message, argument="same_label", hint=hint)
        return settings.same_label
    for example in examples:
        if re.fullmatch(r"-?\d+,\d+", example.label or ""):
            parse_number(example.label, example.location)  # an error that explains decimal commas
    matching = [label for label in labels if label.casefold() in MATCH_LABELS]
    if len(matching) != 1:
        raise _same_label_error(examples, labels, labels[0])
    return matching[0]


def _same_label_error(
    examples: Sequence[EmbeddingExample], labels: Sequence[str], suggestion: str
) -> InputError:
    message = f"it is not clear which of the labels {join_names(labels)} means that two texts match"
    location, hint = examples[0].location, f"name it, as in {option('same_label', suggestion)}"
    return InputError("same_label_missing", message, location=location, argument="same_label", hint=hint)


class _Columns(NamedTuple):
    """The names of a table's columns; None for one that it does not have."""

    text: str
    second: str | None
    label: str | None
    negative: str | None


def _find_columns(table: Table, settings: EmbedSettings, *, labeled: bool) -> _Columns:
    """Return the columns that the settings name, or those with usual names.

    Raises:
        InputError: The columns of the texts are unknown.
    """
    columns = table.columns
    text, second = settings.text_column, settings.second_column
    if not settings.header and not table.is_plain:
        text, second = text or "1", second or ("2" if "2" in columns else None)
    if text is None and second is None:
        usual_pairs = (pair for pair in _TEXT_COLUMNS if set(pair) <= set(columns))
        text, second = next(usual_pairs, (None, None))
    if text is None:
        usual = [name for name, _ in _TEXT_COLUMNS if name in columns]
        text = usual[0] if usual else columns[0] if len(columns) == 1 else None
    if text is None or (second is None and labeled):
        raise InputError(
            "text_columns_unknown",
            f"no column has a known name for the two texts; the columns are {join_names(columns)}",
            location=table.start,
            argument="second_column" if text is not None else "text_column",
            hint=f"name them with {option('text_column')} and {option('second_column')}, and what separates "
            f"columns with {option('delimiter')}",
        )
    label, negative = settings.label_column, settings.negative_column
    if label is not None and negative is not None:
        message = f"pairs have labels ('{label}'), triples have negatives ('{negative}'); no example has both"
        hint = f"remove {option('label_column')} or {option('negative_column')}"
        raise InputError("label_and_negative_column", message, argument="negative_column", hint=hint)
    if label is None and negative is None:
        usual = ["negative", *(["label", "score"] if settings.header else [])]
        name = next((name for name in usual if name in columns), None)
        label, negative = (None, name) if name == "negative" else (name, None)
    return _Columns(text, second, label, negative) if labeled else _Columns(text, second, None, None)


def _read_rows(table: Table, settings: EmbedSettings, *, labeled: bool) -> list[EmbeddingExample]:
    names = _find_columns(table, settings, labeled=labeled)
    read = {"label": table.strings}
    columns = (
        [None] * len(table) if name is None else read.get(argument, table.texts)(name, f"{argument}_column")
        for argument, name in zip(_Columns._fields, names, strict=True)
    )
    examples = []
    for row, text, second, label, negative in zip(table, *columns, strict=True):
        location = row.location
        if label is not None and (is_blank(label) or label in MISSING_SPELLINGS):
            raise missing_label_error(label, location)
        positives, negatives = (() if value is None else (value,) for value in (second, negative))
        label = None if label is None else to_label(label, "label", location, "label_column")
        check_length(label or "", location)
        values = None if table.is_plain else row.texts
        examples.append(EmbeddingExample(text or "", positives, negatives, label, location, values))
    return examples
