"""Matrix products in fp32, bf16, and int8 by compiled kernels, and when they are used instead of PyTorch's."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertsmith.kernels.cpu import amx, row_kernels
from bertsmith.kernels.cpu.compilation import has_avx512_bf16, has_cpu_feature, target_cpu
from bertsmith.kernels.cpu.gemm_common import ceil_div
from bertsmith.kernels.cpu.launcher import Launcher, float_bits, is_bf16, launch
from bertsmith.kernels.linear import MIN_QUANT_STEP, QuantizedLinear

_DTYPES = {torch.float32, torch.bfloat16}
_SLOW_ONEDNN_CPUS = ("znver1", "znver2", "znver3", "znver4")  # AMD's; on Zen 5 oneDNN is fast.

GEMM_FP32: Any = (
    import_module("bertsmith.kernels.cpu.gemm_fp32")
    if target_cpu() in _SLOW_ONEDNN_CPUS and has_cpu_feature("avx2")
    else None
)
"""The module of the fp32 kernels if they are faster than PyTorch's libraries: on AMD processors up to Zen 4."""

GEMM_BF16: Any = (
    import_module("bertsmith.kernels.cpu.gemm_amx")
    if amx.is_amx_available()
    else import_module("bertsmith.kernels.cpu.gemm_avx512bf16")
    if has_avx512_bf16()
    else None
)
"""The module of the bf16 kernels; unlike PyTorch's libraries they take weights and return gradients in fp32."""

GEMM_INT8_FALLBACK: Any = (
    import_module("bertsmith.kernels.cpu.gemm_int8_avx2") if has_cpu_feature("avx2") else None
)
"""The module of the kernel for processors without int8 instructions, or None."""

GEMM_INT8: Any = (
    import_module("bertsmith.kernels.cpu.gemm_int8_amx")
    if has_cpu_feature("amx-int8") and amx.is_amx_available()
    else import_module("bertsmith.kernels.cpu.gemm_int8_vnni")
    if has_cpu_feature("avx512vnni")
    else None
)
"""The module of the kernel with the processor's int8 instructions, or None."""

PANEL_COLUMNS = 32  # a multiple of the columns of a panel: 32 in bf16, 16 in fp32
_MIN_SIZE = 16  # smallest number of rows, columns, or terms; smaller products are left to PyTorch


def has_gemm(dtype: torch.dtype) -> bool:
    """Return True if kernels for products in this dtype are available."""
    return (GEMM_BF16 if dtype == torch.bfloat16 else GEMM_FP32) is not None and dtype in _DTYPES


def supports_matmul(x: Tensor, y: Tensor, *others: Tensor | None) -> bool:
    """Return True if a kernel can compute x·y.

    Args:
        x: Matrix in fp32 or bf16.
        y: Matrix in fp32 or bf16; if only one of the two is bf16, the other is rounded.
        others: Bias and output, which must be in fp32.
    """
    are_fp32 = all(t.is_cpu and t.dtype == torch.float32 for t in others if t is not None)
    is_large = x.dim() == y.dim() == 2 and min(*x.shape, *y.shape) >= _MIN_SIZE
    if not (are_fp32 and is_large and x.is_cpu and y.is_cpu and {x.dtype, y.dtype} <= _DTYPES):
        return False
    if torch.bfloat16 not in (x.dtype, y.dtype):
        return has_gemm(torch.float32)
    # The kernel for row-major x reads terms in pairs.
    is_column_major = x.stride(0) == 1 and x.stride(1) > 1
    return has_gemm(torch.bfloat16) and (is_column_major or x.shape[1] % 2 == 0)


def supports_layer(x: Tensor, *weights: Tensor) -> bool:
    """Return True if kernels can compute all forward and backward products of linear layers in the dtype of x.

    Args:
        x: Input, of which the dtype and the number of rows matter.
        weights: Weight [out, in] and bias of each linear layer in turn.
    """
    sizes = {size for weight in weights[::2] for size in weight.shape}
    are_fp32 = all(t.is_cpu and t.dtype == torch.float32 for t in weights)
    are_paired = x.dtype == torch.float32 or all(size % 2 == 0 for size in sizes)
    return x.is_cpu and has_gemm(x.dtype) and are_fp32 and are_paired and min(len(x), *sizes) >= _MIN_SIZE


class PackedMatrix(NamedTuple):
    """A matrix [num_rows, num_columns] packed into panels, in the order in which a kernel reads them.

    `data` is uint8 [panels, bytes of a panel], or of any shape with at least as many bytes; `kernels` is the
    module of the kernels.
    """

    data: Tensor
    num_rows: int
    num_columns: int
    kernels: Any

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return self.num_rows, self.num_columns

    def slice_columns(self, first: int, last: int) -> PackedMatrix:
        """Return the columns [first, last); `first` is a multiple of PANEL_COLUMNS."""
        columns = self.kernels.COLUMNS
        return self._replace(
            data=self.data[first // columns : ceil_div(last, columns)], num_columns=last - first
        )


def slice_columns(y: Tensor | PackedMatrix, first: int, last: int) -> Tensor | PackedMatrix:
    """Return the columns [first, last) of a matrix; see `PackedMatrix.slice_columns`."""
    return y.slice_columns(first, last) if isinstance(y, PackedMatrix) else y[:, first:last]


def pack(y: Tensor, dtype: torch.dtype) -> PackedMatrix:
    """Pack a matrix in fp32 or bf16 for products in a dtype."""
    (k, n), empty = y.shape, y.new_empty(0, max(y.shape))
    kernels = GEMM_BF16 if dtype == torch.bfloat16 else GEMM_FP32
    data = torch.empty(ceil_div(n, kernels.COLUMNS), kernels.panel_size(k), dtype=torch.uint8)
    packed = PackedMatrix(data, k, n, kernels)
    _launch(empty, as_row_or_column_major(y), packed, empty, launch)
    return packed


def as_row_or_column_major(x: Tensor) -> Tensor:
    """Return x, or a contiguous copy if neither its rows nor its columns are contiguous."""
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
        x: Matrix [M, K] in fp32 or bf16, row-major.
        y: Matrix [K, N].
        bias: Vector [N] in fp32.
        out: Result [M, N], row-major.
        activated: Result GELU(out), row-major; may be `out` itself.
        preactivation: Matrix [M, N], row-major: x·y is multiplied by the gradient of GELU at it.
        run: Launcher. If it defers kernels, inputs that are not written yet must have contiguous rows or columns.
    """
    epilogue = [0 if t is None else t for t in (activated, preactivation)]
    arguments = 0 if bias is None else bias.contiguous(), *epilogue
    if isinstance(y, PackedMatrix):
        _launch(x, None, y, out, run, *arguments)
        return
    k, n = y.shape
    kernels = GEMM_BF16 if torch.bfloat16 in (x.dtype, y.dtype) else GEMM_FP32
    workspace = run.workspace(ceil_div(n, kernels.COLUMNS) * kernels.panel_size(k))
    _launch(x, as_row_or_column_major(y), PackedMatrix(workspace, k, n, kernels), out, run, *arguments)


def _launch(
    x: Tensor,
    y: Tensor | None,
    packed: PackedMatrix,
    out: Tensor,
    run: Launcher,
    bias: int | Tensor = 0,
    activated: int | Tensor = 0,
    preactivation: int | Tensor = 0,
) -> None:
    """Run a kernel: pack y into `packed` unless y is None, and multiply x unless it has no rows."""
    k, n = packed.shape
    thread_bytes = packed.kernels.workspace_size(k)
    # The workspace of the launcher may hold the packed matrix.
    workspace = torch.empty(torch.get_num_threads() * thread_bytes, dtype=torch.uint8)
    y_arguments: tuple[int | Tensor, ...] = (0, 0, 0, 0)
    if y is not None:
        address, row_stride, y_is_bf16 = _row_major_arguments(y)
        y_arguments = address, row_stride, y.element_size() * y.stride(1), y_is_bf16
    run(
        packed.kernels.gemm,
        *(*_row_major_arguments(x), *y_arguments, *_row_major_arguments(out)),
        *(len(x), n, k, workspace, thread_bytes),
        *(bias, activated, preactivation, 0, amx.TILE_CONFIG, packed.data),
    )


def matmul_transposed_left(
    x: Tensor, y: Tensor, out: Tensor, sums: Tensor | None = None, run: Launcher = launch
) -> None:
    """Write xᵀ·y into `out`, and optionally the sums of the columns of x, in fp32.

    Args:
        x: Matrix [K, M] in fp32 or bf16.
        y: Matrix [K, N] in fp32 or bf16.
        out: Result [M, N], row-major.
        sums: Result [M].
        run: Launcher. If it defers kernels, inputs that are not written yet must be row-major.
    """
    x, y = (t if t.stride(1) == 1 and t.stride(0) else t.contiguous() for t in (x, y))
    k, m, n = *x.shape, y.shape[1]
    is_bf16_product = torch.bfloat16 in (x.dtype, y.dtype)
    gemm = GEMM_BF16 if is_bf16_product else GEMM_FP32
    size, *block_sizes = gemm.workspace_size_transposed(torch.get_num_threads(), m, n)
    workspace, counters = run.workspace(size), torch.zeros(2 * ceil_div(k, gemm.KC), dtype=torch.int64)
    partial_sums = torch.empty(0 if sums is None else ceil_div(k, gemm.PACK_ROWS) * m)
    num_arguments = 3 if is_bf16_product else 2  # The fp32 kernel takes no dtypes.
    run(
        gemm.gemm_transposed_left,
        *_row_major_arguments(x)[:num_arguments],
        *_row_major_arguments(y)[:num_arguments],
        *(out, 4 * out.stride(0), m, n, k, workspace, *block_sizes, counters),
        *(0 if sums is None else sums, partial_sums, *((amx.TILE_CONFIG,) if is_bf16_product else ())),
    )


def _row_major_arguments(x: Tensor) -> tuple[Tensor, int, bool]:
    """Return a matrix, its row stride in bytes, and whether it is bf16."""
    return x, x.element_size() * x.stride(0), x.dtype == torch.bfloat16


def int8_linear(
    linear: QuantizedLinear, x: Tensor, dtype: torch.dtype, run: Launcher, *, gelu: bool = False
) -> Tensor:
    """Return a linear layer, or its GELU, of x [N, in] in fp32 or bf16, computed in int8.

    Args:
        linear: Layer with weights from `NumbaInferenceBackend.pack_int8_weight`.
        x: Contiguous matrix.
        dtype: Dtype of the result: fp32 or bf16.
        run: Launcher.
        gelu: Apply GELU.
    """
    rows, inputs, outputs = *x.shape, len(linear.dequant.weight_sums)
    out = x.new_empty((rows, outputs), dtype=dtype)
    if not rows:
        return out
    gemm = GEMM_INT8 if linear.weight.dtype == torch.int8 else GEMM_INT8_FALLBACK
    thread_bytes = gemm.workspace_size(inputs)
    workspace = run.workspace(torch.get_num_threads() * thread_bytes)
    run(
        gemm.int8_linear_kernel,
        *(is_bf16(x), x, linear.input_scale, linear.weight, out),
        *(linear.dequant.weight_sums, linear.dequant.weight_scale, linear.dequant.bias),
        *(rows, inputs, outputs, float_bits(MIN_QUANT_STEP), workspace, thread_bytes, is_bf16(out)),
        *(gelu, amx.TILE_CONFIG, linear.outlier_channel, linear.dequant.outlier_weight),
    )
    if gelu and gemm is GEMM_INT8_FALLBACK:
        run(row_kernels.gelu, is_bf16(out), out, out, out.numel())
    return out
