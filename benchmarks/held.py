"""Processes held to fewer instructions than the processor has, to measure a class that is not at hand.

Held are torch's own loops, oneDNN (and with it the products of both sides), MKL where it listens, and what Numba
compiles. The clock, the caches and the memory stay this processor's: ratios carry over, rates do not. Libraries
that ask the processor themselves (ONNX Runtime, OpenVINO) cannot be held.
"""

from __future__ import annotations

import os
import sys

TOLD = "BERTSMITH_BENCHMARK_HELD"
NAMES = {
    "avx2": ("AVX2", "avx2"),
    "avx512": ("AVX512_CORE", "avx512"),
    "avx512_vnni": ("AVX512_CORE_VNNI", "avx512"),
}  # as oneDNN and torch call them
MKL = {"avx2": "AVX2", "avx512": "AVX512", "avx512_vnni": "AVX512"}
BEYOND = {
    "avx2": ("avx512", "avx10", "amx"),
    "avx512": ("avx512bf16", "avx512vnni", "avx512fp16", "avxvnni", "avx10", "amx"),
    "avx512_vnni": ("avx512bf16", "avx512fp16", "avxvnni", "avx10", "amx"),
}


def held_to() -> str:
    """What this process is held to; empty where it may use all."""
    return os.environ.get(TOLD, "")


def hold(to: str) -> None:
    """Begin this process anew, held; its children will be, too. Once it is, do nothing."""
    if held_to() == to:
        return
    own = {
        "ONEDNN_MAX_CPU_ISA": NAMES[to][0],
        "ATEN_CPU_CAPABILITY": NAMES[to][1],
        "MKL_ENABLE_INSTRUCTIONS": MKL[to],
        "NUMBA_CPU_NAME": processor(to),
        "NUMBA_CPU_FEATURES": features(to),
        TOLD: to,
    }
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **own})


def processor(to: str) -> str:
    """For which LLVM then compiles: of AMD's the last one without AVX-512, or the first with it; else a class of
    them all."""
    import llvmlite.binding as llvm

    if llvm.get_host_cpu_name().startswith("znver"):
        return "znver3" if to == "avx2" else "znver4"
    return "x86-64-v3" if to == "avx2" else "x86-64-v4"


def features(to: str) -> str:
    """This processor's, without those beyond."""
    import llvmlite.binding as llvm

    known = llvm.get_host_cpu_features()
    return ",".join(
        f"{'+' if has and not name.startswith(BEYOND[to]) else '-'}{name}"
        for name, has in sorted(known.items())
    )
