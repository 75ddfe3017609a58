"""Flash attention over packed sequences on a GPU, by torch."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from bertsmith.kernels.reference import BackendName, DropoutLike, KernelBackend, SequenceLayout

SUPPORTED_DTYPES = (torch.bfloat16, torch.float16)
_WIDEST_HEAD, _STEP = 256, 8  # columns of a head that flash attention takes: a multiple of the step
_LENGTHS = 128  # the longest sequence is told rounded up to a multiple, so that few shapes are met


class FlashBackend(KernelBackend):
    """Flash attention of sequences of any length, whose scores are never written (Dao 2023)."""

    name: ClassVar[BackendName] = "flash"
    loss_block_rows: ClassVar[int] = 2**10
    logits_column_multiple: ClassVar[int] = 64
    seqlen_multiple: ClassVar[int] = _LENGTHS

    def attention(
        self, qkv: Tensor, layout: SequenceLayout, num_heads: int, dropout: DropoutLike | None
    ) -> Tensor | None:
        if not supports(qkv.dtype, qkv.shape[1] // 3, num_heads, layout.attention_direction) or not len(qkv):
            return None
        share = None if dropout is None else dropout_p(dropout)
        return flash_attention(
            qkv,
            layout.cu_seqlens.int(),
            round_up(layout.max_seqlen),
            num_heads,
            layout.attention_direction == "before",
            share,
        )


def flash_attention(
    qkv: Tensor,
    starts: Tensor,
    longest: int,
    heads: int,
    causal: bool,
    dropout: float | None,
) -> Tensor:
    """[N, 3H] → [N, H], by torch's kernel. starts: int32 [B + 1], the last of them N. longest: no sequence is
    longer. Dropout draws from the device's default generator: the kernel takes no other."""
    q, k, v = qkv.view(len(qkv), 3, heads, -1).unbind(1)
    found: Tensor = torch.ops.aten._flash_attention_forward(
        *(q, k, v, starts, starts, longest, longest, 0.0 if dropout is None else dropout, causal, False)
    )[0]
    return found.flatten(1)


def supports(kind: torch.dtype, width: int, heads: int, sees: str) -> bool:
    """Whether flash attention computes this."""
    columns = width // heads
    return kind in SUPPORTED_DTYPES and columns <= _WIDEST_HEAD and columns % _STEP == 0 and sees != "behind"


def dropout_p(dropout: DropoutLike) -> float | None:
    """What is dropped, where anything is."""
    return dropout.p if dropout.is_active else None


def round_up(length: int) -> int:
    """A length that no sequence exceeds, where none exceeds this one."""
    return max(1, -(-length // _LENGTHS)) * _LENGTHS
