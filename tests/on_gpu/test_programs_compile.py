"""What Triton's interpreter cannot show: that programs compile for GPUs, and fit into them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs Triton, which the extra `dev` has on Linux")

SCRIPT = Path(__file__).parents[1] / "compile_triton_kernels.py"
LEAST = 99 * 1024  # bytes of shared memory that a program has on any GPU from compute capability 8.0 on


@pytest.mark.parametrize(("width", "capability"), [(768, 90), (4096, 80)])
def test_programs_compile_and_find_room(width: int, capability: int, tmp_path: Path) -> None:
    """Of BERT's base, and of the widest models there are."""
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, SCRIPT, str(width), str(capability)],
        env={**plain, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    shared = json.loads(done.stdout.splitlines()[-1])
    assert len(shared) == 9
    assert max(shared.values()) <= LEAST, shared
