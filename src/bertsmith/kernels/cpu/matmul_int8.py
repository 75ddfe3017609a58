"""Products of 8-bit integers by compiled bodies, for answers."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from bertsmith.kernels.cpu import amx, row_kernels
from bertsmith.kernels.cpu.compilation import Launcher, float_bits, has_cpu_feature
from bertsmith.kernels.cpu.layer_functions import is_bf16
from bertsmith.kernels.reference import MIN_QUANT_STEP, QuantizedLinear

GEMM_INT8_FALLBACK: Any = (
    import_module("bertsmith.kernels.cpu.gemm_int8_avx2") if has_cpu_feature("avx2") else None
)
"""The body of a layer in 8-bit integers, by instructions that other processors do not have."""

GEMM_INT8: Any = (
    import_module("bertsmith.kernels.cpu.gemm_int8_amx")
    if has_cpu_feature("amx-int8") and amx.is_amx_available()
    else import_module("bertsmith.kernels.cpu.gemm_int8_vnni")
    if has_cpu_feature("avx512vnni")
    else None
)
"""The same where the processor multiplies 8-bit integers itself, in tiles or in registers."""


def int8_linear(
    linear: QuantizedLinear, x: Tensor, kind: torch.dtype, run: Launcher, *, activated: bool = False
) -> Tensor:
    """See `Kernels.integer_linear`, of x in fp32 or bf16, its rows in memory as they are."""
    rows, inputs, outputs = *x.shape, len(linear.dequant.weight_sums)
    found = x.new_empty((rows, outputs), dtype=kind)
    if not rows:
        return found
    bodies = GEMM_INT8 if linear.weight.dtype == torch.int8 else GEMM_INT8_FALLBACK
    own = bodies.workspace_size(inputs)
    run(
        bodies.int8_linear_kernel,
        *(is_bf16(x), x, linear.input_scale, linear.weight, found),
        *(linear.dequant.weight_sums, linear.dequant.scale, linear.dequant.bias),
        *(
            rows,
            inputs,
            outputs,
            float_bits(MIN_QUANT_STEP),
            run.workspace(torch.get_num_threads() * own),
            own,
            is_bf16(found),
        ),
        *(activated, amx.TILE_CONFIG, linear.outlier_channel, linear.dequant.outlier_weight),
    )
    if activated and bodies is GEMM_INT8_FALLBACK:
        run(row_kernels.gelu, is_bf16(found), found, found, found.numel())
    return found
