"""Products of 8-bit integers by compiled bodies: those of answers, and those of a layer that is trained.

In training all products with a layer's weights are of integers. There, and for the slopes of what a layer was
given, each row of what is multiplied is rounded by steps of its own, and each column of the weights, anew in each
update (as Wortsman et al. 2023, "Stable and low-precision training for large-scale vision-language models",
section 2). For the slopes of weights, which that paper leaves in 16 bits, each column of 512 tokens has steps of
its own: a token with a large slope costs at most 511 others their digits. Where the layer is in bf16 and the
processor has tiles, these slopes are in bf16.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertsmith.kernels.cpu import amx, layer_functions, quantize, row_kernels
from bertsmith.kernels.cpu.compilation import Run, bits, compiles_for
from bertsmith.kernels.cpu.encoder_layer import LayerWeights
from bertsmith.kernels.cpu.layer_functions import is_half
from bertsmith.kernels.reference import MULTIPLE_IN_INTEGERS, TINY, Integers, IntegerWeights

INTEGERS: Any = import_module("bertsmith.kernels.cpu.gemm_int8_avx2") if compiles_for("avx2") else None
"""The body of a layer in 8-bit integers, by instructions that other processors do not have."""

_HAS_TILES = amx.are_here()

NATIVE: Any = (
    import_module("bertsmith.kernels.cpu.gemm_int8_amx")
    if compiles_for("amx-int8") and _HAS_TILES
    else import_module("bertsmith.kernels.cpu.gemm_int8_vnni")
    if compiles_for("avx512vnni")
    else None
)
"""The same where the processor multiplies 8-bit integers itself, in tiles or in registers."""

WEIGHTS: Any = import_module("bertsmith.kernels.weights_in_fours") if NATIVE else None
"""The body that rounds weights for it."""

SLOPES: Any = import_module("bertsmith.kernels.slopes_in_fours") if NATIVE else None
"""The body of weights' slopes."""

_LEAST = 1e-30  # step of a row or a column: slopes may be small
_ONES = torch.full((64,), 1, dtype=torch.uint8)


def in_integers(
    linear: Integers,
    x: Tensor,
    kind: torch.dtype,
    run: Run,
    *,
    activated: bool = False,
    kept: Tensor | None = None,
    before: Tensor | None = None,
    least: float = TINY,
) -> Tensor:
    """See `Kernels.integer_linear`, of x in fp32 or bf16, its rows in memory as they are. kept: where what GELU is
    taken of is put; before: where GELU's slopes are taken that multiply the result; both by native bodies alone.
    least: a step."""
    rows, inputs, outputs = *x.shape, len(linear.of.sums)
    found = run.empty((rows, outputs), kind)
    if not rows:
        return found
    bodies = NATIVE if linear.weight.dtype == torch.int8 else INTEGERS
    own = bodies.room(inputs)
    beside = kept if kept is not None else before
    finish = quantize.AS_IT_IS if before is None else quantize.SLOPES
    if activated:
        finish = quantize.GELU if kept is None else quantize.GELU_KEPT
    run(
        bodies.linear,
        *(is_half(x), x, linear.channels, linear.weight, found),
        *(linear.of.sums, linear.of.scale, linear.of.bias),
        *(rows, inputs, outputs, bits(least), run.room(torch.get_num_threads() * own), own, is_half(found)),
        *(finish, amx.WHOLE, linear.apart, linear.of.apart, 0 if beside is None else beside),
    )
    if activated and bodies is INTEGERS:
        run(row_kernels.gelu, is_half(found), found, found, found.numel())
    return found


def has_integers(x: Tensor, weights: LayerWeights) -> bool:
    """Whether there are bodies for all products of a layer in integers, there and back."""
    known = all(t.is_cpu and t.dtype == torch.float32 and t.stride(-1) == 1 for t in weights)
    return (
        x.is_cpu
        and known
        and all(size % MULTIPLE_IN_INTEGERS == 0 for one in weights.matrices for size in one.shape)
    )


class Rounded(NamedTuple):
    """A matrix [out, in] in integers: its transpose, which is multiplied by there, with a bias, and itself, which
    is multiplied by on the way back."""

    there: Integers
    back: Integers


def rounded(given: Sequence[tuple[Tensor, Tensor]], run: Run) -> list[Rounded]:
    """Matrices in fp32, whose rows lie in memory as they are, and their biases."""
    widest = max(size for weight, _ in given for size in weight.shape)
    ones, none = torch.ones(widest), torch.zeros(widest)  # of which bodies read as many as they need
    found, fields = [], []
    for weight, bias in given:
        outputs, inputs = weight.shape
        made = Rounded(
            Integers(ones, *_room_for(inputs, outputs, bias, none), 0),
            Integers(ones, *_room_for(outputs, inputs, none, none), 0),
        )
        places = [part for side in made for part in (side.weight, side.of.sums, side.of.scale)]
        at = weight.data_ptr(), 4 * weight.stride(0), outputs, inputs
        fields += [*at, *(part.data_ptr() for part in places)]
        found.append(made)
    table = torch.tensor(fields)
    own = WEIGHTS.room(widest)
    room = run.room(torch.get_num_threads() * own)
    run(WEIGHTS.rounded, table, len(found), bits(_LEAST), room, own, _ONES)
    return found


def _room_for(terms: int, columns: int, bias: Tensor, none: Tensor) -> tuple[Tensor, IntegerWeights]:
    """Where the integers of a matrix [terms, columns] will be, and what its products are made with."""
    weight = torch.empty(columns // WEIGHTS.COLUMNS, terms // 4, WEIGHTS.COLUMNS, 4, dtype=torch.int8)
    return weight, IntegerWeights(torch.empty(columns), torch.empty(columns), bias, none)


def _multiplied_back(grad: Tensor, weight: Integers, before: Tensor | None, run: Run) -> Tensor:
    """See `parts.multiplied_back`."""
    return in_integers(weight, grad, grad.dtype, run, before=before, least=_LEAST)


def _joined_slopes(given: Sequence[tuple[Tensor, Tensor]], run: Run) -> tuple[Tensor, Tensor]:
    """See `parts.joined_slopes`. Tiles make those of bf16."""
    in_tiles = _HAS_TILES and given[0][0].dtype == torch.bfloat16
    return (
        layer_functions.joined_slopes(given, run)
        if in_tiles
        else layer_functions.joined_slopes(given, run, multiply_columns)
    )


def multiply_columns(x: Tensor, y: Tensor, out: Tensor, sums: Tensor, run: Run) -> None:
    """See `multiplying.multiply_columns`, of x and y whose rows lie in memory as they are."""
    (terms, rows), columns = x.shape, y.shape[1]
    room = run.room(SLOPES.room(rows, columns))
    numbers = torch.zeros(SLOPES.turns(terms), dtype=torch.int64)
    some = torch.empty(SLOPES.blocks(terms), rows)
    matrices = (
        part for each in (x, y) for part in (each, each.element_size() * each.stride(0), is_half(each))
    )
    at = out, 4 * out.stride(0), rows, columns, terms
    run(SLOPES.by_columns, *matrices, *at, room, bits(_LEAST), _ONES, numbers, sums, some)


class IntegerFactors(NamedTuple):
    """The products of a layer that is trained, see `LayerProducts`. qkv: of queries, keys and values; or of
    queries, and of the others, where not every token has a query."""

    qkv: Sequence[Rounded]
    projection: Rounded
    inner: Rounded
    output: Rounded

    @classmethod
    def of(cls, weights: LayerWeights, run: Run, *, apart: bool) -> IntegerFactors:
        """Of these weights. apart: whether queries are made apart from keys and values."""
        qkv = zip(
            *(weights.parts_of(one, apart=apart) for one in (weights.qkv, weights.qkv_bias)), strict=True
        )
        others = zip(weights.matrices[1:], weights.biases[1:], strict=True)
        *made, projection, inner, output = rounded([*qkv, *others], run)
        return cls(made, projection, inner, output)

    def back(self) -> layer_functions.Back:
        """What the way back is made with."""
        qkv = [one.back for one in self.qkv]
        others = self.projection.back, self.inner.back, self.output.back
        return layer_functions.Back(qkv, *others, _multiplied_back, _joined_slopes)

    def queries(self, x: Tensor, run: Run) -> Tensor:
        """See `LayerProducts`."""
        return _multiplied(x, self.qkv[0], run)

    def keys_values(self, x: Tensor, run: Run) -> Tensor:
        """See `LayerProducts`."""
        return _multiplied(x, self.qkv[1], run)

    def all_three(self, x: Tensor, run: Run) -> Tensor:
        """See `LayerProducts`."""
        return _multiplied(x, self.qkv[0], run)

    def projected(self, x: Tensor, run: Run) -> Tensor:
        """See `LayerProducts`."""
        return _multiplied(x, self.projection, run)

    def fed_forward(self, x: Tensor, run: Run) -> tuple[Tensor, Tensor, Tensor]:
        """See `LayerProducts`."""
        of = self.inner.there
        inner = run.empty((len(x), len(of.of.sums)), x.dtype)
        activated = in_integers(of, x, x.dtype, run, activated=True, kept=inner, least=_LEAST)
        return _multiplied(activated, self.output, run), inner, activated


def _multiplied(x: Tensor, by: Rounded, run: Run) -> Tensor:
    return in_integers(by.there, x, x.dtype, run, least=_LEAST)
