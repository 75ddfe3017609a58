"""The sum of token, position, and segment embeddings over packed token ids."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bertsmith.kernels.reference import REFERENCE, KernelBackend, compute_dtype
from bertsmith.models.config import ModelConfig
from bertsmith.models.layers import Dropout, Embedding, Linear, has_hooks
from bertsmith.models.weight_init import sinusoidal_positions
from bertsmith.packed import Packed


class Embeddings(nn.Module):
    """LayerNorm(token + position + segment), dropout, and a projection to H if E differs: [N] → [N, H].

    Embeddings have size E, the hidden size H unless `embedding_size` is set. Without segment embeddings nothing is
    added; a single one is added to every token (RoBERTa has no segment ids). Position embeddings that are not
    learned are saved as weights, too, but never updated: so every Hugging Face tool reads them.

    Attributes:
        offset: The row of the position embeddings for a sequence's first token.
    """

    kernels: KernelBackend = REFERENCE

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        size = config.embedding_dim
        self.offset = config.position_offset
        # padding_idx as in transformers: looking up [PAD] gives its vector no gradient.
        self.token = Embedding(config.vocab_size, size, padding_idx=config.pad_token_id)
        self.position = Embedding(
            config.max_position_embeddings, size, padding_idx=self.offset - 1 if self.offset else None
        )
        self.position.requires_grad_(config.position == "learned")
        self.segment = Embedding(config.type_vocab_size, size) if config.type_vocab_size else None
        self.norm = nn.LayerNorm(size, config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob, generator)
        # With LayerNorm first, layers add to the embeddings without normalizing the sum, so it stays in fp32;
        # otherwise it has the dtype of the first layer's matrix products.
        self._keeps_fp32 = config.norm == "pre"
        self.projection = Linear(size, config.hidden_size) if config.embedding_size is not None else None

    @torch.no_grad()
    def init_fixed_weights(self, config: ModelConfig) -> None:
        """Set the weights that are not random: the padding vector and positions that are not learned."""
        self.token.weight[config.pad_token_id].zero_()
        if config.position != "learned":
            self.position.weight.zero_()
        if config.position == "sinusoidal":
            positions = self.position.weight[self.offset :]
            positions.copy_(sinusoidal_positions(*positions.shape))

    def forward(self, packed: Packed) -> Tensor:
        """Return the input of the first layer for a batch's tokens, [N, H]."""
        positions = packed.positions + self.offset if self.offset else packed.positions
        x = self.token(packed.tokens)
        has_single_segment = self.segment is not None and self.segment.num_embeddings == 1
        lookups: list[tuple[nn.Embedding, Tensor]] = [(self.position, positions)]
        if self.segment is not None:
            segments = torch.zeros_like(positions) if has_single_segment else packed.segments
            lookups.append((self.segment, segments))
        dtype = x.dtype if self._keeps_fp32 else compute_dtype(x)
        embedded = None
        if not has_hooks(self.norm, self.dropout, *(embedding for embedding, _ in lookups)):
            embedded = self.kernels.embed(x, lookups, self.norm, self.dropout, dtype)
        if embedded is None:
            for embedding, ids in lookups:
                is_single_row = has_single_segment and embedding is self.segment
                x = x + (embedding.weight[0] if is_single_row else embedding(ids))
            embedded = self.dropout(self.norm(x))
        return embedded if self.projection is None else self.projection(embedded)
