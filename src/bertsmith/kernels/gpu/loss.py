"""Cross-entropy over a vocabulary, its slopes where the logits were, as a program that Triton compiles for a GPU.

A row is read once for its highest logit and its sum, and once more, while the cache has it, for its slopes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS, _WORDS, _WARPS = 1, 2048, 4  # of a program; that it reads at a time; that compute it


def cross_entropy(logits: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Of logits [M, V], which become their slopes, with bias [V] and labels long [M]: the sum of the losses, fp32,
    and how many are right at the top. A row whose label is below 0 counts for nothing, and has no slopes."""
    rows, words = logits.shape
    losses = logits.new_empty(rows, dtype=torch.float32)
    right = logits.new_empty(rows, dtype=torch.int32)
    with torch.cuda.device_of(logits):
        _cross_entropy[(-(-rows // _ROWS),)](
            *(logits, bias, labels, losses, right, rows, words, _ROWS, _WORDS), num_warps=_WARPS
        )
    return losses.sum(), right.sum()


@triton.jit(do_not_specialize=["rows"])
def _cross_entropy(
    logits, bias, labels, losses, right, rows, words: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr
):
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = at < rows
    label = tl.load(labels + at, mask=inside, other=-1).to(tl.int32)
    counts = label >= 0
    logits += at.to(tl.int64)[:, None] * words
    # before any sum: who is done with that may write to the row
    of_label = tl.load(logits + label[:, None], mask=counts[:, None], other=0.0).to(tl.float32)
    gold = tl.sum(of_label, 1) + tl.load(bias + label, mask=counts, other=0.0)
    steps = tl.arange(0, WORDS)[None, :]
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for first in range(0, words, WORDS):
        word = first + steps
        x = tl.load(logits + word, mask=(word < words) & counts[:, None], other=0.0).to(tl.float32)
        x += tl.load(bias + word, mask=word < words, other=float("-inf"))
        higher = tl.maximum(top, tl.max(x, 1))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher[:, None]), 1)
        top = higher
    tl.store(losses + at, tl.where(counts, tl.log(total) + (top - gold), 0.0), mask=inside)
    tl.store(right + at, (counts & (gold == top)).to(tl.int32), mask=inside)
    share = tl.where(counts, 1.0 / total, 0.0)
    for first in range(0, words, WORDS):
        word = first + steps
        x = tl.load(logits + word, mask=(word < words) & counts[:, None], other=0.0).to(tl.float32)
        x += tl.load(bias + word, mask=word < words, other=float("-inf"))
        slopes = tl.exp(x - top[:, None]) * share[:, None] - (word == label[:, None]).to(tl.float32)
        tl.store(logits + word, slopes.to(logits.dtype.element_ty), mask=(word < words) & inside[:, None])
