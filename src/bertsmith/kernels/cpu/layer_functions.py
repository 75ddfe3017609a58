"""The parts of a layer, there and back, by compiled bodies: attention, sum and LayerNorm, feed-forward.

Each takes what runs its bodies: `launch` at once, a `Program` together with others. Nothing here is
differentiated; what a way back needs beside its inputs is given along with the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertsmith.kernels.cpu import amx, layer_norm, row_kernels
from bertsmith.kernels.cpu import gather_rows as chosen_rows
from bertsmith.kernels.cpu.compilation import Launcher, float_bits
from bertsmith.kernels.cpu.matmul import PackedMatrix, matmul, matmul_transposed_left

DropoutSeeds = tuple[int, int, int, int]
"""What dropout decides by: two seeds of 32 bits, how many of 65,536 are dropped, and the scale of the rest, by its
bits."""


class AttentionConfig(NamedTuple):
    """What attention is over, and how. starts: where sequences begin and the last one ends, long [B + 1].
    longest, tokens: of the longest, and of all. sees: which tokens a token sees, as `attending.SEES` has it.
    drawn: what of the weights is dropped. bodies: what computes it. asked: where each sequence's queries begin,
    long [B + 1]. rows: the tokens of all queries, long [M] in ascending order; None where each token has one."""

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
        """With the queries of these tokens alone."""
        if rows is None:
            return self
        rows = rows.contiguous()
        return self._replace(query_indices=rows, query_cu_seqlens=torch.searchsorted(rows, self.cu_seqlens))

    def scalar_args(self, q: Tensor) -> tuple[int, ...]:
        """What the bodies read of it."""
        width = q.shape[1] // self.num_heads
        return (
            len(self.cu_seqlens) - 1,
            self.num_heads,
            width,
            self.direction,
            *self.dropout_seeds,
            len(q),
            self.max_seqlen,
        )

    def pointer_args(self, q: Tensor, kv: Tensor) -> tuple[int | Tensor, ...]:
        """The same: where queries and keys lie, and which queries there are."""
        return (
            kv,
            q.stride(0),
            kv.stride(0),
            self.query_cu_seqlens,
            0 if self.query_indices is None else self.query_indices,
        )

    @property
    def num_queries(self) -> int:
        """How many there are."""
        return self.num_tokens if self.query_indices is None else len(self.query_indices)

    def workspace(self, q: Tensor, run: Launcher, *, back: bool) -> tuple[Tensor, int]:
        """Where they work; how many numbers in fp32 a thread has of it."""
        own = self.kernels.workspace_size(self.max_seqlen, q.shape[1] // self.num_heads, back)
        return run.workspace(4 * own * torch.get_num_threads()), own


def is_bf16(x: Tensor) -> int:
    """Whether x is bf16, as bodies read it."""
    return int(x.dtype == torch.bfloat16)


def _for_tokens(used: int, shape: Sequence[int], kind: torch.dtype) -> Tensor:
    """Where rows of so many tokens will be, with zeros in those of none, which lie behind them."""
    found = torch.empty(shape, dtype=kind)
    found[used:] = 0
    return found


def gather_rows(x: Tensor, rows: Tensor, run: Launcher) -> Tensor:
    """These rows of x, whose rows lie in memory one behind the other."""
    found = x.new_empty(len(rows), x.shape[1])
    run(chosen_rows.gather_rows_kernel, is_bf16(x), x, found, rows, *found.shape)
    return found


def scatter_add_rows(x: Tensor, rows: Tensor, y: Tensor, run: Launcher) -> None:
    """Add y to these rows of x, in ascending order; y is written over where one of them is there twice."""
    run(chosen_rows.scatter_add_rows_kernel, is_bf16(x), x, y, rows, *y.shape)


def split_query_key_value(q: Tensor, kv: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Queries [M, H], and keys with values behind them [N, 2H]; of q alone, where it is a product of all three,
    [N, 3H]."""
    width = q.shape[1] // 3
    return (q[:, :width], q[:, width:]) if kv is None else (q, kv)


def attention_forward(q: Tensor, kv: Tensor, over: AttentionConfig, run: Launcher) -> tuple[Tensor, Tensor]:
    """softmax(q·kᵀ/√d)·v for each sequence and head, of q [M, H] and kv [N, 2H], whose rows lie in memory as they
    are: [M, H]; and of each row of scores the highest and the sum."""
    found, stats = _for_tokens(over.num_queries, q.shape, q.dtype), torch.empty(len(q), over.num_heads, 2)
    room, own = over.workspace(q, run, back=False)
    run(
        over.kernels.forward,
        *(is_bf16(q), q, found, stats, over.cu_seqlens),
        *over.scalar_args(q),
        *(room, own, 0, amx.TILE_CONFIG),
        *over.pointer_args(q, kv),
    )
    return found, stats


def attention_backward(
    grad: Tensor, q: Tensor, kv: Tensor, stats: Tensor, over: AttentionConfig, run: Launcher
) -> list[Tensor]:
    """The slopes of q and kv; side by side, [N, 3H], where each token has a query. The scores are made again."""
    room, own = over.workspace(q, run, back=True)
    if over.query_indices is None:
        found = [_for_tokens(over.num_tokens, (len(q), 3 * q.shape[1]), q.dtype)]
    else:
        found = [
            _for_tokens(over.num_queries, q.shape, q.dtype),
            _for_tokens(over.num_tokens, kv.shape, kv.dtype),
        ]
    to_q, to_kv = split_query_key_value(*found)
    run(
        over.kernels.backward,
        *(is_bf16(q), q, to_q, stats, over.cu_seqlens),
        *over.scalar_args(q),
        *(room, own, grad, amx.TILE_CONFIG),
        *(*over.pointer_args(q, kv), to_kv),
    )
    return found


def _rows(x: Tensor, many: int, run: Launcher) -> Tensor:
    """So many rows of x in fp32 for each thread, to work in."""
    return run.workspace(4 * many * x.shape[1] * torch.get_num_threads())


def add_layer_norm_forward(
    residual: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    epsilon: float,
    drawn: DropoutSeeds,
    run: Launcher,
) -> tuple[Tensor, Tensor]:
    """LN(residual + dropout(x)), and each row's mean and 1/deviation."""
    found, stats = torch.empty_like(x), torch.empty(len(x), 2)
    run(
        layer_norm.add_layer_norm_kernel,
        *(is_bf16(x), x, residual, found, *x.shape),
        *(weight, bias, stats, float_bits(epsilon), *drawn, 0, 0, 0, _rows(x, 1, run)),
    )
    return found, stats


def add_layer_norm_backward(
    grad: Tensor,
    residual: Tensor,
    x: Tensor,
    weight: Tensor,
    stats: Tensor,
    drawn: DropoutSeeds,
    run: Launcher,
) -> tuple[Tensor, Tensor, Tensor]:
    """The slopes of residual and of x; and those of weight and bias, [2, H]. The sum is made again, so that no
    more is kept than what is added up."""
    of_sum = torch.empty_like(x)
    of_x = torch.empty_like(x) if drawn[2] else of_sum
    sums = torch.zeros(torch.get_num_threads(), 2, len(weight))
    run(
        layer_norm.add_layer_norm_backward_kernel,
        *(is_bf16(x), x, residual, of_sum, *x.shape),
        *(weight, 0, stats, 0, *drawn, grad, of_x, sums, _rows(x, 2, run)),
    )
    return of_sum, of_x, sum_over_threads(sums, run)


def sum_over_threads(sums: Tensor, run: Launcher) -> Tensor:
    """What the threads have summed, [threads, ...], together."""
    found = torch.empty(sums.shape[1:])
    run(row_kernels.sum_over_threads, sums, found, len(sums), found.numel())
    return found


def feed_forward(
    x: Tensor,
    y: Tensor | PackedMatrix,
    bias: Tensor,
    of_output: Tensor | PackedMatrix,
    output_bias: Tensor,
    run: Launcher,
    *,
    kept: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """GELU(x·y1 + b1)·y2 + b2, and what GELU is taken of, and gives. kept: whether the former is wanted."""
    shape = len(x), y.shape[1]
    inner = x.new_empty(shape)
    activated = x.new_empty(shape) if kept else inner
    matmul(x, y, bias, inner, activated=activated, run=run)
    return linear(activated, of_output, output_bias, run), inner, activated


def linear(x: Tensor, y: Tensor | PackedMatrix, bias: Tensor | None, run: Launcher) -> Tensor:
    """x [N, K] · y [K, M] + bias [M], of the kind of x."""
    found = x.new_empty(len(x), y.shape[1])
    matmul(x, y, bias, found, run=run)
    return found


def linear_input_grad(grad: Tensor, weight: Tensor, before: Tensor | None, run: Launcher) -> Tensor:
    """grad [N, out] · weight [out, in]: the slopes of what was multiplied by its transpose. before: [N, in], where
    GELU's slopes are taken that multiply them."""
    found = grad.new_empty(len(grad), weight.shape[1])
    matmul(grad, weight, None, found, preactivation=before, run=run)
    return found


def linear_weight_grads(x: Tensor, grad: Tensor, run: Launcher) -> tuple[Tensor, Tensor]:
    """Of a linear layer's weights and bias, see `Products.slopes`."""
    return concatenated_weight_grads([(x, grad)], run)


def concatenated_weight_grads(given: Sequence[tuple[Tensor, Tensor]], run: Launcher) -> tuple[Tensor, Tensor]:
    """Of a linear layer whose outputs are made of several inputs, one part behind the other: x, and the slopes of
    what is made of it."""
    sizes = [grad.shape[1] for _, grad in given]
    of_weight, of_bias = torch.empty(sum(sizes), given[0][0].shape[1]), torch.empty(sum(sizes))
    begin = 0
    for (x, grad), size in zip(given, sizes, strict=True):
        own = slice(begin, begin + size)
        matmul_transposed_left(grad, x, of_weight[own], of_bias[own], run)
        begin += size
    return of_weight, of_bias


def add_(x: Tensor, y: Tensor, run: Launcher) -> None:
    """Add y to x, of which there are a multiple of `compiled.COLUMNS` numbers."""
    run(row_kernels.add, is_bf16(x), x, y, x.numel())
