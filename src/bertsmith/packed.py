"""Packed sequences: the one form of a batch from data to loss, without padding.

Sequences are concatenated, and described by the cumulative lengths that variable-length attention kernels take (as
in FlashAttention). The lengths are also stored on the host, so that code that arranges sequences never waits for
the device.
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

    The row of a token is its index in [N], in `tokens` and in all tensors [N, …] that are computed from them.

    Attributes:
        tokens: Token ids, long [N].
        segments: Segment ids (token type ids), long [N].
        positions: Position ids, long [N].
        cu_seqlens: Cumulative lengths, int32 [B + 1]; sequence b has the rows cu_seqlens[b] up to
            cu_seqlens[b + 1] - 1.
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
        """The row of each sequence's first token ([CLS]), long [B]."""
        return self.cu_seqlens[:-1].long()

    @property
    def last_token_rows(self) -> Tensor:
        """The row of each sequence's last token, long [B]; no sequence may be empty."""
        return self.cu_seqlens[1:].long() - 1

    @property
    def row_bounds(self) -> tuple[Tensor, Tensor]:
        """The first row of each row's sequence, and the row after its last one, long [N]."""
        ends = np.cumsum(self.lengths)
        starts, ends = (np.repeat(bounds, self.lengths) for bounds in (ends - self.lengths, ends))
        device = self.tokens.device
        return copy_to_device(torch.from_numpy(starts), device), copy_to_device(
            torch.from_numpy(ends), device
        )

    def mean(self, rows: Tensor) -> Tensor:
        """Return the mean of each sequence's rows, [N, H] → [B, H]; each is reduced separately."""
        return torch.stack([part.mean(0) for part in torch.split(rows, self.lengths.tolist())])

    @classmethod
    def from_lists(cls, tokens: Sequence[Sequence[int]], segments: Sequence[Sequence[int]]) -> Packed:
        """Pack lists of ids.

        Args:
            tokens: The token ids of each sequence.
            segments: The segment ids of each sequence, of the same lengths.
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
        cu_seqlens = np.zeros(len(lengths) + 1, dtype=np.int32)
        np.cumsum(lengths, out=cu_seqlens[1:])
        positions = np.arange(len(tokens)) - np.repeat(cu_seqlens[:-1].astype(np.int64), lengths)
        return cls(
            torch.from_numpy(tokens),
            torch.from_numpy(segments),
            torch.from_numpy(positions),
            torch.from_numpy(cu_seqlens),
            lengths,
        )

    @classmethod
    def from_padded(
        cls, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Packed:
        """Pack a padded batch; the host waits for the lengths if they are on a GPU.

        The position id of a token is its column, as in transformers; padding may be on either side.

        Args:
            input_ids: Token ids, long [B, T].
            attention_mask: 1 on tokens and 0 on padding, long [B, T]; None: no padding.
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
        cu_seqlens = torch.zeros(len(input_ids) + 1, dtype=torch.int32, device=input_ids.device)
        torch.cumsum(lengths, 0, out=cu_seqlens[1:])
        columns = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        return cls(input_ids[mask], segments[mask], columns[mask], cu_seqlens, lengths.cpu().numpy())

    def pad(self, rows: Tensor, fill: float = 0) -> Tensor:
        """Pad a tensor of tokens on the right of each sequence.

        Args:
            rows: One row per token, [N, …], such as token ids or hidden states.
            fill: The value of padding.

        Returns:
            The rows as [B, max_seqlen, …].
        """
        out = rows.new_full((self.num_sequences * self.max_seqlen, *rows.shape[1:]), fill)
        padded_starts = np.repeat(np.arange(self.num_sequences) * self.max_seqlen, self.lengths)
        packed_starts = np.repeat(np.cumsum(self.lengths) - self.lengths, self.lengths)
        indices = padded_starts + np.arange(len(padded_starts)) - packed_starts
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
    """A batch whose lengths are only on the device, for CUDA graphs that are replayed with other lengths.

    `lengths` is None, so that code that needs lengths on the host fails.
    """

    max_seqlen_bound: int

    @classmethod
    def from_packed(cls, packed: Packed, max_seqlen_bound: int) -> DeviceLengthsPacked:
        """Return the batch without lengths on the host; no sequence is longer than `max_seqlen_bound`."""
        no_lengths: Any = None
        batch = cls(packed.tokens, packed.segments, packed.positions, packed.cu_seqlens, no_lengths)
        object.__setattr__(batch, "max_seqlen_bound", max_seqlen_bound)  # the dataclass is frozen
        return batch

    def to(self, device: torch.device | str) -> DeviceLengthsPacked:
        """Copy to a device; the host does not wait for the copy."""
        return DeviceLengthsPacked.from_packed(super().to(device), self.max_seqlen_bound)

    @property
    def num_sequences(self) -> int:
        """The number of sequences, including empty ones."""
        return len(self.cu_seqlens) - 1

    @cached_property
    def max_seqlen(self) -> int:
        """An upper bound of the lengths, which are unknown on the host."""
        return self.max_seqlen_bound


def copy_to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a tensor to a device without making the host wait.

    Memory is pinned first: a copy of pageable memory to a GPU would wait for all work that was queued before it.
    """
    if tensor.is_cpu and torch.device(device) != tensor.device and torch.cuda.is_available():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _concatenate(rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    if not rows:
        return np.empty(0, dtype=np.int64)
    return np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
