"""The models of a server: their sources, and their replacement while it runs."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import bertsmith as bs
from bertsmith.serving.models import ModelRegistry, ServedModel
from served import SECONDS, wait_until


def spoil_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file)
    save_file({name: torch.full_like(tensor, torch.nan) for name, tensor in weights.items()}, file)


def spoil_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")


@pytest.mark.parametrize("spoil", [spoil_weights, spoil_tokenizer])
def test_a_damaged_model_does_not_replace_a_sound_one(
    spoil: Callable[[Path], None], base: bs.Model, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(base.folder.path, folder)
    registry = ModelRegistry([str(folder)], "cpu", "fp32")
    before = registry["model"]
    spoil(folder)
    registry.reload()
    assert registry["model"] is before
    with pytest.raises(bs.InputError):
        ModelRegistry([str(folder)], "cpu", "fp32")


@pytest.mark.parametrize("task", ["classify", "embed"])
def test_the_maximum_length_is_that_of_the_task(task: str, base: bs.Model, tmp_path: Path) -> None:
    rows = [{"text": "kaba", "label": "a"}, {"text": "lode", "label": "b"}]
    if task == "embed":
        rows = [{"sentence1": "kaba", "sentence2": "lode", "score": str(i)} for i in range(2)]
    settings = {"max_steps": 1, "max_length": 20, "report_to": "none"}
    bs.finetune(task, base.path, tmp_path, train=rows, validation=rows, **settings)
    served = ServedModel.load("model", str(tmp_path), "cpu", "fp32")
    assert base.folder.config.max_length > 20
    assert (served.max_length, served.to_dict()["max_length"]) == (20, 20)


def test_reloads_are_merged_and_stop_with_the_server(base: bs.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = ModelRegistry([f"a={base.path}", f"b={base.path}"], "cpu", "fp32")
    model, names, may_load = registry["a"], list[str](), threading.Event()

    def load(name: str, *arguments: Any) -> ServedModel:
        names.append(name)
        assert may_load.wait(SECONDS)
        return model

    monkeypatch.setattr(ServedModel, "load", load)
    threads = [threading.Thread(target=registry.reload) for _ in range(5)]
    threads[0].start()
    wait_until(lambda: names == ["a"])
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: sum(thread.is_alive() for thread in threads) == 2)
    may_load.set()
    for thread in threads:
        thread.join(SECONDS)
    assert names == ["a", "b", "a", "b"]
    may_load.clear()
    last = threading.Thread(target=registry.reload)
    last.start()
    wait_until(lambda: len(names) == 5)
    registry.is_closed = True
    may_load.set()
    last.join(SECONDS)
    assert len(names) == 5


def test_a_folder_of_runs_is_the_error_of_predict(base: bs.Model, tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_text('{"runs": ["seed-0", "seed-1"]}', encoding="utf-8")
    for load in (bs.load, lambda path: ModelRegistry([f"moods={path}"])):
        with pytest.raises(bs.InputError) as error:
            load(tmp_path)
        assert (error.value.code, error.value.location) == ("folder_of_runs", str(tmp_path))


@pytest.mark.parametrize("source", ["=model", "model=", "="])
def test_a_source_has_a_name_and_a_path(source: str) -> None:
    with pytest.raises(bs.InputError) as error:
        ModelRegistry([source])
    assert error.value.code == "invalid_model_name"
