"""Forward and backward functions of a layer's parts by compiled kernels, without autograd.

Each takes a launcher: `launch` runs its kernels at once, a `KernelSequence` together with others. A forward
function returns what the backward function needs besides the inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertsmith.kernels.cpu import amx, layer_norm, row_kernels
from bertsmith.kernels.cpu.launcher import Launcher, float_bits, is_bf16
from bertsmith.kernels.cpu.matmul import PackedMatrix, matmul, matmul_transposed_left
from bertsmith.kernels.reference import DropoutLike, LayerNormParams

_MAX_ROW_PARTS, _MIN_PART_ROWS = 64, 32

DropoutSeeds = tuple[int, int, int, int]
"""Two 32-bit seeds, the number of elements of 65,536 that are dropped, and the bits of the others' scale."""


def draw_dropout_seeds(dropout: DropoutLike | None) -> DropoutSeeds:
    """Draw the seeds of one call of dropout."""
    if dropout is None or not dropout.is_active:
        return 0, 0, 0, float_bits(1.0)
    seeds = torch.empty(2, dtype=torch.int64)
    low, high = seeds.random_(0, 2**32, generator=dropout.generator).tolist()
    threshold = min(round(dropout.p * 2**16), 2**16 - 1)
    return low, high, threshold, float_bits(2**16 / (2**16 - threshold))


class AttentionConfig(NamedTuple):
    """Sequences and kernels of one attention call.

    Attributes:
        cu_seqlens: Start of each sequence and the end of the last, long [B + 1].
        max_seqlen: Tokens of the longest sequence.
        num_tokens: Tokens of all sequences.
        num_heads: Number of attention heads.
        direction: The tokens that a token attends to, a value of `attention_common.DIRECTIONS`.
        dropout_seeds: Dropout of the attention weights.
        kernels: The module of kernels, `attention_fp32` or `attention_bf16`.
        query_cu_seqlens: The first query of each sequence and the end of the last, long [B + 1].
        query_indices: The tokens with a query, long [M] in ascending order; None: all tokens.
    """

    cu_seqlens: Tensor
    max_seqlen: int
    num_tokens: int
    num_heads: int
    direction: int
    dropout_seeds: DropoutSeeds
    kernels: Any
    query_cu_seqlens: Tensor
    query_indices: Tensor | None = None

    def with_queries(self, rows: Tensor | None) -> AttentionConfig:
        """Return the configuration with the queries of some tokens only."""
        if rows is None:
            return self
        rows = rows.contiguous()
        return self._replace(query_indices=rows, query_cu_seqlens=torch.searchsorted(rows, self.cu_seqlens))

    def scalar_args(self, q: Tensor) -> tuple[int, ...]:
        """Return the slots of sizes and dropout."""
        return (
            len(self.cu_seqlens) - 1,
            self.num_heads,
            q.shape[1] // self.num_heads,
            self.direction,
            *self.dropout_seeds,
            len(q),
            self.max_seqlen,
        )

    def pointer_args(self, q: Tensor, kv: Tensor) -> tuple[int | Tensor, ...]:
        """Return the slots of keys, strides, and queries."""
        indices = 0 if self.query_indices is None else self.query_indices
        return kv, q.stride(0), kv.stride(0), self.query_cu_seqlens, indices

    @property
    def num_queries(self) -> int:
        """Return the number of tokens with a query."""
        return self.num_tokens if self.query_indices is None else len(self.query_indices)

    def workspace(self, q: Tensor, run: Launcher, *, is_backward: bool) -> tuple[Tensor, int]:
        """Return the workspace of all threads, and the size of one thread's part in fp32 numbers."""
        size = self.kernels.workspace_size(self.max_seqlen, q.shape[1] // self.num_heads, is_backward)
        return run.workspace(4 * size * torch.get_num_threads()), size


def _empty_rows(num_rows: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return an uninitialized tensor, except that rows from `num_rows` on are zeros."""
    rows = torch.empty(shape, dtype=dtype)
    rows[num_rows:] = 0
    return rows


def gather_rows(x: Tensor, indices: Tensor, run: Launcher) -> Tensor:
    """Return rows of x, which is contiguous."""
    rows = x.new_empty(len(indices), x.shape[1])
    run(row_kernels.gather_rows_kernel, is_bf16(x), x, rows, indices, *rows.shape)
    return rows


def scatter_add_rows(x: Tensor, indices: Tensor, y: Tensor, run: Launcher) -> None:
    """Add y to rows of x; indices are in ascending order, and y is overwritten where they repeat."""
    run(row_kernels.scatter_add_rows_kernel, is_bf16(x), x, y, indices, *y.shape)


def split_query_key_value(q: Tensor, kv: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return queries [M, H], and keys with values [N, 2H]; without `kv`, `q` holds all three, [N, 3H]."""
    hidden_size = q.shape[1] // 3
    return (q[:, :hidden_size], q[:, hidden_size:]) if kv is None else (q, kv)


def attention_forward(q: Tensor, kv: Tensor, config: AttentionConfig, run: Launcher) -> tuple[Tensor, Tensor]:
    """Compute softmax(q·kᵀ/√d)·v for each sequence and head.

    Args:
        q: Queries, row-major [M, H].
        kv: Keys and values, row-major [N, 2H].
        config: The configuration.
        run: The launcher.

    Returns:
        The output, [M, H], and the maximum and sum of exponentials of each row of scores, [M, heads, 2].
    """
    output = _empty_rows(config.num_queries, q.shape, q.dtype)
    stats = torch.empty(len(q), config.num_heads, 2)
    workspace, thread_size = config.workspace(q, run, is_backward=False)
    run(
        config.kernels.forward,
        *(is_bf16(q), q, output, stats, config.cu_seqlens),
        *config.scalar_args(q),
        *(workspace, thread_size, 0, amx.TILE_CONFIG),
        *config.pointer_args(q, kv),
    )
    return output, stats


def attention_backward(
    grad: Tensor, q: Tensor, kv: Tensor, stats: Tensor, config: AttentionConfig, run: Launcher
) -> list[Tensor]:
    """Return the gradients of q and kv; one tensor [N, 3H] of both if all tokens have queries.

    The scores are computed again.
    """
    workspace, thread_size = config.workspace(q, run, is_backward=True)
    if config.query_indices is None:
        grads = [_empty_rows(config.num_tokens, (len(q), 3 * q.shape[1]), q.dtype)]
    else:
        grads = [
            _empty_rows(config.num_queries, q.shape, q.dtype),
            _empty_rows(config.num_tokens, kv.shape, kv.dtype),
        ]
    q_grad, kv_grad = split_query_key_value(*grads)
    run(
        config.kernels.backward,
        *(is_bf16(q), q, q_grad, stats, config.cu_seqlens),
        *config.scalar_args(q),
        *(workspace, thread_size, grad, amx.TILE_CONFIG),
        *(*config.pointer_args(q, kv), kv_grad),
    )
    return grads


def _row_workspace(x: Tensor, num_rows: int, run: Launcher) -> Tensor:
    """Return memory for rows of x in fp32, `num_rows` per thread."""
    return run.workspace(4 * num_rows * x.shape[1] * torch.get_num_threads())


def add_layer_norm_forward(
    residual: Tensor, x: Tensor, norm: LayerNormParams, seeds: DropoutSeeds, run: Launcher
) -> tuple[Tensor, Tensor]:
    """Return LN(residual + dropout(x)), and the mean and the reciprocal standard deviation of each row, [N, 2]."""
    (weight, bias, eps), output, stats = norm, torch.empty_like(x), torch.empty(len(x), 2)
    run(
        layer_norm.add_layer_norm_kernel,
        *(is_bf16(x), x, residual, output, *x.shape),
        *(weight, bias, stats, float_bits(eps), *seeds, 0, 0, 0, _row_workspace(x, 1, run)),
    )
    return output, stats


def add_layer_norm_backward(
    grad: Tensor,
    residual: Tensor,
    x: Tensor,
    weight: Tensor,
    stats: Tensor,
    seeds: DropoutSeeds,
    run: Launcher,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of residual, of x, and of weight and bias, [2, H].

    The sum is computed again instead of stored.
    """
    residual_grad = torch.empty_like(x)
    x_grad = torch.empty_like(x) if seeds[2] else residual_grad
    param_grads, workspace = torch.zeros(num_row_parts(len(x)), 2, len(weight)), _row_workspace(x, 2, run)
    run(
        layer_norm.add_layer_norm_backward_kernel,
        *(is_bf16(x), x, residual, residual_grad, *x.shape),
        *(weight, 0, stats, 0, *seeds, grad, x_grad, param_grads, workspace, len(param_grads)),
    )
    return residual_grad, x_grad, sum_over_parts(param_grads, run)


def num_row_parts(num_rows: int) -> int:
    """Return the number of parts of rows whose sums are added in order, so that threads do not change the sum."""
    return max(1, min(_MAX_ROW_PARTS, num_rows // _MIN_PART_ROWS))


def sum_over_parts(values: Tensor, run: Launcher) -> Tensor:
    """Return the sum over the first axis of [parts, …]."""
    total = torch.empty(values.shape[1:])
    run(row_kernels.sum_over_parts, values, total, len(values), total.numel())
    return total


def feed_forward(
    x: Tensor,
    inner_weight: Tensor | PackedMatrix,
    inner_bias: Tensor,
    output_weight: Tensor | PackedMatrix,
    output_bias: Tensor,
    run: Launcher,
    *,
    saves_preactivation: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return GELU(x·W1 + b1)·W2 + b2, the input of GELU, and its output.

    With `saves_preactivation` False GELU works in place, and the second tensor is the third.
    """
    shape = len(x), inner_weight.shape[1]
    preactivation = x.new_empty(shape)
    activation = x.new_empty(shape) if saves_preactivation else preactivation
    matmul(x, inner_weight, inner_bias, preactivation, activated=activation, run=run)
    return linear(activation, output_weight, output_bias, run), preactivation, activation


def linear(x: Tensor, weight: Tensor | PackedMatrix, bias: Tensor | None, run: Launcher) -> Tensor:
    """Return x [N, in] · weight [in, out] + bias [out] in the dtype of x."""
    output = x.new_empty(len(x), weight.shape[1])
    matmul(x, weight, bias, output, run=run)
    return output


def linear_input_grad(grad: Tensor, weight: Tensor, preactivation: Tensor | None, run: Launcher) -> Tensor:
    """Return the gradient of a linear layer's input, grad [N, out] · weight [out, in].

    With `preactivation` [N, in] the input is GELU of it, and the result is the gradient of `preactivation`.
    """
    input_grad = grad.new_empty(len(grad), weight.shape[1])
    matmul(grad, weight, None, input_grad, preactivation=preactivation, run=run)
    return input_grad


def linear_weight_grads(x: Tensor, grad: Tensor, run: Launcher) -> tuple[Tensor, Tensor]:
    """Return the gradients of a linear layer's weight and bias (`MatmulBackend.linear_weight_grads`)."""
    return concatenated_weight_grads([(x, grad)], run)


def concatenated_weight_grads(parts: Sequence[tuple[Tensor, Tensor]], run: Launcher) -> tuple[Tensor, Tensor]:
    """Return the gradients of a linear layer whose ranges of outputs have different inputs.

    Args:
        parts: The inputs and the gradient of the outputs of each range.
        run: The launcher.
    """
    sizes = [grad.shape[1] for _, grad in parts]
    weight_grad, bias_grad = torch.empty(sum(sizes), parts[0][0].shape[1]), torch.empty(sum(sizes))
    weight_parts, bias_parts = torch.split(weight_grad, sizes), torch.split(bias_grad, sizes)
    for (x, grad), weight_part, bias_part in zip(parts, weight_parts, bias_parts, strict=True):
        matmul_transposed_left(grad, x, weight_part, bias_part, run)
    return weight_grad, bias_grad


def add_(x: Tensor, y: Tensor, run: Launcher) -> None:
    """Add y to x; their size is a multiple of `simd.VECTOR_WIDTH`."""
    run(row_kernels.add, is_bf16(x), x, y, x.numel())
