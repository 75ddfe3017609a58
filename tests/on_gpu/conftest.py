"""The processor stands in for a GPU: torch's kernel of flash attention is replaced by one for it, all else is the
code that runs there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import flash_attention
from bertsmith.kernels.gpu import torch_flash_attention
from bertsmith.models import attention_layout


@pytest.fixture(scope="module", autouse=True)
def on_the_processor() -> Iterator[None]:
    """Flash attention on the processor."""
    library = flash_attention.register()
    yield
    library._destroy()


@pytest.fixture(autouse=True)
def no_spare_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where the shapes of products are not prepared."""
    monkeypatch.setattr(attention_layout, "_ROW_MULTIPLE", 1)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if flash attention took fp32: what is the same in all precisions is then the same to rounding."""
    monkeypatch.setattr(torch_flash_attention, "SUPPORTED_DTYPES", (torch.float32,))
    monkeypatch.setattr(flash_attention, "DTYPES", [torch.float32])
