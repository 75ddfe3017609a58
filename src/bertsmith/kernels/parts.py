"""The parts of a layer, there and back, by compiled bodies: attention, sum and LayerNorm, feed-forward.

Each takes what runs its bodies: `launch` at once, a `Program` together with others. Nothing here is
differentiated; what a way back needs beside its inputs is given along with the result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertsmith.kernels import compiled, tiles
from bertsmith.kernels.loops import Run, bits
from bertsmith.kernels.multiplying import multiply, multiply_columns

Seeds = tuple[int, int, int, int]
"""What dropout decides by: two seeds of 32 bits, how many of 65,536 are dropped, and the scale of the rest, by its
bits."""


class Sequences(NamedTuple):
    """What attention is over, and how. starts: where sequences begin and the last one ends, long [B + 1].
    longest, tokens: of the longest, and of all. sees: which tokens a token sees, as `attending.SEES` has it.
    drawn: what of the weights is dropped. bodies: what computes it."""

    starts: Tensor
    longest: int
    tokens: int
    heads: int
    sees: int
    drawn: Seeds
    bodies: Any

    def numbers(self, qkv: Tensor) -> tuple[int, ...]:
        """What the bodies read of it."""
        rows, width = len(qkv), qkv.shape[1] // 3 // self.heads
        return len(self.starts) - 1, self.heads, width, self.sees, *self.drawn, rows, self.longest

    def room(self, qkv: Tensor, *, back: bool) -> Tensor:
        """Where they work, a row for each thread."""
        width = qkv.shape[1] // 3 // self.heads
        return torch.empty(torch.get_num_threads(), self.bodies.room(self.longest, width, back))

    def rows(self, like: Tensor, columns: int) -> Tensor:
        """For as many rows as there are in `like`, zeros behind the last sequence."""
        found = like.new_empty(len(like), columns)
        if self.tokens < len(like):
            found[self.tokens :] = 0
        return found


def is_half(x: Tensor) -> int:
    """Whether x is bf16, as bodies read it."""
    return int(x.dtype == torch.bfloat16)


def attend(qkv: Tensor, over: Sequences, run: Run) -> tuple[Tensor, Tensor]:
    """softmax(q·kᵀ/√d)·v for each sequence and head, [N, 3H] → [N, H]; and of each row of scores the highest and
    the sum."""
    columns = qkv.shape[1] // 3
    found, stats = over.rows(qkv, columns), torch.empty(len(qkv), over.heads, 2)
    room = over.room(qkv, back=False)
    run(
        over.bodies.forward,
        *(is_half(qkv), qkv, found, stats, over.starts),
        *over.numbers(qkv),
        *(room, room.shape[1], 0, tiles.WHOLE),
    )
    return found, stats


def attend_back(grad: Tensor, qkv: Tensor, stats: Tensor, over: Sequences, run: Run) -> Tensor:
    """The slopes of qkv. The scores are computed again."""
    found, room = over.rows(qkv, qkv.shape[1]), over.room(qkv, back=True)
    run(
        over.bodies.backward,
        *(is_half(qkv), qkv, found, stats, over.starts),
        *over.numbers(qkv),
        *(room, room.shape[1], grad, tiles.WHOLE),
    )
    return found


def add_norm(
    residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, drawn: Seeds, run: Run
) -> tuple[Tensor, Tensor]:
    """LN(residual + dropout(x)), and each row's mean and 1/deviation."""
    found, stats = torch.empty_like(x), torch.empty(len(x), 2)
    run(
        compiled.add_norm,
        *(is_half(x), x, residual, found, *x.shape),
        *(weight, bias, stats, bits(epsilon), *drawn),
    )
    return found, stats


def add_norm_back(
    grad: Tensor, residual: Tensor, x: Tensor, weight: Tensor, stats: Tensor, drawn: Seeds, run: Run
) -> tuple[Tensor, Tensor, Tensor]:
    """The slopes of residual and of x; and those of weight and bias, [2, H]. The sum is made again, so that no
    more is kept than what is added up."""
    of_sum = torch.empty_like(x)
    of_x = torch.empty_like(x) if drawn[2] else of_sum
    sums = torch.zeros(torch.get_num_threads(), 2, len(weight))
    run(
        compiled.add_norm_back,
        *(is_half(x), x, residual, of_sum, *x.shape),
        *(weight, 0, stats, 0, *drawn, grad, of_x, sums),
    )
    return of_sum, of_x, summed(sums, run)


def summed(sums: Tensor, run: Run) -> Tensor:
    """What the threads have summed, [threads, ...], together."""
    found = torch.empty(sums.shape[1:])
    run(compiled.summed, sums, found, len(sums), found.numel())
    return found


def feed_forward(
    x: Tensor, weight: Tensor, bias: Tensor, of_output: Tensor, output_bias: Tensor, run: Run
) -> tuple[Tensor, Tensor, Tensor]:
    """W2·GELU(W1·x + b1) + b2, and what GELU is taken of, and gives."""
    inner, found = x.new_empty(len(x), len(weight)), x.new_empty(len(x), len(of_output))
    activated = torch.empty_like(inner)
    multiply(x, weight.T, bias, inner, activated=activated, run=run)
    multiply(activated, of_output.T, output_bias, found, run=run)
    return found, inner, activated


def multiplied(x: Tensor, y: Tensor, bias: Tensor | None, run: Run) -> Tensor:
    """x [N, K] · y [K, M] + bias [M], of the kind of x."""
    found = x.new_empty(len(x), y.shape[1])
    multiply(x, y, bias, found, run=run)
    return found


def slopes(x: Tensor, grad: Tensor, run: Run) -> tuple[Tensor, Tensor]:
    """Of a linear layer's weights and bias, see `Products.slopes`."""
    of_weight, of_bias = torch.empty(grad.shape[1], x.shape[1]), torch.empty(grad.shape[1])
    multiply_columns(grad, x, of_weight, of_bias, run)
    return of_weight, of_bias


def add(x: Tensor, y: Tensor, run: Run) -> None:
    """Add y to x, of which there are a multiple of `compiled.COLUMNS` numbers."""
    run(compiled.add, is_half(x), x, y, x.numel())
