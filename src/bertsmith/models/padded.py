"""The encoder on padded batches, for tools that do not know packed sequences.

A padded batch is packed without leaving anything out: its B sequences all have T tokens, padding included, and
attention hides padding. So layers and heads compute it as any other batch, and nothing depends on the lengths,
which a traced graph cannot know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.kernels.reference import SequenceLayout
from bertsmith.models.attention import AttentionLayout, Bucket
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.packed import Packed


@dataclass(frozen=True)
class PaddedBatch(Packed):
    """A batch of B sequences that are padded on the right to T tokens; all B · T tokens have a row.

    `lengths` is None, as code that needs them cannot be traced.

    Attributes:
        mask: True on tokens and False on padding, [B, T].
    """

    mask: Tensor

    @classmethod
    def create(
        cls, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None, config: ModelConfig
    ) -> PaddedBatch:
        """Return the batch of ids, each long [B, T], with the positions of transformers.

        Args:
            input_ids: Token ids.
            attention_mask: 1 on tokens and 0 on padding.
            token_type_ids: Segment ids; None: zeros.
            config: The model's sizes and switches.
        """
        sequences, length = input_ids.shape
        positions = torch.arange(length, device=input_ids.device).expand_as(input_ids)
        if config.first_position == "after_padding":
            is_token = input_ids.ne(config.position_offset - 1).long()
            positions = is_token.cumsum(1) * is_token - 1
        segments = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        starts = torch.arange(sequences + 1, device=input_ids.device) * length
        lengths: Any = None
        tokens, segments, positions = (ids.reshape(-1) for ids in (input_ids, segments, positions))
        return cls(tokens, segments, positions, starts, lengths, attention_mask.bool())

    @property
    def num_sequences(self) -> int:
        """The number of sequences, B."""
        return self.mask.shape[0]

    @cached_property
    def max_seqlen(self) -> int:
        """The number of tokens of each sequence, T."""
        return self.mask.shape[1]

    @property
    def last_token_rows(self) -> Tensor:
        """The row of each sequence's last token before the padding, long [B]."""
        return self.first_token_rows + self.mask.sum(1) - 1


class PaddedLayout(AttentionLayout):
    """The layout of a padded batch: one bucket, in which cell i holds row i."""

    @cached_property
    def sequence_layout(self) -> SequenceLayout:
        """Return the sequences in the form that kernels take."""
        batch = self.packed
        num_tokens = batch.num_sequences * batch.max_seqlen
        return SequenceLayout(batch.cu_seqlens, self.direction, batch.max_seqlen, num_tokens)

    @cached_property
    def _buckets_and_cells(self) -> tuple[tuple[Bucket, ...], Tensor | None, Tensor | None]:
        batch = self.packed
        assert isinstance(batch, PaddedBatch)
        is_hidden = ~batch.mask[:, None, None]
        if self.direction != "all":
            columns = torch.arange(batch.max_seqlen, device=batch.mask.device)
            distances = columns - columns[:, None]
            is_hidden = is_hidden | (distances > 0 if self.direction == "before" else distances < 0)
        bias = torch.zeros_like(is_hidden, dtype=torch.float32)
        bias = bias.masked_fill(is_hidden, torch.finfo(torch.float32).min)
        return (Bucket(batch.num_sequences, batch.max_seqlen, bias),), None, None


class PaddedEncoder(nn.Module):
    """An encoder, with the same weights, that reads a `PaddedBatch` in place of `Packed`."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder, self.config = encoder, encoder.config

    def forward(self, batch: PaddedBatch, rows: Tensor | None = None) -> Tensor:
        """Return the last hidden states, [B · T, H], or those of the tokens `rows`, long [M]: [M, H]."""
        return self._states(batch, rows)[-1]

    def hidden_states(self, batch: PaddedBatch) -> Sequence[Tensor]:
        """Return the outputs of the embeddings and of each layer, L + 1 tensors [B · T, H]."""
        return self._states(batch, None)

    def _states(self, batch: PaddedBatch, rows: Tensor | None) -> list[Tensor]:
        layout = PaddedLayout(batch, self.config.attention_direction)
        states = [self.encoder.embeddings(batch)]
        *first_layers, last_layer = self.encoder.layers
        for layer in first_layers:
            states.append(layer(states[-1], layout))
        states.append(last_layer(states[-1], layout, rows))
        if self.encoder.norm is not None:
            states[-1] = self.encoder.norm(states[-1])
        return states
