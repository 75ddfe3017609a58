"""Linear layers in int8 by compiled kernels, for inference."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from bertsmith.kernels.cpu import amx, row_kernels
from bertsmith.kernels.cpu.compilation import has_cpu_feature
from bertsmith.kernels.cpu.launcher import Launcher, float_bits
from bertsmith.kernels.cpu.layer_functions import is_bf16
from bertsmith.kernels.linear import MIN_QUANT_STEP, QuantizedLinear

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
