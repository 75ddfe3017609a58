"""Data of relation extraction: texts, two entities in each, and their relation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.errors import InputError, option
from bertsmith.io.sources import Source
from bertsmith.metrics.relations import has_direction
from bertsmith.tasks.base import Metadata, TaskData
from bertsmith.tasks.data_checks import check_examples, check_string
from bertsmith.tasks.labels import LabelMap, LabelMetadata, LabelNames, label_metadata, sorted_labels
from bertsmith.tasks.relation_extraction.relation_rows import (
    RelationExample,
    locate_entities,
    parse_word_spans,
    read_relations,
)
from bertsmith.tasks.settings import RelateSettings

_NO_RELATION = ("other", "no_relation", "na")  # its names in published data, in lower case


class RelationMetadata(LabelMetadata):
    """Metadata: the labels, and `none`, the label that means no relation, if there is one."""

    none: str | None = None


class RelationData(TaskData):
    """SemEval's blocks, or rows of a text with tags or spans and a relation; see `read_relations`."""

    settings: RelateSettings

    def read(self, source: Source, *, labeled: bool = True) -> list[RelationExample]:
        """Return the examples of a source in order."""
        examples = list(read_relations(source, self.settings, labeled=labeled))
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
        examples = []
        for i, (text, location) in enumerate(zip(columns["text"], locations, strict=True)):
            head, tail = (columns[side][i] if side in columns else None for side in ("head", "tail"))
            if isinstance(text, str) or head is None:
                check_string(text, "text", location)
                entities = locate_entities(text, head, tail, location)
            else:
                entities = parse_word_spans(text, head, tail, location)
            examples.append(RelationExample(*entities, None, location))
        return examples

    def to_row(self, example: RelationExample) -> dict[str, Any]:
        """Return the text, both spans, and the relation."""
        row: dict[str, Any] = {} if example.id is None else {"id": example.id}
        values = (example.text, list(example.head), list(example.tail), example.relation)
        return row | dict(zip(self.tuple_columns(4), values, strict=True))

    def tuple_columns(self, num_values: int) -> list[str]:
        """Return the columns of a text with tags and its relation, or of a text, both spans, and the relation."""
        settings = self.settings
        text, label = settings.text_column or "text", settings.label_column or "relation"
        spans = [settings.head_column or "head", settings.tail_column or "tail"]
        return [text, *(spans if num_values > 3 else []), label]

    def fit_metadata(self, examples: Sequence[RelationExample], label_names: LabelNames | None) -> Metadata:
        """Return the labels, sorted or as named, and which of them means no relation."""
        metadata: dict[str, Any] = (
            {"labels": sorted_labels(str(example.relation) for example in examples), "numbered": False}
            if label_names is None
            else label_metadata(label_names)
        )
        labels, label_map = metadata["labels"], LabelMap.from_metadata(metadata)
        for example in examples:
            if label_map.id(str(example.relation)) is None:
                raise label_map.unknown_label_error(str(example.relation), example.location, "label_column")
        if len(labels) < 2:
            location, message = examples[0].location, f"all examples have the relation '{labels[0]}'"
            hint = f"two relations or more are needed; check {option('label_column')}"
            raise InputError("single_label", message, location=location, argument="label_column", hint=hint)
        return {**metadata, "none": no_relation_label(labels, self.settings.none_label)}

    def metadata_from_hf(self, folder: ModelFolder) -> Metadata | None:
        """Return the labels of a model of ours without its bertsmith.json."""
        labels = folder.labels or []
        if not folder.architecture.endswith("ForEntityPairClassification") or len(labels) < 2:
            return None
        return {"labels": labels, "numbered": True, "none": no_relation_label(labels, None)}


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
