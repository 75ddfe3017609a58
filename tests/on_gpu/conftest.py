"""The processor stands in for a GPU: torch's kernel of flash attention is replaced by one for it, all else is the
code that runs there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import flash_attention
from bertsmith.kernels import on_gpu
from bertsmith.models import layout


@pytest.fixture(scope="module", autouse=True)
def flash() -> Iterator[None]:
    """Flash attention on the processor."""
    library = flash_attention.registered()
    yield
    library._destroy()


@pytest.fixture(autouse=True)
def no_spare_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where the shapes of products are not prepared."""
    monkeypatch.setattr(layout, "_ROWS", 1)


@pytest.fixture(autouse=True)
def no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Triton compiles needs a GPU; its own tests interpret it."""
    monkeypatch.setattr(on_gpu, "blocks", lambda: None)


@pytest.fixture(scope="session")
def blocks() -> on_gpu.Blocks:
    """What Triton compiles, computed by its interpreter where there is no GPU."""
    pytest.importorskip("triton", reason="needs Triton, which the extra `dev` has on Linux")
    found = on_gpu.blocks()
    assert found is not None
    return found


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions themselves, which torch.compile makes programs of."""
    monkeypatch.setattr(on_gpu, "_program", lambda function: function)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if flash attention took fp32: what is the same in all precisions is then the same to rounding."""
    monkeypatch.setattr(on_gpu, "_FLASHES", (torch.float32,))
    monkeypatch.setattr(flash_attention, "KINDS", [torch.float32])
