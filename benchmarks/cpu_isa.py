"""Limit processes to fewer instructions than the processor has, to measure an older class of processors.

The limit holds for torch's own loops, oneDNN (the matrix products of both sides), MKL where it obeys, and code
compiled by Numba. Clock, caches, and memory stay this processor's: ratios carry over, rates do not. Libraries that
detect the processor themselves (ONNX Runtime, OpenVINO) cannot be limited.
"""

from __future__ import annotations

import os
import sys

VARIABLE = "BERTSMITH_BENCHMARK_MAX_ISA"
LIMITS = {  # names for oneDNN, torch, and MKL; prefixes of LLVM's features that are switched off
    "avx2": ("AVX2", "avx2", "AVX2", ("avx512", "avx10", "amx")),
    "avx512": (
        *("AVX512_CORE", "avx512", "AVX512"),
        ("avx512bf16", "avx512vnni", "avx512fp16", "avxvnni", "avx10", "amx"),
    ),
    "avx512_vnni": (
        *("AVX512_CORE_VNNI", "avx512", "AVX512"),
        ("avx512bf16", "avx512fp16", "avxvnni", "avx10", "amx"),
    ),
}


def isa_limit() -> str:
    """Return this process's limit; empty if there is none."""
    return os.environ.get(VARIABLE, "")


def restart_limited(isa: str) -> None:
    """Restart this process and limit it and its children to an instruction set. Do nothing if it is limited."""
    if isa_limit() == isa:
        return
    import llvmlite.binding as llvm

    onednn, torch, mkl, newer = LIMITS[isa]
    features = ",".join(
        f"{'+' if is_present and not name.startswith(newer) else '-'}{name}"
        for name, is_present in sorted(llvm.get_host_cpu_features().items())
    )
    # AMD's last processor without AVX-512 and first one with it, or else x86-64's levels
    is_amd = llvm.get_host_cpu_name().startswith("znver")
    without_avx512, with_avx512 = ("znver3", "znver4") if is_amd else ("x86-64-v3", "x86-64-v4")
    variables = {
        "ONEDNN_MAX_CPU_ISA": onednn,
        "ATEN_CPU_CAPABILITY": torch,
        "MKL_ENABLE_INSTRUCTIONS": mkl,
        "NUMBA_CPU_NAME": without_avx512 if isa == "avx2" else with_avx512,
        "NUMBA_CPU_FEATURES": features,
        VARIABLE: isa,
    }
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **variables})
