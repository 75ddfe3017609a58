"""The CPU replaces a GPU: PyTorch's flash attention kernel is replaced by one for the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import flash_attention
from bertsmith.kernels.gpu import torch_flash_attention
from bertsmith.models import attention


@pytest.fixture(scope="module", autouse=True)
def flash_attention_on_cpu() -> Iterator[None]:
    """Register flash attention for the CPU."""
    library = flash_attention.register()
    yield
    library._destroy()


@pytest.fixture(autouse=True)
def no_row_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pad no rows, as on a GPU, where matrix products have no preparation cost."""
    monkeypatch.setattr(attention, "_ROW_MULTIPLE", 1)


@pytest.fixture
def fp32_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let flash attention support fp32, so that results can be compared with small tolerances."""
    monkeypatch.setattr(torch_flash_attention, "SUPPORTED_DTYPES", (torch.float32,))
    monkeypatch.setattr(flash_attention, "DTYPES", [torch.float32])
