"""Layout of a batch's sequences for attention: buckets of similar length, padded inside a bucket only.

A layout is computed once per batch, on the host, and shared by all layers.

A row is a token of the packed batch, which has N rows. A cell is a token or padding in a bucket; the C cells of
all buckets are consecutive, so that one indexed copy of rows to cells serves all buckets. A bucket has b sequences
of T cells each.
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

# oneDNN's matrix products on a CPU get a multiple of this many rows. It needs as long to prepare a new shape as to
# compute about 400 rows, and it caches a thousand shapes.
_ROW_MULTIPLE = 32


@dataclass(frozen=True)
class Bucket:
    """Sequences of similar length, padded to the longest of them.

    Attributes:
        sequences: Number of sequences.
        length: Tokens that each sequence is padded to.
        bias: Attention bias, fp32 [b, 1, 1, T]: 0 on tokens, fp32's lowest number on padding; None without
            padding. In causal attention the tokens on the side that is not attended to have the lowest number,
            too: [b, 1, T, T], or [1, 1, T, T] if one mask serves all sequences, since it hides padding as well.
    """

    sequences: int
    length: int
    bias: Tensor | None


@dataclass(frozen=True)
class AttentionLayout:
    """Layout of a batch's sequences for attention, used by all layers. Buckets are computed on first use.

    Attributes:
        packed: The batch.
        direction: The tokens that a token attends to besides itself.
        equal_lengths_only: True if only sequences of equal length share a bucket, so that none is padded.
        pads_rows: True to pad the batch at its end to a multiple of `_ROW_MULTIPLE` rows, so that matrix products
            have few different shapes.
    """

    packed: Packed
    direction: AttentionDirection = "all"
    equal_lengths_only: bool = False
    pads_rows: bool = False

    @property
    def num_padding_rows(self) -> int:
        """Return the number of padding rows after the tokens, 0 without `pads_rows`."""
        return -len(self.packed.tokens) % _ROW_MULTIPLE if self.pads_rows else 0

    def sort_rows(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Pad row indices, long [M], with row 0 if `pads_rows`, and sort them.

        Returns:
            The padded and sorted indices, and the position of each of `rows` in them, long [M]: the inverse of the
            sort. The inverse is None if the order is unchanged, as on a GPU, whose kernels need no order.
        """
        padded_rows = F.pad(rows, (0, -len(rows) % _ROW_MULTIPLE)) if self.pads_rows else rows
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
    def sequence_layout(self) -> SequenceLayout:
        """Return the sequences in the form that kernels take."""
        return SequenceLayout(
            self.packed.cu_seqlens.long(), self.direction, self.packed.max_seqlen, len(self.packed.tokens)
        )

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Return the buckets; empty sequences are in none."""
        return self._buckets_and_cells[0]

    @property
    def row_of_cell(self) -> Tensor | None:
        """Return the row of each cell, long [C]; None if cell i holds row i.

        Padding cells hold row 0, and no result depends on them.
        """
        return self._buckets_and_cells[1]

    @property
    def cell_of_row(self) -> Tensor | None:
        """Return the cell of each row, long [N]; None if row i is in cell i."""
        return self._buckets_and_cells[2]

    @property
    def bucket_sizes(self) -> list[int]:
        """Return the number of cells of each bucket."""
        return [bucket.sequences * bucket.length for bucket in self.buckets]

    @cached_property
    def _buckets_and_cells(self) -> tuple[tuple[Bucket, ...], Tensor | None, Tensor | None]:
        """Compute `buckets`, `row_of_cell`, and `cell_of_row` on the host, and send them to the device."""
        lengths, device = self.packed.lengths, self.packed.tokens.device
        starts = np.cumsum(lengths) - lengths
        num_tokens, num_cells = len(self.packed.tokens), 0
        buckets = []
        row_of_cell = [np.empty(0, dtype=np.int64)]  # by bucket
        cell_of_row = np.empty(
            num_tokens + 1, dtype=np.int64
        )  # padding cells are written to the last element
        max_scores = _MAX_SCORES_CPU if self.packed.tokens.is_cpu else _MAX_SCORES_GPU
        for members in _group_by_length(lengths, 1 if self.equal_lengths_only else _BUCKET_WIDTH, max_scores):
            length = int(lengths[members].max())
            columns = np.arange(length)
            is_token = columns < lengths[members, None]
            rows = starts[members, None] + columns
            cells = np.arange(num_cells, num_cells + is_token.size)
            cell_of_row[np.where(is_token, rows, num_tokens).ravel()] = cells
            row_of_cell.append(np.where(is_token, rows, 0).ravel())
            if self.direction == "all":
                bias = _padding_bias(is_token, device)
            else:
                bias = _causal_bias(is_token, self.direction, device)
            buckets.append(Bucket(len(members), length, bias))
            num_cells += is_token.size
        if len(buckets) == 1 and num_cells == num_tokens:  # sequences of one length, in order
            return tuple(buckets), None, None
        return (
            tuple(buckets),
            copy_to_device(torch.from_numpy(np.concatenate(row_of_cell)), device),
            copy_to_device(torch.from_numpy(cell_of_row[:-1]), device),
        )


def _group_by_length(lengths: NDArray[np.int64], width: int, max_scores: int) -> Iterator[NDArray[np.int64]]:
    """Yield the indices of each bucket's sequences.

    Lengths in a bucket round up to the same multiple of `width`, and a bucket has at most `max_scores` scores per
    head, unless a single sequence has more.
    """
    nonempty = np.flatnonzero(lengths)
    multiples = (lengths[nonempty] + width - 1) // width
    for multiple in np.unique(multiples):
        max_sequences = max(1, max_scores // (int(multiple) * width) ** 2)
        members = nonempty[multiples == multiple]
        yield from (members[i : i + max_sequences] for i in range(0, len(members), max_sequences))


def _padding_bias(is_token: NDArray[np.bool_], device: torch.device) -> Tensor | None:
    if is_token.all():
        return None
    bias = np.where(is_token, np.float32(0), np.finfo(np.float32).min)
    return copy_to_device(torch.from_numpy(bias[:, None, None, :]), device)


def _causal_bias(
    is_token: NDArray[np.bool_], direction: AttentionDirection, device: torch.device
) -> Tensor | None:
    """Return the bias of causal attention; None for sequences of one token.

    Padding is on the right, so attention to earlier tokens never reaches it, and only the other direction must
    hide it.
    """
    length = is_token.shape[1]
    if length < 2:
        return None
    is_hidden = causal_mask(length, direction)[None]
    if direction == "behind" and not is_token.all():
        is_hidden = is_hidden | ~is_token[:, None, :]
    bias = np.where(is_hidden, np.finfo(np.float32).min, np.float32(0))
    return copy_to_device(torch.from_numpy(bias[:, None]), device)


def causal_mask(length: int, direction: AttentionDirection) -> NDArray[np.bool_]:
    """Return a mask [T, T] of the tokens (columns) that each token (row) does not attend to."""
    ones = np.ones((length, length), dtype=np.bool_)
    return np.triu(ones, 1) if direction == "before" else np.tril(ones, -1)
