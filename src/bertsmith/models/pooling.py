"""Pooling: the hidden states of a text become one vector."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from bertsmith.models.encoder import Encoder
from bertsmith.packed import Packed

Pooling = Literal["mean", "cls", "max"]
"""The mean or the maximum of all tokens' states, the special ones among them, or the first token's."""


def pooled(encoder: Encoder, packed: Packed, pooling: Pooling) -> Tensor:
    """A vector of each sequence of a batch, of the encoder's last hidden states: fp32 [B, H].

    Each sequence is reduced by itself, so its vector does not depend on what else is in the batch."""
    if pooling == "cls":
        return encoder(packed, rows=packed.first_rows).float()  # type: ignore[no-any-return]
    states = torch.split(encoder(packed).float(), packed.lengths.tolist())
    if pooling == "max":
        return torch.stack([state.amax(0) for state in states])
    return torch.stack([state.mean(0) for state in states])
