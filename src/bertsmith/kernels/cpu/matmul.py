"""Products of matrices by compiled bodies."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertsmith.kernels.cpu import amx
from bertsmith.kernels.cpu.compilation import Launcher, has_avx512_bf16, has_cpu_feature, launch, target_cpu

_KINDS = {torch.float32, torch.bfloat16}

_SLOW_LIBRARIES = ("znver1", "znver2", "znver3", "znver4")  # AMD's; on Zen 5 oneDNN is quick

GEMM_FP32: Any = (
    import_module("bertsmith.kernels.cpu.gemm_fp32")
    if target_cpu() in _SLOW_LIBRARIES and has_cpu_feature("avx2")
    else None
)
"""The bodies of products in fp32 where these are quicker than the libraries': AMD's processors up to Zen 4."""

GEMM_BF16: Any = (
    import_module("bertsmith.kernels.cpu.gemm_amx")
    if amx.is_amx_available()
    else import_module("bertsmith.kernels.cpu.gemm_avx512bf16")
    if has_avx512_bf16()
    else None
)
"""Those of products in bf16, in tiles or in registers: the libraries need the weights in bf16, and make their
slopes so."""

PANEL_COLUMNS = 32  # of a panel in bf16
_FEW = 16  # rows, columns or terms: what has fewer is left to the libraries


def has_gemm(kind: torch.dtype) -> bool:
    """Whether there are bodies for products of this kind."""
    return (GEMM_BF16 if kind == torch.bfloat16 else GEMM_FP32) is not None and kind in _KINDS


def supports_matmul(x: Tensor, y: Tensor, *others: Tensor | None) -> bool:
    """Whether there is a body for x·y; others: what else it is made with, in fp32. Where one of x and y is bf16
    the other may be fp32."""
    known = all(t.is_cpu and t.dtype == torch.float32 for t in others if t is not None)
    enough = x.dim() == y.dim() == 2 and min(*x.shape, *y.shape) >= _FEW
    if not (known and enough and x.is_cpu and y.is_cpu and {x.dtype, y.dtype} <= _KINDS):
        return False
    if torch.bfloat16 not in (x.dtype, y.dtype):
        return has_gemm(torch.float32)
    in_columns = x.stride(0) == 1 and x.stride(1) > 1
    return has_gemm(torch.bfloat16) and (
        in_columns or x.shape[1] % 2 == 0
    )  # in rows pairs of terms lie side by side


def supports_layer(x: Tensor, *weights: Tensor) -> bool:
    """Whether there are bodies for all that layers compute, there and back, of as many rows as x has, in its kind.
    weights: each layer's [out, in], and its bias."""
    sizes = {size for weight in weights[::2] for size in weight.shape}
    known = all(t.is_cpu and t.dtype == torch.float32 for t in weights)
    in_pairs = x.dtype == torch.float32 or all(size % 2 == 0 for size in sizes)
    return x.is_cpu and has_gemm(x.dtype) and known and in_pairs and min(len(x), *sizes) >= _FEW


class PackedMatrix(NamedTuple):
    """A matrix [terms, columns] as the bodies of products in bf16 read it, of which they may be made once for many
    products. held: uint8 [panels, bytes of one]; or, of one product alone, that many and more."""

    data: Tensor
    num_rows: int
    num_columns: int

    @property
    def shape(self) -> tuple[int, int]:
        """What the matrix has."""
        return self.num_rows, self.num_columns

    def slice_columns(self, first: int, last: int) -> PackedMatrix:
        """These columns of it, the first a multiple of those of a panel."""
        return PackedMatrix(
            self.data[first // PANEL_COLUMNS : -(-last // PANEL_COLUMNS)], self.num_rows, last - first
        )


def slice_columns(y: Tensor | PackedMatrix, first: int, last: int) -> Tensor | PackedMatrix:
    """These columns of a matrix, see `Panels.between`."""
    return y.slice_columns(first, last) if isinstance(y, PackedMatrix) else y[:, first:last]


def pack(y: Tensor) -> PackedMatrix:
    """y, a matrix in fp32 or bf16, in panels."""
    (terms, columns), none = y.shape, y.new_empty(0, max(y.shape))
    held = torch.empty(_panels(columns), GEMM_BF16.panel_size(terms), dtype=torch.uint8)
    found = PackedMatrix(held, terms, columns)
    _multiply_half(none, as_row_or_column_major(y), found, none, launch)
    return found


def _panels(columns: int) -> int:
    return -(-columns // PANEL_COLUMNS)


def as_row_or_column_major(x: Tensor) -> Tensor:
    """x; a copy where neither its rows nor its columns lie in memory as they are."""
    return x if 1 in x.stride() and 0 not in x.stride() else x.contiguous()


def matmul(
    x: Tensor,
    y: Tensor | PackedMatrix,
    bias: Tensor | None,
    out: Tensor,
    activated: Tensor | None = None,
    preactivation: Tensor | None = None,
    run: Launcher = launch,
) -> None:
    """Write x·y + bias into `out`, and optionally its GELU, or multiply x·y by the gradient of GELU.

    Args:
        x: Matrix [N, K] in row-major layout, in fp32 or bf16.
        y: Matrix [K, M].
        bias: Vector [M] in fp32.
        out: Result [N, M], row-major.
        activated: Result GELU(out), row-major; may be `out` itself.
        preactivation: Matrix [N, M], row-major: x·y is multiplied by the gradient of GELU at it.
        run: Launcher. If it defers kernels, inputs that are not written yet must have contiguous rows or columns.
    """
    threads, (terms, columns) = torch.get_num_threads(), y.shape
    more = [0 if t is None else t for t in (activated, preactivation)]
    add = 0 if bias is None else bias.contiguous()
    if isinstance(y, PackedMatrix):
        _multiply_half(x, None, y, out, run, add, *more)
        return
    y = as_row_or_column_major(y)
    if torch.bfloat16 in (x.dtype, y.dtype):
        own = PackedMatrix(run.workspace(_panels(columns) * GEMM_BF16.panel_size(terms)), terms, columns)
        _multiply_half(x, y, own, out, run, add, *more)
        return
    room = run.workspace(GEMM_FP32.workspace_size(threads, columns, terms))
    run(
        GEMM_FP32.gemm,
        *(x, 4 * x.stride(0), y, 4 * y.stride(0), 4 * y.stride(1)),
        *(out, 4 * out.stride(0), len(x), columns, terms, room, add, 0, *more),
    )


def _multiply_half(
    x: Tensor,
    y: Tensor | None,
    panels: PackedMatrix,
    out: Tensor,
    run: Launcher,
    bias: int | Tensor = 0,
    activated: int | Tensor = 0,
    preactivation: int | Tensor = 0,
) -> None:
    """y: of what the panels are made, None where they are there already. Of an x without rows nothing else is."""
    own = GEMM_BF16.workspace_size(panels.num_rows)
    room = torch.empty(torch.get_num_threads() * own, dtype=torch.uint8)
    run(
        GEMM_BF16.gemm,
        *(*_rows_at(x), *((0, 0, 0, 0) if y is None else _both_at(y)), *_rows_at(out)),
        *(len(x), panels.num_columns, panels.num_rows, room, own),
        *(bias, activated, preactivation, 0, amx.TILE_CONFIG, panels.data),
    )


def matmul_transposed_left(
    x: Tensor, y: Tensor, out: Tensor, sums: Tensor | None = None, run: Launcher = launch
) -> None:
    """Write xᵀ·y, and the sums of x's columns, in fp32. out has its rows in memory as they are. run: as in
    `multiply`."""
    x, y = (t if t.stride(1) == 1 and t.stride(0) else t.contiguous() for t in (x, y))
    terms, rows, columns = *x.shape, y.shape[1]
    is_half = torch.bfloat16 in (x.dtype, y.dtype)
    bodies = GEMM_BF16 if is_half else GEMM_FP32
    size, of_rows, of_columns = bodies.workspace_size_transposed(torch.get_num_threads(), rows, columns)
    room, numbers = run.workspace(size), torch.zeros(bodies.num_counters(terms), dtype=torch.int64)
    some = torch.empty(0 if sums is None else bodies.num_slices(terms) * rows)
    matrices: list[int | Tensor]
    matrices = [*_rows_at(x), *_rows_at(y)] if is_half else [*_rows_at(x)[:2], *_rows_at(y)[:2]]
    run(
        bodies.gemm_transposed_left,
        *matrices,
        *(out, 4 * out.stride(0)),
        *(rows, columns, terms, room, of_rows, of_columns, numbers),
        *(0 if sums is None else sums, some, *((amx.TILE_CONFIG,) if is_half else ())),
    )


def _rows_at(x: Tensor) -> tuple[Tensor, int, bool]:
    """Where a matrix lies, how many bytes from one row of it to the next, and whether it is bf16."""
    return x, x.element_size() * x.stride(0), x.dtype == torch.bfloat16


def _both_at(x: Tensor) -> tuple[Tensor, int, int, bool]:
    """The same, with the bytes from one column to the next."""
    place, row, is_half = _rows_at(x)
    return place, row, x.element_size() * x.stride(1), is_half
