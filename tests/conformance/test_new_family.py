"""The price of a family: one value, made here and in no file of the package; one value and one line within it."""

from __future__ import annotations

import ast
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bertsmith
from bertsmith.artifacts.folder import read_folder, write_folder
from bertsmith.errors import InputError
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import FAMILIES, Family, build_encoder, preset
from bertsmith.models.tensor_names import LAYER_MODULES, TASK_MODULES, NameTable, name_table
from family_harness import SMALL, Ours, a_batch


def _toy_encoder(config: ModelConfig, generator: torch.Generator) -> Encoder:
    """BERT's, with one norm more on what attention gives: a part that no other family has."""
    encoder = Encoder(config, generator)
    for block in encoder.blocks:
        block.attention = _Normed(block.attention, nn.LayerNorm(config.hidden_size))  # type: ignore[arg-type]
    return encoder


class _Normed(nn.Module):
    def __init__(self, inner: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.inner, self.norm = inner, norm

    def forward(self, *inputs: Any) -> Tensor:
        return self.norm(self.inner(*inputs))


def _toy_names(config: ModelConfig) -> NameTable:
    layer = {
        name.replace("attention.", "attention.inner.", 1): theirs for name, theirs in LAYER_MODULES.items()
    }
    heads = {
        "masked": ("guess",),
        "masked.transform": ("guess.mix",),
        "masked.norm": ("guess.norm",),
        **TASK_MODULES,
    }
    return name_table(
        config,
        "sample",
        heads=heads,
        decoder="guess.decoder",
        layer={**layer, "attention.norm": ("attention.norm",)},
        layer_name="stack.{layer}",
    )


TOY = Family(
    model_type="sample",
    names=_toy_names,
    architectures={
        frozenset({"encoder"}): "ToyModel",
        frozenset({"encoder", "masked"}): "ToyForMaskedLM",
        frozenset({"encoder", "classifier"}): "ToyForSequenceClassification",
    },
    tokenizer="wordpiece",
    presets={"sample-tiny": {**SMALL, "type_vocab_size": 0}},
    structure={"embedding_size": None, "share": "none", "first_position": "zero"},
    keys={"hidden_size": "d_model", "num_hidden_layers": "depth"},
    fixed={"flavour": "plain"},
    encoder=_toy_encoder,
)


def _as_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "sample", TOY)


def _by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    home = types.ModuleType("home_of_the_toy")
    home.TOY = TOY  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "home_of_the_toy", home)
    monkeypatch.setitem(FAMILIES, "sample", "home_of_the_toy:TOY")


@pytest.mark.parametrize("register", [_as_object, _by_name])
def test_a_family_from_elsewhere_is_trained_saved_and_loaded(
    register: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    register(monkeypatch)
    config = preset("sample-tiny")
    assert config.model_type == "sample"
    parts = frozenset({"encoder", "masked"})
    ours = Ours(config, parts, build_encoder(config, torch.Generator().manual_seed(2)))
    packed, batch = a_batch(config)
    optimizer = torch.optim.AdamW(ours.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        _, loss = ours(packed, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]

    path = write_folder(tmp_path / "m", config, ours.parts)
    written = json.loads((path / "config.json").read_text())
    assert (written["model_type"], written["architectures"]) == ("sample", ["ToyForMaskedLM"])
    assert (written["d_model"], written["depth"], written["flavour"]) == (24, 2, "plain")
    folder = read_folder(path)
    assert folder.config == config
    again = Ours(config, parts, folder.encoder())
    folder.load_into("masked", again.heads["masked"])
    mine, theirs = ours.eval()(packed, batch)[0], again.eval()(packed, batch)[0]
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)

    (path / "config.json").write_text(json.dumps({**written, "flavour": "hot"}))
    with pytest.raises(InputError) as caught:
        read_folder(path)
    assert caught.value.code == "unsupported_config"
    del written["model_type"], written["architectures"]  # known by its tensors alone
    (path / "config.json").write_text(json.dumps(written))
    assert read_folder(path).architecture == "ToyForMaskedLM"


def test_without_its_line_a_family_is_unknown() -> None:
    with pytest.raises(InputError) as caught:
        build_encoder(ModelConfig(model_type="sample"), torch.Generator())
    assert caught.value.code == "unknown_name"
    with pytest.raises(InputError) as caught:
        preset("sample-tiny")
    assert caught.value.code == "unknown_preset"


@pytest.mark.parametrize("name", ["roberta", "albert"])
def test_a_family_is_named_in_the_files_of_families_only(name: str) -> None:
    """The price: no other line of the package's code knows it; docstrings and descriptions may speak of it."""
    files = Path(bertsmith.__file__).parent.rglob("*.py")
    assert {file.name for file in files if _knows(file, name)} == {"family.py", "families.py"}


def _knows(file: Path, name: str) -> bool:
    home = "bertsmith.models.families"
    return any(
        (isinstance(node, ast.Constant) and node.value in (name, f"{home}:{name.upper()}"))
        or (isinstance(node, ast.Name) and node.id.lower() == name)
        or (isinstance(node, ast.ImportFrom) and node.module == home)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    )
