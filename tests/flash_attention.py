"""A CPU version of PyTorch's flash attention kernel for GPUs, to test its callers without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

DTYPES = [torch.bfloat16, torch.float16]


class _Sequence:
    """The heads of one sequence in fp32: attention weights and dropout factors, both [A, t, t]."""

    def __init__(
        self,
        qkv: Sequence[Tensor],
        start: int,
        end: int,
        dropout_p: float,
        causal: bool,
        generator: torch.Generator,
    ) -> None:
        self.q, self.k, self.v = (x[start:end].float().transpose(0, 1) for x in qkv)
        self.scale = self.q.shape[-1] ** -0.5
        scores = self.q @ self.k.transpose(1, 2) * self.scale
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores[0], dtype=torch.bool).triu(1), -torch.inf)
        self.weights = scores.softmax(-1)
        self.dropout = (torch.rand(scores.shape, generator=generator) >= dropout_p) / (1 - dropout_p)

    def output(self) -> Tensor:
        """Return the weighted values, [t, A, d]."""
        return (self.weights * self.dropout @ self.v).transpose(0, 1)

    def grads(self, grad: Tensor) -> list[Tensor]:
        """Return the gradients of q, k, and v, [t, A, d] each."""
        grad = grad.float().transpose(0, 1)
        weight_grad = grad @ self.v.transpose(1, 2) * self.dropout
        score_grad = (
            self.weights * (weight_grad - (weight_grad * self.weights).sum(-1, keepdim=True)) * self.scale
        )
        grads = (
            score_grad @ self.k,
            score_grad.transpose(1, 2) @ self.q,
            (self.weights * self.dropout).transpose(1, 2) @ grad,
        )
        return [x.transpose(0, 1) for x in grads]


def _sequences(
    qkv: Sequence[Tensor], cu_seqlens: Tensor, dropout_p: float, causal: bool, seed: Tensor
) -> list[_Sequence]:
    generator = torch.Generator().manual_seed(int(seed[0]))
    return [
        _Sequence(qkv, start, end, dropout_p, causal, generator)
        for start, end in pairwise(cu_seqlens.tolist())
    ]


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    **options: Any,
) -> tuple[Tensor, ...]:
    assert query.dtype in DTYPES
    assert cum_seq_q.dtype == torch.int32
    assert cum_seq_q.equal(cum_seq_k)
    assert int(cum_seq_q[-1]) == len(query)
    assert int(cum_seq_q.diff().max()) <= max_q == max_k
    seed = torch.randint(2**31, (2,)) if dropout_p else torch.zeros(2, dtype=torch.long)
    sequences = _sequences((query, key, value), cum_seq_q, dropout_p, is_causal, seed)
    output = torch.cat([sequence.output() for sequence in sequences])
    logsumexp = query.new_zeros(query.shape[1], len(query), dtype=torch.float32)
    empty = torch.zeros((), dtype=torch.uint64)
    return output.to(query.dtype), logsumexp, seed.to(torch.uint64), empty, query.new_zeros(0)


def _backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Tensor,
    unused: Tensor,
    **options: Any,
) -> tuple[Tensor, ...]:
    sequences = _sequences((query, key, value), cum_seq_q, dropout_p, is_causal, rng_state)
    parts = grad_out.split(cum_seq_q.diff().tolist())
    grads = zip(*(sequence.grads(grad) for sequence, grad in zip(sequences, parts, strict=True)), strict=True)
    return tuple(torch.cat(x).to(query.dtype) for x in grads)


def register() -> torch.library.Library:
    """Register flash attention for the CPU for as long as the returned library exists."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_forward", _forward, "CPU")
    library.impl("_flash_attention_backward", _backward, "CPU")
    return library
