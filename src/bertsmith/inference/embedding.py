"""Embed texts: the hidden states of the last layer, pooled to one vector per text, or one vector per token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.artifacts.sentence_transformers import SentenceEmbeddingConfig, read_sentence_embedding_config
from bertsmith.errors import InputError
from bertsmith.inference.predictor import Predictor
from bertsmith.models.config import Pooling
from bertsmith.models.feature_extraction import pool
from bertsmith.packed import Packed
from bertsmith.tasks.batching import Item, TaskBatch, TokenSequence, pack, run_batched
from bertsmith.tasks.windows import TextStats
from bertsmith.tokenizer.tokenizer import validate_texts


@dataclass(frozen=True)
class Embedder(Predictor):
    """Embeds texts.

    Attributes:
        config: The pooling, whether vectors have unit length, and the number of tokens that are read.
        truncation_side: The side at which longer texts are truncated, "right" or "left"; None: they are an error.
    """

    chunk_size: ClassVar[int] = 4096
    config: SentenceEmbeddingConfig
    truncation_side: Literal["right", "left"] | None = "right"

    @property
    def size(self) -> int:
        """The number of dimensions, H."""
        return self.encoder.config.hidden_size

    def __call__(self, texts: Iterable[str]) -> NDArray[np.float32]:
        """Return a vector per text, float32 [n, H], in order; raise InputError for an invalid text."""
        vectors = []
        for answers in self.answers(validate_texts(texts)):
            self.stats.add(answers.items, answers.examples)
            vectors += answers.predictions
        return np.array(vectors, dtype=np.float32).reshape(-1, self.size)

    @cached_property
    def stats(self) -> TextStats:
        """The statistics of the texts so far."""
        limit = self.encoder.config.max_length
        return TextStats(self.tokenizer, min(limit, self.config.max_length or limit))

    def preprocess(self, requests: Sequence[str | Sequence[int]]) -> list[Item]:
        """Tokenize and truncate texts; a text may also be given as the ids of its tokens."""
        limit, truncation = self.stats.limit, "none" if self.truncation_side is None else "longest_first"
        texts, encode = [text for text in requests if isinstance(text, str)], self.tokenizer.encode_tokens
        if self.truncation_side == "left":
            size = limit - len(encode([]).ids)
            ids = iter(self.tokenizer.encode_ids(texts))
            encodings = [encode((next(ids) if isinstance(r, str) else r)[-size:]) for r in requests]
        else:
            options: Any = {"max_length": limit, "truncation": truncation}
            of_texts = iter(self.tokenizer.encode_batch(texts, with_offsets=False, **options))
            encodings = [next(of_texts) if isinstance(r, str) else encode(r, **options) for r in requests]
        return [Item(i, (TokenSequence.from_encoding(encoding),)) for i, encoding in enumerate(encodings)]

    def forward(self, prepared: Sequence[Item]) -> Any:
        """Return the pooled hidden states, float32 [n, H]."""
        encoder = self.context.autocast_encoder(self.encoder)
        return torch.cat(
            self._run(prepared, lambda packed: torch.split(pool(encoder, packed, self.config.pooling), 1))
        ).numpy()

    def shares_forward(self, other: Predictor) -> bool:
        """Return True for the same weights and pooling."""
        return (
            type(other) is type(self)
            and isinstance(other, Embedder)
            and other.encoder is self.encoder
            and other.config.pooling == self.config.pooling
        )

    def _run(self, prepared: Sequence[Item], compute: Callable[[Packed], Sequence[Tensor]]) -> list[Tensor]:
        """Return what is computed for each text, in batches of similar lengths."""

        def collate(items: Sequence[Item]) -> TaskBatch:
            return TaskBatch(pack(items), (1,) * len(items), {}, {})

        return run_batched(prepared, collate, lambda batch: compute(batch.packed), self.context)

    def decode(
        self, outputs: Any, items: Sequence[Item], requests: Sequence[str | Sequence[int]]
    ) -> list[NDArray[np.float32]]:
        """Return the vectors, scaled to unit length if the configuration says so."""
        vectors = np.array(outputs, dtype=np.float32).reshape(-1, self.size)
        if self.config.normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return list(vectors)


@dataclass(frozen=True)
class TokenEmbedder(Embedder):
    """Embeds each token of a text: the hidden states of the last layer, without pooling."""

    def forward(self, prepared: Sequence[Item]) -> Any:
        """Return the hidden states of each text, float32 [T, H], special tokens included."""
        encoder = self.context.autocast_encoder(self.encoder)
        states = self._run(prepared, lambda packed: encoder(packed).float().split(packed.lengths.tolist()))
        return [state.numpy() for state in states]

    def decode(
        self, outputs: Any, items: Sequence[Item], requests: Sequence[str | Sequence[int]]
    ) -> list[NDArray[np.float32]]:
        """Return the hidden states."""
        return list(outputs)


def embedding_config(
    folder: Path, pooling: Pooling | None, normalize: bool | None, max_length: int | None
) -> SentenceEmbeddingConfig:
    """Return a folder's configuration with changes; without one, the mean of all tokens that the model reads.

    Raises:
        InputError: The pooling is unknown, or the maximum length has no room for a text.
    """
    if pooling is not None and pooling not in get_args(Pooling):
        message = f"there is no pooling {pooling!r}"
        hint = f"use one of {', '.join(get_args(Pooling))}"
        raise InputError("unknown_pooling", message, argument="pooling", hint=hint)
    if max_length is not None and max_length < 2:
        message, hint = f"{max_length} is less than 2", "the special tokens need two tokens"
        raise InputError("max_length_too_small", message, argument="max_length", hint=hint)
    try:
        config = read_sentence_embedding_config(folder)
    except InputError:
        if pooling is None:
            raise
        config = None  # the folder's modules are not supported, and an explicit pooling replaces them
    config = config or SentenceEmbeddingConfig("mean", False)
    changes: dict[str, Any] = {"pooling": pooling, "normalize": normalize, "max_length": max_length}
    return config._replace(**{name: value for name, value in changes.items() if value is not None})
