"""From examples to marked texts: `[CLS] … @ head @ … # tail # … [SEP]`, or the window around both entities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertsmith.errors import InputError, option
from bertsmith.models.config import ModelConfig
from bertsmith.tasks.base import Metadata, TaskEncoder
from bertsmith.tasks.batching import Item
from bertsmith.tasks.labels import LabelMap
from bertsmith.tasks.relation_extraction.relation_rows import RelationExample, Span, insert_markers
from bertsmith.tasks.settings import RelateSettings
from bertsmith.tasks.truncation import Coverage
from bertsmith.tasks.windows import NO_LIMIT, single_window
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer

_HEAD_MARKER, _TAIL_MARKER = "@", "#"


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
