"""A mistyped path is refused without the network, with a suggestion."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

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
