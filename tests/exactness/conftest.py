"""Let these tests import `tiny_run`, which stands beside their folder, and compute on one thread."""

import sys
from pathlib import Path

import pytest
import torch

from bertsmith import machine

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny tensors on as many threads as a busy machine has cores take a hundred times as long."""
    monkeypatch.setattr(machine, "allowed_cores", lambda: 1)
    torch.set_num_threads(1)
