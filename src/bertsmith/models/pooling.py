"""Pooling: the hidden states of a text become one vector."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from bertsmith.packed import Packed

Pooling = Literal["mean", "cls", "max"]
"""The mean or the maximum of all tokens' states, the special ones among them, or the first token's."""


def pooled(hidden: Tensor, packed: Packed, pooling: Pooling) -> Tensor:
    """Hidden states [N, H] of a batch → a vector a sequence, fp32 [B, H].

    Each sequence is reduced by itself, so its vector does not depend on what else is in the batch."""
    hidden = hidden.float()
    if pooling == "cls":
        return hidden[packed.first_rows]
    states = torch.split(hidden, packed.lengths.tolist())
    if pooling == "max":
        return torch.stack([state.amax(0) for state in states])
    return torch.stack([state.mean(0) for state in states])
