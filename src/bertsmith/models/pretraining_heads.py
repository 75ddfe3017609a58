"""Heads that are pre-trained: pooler, masked LM with a fused cross-entropy, sentence pair, replaced tokens.

The logits of the masked LM head are the largest tensor of a training step. In training they are stored once and
overwritten by their gradients.

Shapes: N tokens in a packed batch, M of them selected, B sequences, H hidden size, E embedding size, V vocabulary
size, v vocabulary entries in a chunk.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bertsmith.kernels.linear import MatmulBackend
from bertsmith.kernels.reference import REFERENCE, KernelBackend, compute_dtype
from bertsmith.kernels.vocabulary_loss import OnlineSoftmaxState, VocabLossInputs
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Embedding
from bertsmith.models.family import get_family
from bertsmith.models.layers import ACTIVATIONS, Dropout, Linear
from bertsmith.models.matmul import linear, matmul, matmul_backend
from bertsmith.models.weight_init import init_weights

_CHUNK_SIZE = 4096  # vocabulary entries per chunk
# Rows are padded to a multiple of this, for which the libraries' matrix products are up to 1.5 times as fast.
_ROW_MULTIPLE = 16
_NO_LABEL = -1  # of padding rows


class Pooler(nn.Module):
    """tanh(Linear) on each sequence's first hidden state: [B, H] → [B, H]."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = Linear(config.hidden_size, config.hidden_size)
        init_weights(self, config.initializer_range, generator)

    def forward(self, first_states: Tensor) -> Tensor:
        """Pool the states of the first tokens, [B, H] (`hidden[packed.first_token_rows]`)."""
        return torch.tanh(self.linear(first_states))


class MaskedLMHead(nn.Module):
    """The masked LM head: LayerNorm(activation(Linear)) from H to E, then the decoder with a bias.

    In families without the transform (`HeadStructure.lm_transform`) the head is the decoder alone; in some the
    decoder has no bias (`lm_bias`).
    A tied decoder's weights are the token embeddings, which each call gets as an argument, so that only the
    encoder owns the parameter. A head that is not tied has its own decoder.
    """

    kernels: KernelBackend = REFERENCE

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        structure = get_family(config.model_type).heads
        self._size = structure.decoder_size(config) if structure.decoder_size else config.embedding_dim
        self._has_transform = structure.lm_transform
        if self._has_transform:
            self.transform = Linear(config.hidden_size, self._size)
            self.activation = ACTIVATIONS[structure.masked_act or config.hidden_act]
            self.norm = nn.LayerNorm(self._size, config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if structure.lm_bias else None
        self.tied = config.tie_word_embeddings
        self.decoder = None if self.tied else Embedding(config.vocab_size, self._size)
        init_weights(self, config.initializer_range, generator)

    def forward(self, hidden_rows: Tensor, embedding: Tensor) -> Tensor:
        """Compute the logits [M, V] of selected tokens' states [M, H] with token embeddings [V, E]."""
        inputs, weight = self.decoder_inputs(hidden_rows), self.decoder_weight(embedding)
        return linear(inputs, weight, self.bias, self.kernels)

    def loss(self, hidden_rows: Tensor, embedding: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of cross-entropies, fp32, and the number of correct predictions; labels are long [M].

        The sum equals `F.cross_entropy(head(hidden_rows, embedding), labels, reduction="sum")`, but needs only one
        buffer [M, V].
        """
        inputs, weight = self.decoder_inputs(hidden_rows), self.decoder_weight(embedding)
        bias = weight.new_zeros(len(weight)) if self.bias is None else self.bias
        return fused_cross_entropy(inputs, weight, bias, labels, self.kernels)

    def decoder_inputs(self, hidden_rows: Tensor) -> Tensor:
        """Compute the input of the decoder, LayerNorm(activation(Linear)) or the states alone: [M, H] → [M, E]."""
        if not self._has_transform:
            return hidden_rows[:, : self._size]
        return self.kernels.layer_norm(self.activation(self.transform(hidden_rows)), self.norm)

    def decoder_weight(self, embedding: Tensor) -> Tensor:
        """Return the decoder's weights, [V, E]: the given token embeddings if tied, or else its own."""
        return embedding if self.decoder is None else self.decoder.weight


class SentencePairHead(nn.Module):
    """The sentence-pair head on pooled states: [B, H] → [B, 2].

    For next sentence prediction label 0 means that segment B follows A, as in BERT's release, unless the training
    data uses 1 (`is_next_label`). For sentence order prediction 0 means in order.
    """

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        has_dropout = get_family(config.model_type).heads.pair_dropout
        self.dropout = Dropout(config.head_dropout if has_dropout else 0.0, generator)
        self.linear = Linear(config.hidden_size, 2)
        init_weights(self, config.initializer_range, generator)

    def forward(self, pooled: Tensor) -> Tensor:
        """Compute logits [B, 2] of pooled states [B, H]."""
        return self.linear(self.dropout(pooled))  # type: ignore[no-any-return]


class ReplacedTokenHead(nn.Module):
    """The replaced-token detection head (Clark et al. 2020): Linear, activation, Linear, [N, H] → logits [N]."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.linear = Linear(config.hidden_size, 1)
        init_weights(self, config.initializer_range, generator)

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute logits [N] of tokens [N, H]; above 0 the token was probably replaced."""
        return self.linear(self.activation(self.dense(hidden)))[:, 0]  # type: ignore[no-any-return]


def fused_cross_entropy(
    x: Tensor, embedding: Tensor, bias: Tensor, labels: Tensor, kernels: KernelBackend
) -> tuple[Tensor, Tensor]:
    """Return the sum of cross-entropies, fp32, and the number of correct predictions.

    Args:
        x: Inputs of the decoder, [M, E].
        embedding: Output embeddings, [V, E].
        bias: Output bias, [V].
        labels: Long [M].
        kernels: The kernels to use. Matrix products are in autocast's dtype.
    """
    dtype = compute_dtype(x)
    if len(labels) and embedding.dtype in (dtype, torch.float32) and kernels.prefers_chunked_loss(x):
        backend, needs_grad = matmul_backend(x, kernels), torch.is_grad_enabled()
        return _ChunkedLogits.apply(x.to(dtype), embedding, bias, labels, kernels, backend, needs_grad)  # type: ignore[no-any-return, no-untyped-call]
    return _FullLogits.apply(x, embedding, bias, labels, kernels, dtype)  # type: ignore[no-any-return, no-untyped-call]


class _FullLogits(torch.autograd.Function):
    """Compute all logits [M, V] at once; softmax - one-hot, their gradient, overwrites them.

    If the kernels need a multiple of some number of columns, the vocabulary is padded with entries of bias -inf.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        table: Tensor,
        bias: Tensor,
        labels: Tensor,
        kernels: KernelBackend,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        x_cast, table_cast = x.to(dtype), table.to(dtype)
        if padding := -len(table) % kernels.logits_column_multiple:
            table_cast = F.pad(table_cast, (0, 0, 0, padding))
            bias = F.pad(bias, (0, padding), value=-torch.inf)
        logits = matmul(x_cast, table_cast)
        loss, num_correct, bias_grad = kernels.fused_cross_entropy(logits, bias, labels)
        ctx.save_for_backward(logits, x_cast, table_cast, bias_grad)
        ctx.dtypes, ctx.vocab_size = (x.dtype, table.dtype, bias.dtype), len(table)
        ctx.mark_non_differentiable(num_correct)
        return loss, num_correct

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        logits_grad, x, table, bias_grad = ctx.saved_tensors
        x_dtype, table_dtype, bias_dtype = ctx.dtypes
        return (
            matmul(logits_grad, table.T).to(x_dtype) * grad,
            matmul(logits_grad.T, (x * grad).to(x.dtype).T)[: ctx.vocab_size].to(table_dtype),
            bias_grad[: ctx.vocab_size].to(bias_dtype) * grad,
            None,
            None,
            None,
        )


class _ChunkedLogits(torch.autograd.Function):
    """Compute the logits of a few thousand vocabulary entries at a time, [v, M].

    Chunks are transposed, since matrix products are fast if the result has a multiple of 16 columns: tokens are
    padded to one, which the size of a vocabulary seldom is. A chunk is still in the cache when its softmax
    statistics are computed and, in the backward pass, when it is multiplied. All tensors are on the CPU. Second
    derivatives and a second backward pass raise an error.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        table: Tensor,
        bias: Tensor,
        labels: Tensor,
        kernels: KernelBackend,
        backend: MatmulBackend,
        needs_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        count, padding = len(labels), -len(labels) % _ROW_MULTIPLE
        x, labels = F.pad(x, (0, 0, 0, padding)), F.pad(labels, (0, padding), value=_NO_LABEL)
        inputs = VocabLossInputs(x, table, bias, labels)
        max_logits = torch.full(labels.shape, -torch.inf)
        state = OnlineSoftmaxState(max_logits, torch.zeros_like(max_logits), torch.zeros_like(max_logits))
        logits: list[Tensor] = []
        for start, end in vocabulary_chunks(len(table)):
            chunk_logits = backend.matmul(table[start:end], x.T)
            kernels.update_online_softmax(inputs.chunk(start, end, chunk_logits), state)
            if needs_grad:
                logits.append(chunk_logits)
        max_logits, sums, label_logits = state
        ctx.save_for_backward(x, table, bias, labels, max_logits, sums, *logits)
        ctx.count, ctx.kernels, ctx.backend = count, kernels, backend
        num_correct = (label_logits == max_logits)[:count].sum()
        ctx.mark_non_differentiable(num_correct)
        return (sums.log() + (max_logits - label_logits))[:count].sum(), num_correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        x, table, bias, labels, max_logits, sums, *logits = ctx.saved_tensors
        scale = grad / sums
        scale[ctx.count :] = 0  # padding rows have no gradient
        table_grad = torch.empty_like(table) if ctx.needs_input_grad[1] else None
        inputs = VocabLossInputs(x, table, bias, labels)
        x_grad, bias_grads = torch.zeros(x.shape), []
        for (start, end), chunk_logits in zip(vocabulary_chunks(len(table)), logits, strict=True):
            chunk = inputs.chunk(start, end, chunk_logits)
            bias_grads.append(ctx.kernels.chunk_backward(chunk, max_logits, scale, grad))
            x_grad += ctx.backend.matmul(chunk_logits.T, table[start:end])
            if table_grad is not None:
                ctx.backend.matmul(chunk_logits, x, out=table_grad[start:end])
        # The logits are overwritten, so a second backward pass must fail.
        torch.autograd.graph.increment_version(logits)
        return x_grad[: ctx.count], table_grad, torch.cat(bias_grads), None, None, None, None


def vocabulary_chunks(size: int) -> list[tuple[int, int]]:
    """Return the start and end of each chunk of a vocabulary; chunks have nearly equal sizes."""
    count = -(-size // _CHUNK_SIZE)
    return [(size * i // count, size * (i + 1) // count) for i in range(count)]
