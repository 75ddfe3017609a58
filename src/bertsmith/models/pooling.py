"""Reduction of a text's hidden states to one vector."""

from __future__ import annotations

import torch
from torch import Tensor

from bertsmith.models.config import Pooling
from bertsmith.models.encoder import Encoder
from bertsmith.packed import Packed


def pool(encoder: Encoder, packed: Packed, pooling: Pooling) -> Tensor:
    """Pool the encoder's last hidden states to one vector per sequence, fp32 [B, H].

    Each sequence is reduced separately, so its vector does not depend on the rest of the batch.
    """
    if pooling == "cls":
        return encoder(packed, rows=packed.first_token_rows).float()  # type: ignore[no-any-return]
    states = torch.split(encoder(packed).float(), packed.lengths.tolist())
    if pooling == "max":
        return torch.stack([state.amax(0) for state in states])
    return torch.stack([state.mean(0) for state in states])
