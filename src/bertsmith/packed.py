"""Packed: sequences laid end to end, the one form text takes from data to loss.

There is no padding in it, so no work is done on padding. `starts` are the cumulative lengths that
variable-length attention kernels take. The lengths are also known on the host, so that whoever lays the
sequences out never has to wait for the device.
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
    """B sequences of together N tokens.

    tokens, segments, positions: long [N]; starts: int32 [B + 1], the first token of sequence b is row
    starts[b]: all on one device. lengths: int64 [B] in NumPy, on the host.
    """

    tokens: Tensor
    segments: Tensor
    positions: Tensor
    starts: Tensor
    lengths: NDArray[np.int64]

    @property
    def sequences(self) -> int:
        """B."""
        return len(self.lengths)

    @cached_property
    def longest(self) -> int:
        """The length of the longest sequence; 0 where there is none."""
        return int(self.lengths.max(initial=0))

    @property
    def first_rows(self) -> Tensor:
        """The row of each sequence's first token, long [B]."""
        return self.starts[:-1].long()

    @property
    def last_rows(self) -> Tensor:
        """The row of each sequence's last token, long [B]; no sequence may be empty."""
        return self.starts[1:].long() - 1

    @classmethod
    def of_lists(cls, tokens: Sequence[Sequence[int]], segments: Sequence[Sequence[int]]) -> Packed:
        """Pack lists of ids; `segments` has the same lengths as `tokens`."""
        lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
        return cls.of_arrays(_joined(tokens), _joined(segments), lengths)

    @classmethod
    def of_arrays(
        cls, tokens: NDArray[np.int64], segments: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> Packed:
        """Pack ids that already lie end to end: tokens and segments [N], lengths [B] with sum N."""
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
    def of_padded(
        cls, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Packed:
        """Pack the padded form: all long [B, T]; the mask is 1 on tokens, 0 on padding (default: all tokens).

        A position is the column of its token, as in the reference; padding may stand on either side. The host
        waits here for the lengths.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        if mask.shape != input_ids.shape or input_ids.dim() != 2:
            raise ValueError("input_ids and attention_mask must both be [sequences, length]")
        kept = mask.bool()
        segments = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        lengths = kept.sum(1)
        starts = torch.zeros(len(input_ids) + 1, dtype=torch.int32, device=input_ids.device)
        torch.cumsum(lengths, 0, out=starts[1:])
        columns = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        return cls(input_ids[kept], segments[kept], columns[kept], starts, lengths.cpu().numpy())

    def pad(self, rows: Tensor, fill: float = 0) -> Tensor:
        """Lay rows [N, …] out as [B, longest, …], each sequence from the left, `fill` behind its end."""
        out = rows.new_full((self.sequences * self.longest, *rows.shape[1:]), fill)
        number = np.repeat(np.arange(self.sequences) * self.longest, self.lengths)
        begins = np.repeat(np.cumsum(self.lengths) - self.lengths, self.lengths)
        cells = number + np.arange(len(number)) - begins
        out[sent(torch.from_numpy(cells), rows.device)] = rows
        return out.view(self.sequences, self.longest, *rows.shape[1:])

    def to(self, device: torch.device | str) -> Packed:
        """The same on another device; the host does not wait for the copy."""
        if self.tokens.device == torch.device(device):
            return self
        return Packed(
            sent(self.tokens, device),
            sent(self.segments, device),
            sent(self.positions, device),
            sent(self.starts, device),
            self.lengths,
        )


class Unmeasured(Packed):
    """Sequences whose lengths the device alone knows, as where one program computes with those of many batches in
    turn. Who asks the host for `lengths` gets nothing to compute with."""

    at_most: int

    @classmethod
    def of(cls, packed: Packed, at_most: int) -> Unmeasured:
        """at_most: no sequence is longer."""
        unknown: Any = None
        made = cls(packed.tokens, packed.segments, packed.positions, packed.starts, unknown)
        object.__setattr__(made, "at_most", at_most)
        return made

    def to(self, device: torch.device | str) -> Unmeasured:
        """The same on another device; the host does not wait for the copy."""
        return Unmeasured.of(super().to(device), self.at_most)

    @property
    def sequences(self) -> int:
        """B, where sequences without tokens count."""
        return len(self.starts) - 1

    @cached_property
    def longest(self) -> int:
        """What no sequence is longer than."""
        return self.at_most


def sent(tensor: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on a device; the host waits neither for the copy nor for what the device is doing. A GPU copies
    memory that may be paged out only once all that was asked of it before is done, so it is pinned first."""
    if tensor.is_cpu and torch.device(device) != tensor.device and torch.cuda.is_available():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _joined(rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    if not rows:
        return np.empty(0, dtype=np.int64)
    return np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
