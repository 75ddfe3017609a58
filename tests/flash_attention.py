"""Flash attention as torch's kernel for a GPU has it, written for the processor: what a GPU computes can be tested
without one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

KINDS = [torch.bfloat16, torch.float16]


class _Sequence:
    """One sequence's heads, in fp32: its weights, and what dropout multiplies them by, both [A, t, t]."""

    def __init__(
        self,
        sides: Sequence[Tensor],
        start: int,
        end: int,
        share: float,
        causal: bool,
        draws: torch.Generator,
    ) -> None:
        self.q, self.k, self.v = (side[start:end].float().transpose(0, 1) for side in sides)
        self.scale = self.q.shape[-1] ** -0.5
        scores = self.q @ self.k.transpose(1, 2) * self.scale
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores[0], dtype=torch.bool).triu(1), -torch.inf)
        self.weights = scores.softmax(-1)
        self.dropped = (torch.rand(scores.shape, generator=draws) >= share) / (1 - share)

    def mixed(self) -> Tensor:
        """[t, A, d]."""
        return (self.weights * self.dropped @ self.v).transpose(0, 1)

    def slopes(self, grad: Tensor) -> list[Tensor]:
        """Of q, k and v, [t, A, d] each."""
        grad = grad.float().transpose(0, 1)
        of_weights = grad @ self.v.transpose(1, 2) * self.dropped
        of_scores = (
            self.weights * (of_weights - (of_weights * self.weights).sum(-1, keepdim=True)) * self.scale
        )
        found = (
            of_scores @ self.k,
            of_scores.transpose(1, 2) @ self.q,
            (self.weights * self.dropped).transpose(1, 2) @ grad,
        )
        return [slope.transpose(0, 1) for slope in found]


def _sequences(
    sides: Sequence[Tensor], starts: Tensor, share: float, causal: bool, seed: Tensor
) -> list[_Sequence]:
    draws = torch.Generator().manual_seed(int(seed[0]))
    return [_Sequence(sides, start, end, share, causal, draws) for start, end in pairwise(starts.tolist())]


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
    **more: Any,
) -> tuple[Tensor, ...]:
    assert query.dtype in KINDS
    assert cum_seq_q.dtype == torch.int32
    assert cum_seq_q.equal(cum_seq_k)
    assert int(cum_seq_q[-1]) == len(query)
    assert int(cum_seq_q.diff().max()) <= max_q == max_k
    seed = torch.randint(2**31, (2,)) if dropout_p else torch.zeros(2, dtype=torch.long)
    every = _sequences((query, key, value), cum_seq_q, dropout_p, is_causal, seed)
    found = torch.cat([one.mixed() for one in every])
    seen = query.new_zeros(query.shape[1], len(query), dtype=torch.float32)
    empty = torch.zeros((), dtype=torch.uint64)
    return found.to(query.dtype), seen, seed.to(torch.uint64), empty, query.new_zeros(0)


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
    **more: Any,
) -> tuple[Tensor, ...]:
    every = _sequences((query, key, value), cum_seq_q, dropout_p, is_causal, rng_state)
    parts = grad_out.split(cum_seq_q.diff().tolist())
    slopes = zip(*(one.slopes(grad) for one, grad in zip(every, parts, strict=True)), strict=True)
    return tuple(torch.cat(side).to(query.dtype) for side in slopes)


def registered() -> torch.library.Library:
    """Keep what this gives for as long as the processor is to have flash attention."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_forward", _forward, "CPU")
    library.impl("_flash_attention_backward", _backward, "CPU")
    return library
