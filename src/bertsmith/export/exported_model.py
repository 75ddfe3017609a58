"""Answers of an exported file, computed as any other program computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.export.formats import Session
from bertsmith.export.padded_model import PaddedModel
from bertsmith.inference.task_predictor import TaskPredictor
from bertsmith.packed import Packed
from bertsmith.tasks.base import WritingModel
from bertsmith.tasks.batching import Item, Outputs, TokenSequence

_BATCH_SIZE = 16  # items


@dataclass(frozen=True)
class ExportedModel:
    """A file of an exported model that was opened.

    Attributes:
        session: Runs the file.
        model: The module that it was exported from, for names and shapes.
    """

    session: Session
    model: PaddedModel

    def run(self, items: Sequence[Item]) -> Outputs:
        """Return the outputs of items as `TaskModel.run` does; without heads the hidden states [tokens, H]."""
        order = sorted(range(len(items)), key=lambda i: items[i].size)
        per_item: dict[int, Tensor] = {}
        shared: dict[str, Tensor] = {}
        for start in range(0, len(order), _BATCH_SIZE):
            indices = order[start : start + _BATCH_SIZE]
            outputs, shared = self._run_batch([items[i] for i in indices])
            per_item.update(zip(indices, outputs, strict=True))
        return Outputs([per_item[i] for i in range(len(items))], shared)

    def __call__(self, packed: Packed, rows: Tensor | None = None) -> Tensor:
        """Return hidden states as an encoder does, [N, H], or [M, H] of the tokens `rows`."""
        states = torch.cat(list(self.run(items_of(packed)).per_item))
        return states if rows is None else states[rows]

    def target_logits(self, items: Sequence[Item], target_ids: NDArray[np.int64]) -> Tensor:
        """Return the logits of the next token after each token of target texts, [n, t] → [n, t, V]."""
        sequences = [sequence for item in items for sequence in item.sequences]
        inputs = padded_inputs(sequences, self.model.encoder.config.pad_token_id or 0)
        inputs["decoder_input_ids"] = target_ids
        values = self.session({name: inputs[name] for name in self.model.input_names})
        return torch.from_numpy(values["logits"])

    def _run_batch(self, items: Sequence[Item]) -> tuple[list[Tensor], dict[str, Tensor]]:
        model, sequences = self.model, [sequence for item in items for sequence in item.sequences]
        if isinstance(model.model, WritingModel):
            return model.model.write(items, self.target_logits), {}
        inputs = padded_inputs(sequences, model.encoder.config.pad_token_id or 0)
        if model.has_choices:
            inputs = {name: ids[:, None] for name, ids in inputs.items()}
        if model.model is not None and model.token_inputs:
            tensors = [model.model.tensors([item])[0] for item in items]
            inputs |= {name: torch.cat([t[name] for t in tensors]).numpy() for name in model.token_inputs}
        values = self.session({name: inputs[name] for name in model.input_names})
        outputs = [torch.from_numpy(values[name]) for name in model.output_names]
        num_logits = len(outputs) - len(model.shared_names)
        main = outputs[0] if num_logits == 1 else torch.stack(outputs[:num_logits], -1)
        if model.is_per_token:
            rows = [main[i, : len(sequence.ids)] for i, sequence in enumerate(sequences)]
        else:
            rows = list(main if model.has_choices else main[:, None])
        sizes = [len(item.sequences) for item in items]
        ends = np.cumsum(sizes).tolist()
        per_item = [torch.cat(rows[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
        return per_item, dict(zip(model.shared_names, outputs[-len(model.shared_names) :], strict=False))


@dataclass(frozen=True)
class ExportedPredictor(TaskPredictor):
    """Answers examples of a task by an exported file.

    Attributes:
        exported: The opened file.
    """

    exported: ExportedModel

    def forward(self, prepared: Any) -> Outputs:
        """Return the outputs of items."""
        if self.exported.model.model is None:  # the task computes its outputs from hidden states
            encoder: Any = self.exported
            return self.task.model.run(encoder, prepared, self.context)
        return self.exported.run(prepared)


def padded_inputs(sequences: Sequence[TokenSequence], pad_token_id: int) -> dict[str, NDArray[np.int64]]:
    """Return the ids, masks, and segments of B sequences, padded on the right, int64 [B, T]."""
    shape = (len(sequences), max(len(sequence.ids) for sequence in sequences))
    ids, mask, segments = np.full(shape, pad_token_id), np.zeros(shape, int), np.zeros(shape, int)
    for i, sequence in enumerate(sequences):
        length = len(sequence.ids)
        ids[i, :length], segments[i, :length], mask[i, :length] = sequence.ids, sequence.segments, 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}


def items_of(packed: Packed) -> list[Item]:
    """Return an item for each sequence of a batch."""
    tokens = torch.split(packed.tokens, packed.lengths.tolist())
    segments = torch.split(packed.segments, packed.lengths.tolist())
    sequences = (
        TokenSequence(ids.numpy().astype(np.int32), types.numpy().astype(np.uint8), len(ids), len(ids))
        for ids, types in zip(tokens, segments, strict=True)
    )
    return [Item(i, (sequence,)) for i, sequence in enumerate(sequences)]
