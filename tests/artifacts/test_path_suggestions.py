"""A mistyped path never asks the network, and is told what is here."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from bertsmith.artifacts.locate import locate
from bertsmith.artifacts.path_suggestions import refuse_mistyped
from bertsmith.errors import InputError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("runs/bert", "runs/moods/model", "bert", "bert-base-uncased-mine"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("runs/bertt", "did you mean runs/bert?"),
        ("bret", "did you mean bert?"),
        ("./bret", "did you mean bert?"),
        ("nowhere", "name a run"),
        ("run/bert", "did you mean runs/bert?"),
        ("bertt", "did you mean bert?"),
        ("./zz", "name a run"),
        ("../nowhere", "name a run"),
        ("~/runs/mods", "runs/moods?"),
        ("/nowhere/at/all", "name a run"),
        ("runs/moods/modle", "did you mean runs/moods/model?"),
        ("runs/anything", "name a run"),
        ("a/b/c", "name a run"),
        ("model.safetensors", "name a run"),
        ("owner/train.csv", "name a run"),
        ("-o", "name a run"),
        ("a\x00b", "name a run"),
        ("", "name a run"),
        ("https://example.org/bert", "name a run"),
    ],
)
def test_what_reads_as_a_path_is_not_looked_up(name: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=asked))
    with pytest.raises(InputError) as refused:
        refuse_mistyped(name) if not name or "\0" in name else locate(name)
    assert ("no such folder" if name else "the name of a folder is empty") in refused.value.sentence
    assert hint in (refused.value.remedy or "")


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
def test_what_may_be_published_passes(name: str) -> None:
    refuse_mistyped(name)
