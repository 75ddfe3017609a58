"""Products of 8-bit integers by compiled bodies, for answers."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from bertsmith.kernels.cpu import amx, row_kernels
from bertsmith.kernels.cpu.compilation import Run, bits, compiles_for
from bertsmith.kernels.cpu.layer_functions import is_half
from bertsmith.kernels.reference import TINY, Integers

INTEGERS: Any = import_module("bertsmith.kernels.cpu.gemm_int8_avx2") if compiles_for("avx2") else None
"""The body of a layer in 8-bit integers, by instructions that other processors do not have."""

NATIVE: Any = (
    import_module("bertsmith.kernels.cpu.gemm_int8_amx")
    if compiles_for("amx-int8") and amx.are_here()
    else import_module("bertsmith.kernels.cpu.gemm_int8_vnni")
    if compiles_for("avx512vnni")
    else None
)
"""The same where the processor multiplies 8-bit integers itself, in tiles or in registers."""


def in_integers(
    linear: Integers, x: Tensor, kind: torch.dtype, run: Run, *, activated: bool = False
) -> Tensor:
    """See `Kernels.integer_linear`, of x in fp32 or bf16, its rows in memory as they are."""
    rows, inputs, outputs = *x.shape, len(linear.of.sums)
    found = x.new_empty((rows, outputs), dtype=kind)
    if not rows:
        return found
    bodies = NATIVE if linear.weight.dtype == torch.int8 else INTEGERS
    own = bodies.room(inputs)
    run(
        bodies.linear,
        *(is_half(x), x, linear.channels, linear.weight, found),
        *(linear.of.sums, linear.of.scale, linear.of.bias),
        *(rows, inputs, outputs, bits(TINY), run.room(torch.get_num_threads() * own), own, is_half(found)),
        *(activated, amx.WHOLE, linear.apart, linear.of.apart),
    )
    if activated and bodies is INTEGERS:
        run(row_kernels.gelu, is_half(found), found, found, found.numel())
    return found
