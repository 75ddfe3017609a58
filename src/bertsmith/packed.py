"""Packed: sequences laid end to end, the one form text takes from data to loss.

There is no padding in it, so no work is done on padding. `starts` are the cumulative lengths that
variable-length attention kernels take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packed:
    """B sequences of together N tokens.

    tokens, segments, positions: long [N]; starts: int32 [B + 1], the first token of sequence b is row
    starts[b]; longest: the length of the longest sequence, known on the host.
    """

    tokens: Tensor
    segments: Tensor
    positions: Tensor
    starts: Tensor
    longest: int

    @property
    def sequences(self) -> int:
        """B."""
        return len(self.starts) - 1

    @property
    def first_rows(self) -> Tensor:
        """The row of each sequence's first token, long [B]."""
        return self.starts[:-1].long()

    @property
    def lengths(self) -> Tensor:
        """Tokens of each sequence, long [B]."""
        return self.starts.diff().long()

    @classmethod
    def of_lists(cls, tokens: Sequence[Sequence[int]], segments: Sequence[Sequence[int]]) -> Packed:
        """Pack lists of ids; `segments` has the same lengths as `tokens`."""
        lengths = torch.tensor([len(row) for row in tokens], dtype=torch.int32)
        return cls.of_flat(
            torch.tensor([t for row in tokens for t in row], dtype=torch.long),
            torch.tensor([s for row in segments for s in row], dtype=torch.long),
            lengths,
        )

    @classmethod
    def of_flat(cls, tokens: Tensor, segments: Tensor, lengths: Tensor) -> Packed:
        """Pack ids that already lie end to end: tokens and segments long [N], lengths [B] with sum N."""
        if int(lengths.sum()) != len(tokens) or len(tokens) != len(segments):
            raise ValueError("lengths must sum to the number of tokens and of segments")
        starts = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        torch.cumsum(lengths, 0, out=starts[1:])
        positions = torch.arange(len(tokens)) - starts[:-1].long().repeat_interleave(lengths.long())
        longest = int(lengths.max()) if len(lengths) else 0
        return cls(tokens, segments, positions, starts, longest)

    @classmethod
    def of_padded(
        cls, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Packed:
        """Pack the padded form: all long [B, T]; the mask is 1 on tokens, 0 on padding (default: all tokens).

        A position is the column of its token, as in the reference; padding may stand on either side.
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
        longest = int(lengths.max()) if len(lengths) else 0
        return cls(input_ids[kept], segments[kept], columns[kept], starts, longest)

    def pad(self, rows: Tensor, fill: float = 0) -> Tensor:
        """Lay rows [N, …] out as [B, longest, …], each sequence from the left, `fill` behind its end."""
        lengths = self.lengths
        out = rows.new_full((self.sequences, self.longest, *rows.shape[1:]), fill)
        columns = torch.arange(self.longest, device=rows.device)
        out[columns < lengths[:, None]] = rows
        return out

    def to(self, device: torch.device | str) -> Packed:
        """The same on another device."""
        return Packed(
            self.tokens.to(device),
            self.segments.to(device),
            self.positions.to(device),
            self.starts.to(device),
            self.longest,
        )
