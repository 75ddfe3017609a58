"""Packed sequences: the one form of a batch from data to loss, without padding.

Sequences are concatenated, and the cumulative lengths are those that variable-length attention kernels take. The
lengths are also known on the host, so that code that arranges sequences never waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Packed:
    """A batch of B sequences with N tokens in total and no padding. All tensors are on one device.

    Attributes:
        tokens: Token ids, long [N].
        segments: Segment ids (token type ids), long [N].
        positions: Position ids, long [N].
        starts: Cumulative lengths, int32 [B + 1]; the first token of sequence b is row `starts[b]`.
        lengths: The length of each sequence, int64 [B], in NumPy on the host.
    """

    tokens: Tensor
    segments: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    lengths: NDArray[np.int64]

    @property
    def num_sequences(self) -> int:
        """The number of sequences, B."""
        return len(self.lengths)

    @cached_property
    def max_seqlen(self) -> int:
        """The length of the longest sequence; 0 for an empty batch."""
        return int(self.lengths.max(initial=0))

    @property
    def first_token_rows(self) -> Tensor:
        """The row of each sequence's first token, long [B]."""
        return self.cu_seqlens[:-1].long()

    @property
    def last_token_rows(self) -> Tensor:
        """The row of each sequence's last token, long [B]; no sequence may be empty."""
        return self.cu_seqlens[1:].long() - 1

    @classmethod
    def from_lists(cls, tokens: Sequence[Sequence[int]], segments: Sequence[Sequence[int]]) -> Packed:
        """Pack lists of ids.

        Args:
            tokens: The token ids of each sequence.
            segments: The segment ids of each sequence, in the same lengths.
        """
        lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
        return cls.from_arrays(_concatenate(tokens), _concatenate(segments), lengths)

    @classmethod
    def from_arrays(
        cls, tokens: NDArray[np.int64], segments: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> Packed:
        """Pack ids that are already concatenated.

        Args:
            tokens: Token ids, [N].
            segments: Segment ids, [N].
            lengths: The length of each sequence, [B], with the sum N.

        Raises:
            ValueError: The lengths do not add up.
        """
        if lengths.sum() != len(tokens) or len(tokens) != len(segments):
            raise ValueError("lengths must sum to the number of tokens and of segments")
        starts = np.zeros(len(lengths) + 1, dtype=np.int32)
        np.cumsum(lengths, out=starts[1:])
        positions = np.arange(len(tokens)) - np.repeat(starts[:-1].astype(np.int64), lengths)
        return cls(
            torch.from_numpy(tokens),
            torch.from_numpy(segments),
            torch.from_numpy(positions),
            torch.from_numpy(starts),
            lengths,
        )

    @classmethod
    def from_padded(
        cls, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Packed:
        """Pack a padded batch; the host waits for the lengths.

        A position is the column of its token, as in transformers; padding may be on either side.

        Args:
            input_ids: Token ids, long [B, T].
            attention_mask: 1 on tokens and 0 on padding, long [B, T]; None: there is no padding.
            token_type_ids: Segment ids, long [B, T]; None: zeros.

        Raises:
            ValueError: The shapes differ or are not two-dimensional.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        if mask.shape != input_ids.shape or input_ids.dim() != 2:
            raise ValueError("input_ids and attention_mask must both be [sequences, length]")
        mask = mask.bool()
        segments = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        lengths = mask.sum(1)
        starts = torch.zeros(len(input_ids) + 1, dtype=torch.int32, device=input_ids.device)
        torch.cumsum(lengths, 0, out=starts[1:])
        columns = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        return cls(input_ids[mask], segments[mask], columns[mask], starts, lengths.cpu().numpy())

    def pad(self, rows: Tensor, fill: float = 0) -> Tensor:
        """Pad rows of tokens on the right.

        Args:
            rows: One row per token, [N, …].
            fill: The value of padding.

        Returns:
            The rows as [B, length of the longest sequence, …].
        """
        out = rows.new_full((self.num_sequences * self.max_seqlen, *rows.shape[1:]), fill)
        sequence_starts = np.repeat(np.arange(self.num_sequences) * self.max_seqlen, self.lengths)
        first_tokens = np.repeat(np.cumsum(self.lengths) - self.lengths, self.lengths)
        indices = sequence_starts + np.arange(len(sequence_starts)) - first_tokens
        out[copy_to_device(torch.from_numpy(indices), rows.device)] = rows
        return out.view(self.num_sequences, self.max_seqlen, *rows.shape[1:])

    def to(self, device: torch.device | str) -> Packed:
        """Copy to a device; the host does not wait for the copy."""
        if self.tokens.device == torch.device(device):
            return self
        return Packed(
            copy_to_device(self.tokens, device),
            copy_to_device(self.segments, device),
            copy_to_device(self.positions, device),
            copy_to_device(self.cu_seqlens, device),
            self.lengths,
        )


class DeviceLengthsPacked(Packed):
    """A batch whose lengths only the device knows, for CUDA graphs that are replayed with other lengths.

    `lengths` is None, so that code that needs it on the host fails.
    """

    max_seqlen_bound: int

    @classmethod
    def from_packed(cls, packed: Packed, max_seqlen_bound: int) -> DeviceLengthsPacked:
        """Return the batch without its lengths; no sequence is longer than `max_seqlen_bound`."""
        unknown: Any = None
        unmeasured = cls(packed.tokens, packed.segments, packed.positions, packed.cu_seqlens, unknown)
        object.__setattr__(unmeasured, "max_seqlen_bound", max_seqlen_bound)
        return unmeasured

    def to(self, device: torch.device | str) -> DeviceLengthsPacked:
        """Copy to a device; the host does not wait for the copy."""
        return DeviceLengthsPacked.from_packed(super().to(device), self.max_seqlen_bound)

    @property
    def num_sequences(self) -> int:
        """The number of sequences, including empty ones."""
        return len(self.cu_seqlens) - 1

    @cached_property
    def max_seqlen(self) -> int:
        """The upper bound of the lengths."""
        return self.max_seqlen_bound


def copy_to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a tensor to a device without waiting.

    Memory is pinned first: a GPU copies pageable memory only after all work queued before.
    """
    if tensor.is_cpu and torch.device(device) != tensor.device and torch.cuda.is_available():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _concatenate(rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    if not rows:
        return np.empty(0, dtype=np.int64)
    return np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
