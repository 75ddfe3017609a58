"""What stands between products on a GPU, by programs of our own that Triton compiles: a layer as a whole, the
embeddings' LayerNorm, and the loss over a vocabulary. In bf16; in fp32 the plain way computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bertsmith.kernels.gpu import torch_flash_attention
from bertsmith.kernels.gpu.activation import SUPPORTED_ACTIVATIONS
from bertsmith.kernels.gpu.attention import MAX_HEAD_SIZE, MAX_SEQUENCES, AttentionConfig, attention
from bertsmith.kernels.gpu.column_sums import column_sums, grouped_column_sums
from bertsmith.kernels.gpu.encoder_layer import LayerConfig, encoder_layer
from bertsmith.kernels.gpu.layer_norm import (
    MAX_TABLES,
    EmbeddingLookup,
    LayerNormParams,
    SeededDropout,
    dropped_norm_backward,
    embed_layer_norm,
)
from bertsmith.kernels.gpu.loss import cross_entropy
from bertsmith.kernels.reference import (
    BackendName,
    DropoutLike,
    EncoderLayerModules,
    SequenceLayout,
    compute_dtype,
)

_FEW = 4  # rows of a table


class TritonBackend(torch_flash_attention.FlashBackend):
    """Wider heads than `MOST_COLUMNS` are flash attention's, and their layers torch's."""

    name: ClassVar[BackendName] = "triton"
    ignores_negative_labels: ClassVar[bool] = True

    def attention(
        self, qkv: Tensor, layout: SequenceLayout, num_heads: int, dropout: DropoutLike | None
    ) -> Tensor | None:
        if not len(qkv) or not _takes(qkv.dtype, qkv.shape[1] // 3, num_heads, layout):
            return super().attention(qkv, layout, num_heads, dropout)
        drops = () if dropout is None else (dropout,)
        share = None if dropout is None else torch_flash_attention.dropout_p(dropout)
        return attention(qkv, _asked(layout, num_heads, share, _seeds(1, qkv.device, *drops)[0]))

    def embed(
        self,
        x: Tensor,
        embeddings: Sequence[tuple[nn.Embedding, Tensor]],
        norm: nn.Module,
        dropout: DropoutLike,
        dtype: torch.dtype,
    ) -> Tensor | None:
        if compute_dtype(x) not in torch_flash_attention.SUPPORTED_DTYPES or not len(x) or not _is_norm(norm):
            return None
        x, embeddings = x.float(), list(embeddings)
        while len(embeddings) > MAX_TABLES:
            table, rows = embeddings.pop()
            x = x + F.embedding(rows, table.weight, table.padding_idx)
        paddings = [table.padding_idx for table, _ in embeddings]
        drawn = SeededDropout(torch_flash_attention.dropout_p(dropout), _seeds(1, x.device, dropout)[0])
        found: Tensor = _DroppedNorm.apply(  # type: ignore[no-untyped-call]
            *(x.contiguous(), norm.weight, norm.bias, norm.eps, drawn),
            *(dtype, [rows for _, rows in embeddings], paddings, *(table.weight for table, _ in embeddings)),
        )
        return found

    def encoder_layer(
        self, x: Tensor, layout: SequenceLayout, modules: EncoderLayerModules, rows: Tensor | None = None
    ) -> Tensor | None:
        kind = compute_dtype(x)
        if not len(x) or not _takes(kind, x.shape[1], modules.num_heads, layout) or not _is_usual(modules):
            return None
        shares = (
            torch_flash_attention.dropout_p(modules.attention_dropout),
            torch_flash_attention.dropout_p(modules.dropout),
        )
        seeds = _seeds(3, x.device, modules.dropout, modules.attention_dropout)
        parts: Sequence[Any] = modules.parametrized  # which `_is_usual` knows
        shape = LayerConfig(
            _asked(layout, modules.num_heads, shares[0], seeds[2]),
            (SeededDropout(shares[1], seeds[0]), SeededDropout(shares[1], seeds[1])),
            modules.activation,
            (parts[2].eps, parts[5].eps),
            kind,
        )
        return encoder_layer(x, shape, rows, [one for part in parts for one in (part.weight, part.bias)])

    def fused_cross_entropy(
        self, logits: Tensor, bias: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        if not len(labels) or logits.dtype not in torch_flash_attention.SUPPORTED_DTYPES:
            return super().fused_cross_entropy(logits, bias, labels)
        loss, right = cross_entropy(logits, bias, labels)
        return loss, right, column_sums(logits)


class _DroppedNorm(torch.autograd.Function):
    """dropout(LN(x + rows of tables)), [N, E]; paddings: of each table the row that has no slopes, if any."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        epsilon: float,
        drawn: SeededDropout,
        kind: torch.dtype,
        rows: list[Tensor],
        paddings: list[int | None],
        *tables: Tensor,
    ) -> Tensor:
        looked = [EmbeddingLookup(*one) for one in zip(tables, rows, strict=True)]
        made = embed_layer_norm(x, looked, LayerNormParams(weight, bias, epsilon), drawn, kind)
        ctx.save_for_backward(x, weight, bias, made.row_stats, *tables)
        ctx.numbers = epsilon, drawn, rows, paddings
        return made.out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, of_rows, *tables = ctx.saved_tensors
        epsilon, drawn, rows, paddings = ctx.numbers
        looked = [EmbeddingLookup(*one) for one in zip(tables, rows, strict=True)]
        made = dropped_norm_backward(grad, x, looked, LayerNormParams(weight, bias, epsilon), drawn, of_rows)
        of_tables = (
            _of_table(made.sum_grad, one, padding) if needed else None
            for one, padding, needed in zip(looked, paddings, ctx.needs_input_grad[8:], strict=True)
        )
        of_weight, of_bias, _ = made.weights.to(weight.dtype)
        return made.sum_grad, of_weight, of_bias, *(None,) * 5, *of_tables


def _of_table(slopes: Tensor, looked: EmbeddingLookup, padding: int | None) -> Tensor:
    """Slopes of a table, from those of what was looked up, fp32 [N, E]: of few rows without sorting the tokens."""
    count = len(looked.table)
    if count > _FEW:
        found: Tensor = torch.ops.aten.embedding_dense_backward(
            slopes, looked.indices, count, -1 if padding is None else padding, False
        )
    else:
        found = grouped_column_sums(slopes, looked.indices, count)
        if padding is not None:
            found[padding] = 0
    return found.to(looked.table.dtype)


def _takes(kind: torch.dtype, width: int, heads: int, bounds: SequenceLayout) -> bool:
    is_small = width // heads <= MAX_HEAD_SIZE and len(bounds.cu_seqlens) - 1 <= MAX_SEQUENCES
    return is_small and torch_flash_attention.supports(kind, width, heads, bounds.attention_direction)


def _is_usual(of: EncoderLayerModules) -> bool:
    """Whether a layer's parts are weights in the form in which they are read here."""
    return (
        all(isinstance(part, nn.Linear) and part.bias is not None for part in of.linears)
        and all(_is_norm(norm) for norm in of.norms)
        and of.activation in SUPPORTED_ACTIVATIONS
    )


def _is_norm(norm: nn.Module) -> bool:
    return type(norm) is nn.LayerNorm and norm.weight is not None and norm.bias is not None


def _asked(bounds: SequenceLayout, heads: int, share: float | None, seeds: Tensor) -> AttentionConfig:
    longest = torch_flash_attention.round_up(bounds.max_seqlen)
    return AttentionConfig(
        bounds.cu_seqlens, longest, heads, bounds.attention_direction == "before", share, seeds
    )


def _seeds(count: int, device: torch.device, *dropouts: DropoutLike) -> Tensor:
    """What so many dropouts make their masks of, int32 [count, 4], drawn from the generator that they share. The
    first two are read: with four each begins where Triton needs no other program for it."""
    seeds = torch.empty(count, 4, dtype=torch.int32, device=device)
    for dropout in dropouts:
        if dropout.is_active:
            return seeds.random_(-(2**31), 2**31, generator=dropout.generator)
    return seeds
