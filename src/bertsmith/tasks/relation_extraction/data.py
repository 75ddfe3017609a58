"""Data of relation extraction: texts, two entities in each, and their relation; and the marked texts.

A marked text is `[CLS] … @ head @ … # tail # … [SEP]`, or the window around both entities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.errors import InputError, option
from bertsmith.io.sources import Source
from bertsmith.metrics.relations import has_direction
from bertsmith.models.config import ModelConfig
from bertsmith.tasks.base import Metadata, TaskData, TaskEncoder
from bertsmith.tasks.batching import Item
from bertsmith.tasks.data_checks import check_examples, check_string
from bertsmith.tasks.labels import LabelMap, LabelMetadata, LabelNames, label_metadata, sorted_labels
from bertsmith.tasks.relation_extraction.relation_rows import (
    RelationExample,
    Span,
    insert_markers,
    locate_entities,
    parse_word_spans,
    read_relations,
)
from bertsmith.tasks.settings import RelateSettings
from bertsmith.tasks.windows import NO_LIMIT, Coverage, single_window
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer

_NO_RELATION = ("other", "no_relation", "na")  # its names in published data, in lower case
_HEAD_MARKER, _TAIL_MARKER = "@", "#"


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


@dataclass(frozen=True)
class RelationItem(Item):
    """A text or its window; the target is the relation's id, or -1 if the model does not have it.

    Attributes:
        marker_indices: The indices of the opening markers of head and tail in the sequence.
    """

    marker_indices: tuple[int, int] = (0, 0)


class RelationEncoder(TaskEncoder):
    """Mark the entities by characters that any vocabulary has (Zhou and Chen 2022, "entity marker (punct)").

    Markers are located by their offsets, since the text may have other @ and #. Of a text that is too long the
    window with both entities is read, with as much context before them as behind.
    """

    def __init__(self, config: ModelConfig, metadata: Metadata, settings: RelateSettings) -> None:
        super().__init__(config, metadata, settings)
        self._label_map = LabelMap.from_metadata(metadata)

    def encode(self, examples: Sequence[RelationExample], tokenizer: Tokenizer) -> list[Item]:
        """Return one item per example; none for an empty text.

        Raises:
            InputError: The entities of an example are too far apart, or all relations are unknown to the model.
        """
        relations = [example.relation for example in examples if example.relation is not None]
        if relations and all(self._label_map.id(relation) is None for relation in relations):
            raise self._label_map.unknown_label_error(min(relations), examples[0].location, "label_column")
        indexed = [(index, example) for index, example in enumerate(examples) if example.text]
        texts = [with_markers(example) for _, example in indexed]
        encodings = tokenizer.encode_batch([text for text, _ in texts], max_length=NO_LIMIT)
        return [
            self._item(index, example, encoding, markers)
            for (index, example), encoding, (_, markers) in zip(indexed, encodings, texts, strict=True)
        ]

    def _item(
        self, index: int, example: RelationExample, encoding: Encoding, markers: Sequence[Span]
    ) -> RelationItem:
        """Return the item of a marked text; `markers` are the offsets of both markers of head and tail."""
        offsets = zip(encoding.offsets, encoding.sequence_ids, strict=True)
        ends = np.array([end for (_, end), source in offsets if source == 0])
        # The token of a character is the first one that ends behind it.
        (head, head_end), (tail, tail_end) = np.searchsorted(ends, markers, side="right").tolist()
        first, last = min(head, tail), max(head_end, tail_end)
        num_tokens, needed = len(ends), last + 1 - first
        capacity = self.max_length - (len(encoding.ids) - num_tokens)
        if last >= num_tokens or needed > capacity:
            raise InputError(
                "entities_too_far_apart",
                f"the two entities and the text between them have {needed} tokens, and the model reads {capacity}",
                location=example.location,
                argument="max_length",
                hint=f"raise {option('max_length')}, or remove this example",
            )
        begin = max(0, min(first - (capacity - needed) // 2, num_tokens - capacity))
        window = single_window(encoding, begin, min(capacity, num_tokens))
        offset = window.sequence_start - begin
        indices = (head + offset, tail + offset)
        return RelationItem(index, (window.sequence,), self._target(example), begin, marker_indices=indices)

    def _target(self, example: RelationExample) -> int | None:
        """Return the relation's id; -1 if the model does not have it, so that every answer is wrong."""
        if example.relation is None:
            return None
        label_id = self._label_map.id(example.relation)
        return -1 if label_id is None else label_id

    def coverage(self, items: Sequence[Item]) -> Coverage:
        """Return how much the window reads; it holds both entities."""
        return Coverage(*super().coverage(items)[:2], 1, 1)


def with_markers(example: RelationExample) -> tuple[str, list[Span]]:
    """Return the text with a marker and a space on both sides of each entity, and the offsets of the opening and
    the closing marker of head and tail."""
    text, marks, shifts = example.text, [], []
    for (start, end), marker in ((example.head, _HEAD_MARKER), (example.tail, _TAIL_MARKER)):
        before = " " * (start > 0 and not text[start - 1].isspace())
        behind = " " * (end < len(text) and not text[end].isspace())
        inner = [" " * (not text[i].isspace()) for i in (start, end - 1)]
        marks.append((f"{before}{marker}{inner[0]}", f"{inner[1]}{marker}{behind}"))
        shifts.append((len(before), len(inner[1])))
    marked_text, offsets = insert_markers(text, example.head, example.tail, marks)
    return marked_text, [(a + x, b + y) for (a, b), (x, y) in zip(offsets, shifts, strict=True)]
