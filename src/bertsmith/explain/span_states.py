"""Hidden states of spans of tokens, by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.device import ComputeContext
from bertsmith.models.encoder import Encoder
from bertsmith.tasks.batching import Item, TaskBatch, pack, run_batched


@dataclass(frozen=True)
class SpanItem(Item):
    """A sequence with spans of its tokens, each from a start to an exclusive end."""

    spans: tuple[tuple[int, int], ...] = ()


def compute_span_states(
    encoder: Encoder, context: ComputeContext, items: Sequence[SpanItem], layers: Sequence[int]
) -> NDArray[np.float32]:
    """Compute the mean state of each span in some layers, without dropout.

    Args:
        encoder: The encoder.
        context: The device.
        items: The sequences, one for each item.
        layers: The indices of layers; 0 is the output of the embeddings.

    Returns:
        float32 [layers, spans, H], with the spans of all items in order.
    """

    def collate(batch: Sequence[SpanItem]) -> TaskBatch:
        starts = np.cumsum([0, *(item.size for item in batch)])
        spans = [(s + a, s + b) for item, s in zip(batch, starts, strict=False) for a, b in item.spans]
        counts = [len(item.spans) for item in batch]
        tensors = {"spans": torch.tensor(spans), "counts": torch.tensor(counts)}
        return TaskBatch(pack(batch), (1,) * len(batch), tensors, {})

    def forward(batch: TaskBatch) -> Sequence[Tensor]:
        states = encoder.hidden_states(batch.packed)
        selected = torch.stack([states[layer] for layer in layers], 1)  # [N, layers, H]
        means = torch.stack([selected[start:end].mean(0) for start, end in batch.tensors["spans"].tolist()])
        return torch.split(means, batch.tensors["counts"].tolist())

    states = torch.cat(run_batched(items, collate, forward, context))
    return states.transpose(0, 1).contiguous().numpy()
