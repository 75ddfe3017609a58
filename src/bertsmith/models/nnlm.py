"""The feed-forward neural language model of Bengio et al. 2003, section 2, as an encoder.

The logits of the next token are y = b + W x + U tanh(d + H x), where x joins the vectors of the last n - 1 tokens.
A hidden state is [tanh(d + H x); x], so the decoder of the language-modeling head is [U W], or U alone without
direct connections.

Shapes: N tokens in a packed batch, H hidden size: the units of the hidden layer plus (n - 1) E.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.models.config import ModelConfig
from bertsmith.models.layers import Dropout, Linear
from bertsmith.models.recurrent import RecurrentEncoder, TokenEmbeddings
from bertsmith.packed import Packed


class NnlmEmbeddings(TokenEmbeddings):
    """The joined vectors x of each token and those before it: [N] → [0; x], [N, H].

    The zeros are in the place of the hidden layer's output (`NnlmLayer`). The token's own vector is first in x. A
    vector before the start of a sequence is zero, as that of the padding token. A model that reads backwards joins
    the tokens after it.
    """

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__(config, generator)
        self._units = config.intermediate_size
        self._step = 1 if config.backwards else -1
        self._context_size = config.context_size

    def forward(self, packed: Packed) -> Tensor:
        """Return [0; x] of each token."""
        vectors = self.dropout(self.token(packed.tokens))
        num_tokens, size = vectors.shape
        starts, ends = packed.row_bounds
        offsets = self._step * torch.arange(self._context_size, device=vectors.device)
        rows = torch.arange(num_tokens, device=vectors.device)[:, None] + offsets
        is_outside = (rows < starts[:, None]) | (rows >= ends[:, None])
        padded = torch.cat([vectors, vectors.new_zeros(1, size)])
        x = padded[rows.masked_fill(is_outside, num_tokens)].view(num_tokens, self._context_size * size)
        return torch.cat([x.new_zeros(num_tokens, self._units), x], 1)


class NnlmLayer(nn.Module):
    """The hidden layer: [0; x] → [tanh(d + H x); x], both [N, H]."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self._units = config.intermediate_size
        self.hidden = Linear(config.hidden_size - self._units, self._units)
        self.dropout = Dropout(config.hidden_dropout_prob, generator)

    def forward(self, states: Tensor, _: Any) -> Tensor:
        """Compute the layer of all tokens."""
        x = states[:, self._units :]
        hidden = self.dropout(torch.tanh(self.hidden(x)))
        return torch.cat([hidden.to(x.dtype), x], 1)


class NnlmEncoder(RecurrentEncoder):
    """The joined vectors of the last tokens and the hidden layer, with the interface of `Encoder`."""

    def _build_embeddings(self) -> TokenEmbeddings:
        return NnlmEmbeddings(self.config, self._generator)

    def _build_blocks(self) -> list[nn.Module]:
        return [NnlmLayer(self.config, self._generator)]

    def _token_layout(self, packed: Packed) -> Any:
        return None
