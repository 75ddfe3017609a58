"""Examples of relation extraction: a text, two entities in it, and their relation."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertsmith.errors import InputError, option
from bertsmith.io.sources import Source
from bertsmith.metrics.relations import has_direction
from bertsmith.tasks.base import Example, HFCheckpoint, Metadata, TaskData
from bertsmith.tasks.data_checks import check_examples, check_string
from bertsmith.tasks.labels import LabelMap, LabelMetadata, LabelNames, label_metadata, sorted_labels
from bertsmith.tasks.relation_extraction.relation_rows import (
    RelatedNames,
    Span,
    checked_spans,
    of_tagged,
    of_words,
    read_related,
    tagged,
)
from bertsmith.tasks.settings import RelateSettings

_NO_RELATION = ("other", "no_relation", "na")  # its names in published data, in lower case


@dataclass(frozen=True)
class RelationExample(Example):
    """A text with two entities.

    Attributes:
        text: The text; "" for a blank row.
        head: The slice of the first entity.
        tail: The slice of the second entity.
        relation: The relation as the file has it; None if it is unknown.
        id: The file's id of the example, if it has one.
    """

    text: str
    head: Span
    tail: Span
    relation: str | None
    location: str
    id: str | None = None
    table_row: Mapping[str, str] | None = field(default=None, compare=False, repr=False)

    @property
    def group_key(self) -> str:
        """The text."""
        return self.text

    @property
    def question_key(self) -> Hashable:
        """The text with its entities."""
        return self.text, self.head, self.tail

    @property
    def stratify_key(self) -> str | None:
        """The relation."""
        return self.relation

    @property
    def is_empty(self) -> bool:
        """True for a blank row."""
        return not self.text

    @property
    def display_inputs(self) -> dict[str, str]:
        """The text with tags around the entities."""
        return {"text": tagged(self.text, self.head, self.tail) if self.text else ""}


class RelationMetadata(LabelMetadata):
    """Metadata: the labels, and `none`, the label that means no relation, if there is one."""

    none: str | None = None


class RelationData(TaskData):
    """SemEval's blocks, or rows of a text with tags or spans and a relation; `read_related` has the formats."""

    settings: RelateSettings

    def read(self, source: Source, *, labeled: bool = True) -> list[RelationExample]:
        """Return the examples of a source in order."""
        settings = self.settings
        rows = read_related(
            source,
            labeled=labeled,
            names=self._column_names,
            delimiter=settings.delimiter,
            encoding=settings.encoding,
        )
        examples = [RelationExample(*row) for row in rows]
        check_examples(examples, source, "texts")
        return examples

    def from_inputs(
        self, columns: Mapping[str, Sequence[Any]], locations: Sequence[str]
    ) -> list[RelationExample]:
        """Return examples of texts with tags; of texts and [start, end) in characters; or of lists of words and
        [start, end) in words."""
        if ("head" in columns) != ("tail" in columns):
            missing = "tail" if "head" in columns else "head"
            hint = "give both, or mark both entities by tags in the texts"
            raise InputError("head_without_tail", f"the {missing} is missing", argument=missing, hint=hint)
        texts = columns["text"]
        spans: list[Any] = [None] * len(texts)
        if "head" in columns:
            spans = list(zip(columns["head"], columns["tail"], strict=True))
        return [_unlabeled(*row) for row in zip(texts, spans, locations, strict=True)]

    def to_row(self, example: RelationExample) -> dict[str, Any]:
        """Return the text, both spans, and the relation."""
        row: dict[str, Any] = {} if example.id is None else {"id": example.id}
        values = (example.text, list(example.head), list(example.tail), example.relation)
        return row | dict(zip(self.tuple_columns(4), values, strict=True))

    def tuple_columns(self, num_values: int) -> list[str]:
        """Return the columns of a text with tags and its relation, or of a text, both spans, and the relation."""
        names = [name or part for part, name in self._column_names._asdict().items()]
        return [names[0], names[3]] if num_values < 4 else names

    def fit_metadata(self, examples: Sequence[RelationExample], label_names: LabelNames | None) -> Metadata:
        """Return the labels, sorted or as named, and which of them means no relation."""
        first_locations = {str(example.relation): example.location for example in reversed(examples)}
        metadata: dict[str, Any] = (
            {"labels": sorted_labels(first_locations), "numbered": False}
            if label_names is None
            else label_metadata(label_names)
        )
        labels, label_map = metadata["labels"], LabelMap.from_metadata(metadata)
        for label, location in first_locations.items():
            if label_map.id(label) is None:
                raise InputError(
                    "label_not_named",
                    f"the relation '{label}' is not among the label names",
                    location=location,
                    argument="label_names",
                    hint=f"name all relations with {option('label_names')}",
                )
        if len(labels) < 2:
            raise InputError(
                "single_label",
                f"all examples have the relation '{labels[0]}'",
                location=examples[0].location,
                argument="label_column",
                hint=f"two relations or more are needed; check {option('label_column')}",
            )
        return {**metadata, "none": no_relation_label(labels, self.settings.none_label)}

    def metadata_from_hf(self, checkpoint: HFCheckpoint) -> Metadata | None:
        """Return the labels of a model of ours without its bertsmith.json."""
        labels = checkpoint.labels or []
        if not checkpoint.architecture.endswith("ForEntityPairClassification") or len(labels) < 2:
            return None
        return {"labels": labels, "numbered": True, "none": no_relation_label(labels, None)}

    @property
    def _column_names(self) -> RelatedNames:
        settings = self.settings
        return RelatedNames(
            settings.text_column, settings.head_column, settings.tail_column, settings.label_column
        )


def no_relation_label(labels: Sequence[str], none_label: str | None) -> str | None:
    """Return the label that means no relation: `none_label`, or else the one with a common name of it."""
    if none_label is None:
        return next((label for label in labels if label.casefold() in _NO_RELATION), None)
    if none_label not in labels:
        message, hint = f"there is no label '{none_label}'", f"the labels are: {', '.join(labels[:20])}"
        raise InputError("unknown_label", message, argument="none_label", hint=hint)
    if has_direction(none_label):
        message = f"'{none_label}' has a direction, so it is a relation"
        hint = f"name another label, or remove {option('none_label')}"
        raise InputError("none_label_has_direction", message, argument="none_label", hint=hint)
    return none_label


def _unlabeled(text: Any, spans: Any, location: str) -> RelationExample:
    """Return an example without a relation, of a text or a list of words, and two spans or None for tags."""
    if isinstance(text, str) and not text.strip():
        return RelationExample("", (0, 0), (0, 0), None, location)
    if spans is not None and not isinstance(text, str):
        words_text, (head, tail) = of_words(text, [tuple(span) for span in spans], location)
        return RelationExample(words_text, head, tail, None, location)
    check_string(text, "text", location)
    if spans is None:
        return RelationExample(*of_tagged(text, location), None, location)
    return RelationExample(text, *checked_spans(text, spans, location), None, location)
