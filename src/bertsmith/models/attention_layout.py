"""Layout of a batch's sequences for attention: buckets of similar length, padded inside a bucket only.

A layout is computed once per batch, on the host, and shared by all layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.kernels.reference import SequenceLayout
from bertsmith.models.config import AttentionDirection
from bertsmith.packed import Packed, copy_to_device

# Sequences whose lengths round up to the same multiple of this share a bucket: a larger value wastes more padding,
# a smaller one makes more and smaller products.
_BUCKET_WIDTH = 16
# Maximum scores per head (sequences x length squared) of a bucket, so that they stay in the cache between the
# products, the softmax, and the dropout.
_MAX_SCORES_CPU = 2**16
_MAX_SCORES_GPU = 2**22  # a GPU needs larger products to be busy

# Matrix products of oneDNN on a CPU have a multiple of this many rows. Preparing a shape takes it as long as
# computing about 400 rows, and it caches a thousand shapes.
_ROW_MULTIPLE = 32


@dataclass(frozen=True)
class Bucket:
    """Sequences of similar length, padded to the longest of them.

    Attributes:
        sequences: Number of sequences.
        length: Tokens that each sequence is padded to.
        bias: Attention bias, float [b, 1, 1, T], 0 on tokens and the lowest number on padding; None without
            padding. In causal attention also the lowest number on the side that is not attended to: [b, 1, T, T],
            or [1, 1, T, T] if that hides the padding as well.
    """

    sequences: int
    length: int
    bias: Tensor | None


@dataclass(frozen=True)
class AttentionLayout:
    """Layout of a batch's sequences for attention, used by all layers. Buckets are computed on first use.

    Attributes:
        packed: The batch.
        sees: The tokens that a token attends to besides itself.
        alike: True if only sequences of one length share a bucket, so that none is padded.
        prepares: True if products have a preparation cost per shape, so that rows are padded to a few shapes.
    """

    packed: Packed
    direction: AttentionDirection = "all"
    equal_lengths_only: bool = False
    pads_rows: bool = False

    @property
    def num_padding_rows(self) -> int:
        """Return the number of padding rows after the tokens, 0 unless shapes are prepared."""
        return -len(self.packed.tokens) % _ROW_MULTIPLE if self.pads_rows else 0

    def pad_rows(self, rows: Tensor) -> Tensor:
        """Pad row indices, long [M], with row 0 if shapes are prepared."""
        return F.pad(rows, (0, -len(rows) % _ROW_MULTIPLE)) if self.pads_rows else rows

    def sort_rows(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Pad and sort row indices, so that each sequence's are consecutive.

        Returns:
            The sorted indices, and the position of each of `rows` in them, long [M]; None if the order is
            unchanged, as on a GPU, whose kernels need no order.
        """
        padded_rows = self.pad_rows(rows)
        if not rows.is_cpu:
            return padded_rows, None
        indices = padded_rows.numpy()
        if (indices[1:] >= indices[:-1]).all():
            return padded_rows, None
        order = np.argsort(indices, kind="stable")
        inverse = np.empty_like(order)
        inverse[order] = np.arange(len(order))
        return torch.from_numpy(indices[order]), torch.from_numpy(inverse[: len(rows)])

    @cached_property
    def ranges(self) -> SequenceLayout:
        """Return the sequence boundaries in the form that kernels take."""
        return SequenceLayout(
            self.packed.cu_seqlens.long(), self.direction, self.packed.max_seqlen, len(self.packed.tokens)
        )

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Return the buckets; empty sequences are in none."""
        return self._buckets_and_cells[0]

    @property
    def row_of_cell(self) -> Tensor | None:
        """Return the packed row of each cell, long [C], bucket by bucket; None if cells are in packed order.

        Padding cells hold row 0, and no result depends on them.
        """
        return self._buckets_and_cells[1]

    @property
    def cell_of_row(self) -> Tensor | None:
        """Return the cell of each packed row, long [N]; None if `cells` is."""
        return self._buckets_and_cells[2]

    @property
    def bucket_sizes(self) -> list[int]:
        """Return the number of cells of each bucket."""
        return [bucket.sequences * bucket.length for bucket in self.buckets]

    @cached_property
    def _buckets_and_cells(self) -> tuple[tuple[Bucket, ...], Tensor | None, Tensor | None]:
        """Compute buckets, cells, and order on the host, which knows the lengths, and send them to the device."""
        lengths, device = self.packed.lengths, self.packed.tokens.device
        starts = np.cumsum(lengths) - lengths
        buckets, cells, num_tokens = [], [np.empty(0, dtype=np.int64)], len(self.packed.tokens)
        order = np.empty(num_tokens + 1, dtype=np.int64)  # the last element takes the padding cells
        num_cells = 0
        max_scores = _MAX_SCORES_CPU if self.packed.tokens.is_cpu else _MAX_SCORES_GPU
        for group in _groups(lengths, 1 if self.equal_lengths_only else _BUCKET_WIDTH, max_scores):
            length = int(lengths[group].max())
            columns = np.arange(length)
            is_token = columns < lengths[group, None]
            rows = starts[group, None] + columns
            order[np.where(is_token, rows, num_tokens).ravel()] = np.arange(
                num_cells, num_cells + is_token.size
            )
            cells.append(np.where(is_token, rows, 0).ravel())
            if self.direction == "all":
                bias = _padding_bias(is_token, device)
            else:
                bias = _causal_bias(is_token, self.direction, device)
            buckets.append(Bucket(len(group), length, bias))
            num_cells += is_token.size
        if len(buckets) == 1 and len(order) == num_cells + 1:  # sequences of one length, in order
            return tuple(buckets), None, None
        all_cells = torch.from_numpy(np.concatenate(cells))
        return (
            tuple(buckets),
            copy_to_device(all_cells, device),
            copy_to_device(torch.from_numpy(order[:-1]), device),
        )


def _groups(lengths: NDArray[np.int64], width: int, max_scores: int) -> Iterator[NDArray[np.int64]]:
    """Yield the sequences of each bucket: their lengths round up alike, and their scores are not too many."""
    nonempty = np.flatnonzero(lengths)
    keys = (lengths[nonempty] + width - 1) // width
    for key in np.unique(keys):
        max_sequences = max(1, max_scores // (int(key) * width) ** 2)
        members = nonempty[keys == key]
        yield from (members[i : i + max_sequences] for i in range(0, len(members), max_sequences))


def _padding_bias(is_token: NDArray[np.bool_], device: torch.device) -> Tensor | None:
    if is_token.all():
        return None
    bias = np.where(is_token, np.float32(0), np.finfo(np.float32).min)
    return copy_to_device(torch.from_numpy(bias[:, None, None, :]), device)


def _causal_bias(
    is_token: NDArray[np.bool_], sees: AttentionDirection, device: torch.device
) -> Tensor | None:
    """Return the bias of causal attention; padding comes last, so only attention to later tokens must hide it."""
    length = is_token.shape[1]
    if length < 2:
        return None
    hidden = causal_mask(length, sees)[None]
    if sees == "behind" and not is_token.all():
        hidden = hidden | ~is_token[:, None, :]
    bias = np.where(hidden, np.finfo(np.float32).min, np.float32(0))
    return copy_to_device(torch.from_numpy(bias[:, None]), device)


def causal_mask(length: int, direction: AttentionDirection) -> NDArray[np.bool_]:
    """Return a mask [T, T] of the tokens (columns) that each token (row) does not attend to."""
    ones = np.ones((length, length), dtype=np.bool_)
    return np.triu(ones, 1) if direction == "before" else np.tril(ones, -1)
