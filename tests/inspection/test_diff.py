"""Test comparisons of two models by name and by folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tiny_run
from bertsmith.artifacts.folder import write_folder
from bertsmith.errors import InputError
from bertsmith.inspection.diff import compare_models
from bertsmith.models.family import build_encoder, preset


def rows(document: dict[str, object], part: str) -> dict[str, tuple[object, object]]:
    differences = document[part]
    assert isinstance(differences, list)
    return {row["what"]: (row["a"], row["b"]) for row in differences}


def test_two_presets() -> None:
    document = compare_models("bert-base-uncased", "roberta-base")
    assert rows(document, "settings") == {
        "model_type": ("bert", "roberta"),
        "vocab_size": (30_522, 50_265),
        "max_position_embeddings": (512, 514),
        "first_position": ("zero", "after_padding"),
        "type_vocab_size": (2, 1),
        "layer_norm_eps": (1e-12, 1e-5),
        "pad_token_id": (0, 1),
    }
    traits = rows(document, "family")
    assert traits["usual tokenizer"] == ("wordpiece", "byte_level_bpe")
    assert traits["pre-trained with data.sentence_task"] == ("nsp", "none")
    assert traits["pre-trained with train.adam_beta2"] == (0.999, 0.98)
    assert "pre-trained with objective" not in traits  # both have the same
    assert rows(document, "parameters") == {
        "token embeddings": (23_440_896, 38_603_520),
        "position embeddings": (393_216, 394_752),
        "segment embeddings": (1_536, 768),
        "sum": (108_891_648, 124_055_040),
    }


def test_a_folder_and_a_preset(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    config = preset("distilbert-base-cased", vocab_size=50, **sizes)
    folder = write_folder(tmp_path / "m", config, {"encoder": build_encoder(config, torch.Generator())})
    document = compare_models(folder, "distilbert-base-cased")
    assert rows(document, "settings")["num_hidden_layers"] == (1, 6)
    assert document["family"] == []
    assert rows(document, "parameters")["the layers' LayerNorms"] == (4 * 16, 6 * 4 * 768)


def test_two_runs(tmp_path: Path) -> None:
    """Training settings are compared if both are runs."""
    shards = tiny_run.make_shards(tmp_path)
    for name, steps in (("a", 2), ("b", 3)):
        tiny_run.run(shards, tmp_path / name, f"train.max_steps={steps}")
    document = compare_models(tmp_path / "a", tmp_path / "b")
    assert rows(document, "runs") == {"train.max_steps": (2, 3)}
    assert document["settings"] == document["family"] == []
    assert compare_models(tmp_path / "a", "bert-tiny-uncased")["runs"] == []


def test_a_model_does_not_differ_from_itself() -> None:
    document = compare_models("electra-small-generator", "electra-small-generator")
    assert document["settings"] == document["family"] == []
    assert [row["what"] for row in document["parameters"]] == ["sum"]


def test_a_mistyped_name_gets_a_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError) as caught:
        compare_models("bert-base-uncased", "robreta-base")
    assert (caught.value.code, caught.value.location) == ("model_not_found", "robreta-base")
    assert "roberta-base" in str(caught.value.hint)
    with pytest.raises(InputError):
        compare_models("nothing/like-it", "roberta-base")
