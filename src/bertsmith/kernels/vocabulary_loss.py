"""The loss over the vocabulary by PyTorch, over all logits at once or chunk by chunk."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor


class VocabChunk(NamedTuple):
    """Logits of M tokens for a chunk of the vocabulary.

    Attributes:
        logits: Without the bias, [v, M].
        bias: [v].
        labels: Index of each token's label in the whole vocabulary, long [M].
        start: Index of the chunk's first entry in the vocabulary.
    """

    logits: Tensor
    bias: Tensor
    labels: Tensor
    start: int

    def label_positions(self) -> tuple[Tensor, Tensor]:
        """Return the tokens whose labels are in the chunk, and the rows of these labels in it."""
        is_inside = (self.labels >= self.start) & (self.labels < self.start + len(self.logits))
        (tokens,) = is_inside.nonzero(as_tuple=True)
        return tokens, self.labels[tokens] - self.start


class VocabLossInputs(NamedTuple):
    """Inputs of a loss over the vocabulary.

    Attributes:
        hidden: Hidden states of M tokens, [M, E].
        embedding: Output embeddings, [V, E].
        bias: [V].
        labels: Long [M].
    """

    hidden: Tensor
    embedding: Tensor
    bias: Tensor
    labels: Tensor

    def chunk(self, start: int, end: int, logits: Tensor) -> VocabChunk:
        """Return the chunk of entries start to end with their logits [end - start, M]."""
        return VocabChunk(logits, self.bias[start:end], self.labels, start)


class OnlineSoftmaxState(NamedTuple):
    """Softmax statistics of each token over the chunks so far (Milakov and Gimelshein 2018).

    Attributes:
        max: The highest logit, [M].
        sum_exp: The sum of exp(logit - max), [M].
        label_logit: The logit of the label, [M]; 0 until its chunk is reached.
    """

    max: Tensor
    sum_exp: Tensor
    label_logit: Tensor


class VocabularyLossBackend:
    """The summed cross-entropy of tokens, and its gradients.

    Attributes:
        loss_block_rows: Rows of logits that the loss processes at a time: 16 of 30,522 are 2 MB and stay in the
            cache of a core.
    """

    loss_block_rows: ClassVar[int] = 16

    def fused_cross_entropy(
        self, logits: Tensor, bias: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the summed cross-entropy, the number of correct predictions, and the gradient of the bias.

        The logits [M, V], which come without the bias, are overwritten by their gradient, a few rows at a time
        while these are in the cache. The arithmetic is in fp32 even if the logits are bf16. PyTorch's own loss
        makes four buffers of this size.
        """
        dtype = torch.promote_types(logits.dtype, torch.float32)
        loss, num_correct = logits.new_zeros((), dtype=dtype), labels.new_zeros(())
        bias_grad = logits.new_zeros(bias.shape, dtype=dtype)
        blocks = (torch.split(tensor, self.loss_block_rows) for tensor in (logits, labels))
        for block, block_labels in zip(*blocks, strict=True):
            rows = block.to(dtype)  # no copy if the dtype is this one already
            rows += bias
            label_logits = rows.gather(1, block_labels[:, None])[:, 0]
            max_logits = rows.amax(1)
            torch.softmax(rows, 1, out=rows)
            # The most likely token has probability p_max = 1 / sum(exp(logit - max)), which is never 0. So the
            # log-sum-exp of the logits is max - log(p_max).
            loss += (max_logits - rows.amax(1).log() - label_logits).sum()
            num_correct += (label_logits == max_logits).sum()
            rows.scatter_add_(1, block_labels[:, None], rows.new_full((len(block_labels), 1), -1.0))
            bias_grad += rows.sum(0)
            if rows is not block:
                block.copy_(rows)
        return loss, num_correct, bias_grad

    def prefers_chunked_loss(self, x: Tensor) -> bool:
        """Return True if the loss of x [M, E] is faster in chunks of the vocabulary than over all of it."""
        return False

    def update_online_softmax(self, chunk: VocabChunk, state: OnlineSoftmaxState) -> None:
        """Update the softmax statistics in place with the logits of a chunk."""
        logits = chunk.logits + chunk.bias[:, None]
        new_max = torch.maximum(state.max, logits.amax(0))
        state.sum_exp.mul_((state.max - new_max).exp_()).add_((logits - new_max).exp_().sum(0))
        state.max.copy_(new_max)
        tokens, rows = chunk.label_positions()
        state.label_logit[tokens] = logits[rows, tokens]

    def chunk_backward(
        self, chunk: VocabChunk, max_logits: Tensor, scale: Tensor, loss_grad: Tensor
    ) -> Tensor:
        """Overwrite the logits of a chunk by their gradient; return the gradient of its bias, [v].

        Args:
            chunk: The logits.
            max_logits: The highest logit of each token in the vocabulary, [M].
            scale: `loss_grad` divided by the sum of exp(logit - max), [M]; 0 for padding.
            loss_grad: Gradient of the loss, [].
        """
        logits_grad = chunk.logits + chunk.bias[:, None]  # in fp32
        logits_grad.sub_(max_logits).exp_().mul_(scale)
        tokens, rows = chunk.label_positions()
        logits_grad[rows, tokens] -= loss_grad
        chunk.logits.copy_(logits_grad)
        return logits_grad.sum(1)
