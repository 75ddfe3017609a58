"""The Triton kernels compile for GPUs and fit into their shared memory, which Triton's interpreter cannot show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs Triton, which the extra `dev` has on Linux")

SCRIPT = Path(__file__).parents[1] / "compile_triton_kernels.py"
MIN_SHARED_MEMORY = 99 * 1024  # bytes that a program can use on any GPU of compute capability 8.0 or later


@pytest.mark.parametrize(
    ("hidden_size", "capability"),
    [(768, 90), (1024, 80), pytest.param(4096, 80, marks=pytest.mark.slow)],  # the last takes minutes
)
def test_kernels_compile_and_fit_into_shared_memory(
    hidden_size: int, capability: int, tmp_path: Path
) -> None:
    """Compile for the hidden sizes of BERT-base, BERT-large, and the largest models."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    process = subprocess.run(
        [sys.executable, SCRIPT, str(hidden_size), str(capability)],
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    shared_memory = json.loads(process.stdout.splitlines()[-1])
    assert len(shared_memory) == 9
    assert max(shared_memory.values()) <= MIN_SHARED_MEMORY, shared_memory
