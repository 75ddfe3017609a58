"""Causal encoders that read sequences step by step, as text generation needs it.

`IncrementalEncoder` keeps the keys and values of the tokens that it has read, so that a step computes the new
tokens alone. `RecomputingEncoder` serves every other causal encoder: each step reads all tokens again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.models.attention import GroupedCache
from bertsmith.models.encoder import Encoder
from bertsmith.models.layers import TransformerLayer
from bertsmith.packed import Packed


class StepEncoder(ABC):
    """Reads B sequences step by step; a result does not depend on the other sequences.

    Batches are fastest if sequences of equal length are neighbors.
    """

    @abstractmethod
    def read(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Read the next tokens of each sequence, at least one; return the states of the last ones, fp32 [B, H]."""

    @abstractmethod
    def keep(self, indices: NDArray[np.int64]) -> None:
        """Keep only some sequences, given by their ascending indices."""


class IncrementalEncoder(StepEncoder):
    """A left-to-right Transformer with the keys and values of the tokens that it has read.

    The first step reads any number of tokens of each sequence, the others one.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._caches: list[GroupedCache] = []
        self._lengths: NDArray[np.int64] = np.empty(0, np.int64)

    def read(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Read the next tokens of each sequence; return the states of the last ones, fp32 [B, H]."""
        encoder, packed = self._encoder, _pack(sequences)
        if not self._caches:
            groups = [(length, len(list(group))) for length, group in groupby(packed.lengths.tolist())]
            lengths, sizes = zip(*groups, strict=True)
            self._caches = [GroupedCache(sizes, lengths) for _ in encoder.layers]
            self._lengths = np.zeros_like(packed.lengths)
        starts = torch.from_numpy(np.repeat(self._lengths, packed.lengths))
        packed = replace(packed, positions=packed.positions + starts).to(encoder.generator.device)
        self._lengths = self._lengths + packed.lengths
        with encoder.forward_context():
            x = encoder.embeddings(packed)
            for layer, cache in zip(encoder.layers, self._caches, strict=True):
                x = cast("TransformerLayer", layer).step(x, cache)
            x = x.index_select(0, packed.last_token_rows)
            output: Tensor = x if encoder.norm is None else encoder.norm(x)
            return output.float()

    def keep(self, indices: NDArray[np.int64]) -> None:
        """Keep only some sequences, given by their ascending indices."""
        self._lengths = self._lengths[indices]
        for cache in self._caches:
            cache.select(torch.from_numpy(indices).to(self._encoder.generator.device))


class RecomputingEncoder(StepEncoder):
    """A causal encoder of any family that reads all tokens again in each step."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._sequences: list[list[int]] = []

    def read(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Read the next tokens of each sequence; return the states of the last ones, fp32 [B, H]."""
        earlier = self._sequences or [[] for _ in sequences]
        self._sequences = [[*before, *new] for before, new in zip(earlier, sequences, strict=True)]
        packed = _pack(self._sequences).to(self._encoder.generator.device)
        return self._encoder(packed, rows=packed.last_token_rows)  # type: ignore[no-any-return]

    def keep(self, indices: NDArray[np.int64]) -> None:
        """Keep only some sequences, given by their ascending indices."""
        self._sequences = [self._sequences[i] for i in indices.tolist()]


def step_encoder(encoder: Encoder, *, use_cache: bool = True) -> StepEncoder:
    """Return a left-to-right encoder that reads step by step, with a cache if its family has one."""
    has_cache = use_cache and type(encoder) is Encoder
    return IncrementalEncoder(encoder) if has_cache else RecomputingEncoder(encoder)


def _pack(sequences: Sequence[Sequence[int]]) -> Packed:
    return Packed.from_lists(sequences, [[0] * len(sequence) for sequence in sequences])
