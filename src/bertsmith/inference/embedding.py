"""Texts become vectors: the hidden states of a model's last layer, pooled to one vector a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.artifacts.sentence_transformers import SentenceEmbeddingConfig
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.io.prefetch import growing_batches, prefetch
from bertsmith.models.config import Pooling
from bertsmith.models.encoder import Encoder
from bertsmith.models.pooling import pool
from bertsmith.tasks.batching import Item, TaskBatch, TokenSequence, pack, run_batched
from bertsmith.tokenizer.tokenizer import Tokenizer, validate_texts

_CHUNK = 4096  # texts encoded at a time


@dataclass(frozen=True)
class Embedder:
    """What makes vectors of texts. made: the pooling, whether vectors get the length 1, so that products are
    cosines, and how many tokens are read; what is longer, or longer than the model takes, is cut at its end.
    check: sees texts before vectors are made of them."""

    encoder: Encoder
    tokenizer: Tokenizer
    place: ComputeContext
    made: SentenceEmbeddingConfig
    check: Callable[[Sequence[str]], None] | None = None

    @property
    def size(self) -> int:
        """H, the numbers in a vector."""
        return self.encoder.config.hidden_size

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """A vector a text, float32 [n, H], in the order of the texts. Texts of like length share a pass."""
        empty = np.empty((0, self.size), dtype=np.float32)
        return np.concatenate([empty, *self.stream(texts)])

    def stream(self, texts: Iterable[str]) -> Iterator[NDArray[np.float32]]:
        """The same, some thousand texts at a time. InputError for what is no text."""
        limit = min(self.encoder.config.max_length, self.made.max_length or self.encoder.config.max_length)

        def read(some: Sequence[str]) -> list[Item]:
            encodings = self.tokenizer.encode_batch(some, max_length=limit, with_offsets=False)
            return [Item(i, (TokenSequence.from_encoding(one),)) for i, one in enumerate(encodings)]

        with closing(prefetch(growing_batches(validate_texts(texts), _CHUNK), read)) as parts:
            for some, items in parts:
                if self.check is not None:
                    self.check(some)
                yield self._vectors(items)

    def _vectors(self, items: Sequence[Item]) -> NDArray[np.float32]:
        reader = self.place.autocast_encoder(self.encoder)

        def forward(batch: TaskBatch) -> Sequence[Tensor]:
            return torch.split(pool(reader, batch.packed, self.made.pooling), 1)

        rows = run_batched(
            items, lambda some: TaskBatch(pack(some), (1,) * len(some), {}, {}), forward, self.place
        )
        vectors: NDArray[np.float32] = torch.cat(rows).numpy()
        if self.made.normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors


def made_so(
    known: SentenceEmbeddingConfig | None,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    max_length: int | None = None,
) -> SentenceEmbeddingConfig:
    """How vectors are made: as it is asked, else as the folder says, else by the mean of all that the model reads.

    InputError for an unknown pooling."""
    if pooling is not None and pooling not in get_args(Pooling):
        raise InputError(
            "unknown_pooling",
            f"there is no pooling {pooling!r}",
            argument="pooling",
            hint=f"use one of {', '.join(get_args(Pooling))}",
        )
    known = known or SentenceEmbeddingConfig("mean", False)
    return SentenceEmbeddingConfig(
        known.pooling if pooling is None else pooling,
        known.normalize if normalize is None else normalize,
        known.max_length if max_length is None else max_length,
    )
