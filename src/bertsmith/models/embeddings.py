"""Embeddings: token ids in packed form → the vectors that the first layer reads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bertsmith.models.config import ModelConfig
from bertsmith.models.layers import Dropout, Linear, Table
from bertsmith.packed import Packed


class Embeddings(nn.Module):
    """LN(token + position + segment), dropout, and where the tables are narrower a Linear to H. [N] → [N, H].

    The sum enters here and never again. Tables have width E, the hidden size unless `embedding_size` says
    otherwise. No segment row: no segment vector; one: every token gets it (RoBERTa has no segment ids).
    """

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        width = config.embedding_width
        self.offset = config.position_offset
        # padding_idx: as in the reference, looking up [PAD] teaches its vector nothing.
        self.token = Table(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.position = Table(
            config.max_position_embeddings, width, padding_idx=self.offset - 1 if self.offset else None
        )
        self.segment = Table(config.type_vocab_size, width) if config.type_vocab_size else None
        self.norm = nn.LayerNorm(width, config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob, generator)
        self.projection = Linear(width, config.hidden_size) if config.embedding_size is not None else None

    def forward(self, packed: Packed) -> Tensor:
        """What the first layer reads of a batch's tokens, [N, H]."""
        positions = packed.positions + self.offset if self.offset else packed.positions
        x = self.token(packed.tokens) + self.position(positions)
        if self.segment is not None:
            one = self.segment.num_embeddings == 1
            x = x + (self.segment.weight[0] if one else self.segment(packed.segments))
        x = self.dropout(self.norm(x))
        return x if self.projection is None else self.projection(x)  # type: ignore[no-any-return]
