"""Embeddings: token ids in packed form → the vectors that the first layer reads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bertsmith.kernels.reference import TORCH, Kernels, kind_of
from bertsmith.models.config import ModelConfig
from bertsmith.models.layers import Dropout, Linear, Table, watched
from bertsmith.models.weight_init import sinusoids
from bertsmith.packed import Packed


class Embeddings(nn.Module):
    """LN(token + position + segment), dropout, and where the tables are narrower a Linear to H. [N] → [N, H].

    The sum enters here and never again. Tables have width E, the hidden size unless `embedding_size` says
    otherwise. No segment row: no segment vector; one: every token gets it (RoBERTa has no segment ids). Positions
    that are not learned are a table too, which no update changes: so every tool of the field reads them.
    """

    kernels: Kernels = TORCH

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        width = config.embedding_width
        self.offset = config.position_offset
        # padding_idx: as in the reference, looking up [PAD] teaches its vector nothing.
        self.token = Table(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.position = Table(
            config.max_position_embeddings, width, padding_idx=self.offset - 1 if self.offset else None
        )
        self.position.requires_grad_(config.position == "learned")
        self.segment = Table(config.type_vocab_size, width) if config.type_vocab_size else None
        self.norm = nn.LayerNorm(width, config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob, generator)
        # Where layers add to what begins here, and none normalises it, it stays in fp32; else it has the kind of
        # the first layer's products.
        self._adds_up = config.norm == "pre"
        self.projection = Linear(width, config.hidden_size) if config.embedding_size is not None else None

    @torch.no_grad()
    def begin(self, config: ModelConfig) -> None:
        """What is not drawn: the vector of padding, and positions that are not learned."""
        self.token.weight[config.pad_token_id].zero_()
        if config.position != "learned":
            self.position.weight.zero_()
        if config.position == "sinusoidal":
            rows = self.position.weight[self.offset :]
            rows.copy_(sinusoids(*rows.shape))

    def forward(self, packed: Packed) -> Tensor:
        """What the first layer reads of a batch's tokens, [N, H]."""
        positions = packed.positions + self.offset if self.offset else packed.positions
        x, alone = self.token(packed.tokens), self.segment is not None and self.segment.num_embeddings == 1
        tables: list[tuple[nn.Embedding, Tensor]] = [(self.position, positions)]
        if self.segment is not None:
            tables.append((self.segment, torch.zeros_like(positions) if alone else packed.segments))
        is_seen = watched(self.norm, self.dropout, *(table for table, _ in tables))
        kind = x.dtype if self._adds_up else kind_of(x)
        found = None if is_seen else self.kernels.embedded(x, tables, self.norm, self.dropout, kind)
        if found is None:
            for table, rows in tables:
                x = x + (table.weight[0] if alone and table is self.segment else table(rows))
            found = self.dropout(self.norm(x))
        return found if self.projection is None else self.projection(found)
