"""Answers in bf16 by a model that was not trained in it, where its rounded weights are those of another."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

import bertsmith as bs
from bertsmith import machine
from bertsmith.artifacts.folder import write_folder
from bertsmith.models.family import build_encoder, preset
from bertsmith.tokenizer.tokenizer import Tokenizer

STORED_IN_BF16 = "bert-mini-uncased-en"
TEXTS = ["a short text", "what a day !", "it rains in the mountains , and the river rises under the bridge ."]


def moved(folder: Path, share: float, record: Mapping[str, str]) -> Path:
    """That model with each weight moved towards one aim by a share of the half step by which rounding moves one,
    as a short fine-tuning in fp32 does."""
    model = bs.load(STORED_IN_BF16, "cpu", precision="fp32")
    encoder = model.encoder
    ids = torch.arange(1000, 1032)[None]
    states = encoder(ids, torch.ones_like(ids), torch.zeros_like(ids))
    states.reshape(-1, encoder.config.hidden_size)[:, ::2].sum().backward()
    with torch.no_grad():
        for weight in encoder.parameters():
            if weight.grad is not None:
                half = (torch.frexp(weight).exponent - 9).float().exp2()  # bf16 has 8 binary digits
                weight += share * half * weight.grad.sign()
    return write_folder(
        folder, encoder.config, {"encoder": encoder}, tokenizer=model.tokenizer, record=record
    )


def told_by(folder: Path, precision: str) -> list[str]:
    """What is told when a text is read."""
    told: list[str] = []
    bs.load(folder, "cpu", told.append, precision=precision).embed(TEXTS)
    return told


def least_cosine(folder: Path) -> float:
    """Of the texts' vectors in bf16 and in fp32."""
    a, b = (
        bs.load(folder, "cpu", lambda _: None, precision=name).embed(TEXTS, normalize=True)
        for name in ("fp32", "bf16")
    )
    return float((a * b).sum(1).min())


def test_under_auto_it_answers_in_fp32_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever bf16 is faster."""
    faster = machine.PrecisionChoice("bf16", "it is faster")
    monkeypatch.setattr(machine, "choose_precision", lambda _: faster)
    folder = moved(tmp_path / "short", 0.9, {})
    assert told_by(folder, "auto") == []
    assert bs.load(folder, "cpu").place.precision == "fp32"
    assert bs.load(moved(tmp_path / "far", 40, {}), "cpu").place.precision == "bf16"
    trained_so = moved(tmp_path / "so", 0.9, {"precision": "bf16"})
    assert bs.load(trained_so, "cpu").place.precision == "bf16"


def test_what_rounding_takes_back_is_told(tmp_path: Path) -> None:
    folder = moved(tmp_path / "short", 0.9, {"precision": "fp32"})
    assert least_cosine(folder) < 0.999
    (told,) = told_by(folder, "bf16")
    assert re.fullmatch(
        re.escape(f"{folder}: ")
        + r"in bf16 hidden states of this model are off: of random texts the cosine with "
        r"those in fp32 falls to 0\.9\d+, where 0\.999 or more is usual; answer in fp32 \(--precision\)",
        told,
    )
    for precision in ("fp32", "auto"):
        assert told_by(folder, precision) == []


def test_it_is_told_once_for_the_same_weights_and_only_where_something_is_read(tmp_path: Path) -> None:
    folder, told = moved(tmp_path / "short", 0.9, {}), list[str]()
    model = bs.load(folder, "cpu", told.append, precision="bf16")
    model.embed([])
    assert told == []
    for _ in range(2):
        model.embed(TEXTS)
    assert len(told) == 1
    stored = bs.load(STORED_IN_BF16, "cpu", precision="fp32").encoder.state_dict()
    moved_by = model.encoder.state_dict()
    moved_by = {name: weight.clone() for name, weight in moved_by.items()}
    for weights, number in ((stored, 1), (moved_by, 2)):
        model.encoder.load_state_dict(weights)
        model.embed(TEXTS)
        assert len(told) == number


def test_under_auto_changed_weights_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        machine, "choose_precision", lambda _: machine.PrecisionChoice("bf16", "it is faster")
    )
    short = bs.load(moved(tmp_path / "short", 0.9, {}), "cpu", precision="fp32")
    model = bs.load(moved(tmp_path / "stored", 0, {}), "cpu")
    assert model.place.precision == "bf16"
    model.encoder.load_state_dict(short.encoder.state_dict())
    assert model.place.precision == "fp32"
    exact = bs.load(short.path, "cpu").embed(TEXTS)
    np.testing.assert_array_equal(model.embed(TEXTS), exact)


def test_a_vocabulary_of_special_tokens_alone_is_tried(tmp_path: Path) -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer.of_vocabulary(tokens, lowercase=True, max_length=16)
    config = preset("bert-tiny-uncased", vocab_size=5)
    encoder = build_encoder(config, torch.Generator().manual_seed(0))
    folder = write_folder(tmp_path / "model", config, {"encoder": encoder}, tokenizer=tokenizer)
    for precision in ("auto", "bf16", "fp32"):
        assert told_by(folder, precision) == []


@pytest.mark.parametrize(("share", "record"), [(0.9, {"precision": "bf16"}), (0, {}), (40, {})])
def test_where_nothing_is_taken_back_nothing_is_told(
    share: float, record: Mapping[str, str], tmp_path: Path
) -> None:
    """Of a model that was trained so, whose weights were rounded all the time; of the stored one; and of one that
    has moved further than rounding does."""
    folder = moved(tmp_path / "model", share, record)
    assert told_by(folder, "bf16") == []
    if not record:
        assert least_cosine(folder) > 0.999
