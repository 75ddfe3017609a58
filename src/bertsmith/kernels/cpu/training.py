"""The compiled kernels as modules ask for them, and where torch computes in their place.

Dropout draws one seed a call from its generator and decides by a hash of the seed and an element's number, on both
ways: no mask is kept. Where dropout is off, so is the hash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.kernels.cpu import amx, attention_fp32, fused_adamw, layer_functions, row_kernels
from bertsmith.kernels.cpu.autograd import (
    AddLayerNorm,
    Attention,
    Embed,
    EncoderLayer,
    FeedForward,
    Gelu,
    apply,
)
from bertsmith.kernels.cpu.compilation import float_bits, has_avx512_bf16, launch
from bertsmith.kernels.cpu.encoder_layer import LayerConfig, layer_weights
from bertsmith.kernels.cpu.layer_functions import AttentionConfig, DropoutSeeds, is_bf16
from bertsmith.kernels.cpu.matmul import (
    as_row_or_column_major,
    has_gemm,
    matmul,
    matmul_transposed_left,
    supports_layer,
    supports_matmul,
)
from bertsmith.kernels.reference import (
    AdamWStep,
    AdamWTensors,
    AttentionFn,
    DropoutLike,
    DropoutState,
    EncoderLayerModules,
    KernelBackend,
    SequenceLayout,
    VocabChunk,
    compute_dtype,
)

SUPPORTED_DTYPES = (torch.float32, torch.bfloat16)
_TABLES = 2  # whose rows are added to a token's vector

ATTENTION_BF16: Any = (
    import_module("bertsmith.kernels.cpu.attention_bf16")
    if amx.is_amx_available() or has_avx512_bf16()
    else None
)
"""The bodies of attention in bf16 where the processor multiplies bf16 itself."""


class NumbaTrainingBackend(KernelBackend):
    """By compiled loops, where something is trained on a processor in fp32 or bf16; else as torch has it."""

    name = "numba"
    sparse_embedding_updates = True
    # Tokens of a batch's longest sequence. With fewer than the first a whole update is as quick, or quicker, where
    # attention multiplies in fp32 what is in bf16. With more than the second, where the processor does not
    # multiply bf16 itself, the library's products in bf16 are quicker than those.
    min_seqlen_bf16_attention: ClassVar[int] = 64
    max_seqlen_fp32_attention: ClassVar[float] = 128

    def _serves(self, x: Tensor) -> bool:
        """Whether x is computed by kernels: something is trained, and its kind is known."""
        return torch.is_grad_enabled() and is_supported(x) and x.numel() > 0

    def activation(self, x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
        """activation(x); GELU's by a kernel."""
        if activation is not F.gelu or not self._serves(x):
            return super().activation(x, activation)
        return apply(Gelu, x)

    def feed_forward(
        self, x: Tensor, inner: nn.Linear, output: nn.Linear, activation: Callable[[Tensor], Tensor]
    ) -> Tensor | None:
        """With products of ours GELU is made there and back while the inner rows are in the cache."""
        if not isinstance(inner, nn.Linear) or inner.bias is None or output.bias is None:
            return None
        of = inner.weight, inner.bias, output.weight, output.bias
        if activation is not F.gelu or not self.has_fast_matmul(x):
            return None
        x = x.to(compute_dtype(x))
        return apply(FeedForward, x, *of) if supports_layer(x, *of) else None

    def add_layer_norm(self, residual: Tensor, x: Tensor, dropout: DropoutLike, norm: nn.Module) -> Tensor:
        """norm(residual + dropout(x)), in the dtype of x, computed in fp32."""
        if (
            not isinstance(norm, nn.LayerNorm)
            or norm.weight is None
            or norm.bias is None
            or not self._serves(x)
        ):
            return super().add_layer_norm(residual, x, dropout, norm)
        return apply(
            AddLayerNorm,
            residual.to(x.dtype),
            x,
            norm.weight,
            norm.bias,
            norm.eps,
            draw_dropout_seeds(dropout),
        )

    def has_fast_matmul(self, x: Tensor) -> bool:
        """On processors on which the libraries are slow."""
        return self._serves(x) and has_gemm(compute_dtype(x))

    def matmul(self, x: Tensor, y: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """By one body where the rows of x lie in memory as they are, by another where its columns do. In bf16 the
        latter's products are in fp32."""
        if not supports_matmul(x, y, bias):
            if torch.bfloat16 not in (x.dtype, y.dtype):
                return super().matmul(x, y, bias, out)
            bias = None if bias is None else bias.to(torch.bfloat16)
            made = super().matmul(x.to(torch.bfloat16), y.to(torch.bfloat16), bias)
            return made if out is None else out.copy_(made)
        x = as_row_or_column_major(x)
        is_half = torch.bfloat16 in (x.dtype, y.dtype) and x.stride(1) == 1
        kind = torch.bfloat16 if is_half else torch.float32
        made = x.new_empty(len(x), y.shape[1], dtype=kind) if out is None or out.stride(1) != 1 else out
        if x.stride(1) == 1:
            matmul(x, y, bias, made)
        else:
            matmul_transposed_left(x.T, y, made)
            if bias is not None:
                made += bias
        return made if out is None or made is out else out.copy_(made)

    def linear_weight_grads(self, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Those of the bias are added up on the way."""
        grad = grad if grad.stride(1) == 1 and grad.stride(0) else grad.contiguous()
        return (
            layer_functions.linear_weight_grads(x, grad, launch)
            if supports_matmul(grad.T, x)
            else super().linear_weight_grads(x, grad)
        )

    def embed(
        self,
        x: Tensor,
        tables: Sequence[tuple[nn.Embedding, Tensor]],
        norm: nn.Module,
        dropout: DropoutLike,
        kind: torch.dtype,
    ) -> Tensor | None:
        """By one kernel, of at most two tables."""
        if not self._serves(x) or kind not in SUPPORTED_DTYPES or not 0 < len(tables) <= _TABLES:
            return None
        if not isinstance(norm, nn.LayerNorm) or norm.weight is None or norm.bias is None:
            return None
        weights = [table.weight for table, _ in tables]
        if not all(map(_is_whole, (x, *weights))) or not all(_has_rows(*each) for each in tables):
            return None
        places = [places.contiguous() for _, places in tables]
        for _ in range(len(tables), _TABLES):
            weights.append(x.new_zeros(1, x.shape[1]))
            places.append(torch.zeros_like(places[0]))
        own = norm.weight, norm.bias, tuple(places), norm.eps, draw_dropout_seeds(dropout), kind
        return apply(Embed, x, *weights, *own)

    def encoder_layer(
        self, x: Tensor, bounds: SequenceLayout, of: EncoderLayerModules, rows: Tensor | None = None
    ) -> Tensor | None:
        """Where all of it is trained and its products are ours, by one program there and one back: in between,
        what Python needs falls out of the processor's caches."""
        learns, weights, x = x.requires_grad, layer_weights(of), x.to(compute_dtype(x))
        if of.activation is not F.gelu or weights is None or not learns or not self.has_fast_matmul(x):
            return None
        few = x if rows is None else x[: len(rows)]
        if not weights.have_kernels(few) or not all(weight.requires_grad for weight in weights):
            return None
        over = self._over(x.dtype, x.shape[1] // of.num_heads, of.num_heads, bounds)
        return (
            None
            if over is None
            else apply(EncoderLayer, x, layer_config(of, over.with_queries(rows)), *weights)
        )

    def attention(
        self, qkv: Tensor, bounds: SequenceLayout, heads: int, dropout: DropoutLike | None
    ) -> Tensor | None:
        """By one kernel there and one back, in which no score is kept; in bf16 by the processor's products of it,
        or only of sequences so short that the library's are no quicker than those in fp32."""
        if not self._serves(qkv):
            return None
        over = self._over(qkv.dtype, qkv.shape[1] // 3 // heads, heads, bounds)
        return (
            None
            if over is None
            else apply(Attention, over._replace(dropout_seeds=draw_dropout_seeds(dropout)), qkv)
        )

    def attention_of_queries(
        self, x: Tensor, rows: Tensor, bounds: SequenceLayout, heads: int, dropout: DropoutLike | None
    ) -> AttentionFn | None:
        """By the same kernels."""
        if not self._serves(x):
            return None
        over = self._over(compute_dtype(x), x.shape[1] // heads, heads, bounds)
        if over is None:
            return None
        return partial(
            apply, Attention, over.with_queries(rows)._replace(dropout_seeds=draw_dropout_seeds(dropout))
        )

    def _over(
        self, kind: torch.dtype, width: int, heads: int, bounds: SequenceLayout
    ) -> AttentionConfig | None:
        """How kernels compute attention of this kind in heads of this width; None where buckets are the better
        way."""
        if width % attention_fp32.HEAD_SIZE_MULTIPLE:
            return None
        starts, sees, longest, tokens = bounds
        bf16 = kind == torch.bfloat16
        in_half = (
            ATTENTION_BF16
            and bf16
            and width % ATTENTION_BF16.HEAD_SIZE_MULTIPLE == 0
            and longest >= self.min_seqlen_bf16_attention
        )
        if not longest or (bf16 and not in_half and longest > self.max_seqlen_fp32_attention):
            return None
        return AttentionConfig(
            *(starts, longest, tokens, heads),
            *(
                attention_fp32.DIRECTIONS[sees],
                draw_dropout_seeds(None),
                ATTENTION_BF16 if in_half else attention_fp32,
                starts,
            ),
        )

    def attention_softmax(
        self, scores: Tensor, bias: Tensor | None, dropout: DropoutLike | None
    ) -> tuple[Tensor, Tensor, DropoutState]:
        """One pass makes softmax and dropout."""
        if not is_supported(scores) or scores.shape[-1] == 0:
            return super().attention_softmax(scores, bias, dropout)
        scores, drawn = scores.contiguous(), draw_dropout_seeds(dropout)
        weights = torch.empty_like(scores)
        after = torch.empty_like(scores) if drawn[2] else weights
        _, heads, rows, columns = scores.shape
        by_sequence = by_row = 0
        added: Tensor | int = 0
        if bias is not None:
            bias = added = bias.contiguous()
            by_row = columns if bias.shape[2] > 1 else 0
            by_sequence = bias[0].numel() if len(bias) > 1 else 0
        launch(
            row_kernels.attention_softmax,
            *(is_bf16(scores), scores, weights, after),
            *(scores.numel() // columns, columns),
            *(added, heads * rows, by_sequence, by_row, *drawn),
        )
        return after, weights, drawn

    def softmax_backward(self, weights: Tensor, drawn: DropoutState, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """One pass makes the weights after dropout again, and the slopes of the scores in place of theirs."""
        if not isinstance(drawn, tuple):
            return super().softmax_backward(weights, drawn, slopes)
        slopes = slopes.contiguous()
        after = torch.empty_like(weights) if drawn[2] else weights
        columns = weights.shape[-1]
        launch(
            row_kernels.softmax_backward,
            *(is_bf16(weights), slopes, weights, after),
            *(weights.numel() // columns, columns, 0, 1, 0, 0, *drawn),
        )
        return after, slopes

    def fused_cross_entropy(
        self, logits: Tensor, bias: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rows by rows; the threads share them out."""
        if not is_supported(logits) or not logits.numel():
            return super().fused_cross_entropy(logits, bias, labels)
        rows, columns = logits.shape
        losses, right = torch.empty(rows), torch.empty(rows, dtype=torch.int64)
        sums = torch.zeros(torch.get_num_threads(), columns)
        launch(
            row_kernels.fused_cross_entropy,
            *(is_bf16(logits), logits, rows, columns, bias, labels),
            *(losses, right, sums),
        )
        return losses.sum(), right.sum(), sums.sum(0)

    def prefers_chunked_loss(self, x: Tensor) -> bool:
        """In fp32: MKL makes a product at half its speed where the number of columns is no multiple of 8, as with
        30,522 words. In bf16 where products are ours, which read the table as it is."""
        return x.is_cpu and (compute_dtype(x) == torch.float32 or self.has_fast_matmul(x))

    def update_online_softmax(self, part: VocabChunk, top: Tensor, total: Tensor, gold: Tensor) -> None:
        """Columns by columns; the threads share them out."""
        if not _has_parts((*part[:3], top, total, gold)):
            super().update_online_softmax(part, top, total, gold)
            return
        bf16 = is_bf16(part.logits)
        launch(
            row_kernels.update_online_softmax,
            *part.logits.shape,
            part.start,
            *part[:3],
            top,
            total,
            gold,
            0,
            bf16,
        )

    def chunk_backward(self, part: VocabChunk, top: Tensor, share: Tensor, slope: Tensor) -> Tensor:
        """Rows by rows; the threads share them out."""
        if not _has_parts((*part[:3], top, share)):
            return super().chunk_backward(part, top, share, slope)
        of_bias = torch.empty(len(part.logits))
        launch(
            row_kernels.chunk_backward,
            *part.logits.shape,
            part.start,
            *part[:3],
            *(top, share, float_bits(slope.item()), of_bias, is_bf16(part.logits)),
        )
        return of_bias

    def has_fused_adamw(self, gradient: Tensor) -> bool:
        """Where it lies in memory as a whole; not one that is cut over several processes."""
        return type(gradient) is Tensor and _is_whole(gradient)

    def grad_norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Squares are added up in parts, the same for any number of threads."""
        if not gradients or not all(map(self.has_fused_adamw, gradients)):
            return super().grad_norm(gradients)
        rows, count = _rows_of([[gradient] for gradient in gradients])
        sums = torch.empty(count)
        launch(fused_adamw.squared_norms, rows, len(rows), sums)
        return sums.sum(dtype=torch.float64).sqrt().float()

    def adamw_step(self, moved: Sequence[AdamWTensors], step: AdamWStep, factor: float) -> None:
        """In one pass over all of them."""
        if not all(_is_whole(tensor) for tensors in moved for tensor in tensors):
            super().adamw_step(moved, step, factor)
            return
        rows, _ = _rows_of([(own.grad, own.param, own.exp_avg, own.exp_avg_sq) for own in moved])
        launch(
            fused_adamw.adamw_kernel,
            rows,
            *(len(rows), *_numbers_of(step), float_bits(factor)),
        )

    def sparse_adamw(
        self, table: Tensor, mean: Tensor, square: Tensor, where: Tensor, gradients: Tensor, step: AdamWStep
    ) -> None:
        """Rows that have never had a gradient are left alone, or decay; most of a vocabulary are such rows."""
        kept = (table, mean, square)
        if table.dtype != torch.float32 or not all(x.is_cpu and x.is_contiguous() for x in kept):
            super().sparse_adamw(table, mean, square, where, gradients, step)
            return
        gradients = gradients.contiguous()
        launch(
            fused_adamw.sparse_adamw_kernel,
            *(*kept, where, gradients),
            *(*table.shape, len(gradients), *_numbers_of(step)),
        )


def layer_config(of: EncoderLayerModules, over: AttentionConfig) -> LayerConfig:
    """How this call of a layer computes: draws what is dropped."""
    over = over._replace(dropout_seeds=draw_dropout_seeds(of.attention_dropout))
    first, last = (cast(nn.LayerNorm, norm).eps for norm in of.norms)
    return LayerConfig(over, (draw_dropout_seeds(of.dropout), draw_dropout_seeds(of.dropout)), (first, last))


def _rows_of(tensors: Sequence[Sequence[Tensor]]) -> tuple[Tensor, int]:
    """What the bodies over many tensors read, int64 [n, ROW], of tensors that are of one size in each row; and of
    how many parts all rows are together."""
    rows, first = [], 0
    for own in tensors:
        size = own[0].numel()
        rows.append(
            [
                first,
                size,
                *(tensor.data_ptr() for tensor in own),
                *[0] * (fused_adamw.TABLE_FIELDS - 2 - len(own)),
            ]
        )
        first += -(-size // fused_adamw.CHUNK_SIZE)
    return torch.from_numpy(np.array(rows, np.int64)), first


def _numbers_of(step: AdamWStep) -> list[int]:
    """As the bodies read them."""
    return [float_bits(number) for number in (*step.betas, *(1 - beta for beta in step.betas), *step[1:])]


def _is_whole(x: Tensor) -> bool:
    return x.layout == torch.strided and x.is_cpu and x.dtype == torch.float32 and x.is_contiguous()


def is_supported(x: Tensor) -> bool:
    return x.is_cpu and x.dtype in SUPPORTED_DTYPES


def _has_parts(known: tuple[Tensor, ...]) -> bool:
    """Whether there are bodies for a part of a vocabulary; known: its logits first."""
    return known[0].shape[1] % row_kernels.COLUMN_MULTIPLE == 0 and all(x.is_contiguous() for x in known)


def _has_rows(table: nn.Embedding, places: Tensor) -> bool:
    """Whether the table has all these rows, and all of them learn alike."""
    least, most = torch.aminmax(places)
    learns = table.padding_idx is None or table.padding_idx < int(least)
    return learns and 0 <= int(least) <= int(most) < table.num_embeddings


def draw_dropout_seeds(dropout: DropoutLike | None) -> DropoutSeeds:
    """What this call of it decides by."""
    if dropout is None or not dropout.is_active:
        return 0, 0, 0, float_bits(1.0)
    seeds = torch.empty(2, dtype=torch.int64)
    low, high = seeds.random_(0, 2**32, generator=dropout.generator).tolist()
    dropped = min(round(dropout.p * 2**16), 2**16 - 1)
    return low, high, dropped, float_bits(2**16 / (2**16 - dropped))
