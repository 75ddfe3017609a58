"""Flash attention over packed sequences on a GPU by PyTorch's kernel."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from bertsmith.kernels.reference import BackendName, DropoutLike, KernelBackend, SequenceLayout

SUPPORTED_DTYPES = (torch.bfloat16, torch.float16)
_MAX_HEAD_SIZE, _HEAD_SIZE_MULTIPLE = 256, 8  # of flash attention
_SEQLEN_MULTIPLE = 128  # The maximum length is rounded up to a multiple of this, so that few shapes occur.


class FlashBackend(KernelBackend):
    """Kernels with flash attention, which never writes attention scores to memory (Dao 2023)."""

    name: ClassVar[BackendName] = "flash"
    loss_block_rows: ClassVar[int] = 2**10
    logits_column_multiple: ClassVar[int] = 64
    seqlen_multiple: ClassVar[int] = _SEQLEN_MULTIPLE

    def attention(
        self, qkv: Tensor, layout: SequenceLayout, num_heads: int, dropout: DropoutLike | None
    ) -> Tensor | None:
        """Compute flash attention; return None for an unsupported shape, dtype, or direction."""
        hidden_size, direction = qkv.shape[1] // 3, layout.attention_direction
        if not len(qkv) or not supports_attention(qkv.dtype, hidden_size, num_heads, direction):
            return None
        return flash_attention(
            qkv,
            layout.cu_seqlens.int(),
            round_up_seqlen(layout.max_seqlen),
            num_heads,
            direction == "before",
            None if dropout is None else dropout_p(dropout),
        )


def flash_attention(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, num_heads: int, causal: bool, dropout_p: float | None
) -> Tensor:
    """Compute attention by PyTorch's flash attention kernel, [N, 3H] → [N, H].

    Dropout uses the device's default generator: the kernel accepts no other.

    Args:
        qkv: Queries, keys, and values of all tokens, [N, 3H].
        cu_seqlens: Cumulative sequence lengths, int32 [B + 1], from 0 to N.
        max_seqlen: An upper bound of the sequence lengths.
        num_heads: The number of heads.
        causal: True if a token attends only to itself and to earlier tokens.
        dropout_p: The dropout probability of attention weights; None without dropout.
    """
    q, k, v = qkv.view(len(qkv), 3, num_heads, -1).unbind(1)
    out: Tensor = torch.ops.aten._flash_attention_forward(
        *(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen),
        *(0.0 if dropout_p is None else dropout_p, causal, False),
    )[0]
    return out.flatten(1)


def supports_attention(dtype: torch.dtype, hidden_size: int, num_heads: int, direction: str) -> bool:
    """Return True if flash attention supports this dtype, head size, and attention direction."""
    head_size = hidden_size // num_heads
    return (
        dtype in SUPPORTED_DTYPES
        and head_size <= _MAX_HEAD_SIZE
        and head_size % _HEAD_SIZE_MULTIPLE == 0
        and direction != "behind"
    )


def dropout_p(dropout: DropoutLike) -> float | None:
    """Return the dropout probability; None if dropout is inactive."""
    return dropout.p if dropout.is_active else None


def round_up_seqlen(length: int) -> int:
    """Return the length rounded up to a multiple of `FlashBackend.seqlen_multiple`, at least that."""
    return max(1, -(-length // _SEQLEN_MULTIPLE)) * _SEQLEN_MULTIPLE
