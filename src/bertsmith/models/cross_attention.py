"""Cross-attention: each token of a target sequence attends to all tokens of its source sequence.

Queries come from the decoder, keys and values from the encoder's output (Vaswani et al. 2017, section 3.2.3).
Sequence b of the one batch belongs to sequence b of the other. Both are packed.

Shapes: M target tokens, S source tokens, B pairs of sequences, H hidden size, A attention heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.kernels.reference import softmax_fp32
from bertsmith.models.attention import attend
from bertsmith.models.config import ModelConfig
from bertsmith.models.layers import Dropout, Linear
from bertsmith.models.matmul import linear
from bertsmith.models.weight_init import init_weights
from bertsmith.packed import copy_to_device

ScoreName = Literal["dot", "bilinear", "concat", "additive"]
"""The score functions of a query q and a key k: q·k / sqrt(H), qᵀWk, w·[q; k], and v·tanh(Wq + Uk)."""

_BUCKET_WIDTH = 16  # with gradients, lengths that round up to the same multiple of this share a bucket


class PairBucket(NamedTuple):
    """Pairs of sequences of similar length, padded to the longest target, t tokens, and source, T tokens.

    Attributes:
        target_rows: The row of each target token, long [b, t]; any row on padding.
        is_target: True on target tokens, bool [b, t].
        source_rows: The row of each source token, long [b, T]; any row on padding.
        bias: Attention bias, fp32 [b, 1, 1, T]: 0 on source tokens, fp32's lowest number on padding.
    """

    target_rows: Tensor
    is_target: Tensor
    source_rows: Tensor
    bias: Tensor


@dataclass(frozen=True)
class PairLayout:
    """Layout of B pairs of sequences for cross-attention, used by all layers.

    Attributes:
        target_lengths: The number of target tokens of each pair, int64 [B]; a pair without any is skipped.
        source_lengths: The number of source tokens of each pair, int64 [B].
        device: The device of the states.
        equal_lengths_only: True if only pairs of equal lengths share a bucket. A pair's result then does not
            depend, even in rounding, on the other pairs.
    """

    target_lengths: NDArray[np.int64]
    source_lengths: NDArray[np.int64]
    device: torch.device
    equal_lengths_only: bool

    @cached_property
    def buckets(self) -> tuple[PairBucket, ...]:
        """The buckets."""
        lengths = np.stack([self.target_lengths, self.source_lengths], 1)
        starts = np.cumsum(lengths, 0) - lengths
        pairs = np.flatnonzero(self.target_lengths)
        width = 1 if self.equal_lengths_only else _BUCKET_WIDTH
        _, bucket_of = np.unique(-(-lengths[pairs] // width), axis=0, return_inverse=True)
        buckets = []
        for bucket in range(bucket_of.max(initial=-1) + 1):
            members = pairs[bucket_of.ravel() == bucket]
            (target_rows, is_target), (source_rows, is_source) = (
                _padded_rows(starts[members, side], lengths[members, side]) for side in (0, 1)
            )
            bias = np.where(is_source, np.float32(0), np.finfo(np.float32).min)[:, None, None]
            arrays = target_rows, is_target, source_rows, bias
            buckets.append(
                PairBucket(*(copy_to_device(torch.from_numpy(array), self.device) for array in arrays))
            )
        return tuple(buckets)

    def join(self, outputs: list[Tensor]) -> Tensor:
        """Return the rows of all target tokens, [M, …], from the outputs of the buckets, [b, t, …] each."""
        rows = torch.cat([bucket.target_rows[bucket.is_target] for bucket in self.buckets])
        values = torch.cat([o[bucket.is_target] for o, bucket in zip(outputs, self.buckets, strict=True)])
        return values.new_empty(values.shape).index_copy(0, rows, values)


def _padded_rows(
    starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the rows of sequences, padded with the first row of each, and a mask of the rows without padding."""
    columns = np.arange(lengths.max())
    is_token = columns < lengths[:, None]
    return starts[:, None] + np.where(is_token, columns, 0), is_token


class CrossAttention(nn.Module):
    """Multi-head cross-attention with its output projection; key and value are one matrix product."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.query = Linear(size, size)
        self.key_value = Linear(size, 2 * size)
        self.output = Linear(size, size)
        self.dropout = Dropout(config.attention_probs_dropout_prob, generator)

    def forward(self, x: Tensor, keys_and_values: Tensor, layout: PairLayout) -> Tensor:
        """Compute [M, H] → [M, H].

        Args:
            x: The input at the target tokens, [M, H].
            keys_and_values: `key_value` of the encoder's output, [S, 2H].
            layout: The layout of the pairs.
        """
        dropout = self.dropout if self.dropout.is_active else None
        queries, outputs = self.query(x), []
        for bucket in layout.buckets:
            q = self._split_heads(queries[bucket.target_rows])
            k, v = map(self._split_heads, keys_and_values[bucket.source_rows].chunk(2, -1))
            context = attend(q, k, v, bucket.bias, dropout)
            outputs.append(context.transpose(1, 2).flatten(2))
        return self.output(layout.join(outputs))  # type: ignore[no-any-return]

    def weights(self, x: Tensor, keys_and_values: Tensor) -> Tensor:
        """Return the attention weights of a single pair, fp32 [A, t, T]."""
        keys, _ = keys_and_values.chunk(2, -1)
        q, k = (self._split_heads(states[None])[0] for states in (self.query(x), keys))
        weights: Tensor = (q * q.shape[-1] ** -0.5 @ k.transpose(1, 2)).float().softmax(-1)
        return weights

    def _split_heads(self, x: Tensor) -> Tensor:
        """Split [b, t, H] into heads, [b, A, t, H / A]."""
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)


class AttentionScore(nn.Module):
    """A learned or fixed score of each query and key, by which a recurrent decoder attends to its source.

    Only the dot product is scaled (Vaswani et al. 2017, section 3.2.1). The others are "general" and a linear
    "concat" (Luong et al. 2015, section 3.1), and Bahdanau et al. 2015, section 3.1. The linear concatenation adds
    the same number to the scores of all keys of a query, and so its weights do not depend on the query.
    """

    def __init__(self, config: ModelConfig, generator: torch.Generator, name: ScoreName) -> None:
        super().__init__()
        size = config.hidden_size
        self.name = name
        if name in ("bilinear", "additive"):
            self.key = Linear(size, size, bias=False)
        if name == "additive":
            self.query = Linear(size, size, bias=False)
        if name in ("concat", "additive"):
            self.vector = Linear(2 * size if name == "concat" else size, 1, bias=False)
        init_weights(self, size**-0.5, generator)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Compute the scores, [b, t, T], of queries [b, t, H] and keys [b, T, H]."""
        scores: Tensor
        if self.name == "additive":
            scores = self.vector(torch.tanh(self.query(q)[:, :, None] + self.key(k)[:, None]))[..., 0]
        elif self.name == "concat":
            query_weight, key_weight = self.vector.weight.chunk(2, 1)
            scores = linear(q, query_weight, None) + linear(k, key_weight, None).transpose(1, 2)
        elif self.name == "bilinear":
            scores = q @ self.key(k).transpose(1, 2)
        else:
            scores = (q * q.shape[-1] ** -0.5) @ k.transpose(1, 2)
        return scores

    def weights(self, queries: Tensor, states: Tensor) -> Tensor:
        """Return the attention weights of a single pair, fp32 [1, t, T]."""
        return self.scores(queries[None], states[None]).float().softmax(-1)

    def forward(self, queries: Tensor, states: Tensor, layout: PairLayout) -> Tensor:
        """Return the mean of the source states weighted by the softmax of the scores, [M, H].

        Args:
            queries: The queries of the target tokens, [M, H].
            states: The source states, [S, H].
            layout: The layout of the pairs.
        """
        outputs = []
        for bucket in layout.buckets:
            k = states[bucket.source_rows]
            scores = self.scores(queries[bucket.target_rows], k) + bucket.bias[:, 0]
            outputs.append(softmax_fp32(scores, k.dtype) @ k)
        return layout.join(outputs)
