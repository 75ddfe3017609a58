"""Attention by its definition, as the oracle for faster implementations."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from bertsmith.models.attention import attention_weights
from bertsmith.models.config import AttentionDirection
from bertsmith.packed import Packed


def reference_attention(
    qkv: Tensor,
    packed: Packed,
    num_heads: int,
    mask: Callable[[Tensor], Tensor] | None = None,
    *,
    direction: AttentionDirection = "all",
) -> Tensor:
    """Compute attention one sequence after the other: [N, 3H] → [N, H]."""
    size = qkv.shape[1] // 3
    outputs = [qkv[:0, :size]]
    all_weights = attention_weights(qkv, packed, num_heads, direction=direction)
    for (start, end), weights in zip(pairwise(packed.cu_seqlens.tolist()), all_weights, strict=True):
        if start == end:
            continue
        v = qkv[start:end, 2 * size :].view(end - start, num_heads, -1).transpose(0, 1)
        dropped_weights = weights if mask is None else weights * mask(weights)
        outputs.append((dropped_weights @ v).transpose(0, 1).flatten(1))
    return torch.cat(outputs)
