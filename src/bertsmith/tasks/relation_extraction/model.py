"""The marked texts, the relation head, and decoding.

A marked text is `[CLS] … @ head @ … # tail # … [SEP]`, or the window around both entities. The head joins the
states at both opening markers, and applies a linear layer (Baldini Soares et al. 2019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from bertsmith.errors import InputError, option
from bertsmith.loss import Loss, classification_loss
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.task_heads import RelationHead
from bertsmith.tasks.base import Metadata, SoftmaxDecoder, TaskEncoder, TaskModel
from bertsmith.tasks.batching import Item, Outputs, TaskBatch
from bertsmith.tasks.labels import LabelMap
from bertsmith.tasks.relation_extraction.data import RelationExample, Span, insert_markers
from bertsmith.tasks.results import OMIT_IF_NONE, Prediction
from bertsmith.tasks.settings import RelateSettings
from bertsmith.tasks.windows import NO_LIMIT, Coverage, single_window
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
        self._label_map = LabelMap(metadata)

    def encode(self, examples: Sequence[RelationExample], tokenizer: Tokenizer) -> list[Item]:
        """Return one item per example; none for an empty text.

        Raises:
            InputError: The entities of an example are too far apart.
        """
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
            message = (
                f"the entities and the text between them have {needed} tokens; the model reads {capacity}"
            )
            hint = f"raise {option('max_length')}, or remove this example"
            raise InputError(
                "entities_too_far_apart", message, location=example.location, argument="max_length", hint=hint
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


class RelationModel(TaskModel):
    """One logit per relation ("entity start" in the paper)."""

    inherited_heads = ()
    token_inputs: ClassVar[Mapping[str, int]] = {"marker_indices": 2}

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, metadata: Metadata, settings: RelateSettings
    ) -> None:
        super().__init__(config, generator, metadata, settings)
        self.head = RelationHead(config, generator, len(metadata["labels"]))

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Return `marker_indices`, int64 [B, 2], of the opening markers in the batch, and `label`, int64 [B]."""
        marker_indices, start = [], 0
        for item in items:
            assert isinstance(item, RelationItem)
            marker_indices.append([start + index for index in item.marker_indices])
            start += item.size
        tensors = {"marker_indices": torch.tensor(marker_indices)}
        if any(item.target is None for item in items):
            return tensors, {}
        return {**tensors, "label": torch.tensor([item.target for item in items])}, {"task": len(items)}

    def logits(self, encoder: Encoder, batch: TaskBatch) -> Tensor:
        """Return fp32 logits [B, labels]."""
        marker_indices = batch.tensors["marker_indices"].flatten()
        logits: Tensor = self.head(self.features(encoder, batch.packed, marker_indices))
        return logits.float()

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Return the summed cross-entropy."""
        return classification_loss(self.logits(encoder, batch), batch.tensors["label"], batch.counts)

    def outputs(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """Return logits [1, labels] per example."""
        return torch.split(self.logits(encoder, batch), 1)


@dataclass
class RelationPrediction(Prediction):
    """A relation. The counts of tokens are those of the text with markers.

    Attributes:
        id: The file's id of the example.
        label: The relation.
        score: The probability of the relation.
        scores: The probabilities of all relations by name.
    """

    id: str | None = field(default=None, metadata=OMIT_IF_NONE)
    label: str | None = None
    score: float | None = None
    scores: dict[str, float] | None = field(default_factory=dict)


class RelationDecoder(SoftmaxDecoder):
    """The most probable relation; of equal ones the first."""

    def decode(
        self, outputs: Outputs, items: Sequence[Item], examples: Sequence[RelationExample]
    ) -> list[RelationPrediction]:
        """Return the relation of each example."""
        predictions = [RelationPrediction(example.id, tokens=0, tokens_read=0) for example in examples]
        for logits, item in zip(outputs.per_item, items, strict=True):
            scores = dict(zip(self.metadata["labels"], logits[0].softmax(-1).tolist(), strict=True))
            label, id = max(scores, key=scores.__getitem__), examples[item.example].id
            counts = item.sequences[0].token_counts
            predictions[item.example] = RelationPrediction(id, label, scores[label], scores, **counts)
        return predictions
