"""The backend of compiled kernels for training on a CPU; PyTorch computes what they do not support.

Dropout draws one seed per call from its generator. Forward and backward pass decide by a hash of the seed and an
element's index, so no mask is stored. Without dropout nothing is hashed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.kernels.cpu import amx, attention_fp32, autograd, fused_adamw, matmul, row_kernels
from bertsmith.kernels.cpu.attention_common import DIRECTIONS
from bertsmith.kernels.cpu.compilation import has_avx512_bf16
from bertsmith.kernels.cpu.encoder_layer import layer_config, layer_weights
from bertsmith.kernels.cpu.launcher import float_bits, is_bf16, launch
from bertsmith.kernels.cpu.layer_functions import (
    AttentionConfig,
    draw_dropout_seeds,
    linear_weight_grads,
    num_row_parts,
    sum_over_parts,
)
from bertsmith.kernels.reference import (
    AdamWStep,
    AdamWTensors,
    AttentionFn,
    DropoutLike,
    DropoutState,
    EncoderLayerModules,
    KernelBackend,
    Lookups,
    SequenceLayout,
    compute_dtype,
)
from bertsmith.kernels.vocabulary_loss import OnlineSoftmaxState, VocabChunk

SUPPORTED_DTYPES = (torch.float32, torch.bfloat16)
_MAX_EMBEDDINGS = 2  # embeddings that the kernel adds to a token's vector

ATTENTION_BF16: Any = (
    import_module("bertsmith.kernels.cpu.attention_bf16")
    if amx.is_amx_available() or has_avx512_bf16()
    else None
)
"""The attention kernels in bf16, if the processor has bf16 products."""


class NumbaTrainingBackend(KernelBackend):
    """Compiled kernels for training on a CPU in fp32 or bf16."""

    name = "numba"
    sparse_embedding_updates = True
    # Below this length an update is as fast or faster if attention multiplies bf16 inputs in fp32.
    min_seqlen_bf16_attention: ClassVar[int] = 64
    # Above this length, on processors without bf16 products, the library's bf16 products in buckets are faster.
    max_seqlen_fp32_attention: ClassVar[float] = 128

    def _supports(self, x: Tensor) -> bool:
        """Return True if kernels compute x: gradients are needed, and the dtype is supported."""
        return torch.is_grad_enabled() and is_supported(x) and x.numel() > 0

    def activation(self, x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
        """Compute activation(x), GELU by a kernel."""
        if activation is not F.gelu or not self._supports(x):
            return super().activation(x, activation)
        return autograd.apply(autograd.GeluFunction, x)

    def feed_forward(
        self, x: Tensor, inner: nn.Linear, output: nn.Linear, activation: Callable[[Tensor], Tensor]
    ) -> Tensor | None:
        """Fuse GELU and its gradient into the products, while the inner rows are in the cache."""
        if not isinstance(inner, nn.Linear) or inner.bias is None or output.bias is None:
            return None
        weights = inner.weight, inner.bias, output.weight, output.bias
        if activation is not F.gelu or not self.has_fast_matmul(x):
            return None
        x = x.to(compute_dtype(x))
        if not matmul.supports_layer(x, *weights):
            return None
        return autograd.apply(autograd.FeedForwardFunction, x, *weights)

    def layer_norm(
        self, x: Tensor, norm: nn.Module, residual: Tensor | None = None, dropout: DropoutLike | None = None
    ) -> Tensor:
        """Compute it in fp32; the result has the dtype of x.

        In PyTorch the gradients of the weights depend on the number of threads.
        """
        if not has_layer_norm_params(norm) or not self._supports(x):
            return super().layer_norm(x, norm, residual, dropout)
        residual = torch.zeros_like(x) if residual is None else residual.to(x.dtype)
        seeds = draw_dropout_seeds(dropout)
        return autograd.apply(
            autograd.AddLayerNormFunction, residual, x, norm.weight, norm.bias, norm.eps, seeds
        )

    def has_fast_matmul(self, x: Tensor) -> bool:
        """Return True on processors on which the libraries are slow."""
        return self._supports(x) and matmul.has_gemm(compute_dtype(x))

    def matmul(self, x: Tensor, y: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Multiply by one kernel if x is row-major and by another if it is column-major.

        The second one returns fp32 even for bf16 inputs.
        """
        is_bf16_product = torch.bfloat16 in (x.dtype, y.dtype)
        if not matmul.supports_matmul(x, y, bias):
            if not is_bf16_product:
                return super().matmul(x, y, bias, out)
            bias = None if bias is None else bias.to(torch.bfloat16)
            product = super().matmul(x.to(torch.bfloat16), y.to(torch.bfloat16), bias)
            return product if out is None else out.copy_(product)
        x = matmul.as_row_or_column_major(x)
        is_row_major = x.stride(1) == 1
        dtype = torch.bfloat16 if is_bf16_product and is_row_major else torch.float32
        product = x.new_empty(len(x), y.shape[1], dtype=dtype) if out is None or out.stride(1) != 1 else out
        if is_row_major:
            matmul.matmul(x, y, bias, product)
        else:
            matmul.matmul_transposed_left(x.T, y, product)
            if bias is not None:
                product += bias
        return product if out is None or product is out else out.copy_(product)

    def linear_weight_grads(self, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Compute both gradients in one pass over `grad`."""
        grad = grad if grad.stride(1) == 1 and grad.stride(0) else grad.contiguous()
        if not matmul.supports_matmul(grad.T, x):
            return super().linear_weight_grads(x, grad)
        return linear_weight_grads(x, grad, launch)

    def embed(
        self, x: Tensor, embeddings: Lookups, norm: nn.Module, dropout: DropoutLike, dtype: torch.dtype
    ) -> Tensor | None:
        """Compute the sum, LayerNorm, and dropout by one kernel, for at most two embeddings."""
        if not self._supports(x) or dtype not in SUPPORTED_DTYPES or not has_layer_norm_params(norm):
            return None
        if not 0 < len(embeddings) <= _MAX_EMBEDDINGS:
            return None
        weights = [embedding.weight for embedding, _ in embeddings]
        if not all(map(_is_contiguous_fp32, (x, *weights))):
            return None
        if not all(_are_valid(*pair) for pair in embeddings):
            return None
        indices = [index.contiguous() for _, index in embeddings]
        for _ in range(len(embeddings), _MAX_EMBEDDINGS):
            weights.append(x.new_zeros(1, x.shape[1]))
            indices.append(torch.zeros_like(indices[0]))
        arguments = norm.weight, norm.bias, tuple(indices), norm.eps, draw_dropout_seeds(dropout), dtype
        return autograd.apply(autograd.EmbedFunction, x, *weights, *arguments)

    def encoder_layer(
        self, x: Tensor, layout: SequenceLayout, modules: EncoderLayerModules, rows: Tensor | None = None
    ) -> Tensor | None:
        """Run forward and backward pass as one sequence of kernels each, if all weights are trained.

        Between separate launches Python's own data would evict the tensors from the processor's caches.
        """
        requires_grad, weights, x = x.requires_grad, layer_weights(modules), x.to(compute_dtype(x))
        if modules.activation is not F.gelu or weights is None or not requires_grad:
            return None
        if not self.has_fast_matmul(x) or not all(weight.requires_grad for weight in weights):
            return None
        if not weights.have_kernels(x if rows is None else x[: len(rows)]):
            return None
        head_size = x.shape[1] // modules.num_heads
        attention = self._attention_config(x.dtype, head_size, modules.num_heads, layout)
        if attention is None:
            return None
        config = layer_config(modules, attention.with_queries(rows))
        return autograd.apply(autograd.EncoderLayerFunction, x, config, *weights)

    def attention(
        self, qkv: Tensor, layout: SequenceLayout, num_heads: int, dropout: DropoutLike | None
    ) -> Tensor | None:
        """Compute attention without storing the scores (flash attention, Dao et al. 2022).

        In bf16 this needs bf16 products of the processor, or sequences so short that fp32 products are as fast as
        the library's.
        """
        if not self._supports(qkv):
            return None
        config = self._attention_config(qkv.dtype, qkv.shape[1] // 3 // num_heads, num_heads, layout)
        if config is None:
            return None
        config = config._replace(dropout_seeds=draw_dropout_seeds(dropout))
        return autograd.apply(autograd.AttentionFunction, config, qkv)

    def attention_of_queries(
        self, x: Tensor, rows: Tensor, layout: SequenceLayout, num_heads: int, dropout: DropoutLike | None
    ) -> AttentionFn | None:
        """Return the same kernels for some queries."""
        if not self._supports(x):
            return None
        config = self._attention_config(compute_dtype(x), x.shape[1] // num_heads, num_heads, layout)
        if config is None:
            return None
        config = config.with_queries(rows)._replace(dropout_seeds=draw_dropout_seeds(dropout))
        return partial(autograd.apply, autograd.AttentionFunction, config)

    def _attention_config(
        self, dtype: torch.dtype, head_size: int, num_heads: int, layout: SequenceLayout
    ) -> AttentionConfig | None:
        """Return how kernels compute attention, without dropout; None if buckets are faster."""
        if head_size % attention_fp32.HEAD_SIZE_MULTIPLE:
            return None
        cu_seqlens, direction, max_seqlen, num_tokens = layout
        uses_bf16_kernels = (
            ATTENTION_BF16
            and dtype == torch.bfloat16
            and head_size % ATTENTION_BF16.HEAD_SIZE_MULTIPLE == 0
            and max_seqlen >= self.min_seqlen_bf16_attention
        )
        prefers_library = dtype == torch.bfloat16 and max_seqlen > self.max_seqlen_fp32_attention
        if not max_seqlen or (prefers_library and not uses_bf16_kernels):
            return None
        return AttentionConfig(
            cu_seqlens=cu_seqlens,
            max_seqlen=max_seqlen,
            num_tokens=num_tokens,
            num_heads=num_heads,
            direction=DIRECTIONS[direction],
            dropout_seeds=draw_dropout_seeds(None),
            kernels=ATTENTION_BF16 if uses_bf16_kernels else attention_fp32,
            query_cu_seqlens=cu_seqlens,
        )

    def attention_softmax(
        self, scores: Tensor, bias: Tensor | None, dropout: DropoutLike | None
    ) -> tuple[Tensor, Tensor, DropoutState]:
        """Compute softmax and dropout in one pass."""
        if not is_supported(scores) or scores.shape[-1] == 0:
            return super().attention_softmax(scores, bias, dropout)
        scores, seeds = scores.contiguous(), draw_dropout_seeds(dropout)
        weights = torch.empty_like(scores)
        dropped = torch.empty_like(scores) if seeds[2] else weights
        _, heads, num_rows, num_columns = scores.shape
        sequence_stride = row_stride = 0
        if bias is not None:
            bias = bias.contiguous()
            row_stride = num_columns if bias.shape[2] > 1 else 0
            sequence_stride = bias[0].numel() if len(bias) > 1 else 0
        launch(
            row_kernels.attention_softmax,
            *(is_bf16(scores), scores, weights, dropped),
            *(scores.numel() // num_columns, num_columns),
            *(0 if bias is None else bias, heads * num_rows, sequence_stride, row_stride, *seeds),
        )
        return dropped, weights, seeds

    def softmax_backward(
        self, weights: Tensor, dropout_state: DropoutState, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute both results in one pass; the gradient is overwritten."""
        if not isinstance(dropout_state, tuple):
            return super().softmax_backward(weights, dropout_state, grad)
        grad = grad.contiguous()
        dropped = torch.empty_like(weights) if dropout_state[2] else weights
        num_columns = weights.shape[-1]
        launch(
            row_kernels.softmax_backward,
            *(is_bf16(weights), grad, weights, dropped),
            *(weights.numel() // num_columns, num_columns, 0, 1, 0, 0, *dropout_state),
        )
        return dropped, grad

    def fused_cross_entropy(
        self, logits: Tensor, bias: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the loss row by row; each thread takes a range of rows."""
        if not is_supported(logits) or not logits.numel():
            return super().fused_cross_entropy(logits, bias, labels)
        num_rows, num_columns = logits.shape
        losses, is_correct = torch.empty(num_rows), torch.empty(num_rows, dtype=torch.int64)
        bias_grads = torch.zeros(num_row_parts(num_rows), num_columns)
        launch(
            row_kernels.fused_cross_entropy,
            *(is_bf16(logits), logits, num_rows, num_columns, bias, labels),
            *(losses, is_correct, bias_grads, len(bias_grads)),
        )
        return losses.sum(), is_correct.sum(), sum_over_parts(bias_grads, launch)

    def prefers_chunked_loss(self, x: Tensor) -> bool:
        """Return True in fp32, and in bf16 if products are computed by kernels, which read the weights in fp32.

        In fp32 MKL has half its speed if the number of columns is no multiple of 8, as with 30,522 words.
        """
        return x.is_cpu and (compute_dtype(x) == torch.float32 or self.has_fast_matmul(x))

    def update_online_softmax(self, chunk: VocabChunk, state: OnlineSoftmaxState) -> None:
        """Update the statistics; each thread takes a range of tokens."""
        tensors = chunk.logits, chunk.bias, chunk.labels
        if not _has_chunk_kernels(*tensors, *state):
            super().update_online_softmax(chunk, state)
            return
        launch(
            row_kernels.update_online_softmax,
            *(*chunk.logits.shape, chunk.start, *tensors, *state, 0, is_bf16(chunk.logits)),
        )

    def chunk_backward(
        self, chunk: VocabChunk, max_logits: Tensor, scale: Tensor, loss_grad: Tensor
    ) -> Tensor:
        """Compute the gradients; each thread takes a range of vocabulary entries."""
        tensors = chunk.logits, chunk.bias, chunk.labels
        if not _has_chunk_kernels(*tensors, max_logits, scale):
            return super().chunk_backward(chunk, max_logits, scale, loss_grad)
        bias_grad = torch.empty(len(chunk.logits))
        launch(
            row_kernels.chunk_backward,
            *(*chunk.logits.shape, chunk.start, *tensors),
            *(max_logits, scale, float_bits(loss_grad.item()), bias_grad, is_bf16(chunk.logits)),
        )
        return bias_grad

    def has_fused_adamw(self, grad: Tensor) -> bool:
        """Return True for a contiguous fp32 tensor that is not sharded over processes."""
        return type(grad) is Tensor and _is_contiguous_fp32(grad)

    def grad_norm(self, grads: Sequence[Tensor]) -> Tensor:
        """Add up squares in chunks that are the same for any number of threads."""
        if not grads or not all(map(self.has_fused_adamw, grads)):
            return super().grad_norm(grads)
        fields, num_chunks = fused_adamw.tensor_fields([[grad] for grad in grads])
        sums = torch.empty(num_chunks)
        launch(fused_adamw.squared_norms, fields, len(fields), sums)
        return sums.sum(dtype=torch.float64).sqrt().float()

    def adamw_step(self, tensors: Sequence[AdamWTensors], step: AdamWStep, grad_scale: float) -> None:
        """Update all parameters in one launch."""
        if not all(_is_contiguous_fp32(tensor) for group in tensors for tensor in group):
            super().adamw_step(tensors, step, grad_scale)
            return
        fields, _ = fused_adamw.tensor_fields([(group.grad, group.param, *group[2:]) for group in tensors])
        step_args = fused_adamw.step_args(step)
        launch(fused_adamw.adamw_kernel, fields, len(fields), *step_args, float_bits(grad_scale))

    def sparse_adamw(
        self,
        weight: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
        grad_index: Tensor,
        grads: Tensor,
        step: AdamWStep,
    ) -> None:
        """Skip or only decay rows that have never had a gradient: most of a vocabulary."""
        tensors = (weight, exp_avg, exp_avg_sq)
        if weight.dtype != torch.float32 or not all(x.is_cpu and x.is_contiguous() for x in tensors):
            super().sparse_adamw(weight, exp_avg, exp_avg_sq, grad_index, grads, step)
            return
        grads = grads.contiguous()
        launch(
            fused_adamw.sparse_adamw_kernel,
            *(*tensors, grad_index, grads),
            *(*weight.shape, len(grads), *fused_adamw.step_args(step)),
        )


def is_supported(x: Tensor) -> bool:
    """Return True for CPU tensors in fp32 or bf16."""
    return x.is_cpu and x.dtype in SUPPORTED_DTYPES


def has_layer_norm_params(norm: nn.Module) -> TypeGuard[nn.LayerNorm]:
    """Return True for a LayerNorm with weight and bias."""
    return isinstance(norm, nn.LayerNorm) and norm.weight is not None and norm.bias is not None


def _is_contiguous_fp32(x: Tensor) -> bool:
    return x.layout == torch.strided and x.is_cpu and x.dtype == torch.float32 and x.is_contiguous()


def _has_chunk_kernels(logits: Tensor, *others: Tensor) -> bool:
    is_multiple = logits.shape[1] % row_kernels.COLUMN_MULTIPLE == 0
    return is_multiple and all(x.is_contiguous() for x in (logits, *others))


def _are_valid(embedding: nn.Embedding, index: Tensor) -> bool:
    """Return True if all indices are in range and none is that of the padding, which has no gradient."""
    lowest, highest = torch.aminmax(index)
    has_grads = embedding.padding_idx is None or embedding.padding_idx < int(lowest)
    return has_grads and 0 <= int(lowest) <= int(highest) < embedding.num_embeddings
