"""Items of a task, their batches, and forward passes over them.

An item is what is shuffled and batched as a unit: one sequence, or several (the choices of a question, a query and
its passages). An example has one item, or several (the windows of a long text).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith import rng
from bertsmith.device import ComputeContext
from bertsmith.packed import Packed, copy_to_device
from bertsmith.tokenizer.tokenizer import Encoding

# Tokens of a forward pass without training. On a CPU each thread runs a pass, and its activations should stay in
# the cache that the threads share.
_MAX_TOKENS_CPU, _MAX_TOKENS_GPU = 1024, 4096
_MIN_TEXTS_PER_PASS = 8  # passes are balanced only if each holds at least this many texts


@dataclass(frozen=True)
class TokenSequence:
    """A sequence of T tokens for the model, special tokens included.

    Attributes:
        ids: Token ids, int32 [T].
        segments: Segment ids, uint8 [T].
        tokens: The number of tokens of the whole text, special tokens excluded.
        tokens_read: The number of these in this sequence.
        offsets: The slice of its text for each token, int32 [T, 2]; None unless the task points into texts.
        sources: The index of its text for each token, int8 [T], -1 for special tokens; None like `offsets`.
    """

    ids: NDArray[np.int32]
    segments: NDArray[np.uint8]
    tokens: int
    tokens_read: int
    offsets: NDArray[np.int32] | None = None
    sources: NDArray[np.int8] | None = None

    @property
    def token_counts(self) -> dict[str, Any]:
        """The counts of tokens as the fields of a prediction."""
        return {"tokens": self.tokens, "tokens_read": self.tokens_read}

    @classmethod
    def from_encoding(cls, encoding: Encoding, *, with_offsets: bool = False) -> TokenSequence:
        """Return the sequence of a tokenizer's encoding."""
        tokens_read = len(encoding.ids) - encoding.sequence_ids.count(None)
        sources = [-1 if source is None else source for source in encoding.sequence_ids]
        return cls(
            np.array(encoding.ids, dtype=np.int32),
            np.array(encoding.type_ids, dtype=np.uint8),
            tokens_read + encoding.num_truncated,
            tokens_read,
            np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2) if with_offsets else None,
            np.array(sources, dtype=np.int8) if with_offsets else None,
        )


@dataclass(frozen=True)
class Item:
    """One or several sequences of an example. Tasks add fields in subclasses.

    Attributes:
        example: The index of the example among those encoded together.
        sequences: The sequences.
        target: The label in the form that the loss takes (a class, a number, tags, a span); None if it is unknown.
        text_start: The index of the text's token with which the window begins.
    """

    example: int
    sequences: tuple[TokenSequence, ...]
    target: Any = None
    text_start: int = 0

    @property
    def size(self) -> int:
        """The number of tokens of all sequences."""
        return sum(len(sequence.ids) for sequence in self.sequences)


ItemT = TypeVar("ItemT", bound=Item)


@dataclass(frozen=True)
class TaskBatch:
    """Items packed for the model.

    Attributes:
        packed: The sequences of all items, in order.
        sizes: The number of sequences of each item.
        tensors: The task's other inputs by name, such as targets.
        counts: The number of terms of each part of the loss.
        epoch: The epoch.
        first: The index of the first item in the epoch's order.
    """

    packed: Packed
    sizes: tuple[int, ...]
    tensors: Mapping[str, Tensor]
    counts: Mapping[str, int]
    epoch: int = 0
    first: int = 0

    @property
    def tokens(self) -> int:
        """The number of tokens, special tokens included."""
        return len(self.packed.tokens)

    @property
    def place(self) -> str:
        """Which items these are, for messages."""
        return f"epoch {self.epoch}, examples {self.first} to {self.first + len(self.sizes) - 1} of its order"

    def to(self, device: torch.device | str) -> TaskBatch:
        """Return the batch on another device; the copy is asynchronous."""
        if self.packed.tokens.device == torch.device(device):
            return self
        tensors = {name: copy_to_device(tensor, device) for name, tensor in self.tensors.items()}
        return TaskBatch(self.packed.to(device), self.sizes, tensors, self.counts, self.epoch, self.first)


@dataclass(frozen=True)
class Outputs:
    """A model's outputs for some items, on the CPU.

    Attributes:
        per_item: One tensor [r, ...] per item, where r may differ between items.
        shared: Learned weights that decoding needs, by name.
    """

    per_item: Sequence[Tensor]
    shared: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Answers:
    """The predictions for some examples, and what they were decoded from."""

    outputs: Outputs
    items: Sequence[Item]
    examples: Sequence[Any]
    predictions: list[Any]


def pack(items: Sequence[Item]) -> Packed:
    """Concatenate the sequences of all items."""
    sequences = [sequence for item in items for sequence in item.sequences]
    return Packed.from_arrays(
        np.concatenate([s.ids for s in sequences]).astype(np.int64),
        np.concatenate([s.segments for s in sequences]).astype(np.int64),
        np.fromiter((len(s.ids) for s in sequences), dtype=np.int64, count=len(sequences)),
    )


class ItemStream:
    """Training items, shuffled anew in each epoch by (seed, epoch)."""

    def __init__(self, collate: Callable[..., TaskBatch], items: Sequence[Item], seed: int) -> None:
        """Create a stream of batches that `TaskModel.collate` packs."""
        self._collate, self._items, self._seed = collate, items, seed
        self._order = lru_cache(2)(self._permutation)  # a worker may already be in the next epoch

    def size(self, epoch: int) -> int:
        """Return the number of items of an epoch."""
        return len(self._items)

    def batch(self, epoch: int, start: int, stop: int) -> TaskBatch:
        """Return the items [start, stop) of the epoch's order as a batch."""
        items = [self._items[i] for i in self._order(epoch)[start:stop]]
        return self._collate(items, epoch, start)

    def _permutation(self, epoch: int) -> NDArray[np.int64]:
        return rng.permutation(self._seed, "examples", len(self._items), epoch)


def mean_of_values(values: Sequence[Any]) -> Any:
    """Return the mean of numbers, or the element-wise mean of lists of numbers."""
    return np.mean(np.array(values, dtype=np.float64), axis=0).tolist()


def logits_from_probabilities(probabilities: Tensor) -> Tensor:
    """Return logits whose softmax is these probabilities; a probability of 0 becomes the smallest positive one."""
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()


def run_batched(
    items: Sequence[ItemT],
    collate: Callable[[Sequence[ItemT]], TaskBatch],
    forward: Callable[[TaskBatch], Sequence[Tensor]],
    context: ComputeContext,
) -> list[Tensor]:
    """Run `forward` over all items in batches of similar lengths.

    Args:
        items: The items.
        collate: Packs items into a batch.
        forward: Returns one tensor [r, ...] per item of a batch.
        context: The device; on a CPU several batches run at the same time.

    Returns:
        One fp32 tensor per item, in order, on the CPU. The host waits for the device once per batch.

    Raises:
        ValueError: `forward` did not return one tensor per item.
    """

    def run(indices: Sequence[int]) -> tuple[Tensor, ...]:
        with torch.inference_mode():
            outputs = forward(context.to_device(collate([items[i] for i in indices])))
            if len(outputs) != len(indices):
                raise ValueError(f"{len(outputs)} outputs for {len(indices)} items")
            values = torch.cat(list(outputs)).float().cpu()
            return torch.split(values, [len(output) for output in outputs])

    order = sorted(range(len(items)), key=lambda i: items[i].size)
    batches = list(batches_within_budget(order, [item.size for item in items], context))
    output_of = {
        i: output
        for indices, outputs in zip(batches, context.parallel_map(run, batches), strict=True)
        for i, output in zip(indices, outputs, strict=True)
    }
    return [output_of[i] for i in range(len(items))]


def batches_within_budget(
    order: Sequence[int], sizes: Sequence[int], context: ComputeContext
) -> Iterator[list[int]]:
    """Split indices into batches, each as large as one forward pass on the device should be.

    Batches of short texts have about equal numbers of tokens, and their number is a multiple of the parallel
    passes, so that no thread waits at the end. The context may limit the number of items.

    Args:
        order: The indices, in the order of batching.
        sizes: The number of tokens by index.
        context: The device.
    """
    max_tokens = _MAX_TOKENS_CPU if context.is_cpu else _MAX_TOKENS_GPU
    total, longest = sum(sizes[i] for i in order), max((sizes[i] for i in order), default=0)
    target = math.inf
    if total > max_tokens >= _MIN_TEXTS_PER_PASS * longest:
        num_passes = -(-total // (max_tokens - longest))  # a batch may exceed the target by up to one text
        target = total / (-(-num_passes // context.num_parallel_passes) * context.num_parallel_passes)
    batch: list[int] = []
    count, tokens, tokens_before = 1, 0, 0
    for i in order:
        is_full = tokens + sizes[i] > max_tokens or tokens_before + tokens + sizes[i] / 2 > count * target
        is_full = is_full or len(batch) == context.batch_size
        if batch and is_full:
            yield batch
            count, tokens_before = count + 1, tokens_before + tokens
            batch, tokens = [], 0
        batch.append(i)
        tokens += sizes[i]
    if batch:
        yield batch
