"""LayerNorm with the sum and dropout around it, forward and backward, as Triton kernels.

The forward kernel reads each row once. The backward kernel recomputes dropout masks and sums instead of reading
them. It also sums the gradients of weights and biases: a fixed number of programs, as many as fill the GPU, each
sum their rows in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bertsmith.kernels.gpu.activation import num_multiprocessors
from bertsmith.kernels.reference import LayerNormParams

MAX_LOOKUPS = 2  # embeddings that a kernel adds
_BLOCK_ELEMENTS, _NUM_WARPS = 2048, 4
_BACKWARD_PROGRAMS_PER_MULTIPROCESSOR, _BACKWARD_STAGES = 2, 4


class SeededDropout(NamedTuple):
    """Dropout whose masks are computed from seeds.

    16 bits of a hash of the element's index, lowbias32 (Wellons 2018), decide on each element: the GPU's own
    generator takes longer for a number than the memory for the element.

    Attributes:
        p: The dropout probability; None without dropout.
        seeds: int32 [2].
    """

    p: float | None
    seeds: Tensor

    @property
    def threshold(self) -> int:
        """Return the value below which an element's 16 bits drop it."""
        return min(round((self.p or 0.0) * 2**16), 2**16 - 1)


class EmbeddingLookup(NamedTuple):
    """Embedding weights [V, H] and the index of each token, long [N]."""

    weight: Tensor
    indices: Tensor


class LayerNormOutput(NamedTuple):
    """Outputs of LayerNorm [N, H]; and the mean and the reciprocal standard deviation of each row, fp32 [2, N]."""

    out: Tensor
    row_stats: Tensor


class LayerNormGrads(NamedTuple):
    """Gradients of LayerNorm's inputs and parameters.

    Attributes:
        sum_grad: The gradient of the normalized sum, [N, H], in the dtype of x.
        x_grad: The gradient of x before dropout, [N, H]; without dropout it is the same tensor as sum_grad.
        param_grads: fp32 [3, H], of LayerNorm's weight, of its bias, and of the bias that was added to x.
    """

    sum_grad: Tensor
    x_grad: Tensor
    param_grads: Tensor


class NormInputs(NamedTuple):
    """Terms of the sum that is normalized: x + bias + residual + looked-up embeddings.

    Dropout applies to x + bias if there is a residual, and else to the normalized sum.
    """

    x: Tensor
    residual: Tensor | None = None
    bias: Tensor | None = None
    lookups: Sequence[EmbeddingLookup] = ()

    @property
    def is_dropout_last(self) -> bool:
        """Return True if dropout applies to the normalized sum."""
        return self.residual is None

    @property
    def kernel_args(self) -> Sequence[Tensor | None]:
        """Return the kernels' arguments from x to indices1."""
        embeddings = [tensor for lookup in self.lookups for tensor in lookup]
        return self.x, self.residual, self.bias, *embeddings, *[None] * (2 * MAX_LOOKUPS - len(embeddings))


def layer_norm_forward(
    inputs: NormInputs, norm: LayerNormParams, dropout: SeededDropout, dtype: torch.dtype
) -> LayerNormOutput:
    """Compute LN(residual + dropout(x + bias)) or dropout(LN(x + looked-up embeddings)), [N, H].

    Args:
        inputs: A residual and a bias in the dtype of x, or at most `MAX_LOOKUPS` lookups.
        norm: The parameters.
        dropout: The dropout.
        dtype: The dtype of the result.
    """
    x = inputs.x
    num_rows, num_columns, block_columns, block_rows = _sizes(x)
    output = LayerNormOutput(torch.empty_like(x, dtype=dtype), x.new_empty(2, num_rows, dtype=torch.float32))
    with torch.cuda.device_of(x):
        _layer_norm_kernel[(-(-num_rows // block_rows),)](
            *(*inputs.kernel_args, norm.weight, norm.bias, dropout.seeds, *output, num_rows),
            *(norm.eps, dropout.threshold, inputs.is_dropout_last, num_columns, block_columns, block_rows),
            num_warps=_NUM_WARPS,
        )
    return output


def layer_norm_backward(
    grad: Tensor, inputs: NormInputs, norm: LayerNormParams, dropout: SeededDropout, row_stats: Tensor
) -> LayerNormGrads:
    """Compute the gradients from the output's gradient [N, H] and the arguments of `layer_norm_forward`."""
    x, dropout_last = inputs.x, inputs.is_dropout_last
    num_rows, num_columns, block_columns, block_rows = _sizes(x)
    sum_grad = torch.empty_like(x)
    x_grad = torch.empty_like(x) if dropout.threshold and not dropout_last else sum_grad
    # The pipeline's stages are in shared memory, which is too small for wider rows. Triton 3.2 cannot pipeline
    # loops with embedding lookups.
    num_stages = 1 if dropout_last or block_columns > _BLOCK_ELEMENTS else _BACKWARD_STAGES
    max_programs = _BACKWARD_PROGRAMS_PER_MULTIPROCESSOR * num_multiprocessors(x)
    num_programs = max(1, min(-(-num_rows // block_rows), max_programs))
    param_grads = x.new_empty(num_programs, 3, num_columns, dtype=torch.float32)
    with torch.cuda.device_of(x):
        _layer_norm_backward_kernel[(num_programs,)](
            *(grad.contiguous(), *inputs.kernel_args, norm.weight, dropout.seeds, row_stats),
            *(sum_grad, x_grad, param_grads, num_rows),
            *(dropout.threshold, dropout_last, num_columns, block_columns, block_rows, num_stages),
            num_warps=_NUM_WARPS,
        )
    return LayerNormGrads(sum_grad, x_grad, param_grads.sum(0))


def _sizes(x: Tensor) -> tuple[int, int, int, int]:
    """Return the rows and columns of x, the columns of a block, a power of 2, and the rows of a block."""
    num_rows, num_columns = x.shape
    block_columns = triton.next_power_of_2(num_columns)
    return num_rows, num_columns, block_columns, max(1, _BLOCK_ELEMENTS // block_columns)


@triton.jit
def _dropout_mask(rows, columns, seeds, NUM_COLUMNS: tl.constexpr, DROPOUT_THRESHOLD: tl.constexpr):
    index = rows.to(tl.uint32)[:, None] * NUM_COLUMNS + columns.to(tl.uint32)[None, :]
    bits = index ^ tl.load(seeds).to(tl.uint32)
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) ^ tl.load(seeds + 1).to(tl.uint32)
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    return (bits >> 16) >= DROPOUT_THRESHOLD


@triton.jit
def _add_embedding(x, embedding, indices, rows, columns, mask, num_rows, NUM_COLUMNS: tl.constexpr):
    if embedding is not None:
        index = tl.load(indices + rows, mask=rows < num_rows, other=0)
        x += tl.load(embedding + index[:, None] * NUM_COLUMNS + columns[None, :], mask=mask, other=0.0)
    return x


@triton.jit
def _load_sum(
    x, residual, bias, rows, columns, mask, keep, DROPOUT_THRESHOLD: tl.constexpr, NUM_COLUMNS: tl.constexpr
):
    """Compute residual + dropout(x + bias), where the mask `keep` tells which elements dropout keeps."""
    offsets = rows.to(tl.int64)[:, None] * NUM_COLUMNS + columns[None, :]
    total = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
    if bias is not None:
        total += tl.load(bias + columns, mask=columns < NUM_COLUMNS, other=0.0)[None, :]
    if DROPOUT_THRESHOLD:
        total = tl.where(keep, total * (65536 / (65536 - DROPOUT_THRESHOLD)), 0.0)
    if residual is not None:
        total += tl.load(residual + offsets, mask=mask, other=0.0).to(tl.float32)
    return total


@triton.jit(do_not_specialize=["num_rows"])
def _layer_norm_kernel(
    x,
    residual,
    bias,
    embedding0,
    indices0,
    embedding1,
    indices1,
    weight,
    norm_bias,
    seeds,
    out,
    row_stats,
    num_rows,
    EPS: tl.constexpr,
    DROPOUT_THRESHOLD: tl.constexpr,
    DROPOUT_LAST: tl.constexpr,
    NUM_COLUMNS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    sum_threshold: tl.constexpr = 0 if DROPOUT_LAST else DROPOUT_THRESHOLD
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = tl.arange(0, BLOCK_COLUMNS)
    column_mask = columns < NUM_COLUMNS
    mask = (rows[:, None] < num_rows) & column_mask[None, :]
    offsets = rows.to(tl.int64)[:, None] * NUM_COLUMNS + columns[None, :]
    keep_mask = None
    if DROPOUT_THRESHOLD:
        keep_mask = _dropout_mask(rows, columns, seeds, NUM_COLUMNS, DROPOUT_THRESHOLD)
    total = _load_sum(x, residual, bias, rows, columns, mask, keep_mask, sum_threshold, NUM_COLUMNS)
    total = _add_embedding(total, embedding0, indices0, rows, columns, mask, num_rows, NUM_COLUMNS)
    total = _add_embedding(total, embedding1, indices1, rows, columns, mask, num_rows, NUM_COLUMNS)
    mean = tl.sum(tl.where(column_mask[None, :], total, 0.0), 1) / NUM_COLUMNS
    centered = tl.where(column_mask[None, :], total - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(centered * centered, 1) / NUM_COLUMNS + EPS)
    tl.store(row_stats + rows, mean, mask=rows < num_rows)
    tl.store(row_stats + num_rows + rows, rstd, mask=rows < num_rows)
    w = tl.load(weight + columns, mask=column_mask, other=0.0)[None, :]
    b = tl.load(norm_bias + columns, mask=column_mask, other=0.0)[None, :]
    y = centered * rstd[:, None] * w + b
    if DROPOUT_THRESHOLD and DROPOUT_LAST:
        y = tl.where(keep_mask, y * (65536 / (65536 - DROPOUT_THRESHOLD)), 0.0)
    tl.store(out + offsets, y.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _normalization_backward(grad, normalized, rstd, NUM_COLUMNS: tl.constexpr):
    """Compute the gradient of the sum from the gradient of the normalized sum (Ba 2016)."""
    mean_product = tl.sum(grad * normalized, 1) / NUM_COLUMNS
    mean_grad = tl.sum(grad, 1) / NUM_COLUMNS
    return (grad - mean_grad[:, None] - normalized * mean_product[:, None]) * rstd[:, None]


@triton.jit
def _store_param_grads(
    param_grads, weight_grad, norm_bias_grad, bias_grad, columns, NUM_COLUMNS: tl.constexpr
):
    """Sum the gradients of this program's rows."""
    param_grads += tl.program_id(0) * (3 * NUM_COLUMNS) + columns
    tl.store(param_grads, tl.sum(weight_grad, 0), mask=columns < NUM_COLUMNS)
    tl.store(param_grads + NUM_COLUMNS, tl.sum(norm_bias_grad, 0), mask=columns < NUM_COLUMNS)
    tl.store(param_grads + 2 * NUM_COLUMNS, tl.sum(bias_grad, 0), mask=columns < NUM_COLUMNS)


@triton.jit(do_not_specialize=["num_rows"])
def _layer_norm_backward_kernel(
    grad,
    x,
    residual,
    bias,
    embedding0,
    indices0,
    embedding1,
    indices1,
    weight,
    seeds,
    row_stats,
    sum_grad,
    x_grad,
    param_grads,
    num_rows,
    DROPOUT_THRESHOLD: tl.constexpr,
    DROPOUT_LAST: tl.constexpr,
    NUM_COLUMNS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """Compute the gradients; the programs take the row blocks in turn, and each sums its own param_grads."""
    columns = tl.arange(0, BLOCK_COLUMNS)
    column_mask = columns < NUM_COLUMNS
    w = tl.load(weight + columns, mask=column_mask, other=0.0)[None, :]
    weight_grad = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
    norm_bias_grad = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
    bias_grad = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
    sum_threshold: tl.constexpr = 0 if DROPOUT_LAST else DROPOUT_THRESHOLD
    dropout_scale: tl.constexpr = 65536 / (65536 - DROPOUT_THRESHOLD)
    for start in tl.range(
        tl.program_id(0) * BLOCK_ROWS, num_rows, tl.num_programs(0) * BLOCK_ROWS, num_stages=NUM_STAGES
    ):
        rows = start + tl.arange(0, BLOCK_ROWS)
        mask = (rows[:, None] < num_rows) & column_mask[None, :]
        offsets = rows.to(tl.int64)[:, None] * NUM_COLUMNS + columns[None, :]
        keep_mask = None
        if DROPOUT_THRESHOLD:
            keep_mask = _dropout_mask(rows, columns, seeds, NUM_COLUMNS, DROPOUT_THRESHOLD)
        g = tl.load(grad + offsets, mask=mask, other=0.0).to(tl.float32)
        if DROPOUT_THRESHOLD and DROPOUT_LAST:
            g = tl.where(keep_mask, g * dropout_scale, 0.0)
        mean = tl.load(row_stats + rows, mask=rows < num_rows, other=0.0)
        rstd = tl.load(row_stats + num_rows + rows, mask=rows < num_rows, other=0.0)
        total = _load_sum(x, residual, bias, rows, columns, mask, keep_mask, sum_threshold, NUM_COLUMNS)
        total = _add_embedding(total, embedding0, indices0, rows, columns, mask, num_rows, NUM_COLUMNS)
        total = _add_embedding(total, embedding1, indices1, rows, columns, mask, num_rows, NUM_COLUMNS)
        normalized = tl.where(mask, (total - mean[:, None]) * rstd[:, None], 0.0)
        weight_grad += g * normalized
        norm_bias_grad += g
        g = _normalization_backward(g * w, normalized, rstd, NUM_COLUMNS)
        tl.store(sum_grad + offsets, g.to(sum_grad.dtype.element_ty), mask=mask)
        if not DROPOUT_LAST:
            if DROPOUT_THRESHOLD:
                g = tl.where(keep_mask, g * dropout_scale, 0.0)
                tl.store(x_grad + offsets, g.to(x_grad.dtype.element_ty), mask=mask)
            bias_grad += tl.where(mask, g, 0.0)
    _store_param_grads(param_grads, weight_grad, norm_bias_grad, bias_grad, columns, NUM_COLUMNS)
