"""The encoder of the original Transformer (Vaswani et al. 2017), which differs from BERT's in its embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Embedding, Embeddings, Encoder
from bertsmith.models.layers import Dropout
from bertsmith.models.weight_init import sinusoidal_positions
from bertsmith.packed import Packed


class SinusoidalPositions(nn.Module):
    """Sinusoids of positions, which are neither trained nor saved: long [N] → [N, H]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self._shape = config.max_position_embeddings, config.hidden_size
        self._table: Tensor | None = None  # made on first use, on its device

    def forward(self, positions: Tensor) -> Tensor:
        """Return the sinusoids of positions."""
        if self._table is None or self._table.device != positions.device:
            with torch.inference_mode(False):
                self._table = sinusoidal_positions(*self._shape).to(positions.device)
        return self._table[positions]


class ScaledEmbeddings(Embeddings):
    """sqrt(H) · token + sinusoids of the position, and dropout, without LayerNorm: [N] → [N, H].

    See sections 3.4 and 3.5 of the paper.
    """

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        nn.Module.__init__(self)  # without the parts of BERT's embeddings
        self.token = Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.segment = None
        self.dropout = Dropout(config.hidden_dropout_prob, generator)
        self._sinusoids = SinusoidalPositions(config)
        self._scale = config.hidden_size**0.5

    @torch.no_grad()
    def init_fixed_weights(self, config: ModelConfig) -> None:
        """Set the padding vector to 0."""
        if config.pad_token_id is not None:
            self.token.weight[config.pad_token_id].zero_()

    def forward(self, packed: Packed) -> Tensor:
        """Return the input of the first layer for a batch's tokens, [N, H]."""
        tokens = self.token(packed.tokens) * self._scale
        embedded: Tensor = self.dropout(tokens + self._sinusoids(packed.positions))
        return embedded


class TransformerEncoder(Encoder):
    """The layers of `Encoder` on the paper's embeddings."""

    def _build_embeddings(self) -> Embeddings:
        return ScaledEmbeddings(self.config, self._generator)
