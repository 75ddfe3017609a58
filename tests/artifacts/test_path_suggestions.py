"""A mistyped path is refused without the network, with a suggestion."""

from __future__ import annotations

import json
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import bertsmith as bs
from bertsmith.artifacts.locate import check_model_name, locate
from bertsmith.errors import InputError


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("runs/bert", "runs/moods/model", "bert", "bert-base-uncased-mine"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("runs/bertt", "runs/bert"),
        ("bret", "bert"),
        ("./bret", "bert"),
        ("nowhere", None),
        ("run/bert", "runs/bert"),
        ("bertt", "bert"),
        ("./zz", None),
        ("../nowhere", None),
        ("~/runs/mods", "runs/moods"),
        ("/nowhere/at/all", None),
        ("runs/moods/modle", "runs/moods/model"),
        ("runs/anything", None),
        ("a/b/c", None),
        ("model.safetensors", None),
        ("owner/train.csv", None),
        ("-o", None),
        ("a\x00b", None),
        ("", None),
        ("https://example.org/bert", None),
        ("bert-mini-uncased-eng", "bert-mini-uncased-en"),
        ("bert-mini-uncased-e", "bert-mini-uncased-en"),
    ],
)
def test_paths_are_not_looked_up_on_the_hub(
    name: str, suggestion: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def snapshot_download(*_: object, **__: object) -> None:
        raise AssertionError("the network was used")

    hub = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(InputError) as caught:
        check_model_name(name) if not name or "\0" in name else locate(name)
    hint = caught.value.hint or ""
    assert f"{suggestion}?" in hint if suggestion else "?" not in hint


@pytest.mark.parametrize(
    "name",
    [
        "bert-base-uncased",
        "google-bert/bert-base-uncased",
        "owner/model-v1.5",
        "owner/name_2",
        "albert-v2",
        "gpt2",
    ],
)
def test_published_names_pass(name: str) -> None:
    assert check_model_name(name) is None


def test_the_shipped_model_is_suggested_for_a_published_name() -> None:
    assert check_model_name("bert-mini-uncased") == "bert-mini-uncased-en"


def test_a_mistyped_published_name_gets_the_nearest_and_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name, near in (("roberta-bse", "did you mean roberta-base?"), ("roberta-base", "name a run")):
        with pytest.raises(InputError) as caught:
            locate(name)
        hint = str(caught.value.hint)
        assert hint.startswith(near)
        assert "bert-mini-uncased-en" in hint


def test_a_hub_that_cannot_be_reached_is_not_said_to_lack_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(*_: object, **__: object) -> None:
        raise ConnectionError("no route to host")

    hub = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(InputError) as caught:
        locate("bert-base-uncased")
    assert caught.value.code == "model_not_found"
    assert "could be loaded from the Hugging Face hub (no route to host)" in caught.value.message


def test_only_models_are_suggested_for_a_published_name_and_no_run_named_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    def hint() -> str:
        with pytest.raises(InputError) as caught:
            locate("albert-base-v2")
        return str(caught.value.hint)

    for name in ("albert-base-v2-moods", "my-albert-base-v2"):
        (tmp_path / name).mkdir()
        assert name not in hint()
    for name in ("albert-base-v2-moods", "my-albert-base-v2"):
        (tmp_path / name / "config.json").write_text("{}")
    assert "albert-base-v2-moods" not in hint()
    assert "my-albert-base-v2" in hint()


def test_a_folder_that_replaces_the_shipped_model_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "bertsmith")
    for name in ("bert-mini-uncased-en", "bert"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "config.json").write_text("{}")
        assert locate(name) == Path(name)
    assert len(caplog.records) == 1


def write_config(folder: Path, architecture: str, model_type: str) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps({"architectures": [architecture], "model_type": model_type}), encoding="utf-8"
    )


def test_a_published_name_offline_is_the_only_pretrained_model_of_its_family_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    write_config(tmp_path / "mine" / "model", "RobertaForMaskedLM", "roberta")
    with pytest.raises(InputError):
        locate("owner/of-no-family")
    write_config(tmp_path / "small", "AlbertForPreTraining", "albert")
    write_config(tmp_path / "moods" / "model", "RobertaForSequenceClassification", "roberta")
    for name in ("roberta-base", "FacebookAI/roberta-base", "roberta-large"):
        caplog.clear()
        assert locate(name) == Path("mine/model")
        assert "mine/model is used instead" in caplog.text
    assert locate("albert-base-v2") == Path("small")
    for name in ("bert-base-uncased", "owner/of-no-family"):  # no folder of the family: what exists is listed
        with pytest.raises(InputError) as caught:
            locate(name)
        assert caught.value.code == "hub_not_installed"
        assert "mine, small, bert-mini-uncased-en" in str(caught.value.hint)
    write_config(tmp_path / "mine-too" / "model", "RobertaForMaskedLM", "roberta")
    with pytest.raises(InputError) as caught:  # two: neither is chosen
        locate("roberta-base")
    assert "mine, mine-too, small" in str(caught.value.hint)


@pytest.mark.parametrize("output_dir", ["roberta-bas", "roberta_base"])
def test_a_missing_model_is_not_taken_for_the_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output_dir: str
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    rows = [{"text": "a", "label": "x"}]
    options: dict[str, Any] = {"train": rows, "validation": rows}
    for run in (bs.finetune, partial(bs.finetune_repeatedly, restarts=2)):
        with pytest.raises(InputError) as caught:
            run("classify", "roberta-base", output_dir, **options)
        assert caught.value.code == "hub_not_installed"
        assert output_dir not in str(caught.value.hint)
