"""Cross-entropy over a vocabulary as a Triton kernel that replaces the logits by their gradients.

A row is read once for its maximum and its sum, and again, while it is in the cache, for its gradients.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK_ROWS, _BLOCK_COLUMNS, _NUM_WARPS = 1, 2048, 4


def cross_entropy(logits: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the cross-entropies, fp32, and the number of rows whose label has the highest logit.

    Args:
        logits: [M, V] without their bias; they become their gradients, in place.
        bias: [V].
        labels: Long [M]; rows with a negative label are ignored and get zero gradients.
    """
    num_rows, vocab_size = logits.shape
    losses = logits.new_empty(num_rows, dtype=torch.float32)
    is_correct = logits.new_empty(num_rows, dtype=torch.int32)
    with torch.cuda.device_of(logits):
        _cross_entropy_kernel[(-(-num_rows // _BLOCK_ROWS),)](
            *(logits, bias, labels, losses, is_correct, num_rows, vocab_size, _BLOCK_ROWS, _BLOCK_COLUMNS),
            num_warps=_NUM_WARPS,
        )
    return losses.sum(), is_correct.sum()


@triton.jit(do_not_specialize=["num_rows"])
def _cross_entropy_kernel(
    logits,
    bias,
    labels,
    losses,
    is_correct,
    num_rows,
    VOCAB_SIZE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    mask = rows < num_rows
    label = tl.load(labels + rows, mask=mask, other=-1).to(tl.int32)
    has_label = label >= 0
    logits += rows.to(tl.int64)[:, None] * VOCAB_SIZE
    # This read precedes all reductions: after one, threads that are done with it may overwrite the row.
    label_logit = tl.load(logits + label[:, None], mask=has_label[:, None], other=0.0).to(tl.float32)
    label_score = tl.sum(label_logit, 1) + tl.load(bias + label, mask=has_label, other=0.0)
    block = tl.arange(0, BLOCK_COLUMNS)[None, :]
    max_score = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    sum_exp = tl.zeros([BLOCK_ROWS], tl.float32)
    for start in range(0, VOCAB_SIZE, BLOCK_COLUMNS):
        columns = start + block
        x = tl.load(logits + columns, mask=(columns < VOCAB_SIZE) & has_label[:, None], other=0.0).to(
            tl.float32
        )
        x += tl.load(bias + columns, mask=columns < VOCAB_SIZE, other=float("-inf"))
        new_max = tl.maximum(max_score, tl.max(x, 1))
        sum_exp = sum_exp * tl.exp(max_score - new_max) + tl.sum(tl.exp(x - new_max[:, None]), 1)
        max_score = new_max
    tl.store(losses + rows, tl.where(has_label, tl.log(sum_exp) + (max_score - label_score), 0.0), mask=mask)
    tl.store(is_correct + rows, (has_label & (label_score == max_score)).to(tl.int32), mask=mask)
    scale = tl.where(has_label, 1.0 / sum_exp, 0.0)
    for start in range(0, VOCAB_SIZE, BLOCK_COLUMNS):
        columns = start + block
        x = tl.load(logits + columns, mask=(columns < VOCAB_SIZE) & has_label[:, None], other=0.0).to(
            tl.float32
        )
        x += tl.load(bias + columns, mask=columns < VOCAB_SIZE, other=float("-inf"))
        grads = tl.exp(x - max_score[:, None]) * scale[:, None] - (columns == label[:, None]).to(tl.float32)
        tl.store(
            logits + columns, grads.to(logits.dtype.element_ty), mask=(columns < VOCAB_SIZE) & mask[:, None]
        )
