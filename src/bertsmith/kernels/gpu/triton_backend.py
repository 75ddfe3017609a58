"""Kernel backend of Triton kernels: encoder layers, the embeddings' LayerNorm, and the loss over a vocabulary.

It computes in bf16 (or fp16); in fp32 PyTorch's operations do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bertsmith.kernels.gpu import layer_norm, torch_flash_attention
from bertsmith.kernels.gpu.activation import SUPPORTED_ACTIVATIONS, column_sums, grouped_column_sums
from bertsmith.kernels.gpu.attention import MAX_HEAD_SIZE, MAX_SEQUENCES, TritonAttentionConfig, attention
from bertsmith.kernels.gpu.encoder_layer import TritonLayerConfig, encoder_layer
from bertsmith.kernels.gpu.layer_norm import MAX_LOOKUPS, EmbeddingLookup, NormInputs, SeededDropout
from bertsmith.kernels.gpu.loss import cross_entropy
from bertsmith.kernels.gpu.torch_flash_attention import FlashBackend, dropout_p, round_up_seqlen
from bertsmith.kernels.reference import (
    BackendName,
    DropoutLike,
    EncoderLayerModules,
    LayerNormParams,
    Lookups,
    SequenceLayout,
    compute_dtype,
)

_MAX_GROUPED_ROWS = 4  # The gradients of embeddings with at most this many rows are grouped column sums.


class TritonBackend(FlashBackend):
    """Triton kernels; for heads larger than `MAX_HEAD_SIZE`, flash attention and PyTorch's operations."""

    name: ClassVar[BackendName] = "triton"
    ignores_negative_labels: ClassVar[bool] = True

    def attention(
        self, qkv: Tensor, layout: SequenceLayout, num_heads: int, dropout: DropoutLike | None
    ) -> Tensor | None:
        """Compute attention by Triton, or by flash attention for shapes that Triton does not support."""
        if not len(qkv) or not _supports_attention(qkv.dtype, qkv.shape[1] // 3, num_heads, layout):
            return super().attention(qkv, layout, num_heads, dropout)
        p = None if dropout is None else dropout_p(dropout)
        seeds = _draw_seeds(1, qkv.device, *(() if dropout is None else (dropout,)))
        return attention(qkv, _attention_config(layout, num_heads, p, seeds[0]))

    def embed(
        self, x: Tensor, embeddings: Lookups, norm: nn.Module, dropout: DropoutLike, dtype: torch.dtype
    ) -> Tensor | None:
        """Compute dropout(norm(x + embeddings)) by Triton; return None for an unsupported dtype or norm."""
        is_supported = compute_dtype(x) in torch_flash_attention.SUPPORTED_DTYPES and _is_affine_layer_norm(
            norm
        )
        if not is_supported or not len(x):
            return None
        x, lookups = x.float(), list(embeddings)
        while len(lookups) > MAX_LOOKUPS:
            embedding, indices = lookups.pop()
            x = x + F.embedding(indices, embedding.weight, embedding.padding_idx)
        seeds = _draw_seeds(1, x.device, dropout)
        out: Tensor = _EmbedLayerNorm.apply(  # type: ignore[no-untyped-call]
            *(x.contiguous(), norm.weight, norm.bias, norm.eps, SeededDropout(dropout_p(dropout), seeds[0])),
            *(dtype, [indices for _, indices in lookups]),
            [embedding.padding_idx for embedding, _ in lookups],
            *(embedding.weight for embedding, _ in lookups),
        )
        return out

    def encoder_layer(
        self, x: Tensor, layout: SequenceLayout, modules: EncoderLayerModules, rows: Tensor | None = None
    ) -> Tensor | None:
        """Compute a layer by Triton and matrix products; return None for unsupported modules or shapes."""
        dtype, num_heads = compute_dtype(x), modules.num_heads
        is_supported = _supports_attention(dtype, x.shape[1], num_heads, layout) and _supports_modules(
            modules
        )
        if not is_supported or not len(x):
            return None
        seeds = _draw_seeds(3, x.device, modules.dropout, modules.attention_dropout)
        parametrized: Sequence[Any] = modules.parametrized  # `_supports_modules` checks their types.
        p = dropout_p(modules.dropout)
        config = TritonLayerConfig(
            _attention_config(layout, num_heads, dropout_p(modules.attention_dropout), seeds[2]),
            (SeededDropout(p, seeds[0]), SeededDropout(p, seeds[1])),
            modules.activation,
            (parametrized[2].eps, parametrized[5].eps),
            dtype,
        )
        parameters = [tensor for module in parametrized for tensor in (module.weight, module.bias)]
        return encoder_layer(x, config, rows, parameters)

    def fused_cross_entropy(
        self, logits: Tensor, bias: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the loss, the number of correct predictions, and the gradients; ignore negative labels."""
        if not len(labels) or logits.dtype not in torch_flash_attention.SUPPORTED_DTYPES:
            return super().fused_cross_entropy(logits, bias, labels)
        loss, num_correct = cross_entropy(logits, bias, labels)
        return loss, num_correct, column_sums(logits)


class _EmbedLayerNorm(torch.autograd.Function):
    """dropout(LN(x + looked-up embeddings)), [N, E]."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        dropout: SeededDropout,
        dtype: torch.dtype,
        indices: list[Tensor],
        padding_indices: list[int | None],
        *embeddings: Tensor,
    ) -> Tensor:
        lookups = [EmbeddingLookup(*pair) for pair in zip(embeddings, indices, strict=True)]
        inputs = NormInputs(x, lookups=lookups)
        output = layer_norm.layer_norm_forward(inputs, LayerNormParams(weight, bias, eps), dropout, dtype)
        ctx.save_for_backward(x, weight, bias, output.row_stats, *embeddings)
        ctx.config = eps, dropout, indices, padding_indices
        return output.out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, row_stats, *embeddings = ctx.saved_tensors
        eps, dropout, indices, padding_indices = ctx.config
        lookups = [EmbeddingLookup(*pair) for pair in zip(embeddings, indices, strict=True)]
        norm = LayerNormParams(weight, bias, eps)
        inputs = NormInputs(x, lookups=lookups)
        grads = layer_norm.layer_norm_backward(grad, inputs, norm, dropout, row_stats)
        embedding_grads = (
            _embedding_grad(grads.sum_grad, lookup, padding_idx) if needs_grad else None
            for lookup, padding_idx, needs_grad in zip(
                lookups, padding_indices, ctx.needs_input_grad[8:], strict=True
            )
        )
        weight_grad, bias_grad, _ = grads.param_grads.to(weight.dtype)
        return grads.sum_grad, weight_grad, bias_grad, *(None,) * 5, *embedding_grads


def _embedding_grad(grad: Tensor, lookup: EmbeddingLookup, padding_idx: int | None) -> Tensor:
    """Compute the gradient of an embedding from that of its outputs, fp32 [N, E]; small ones need no sorting."""
    num_embeddings = len(lookup.weight)
    if num_embeddings > _MAX_GROUPED_ROWS:
        embedding_grad: Tensor = torch.ops.aten.embedding_dense_backward(
            grad, lookup.indices, num_embeddings, -1 if padding_idx is None else padding_idx, False
        )
    else:
        embedding_grad = grouped_column_sums(grad, lookup.indices, num_embeddings)
        if padding_idx is not None:
            embedding_grad[padding_idx] = 0
    return embedding_grad.to(lookup.weight.dtype)


def _supports_attention(dtype: torch.dtype, hidden_size: int, num_heads: int, layout: SequenceLayout) -> bool:
    return (
        hidden_size // num_heads <= MAX_HEAD_SIZE
        and len(layout.cu_seqlens) - 1 <= MAX_SEQUENCES
        and torch_flash_attention.supports_attention(
            dtype, hidden_size, num_heads, layout.attention_direction
        )
    )


def _supports_modules(modules: EncoderLayerModules) -> bool:
    return (
        all(isinstance(module, nn.Linear) and module.bias is not None for module in modules.linears)
        and all(_is_affine_layer_norm(norm) for norm in modules.norms)
        and modules.activation in SUPPORTED_ACTIVATIONS
    )


def _is_affine_layer_norm(norm: nn.Module) -> bool:
    return type(norm) is nn.LayerNorm and norm.weight is not None and norm.bias is not None


def _attention_config(
    layout: SequenceLayout, num_heads: int, p: float | None, seeds: Tensor
) -> TritonAttentionConfig:
    max_seqlen, causal = round_up_seqlen(layout.max_seqlen), layout.attention_direction == "before"
    return TritonAttentionConfig(layout.cu_seqlens, max_seqlen, num_heads, causal, p, seeds)


def _draw_seeds(num_masks: int, device: torch.device, *dropouts: DropoutLike) -> Tensor:
    """Draw the seeds of dropout masks, int32 [num_masks, 4], from the dropouts' common generator.

    Kernels read the first two of each row. Rows of four are aligned to 16 bytes, so that Triton does not compile
    another variant. Without active dropout the seeds are not initialized.
    """
    seeds = torch.empty(num_masks, 4, dtype=torch.int32, device=device)
    for dropout in dropouts:
        if dropout.is_active:
            return seeds.random_(-(2**31), 2**31, generator=dropout.generator)
    return seeds
