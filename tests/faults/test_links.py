"""A run writes and deletes only its own files: not those that links lead to, and not the user's in its folder."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import bertsmith as bs
import tiny_run
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError
from bertsmith.io import atomic
from bertsmith.reports.run import write_figures
from bertsmith.settings import read_yaml
from bertsmith.tasks.labels import read_label_names
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.training.callbacks import MetricLogger
from bertsmith.training.trainer import Trainer

FEW = ["train.max_steps=4", "train.save_steps=2", "train.save_total_limit=1"]
NAMES = (
    "model",
    "log.jsonl",
    "speed.jsonl",
    "plan.jsonl",
    "settings.yaml",
    "report.html",
    "report.json",
    "tensorboard",
    "figures",
    "split",
    "features",
    "checkpoints",
    "checkpoints/step-4",
    "checkpoints/step-4/state.json",
    "model/config.json",
    "notes",
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def finished(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("finished") / "run"
    tiny_run.run(shards, run, *FEW)
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [{"resume": True}, {"overwrite": True}], ids=["resume", "overwrite"])
def test_a_link_in_a_run_is_refused_by_name_before_anything_is_written(
    shards: Shards, run: Path, tmp_path: Path, name: str, options: dict[str, bool]
) -> None:
    path, elsewhere = run / name, tmp_path / "mine"
    if path.exists():
        path.rename(elsewhere)
    else:
        elsewhere.mkdir()
    if elsewhere.is_dir():
        (elsewhere / "mine.txt").write_text("mine")
    path.symlink_to(elsewhere)
    before = content(tmp_path)
    with pytest.raises(InputError) as caught:
        tiny_run.run(shards, run, "train.max_steps=6", **options)  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.location) == ("not_a_file", str(path))
    assert content(tmp_path) == before
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError) as caught:
        tiny_run.run(shards, run, "train.max_steps=6", **options)  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.location) == ("not_a_file", str(path))


@pytest.mark.parametrize(("name", "code"), [("checkpoints", "not_a_file"), ("model", "not_a_model_folder")])
def test_a_name_that_becomes_a_link_during_the_run_is_not_followed(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    path, mine = tmp_path / "run" / name, tmp_path / "mine"
    mine.mkdir()
    (mine / "mine.txt").write_text("mine")
    save = Trainer._save_checkpoint

    def save_and_link(trainer: Trainer) -> None:
        save(trainer)
        if path.exists():
            path.rename(tmp_path / "moved")
        path.symlink_to(mine)

    monkeypatch.setattr(Trainer, "_save_checkpoint", save_and_link)
    steps = 1 + (name == "checkpoints")  # which is written to again
    with pytest.raises(InputError) as caught:
        tiny_run.run(shards, tmp_path / "run", f"train.max_steps={steps}", "train.save_steps=1")
    assert (caught.value.code, caught.value.location) == (code, str(path))
    assert content(mine) == {"mine.txt": b"mine"}


def test_figures_of_a_linked_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "loss.png").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "figures").symlink_to(tmp_path)
    with pytest.raises(InputError) as caught:
        write_figures(tmp_path / "run", {})
    assert (caught.value.code, caught.value.location) == ("not_a_file", str(tmp_path / "run" / "figures"))
    assert (tmp_path / "loss.png").read_text() == "mine"


def test_files_of_the_user_in_a_run_stay_when_it_is_resumed_and_are_named_when_it_is_replaced(
    shards: Shards, run: Path, tmp_path: Path
) -> None:
    names = (
        "notes.txt",
        "model/mine.txt",
        "model/mine.json",
        "model/deep/mine.txt",
        "figures/mine.png",
        "checkpoints/mine.txt",
        "checkpoints/best-mine.safetensors",
        "checkpoints/step-4/mine.txt",
        "features/mine.f32",
        ".model.old/mine.txt",
        ".model.0123456789abcdef.part/mine.txt",
    )
    for name in names:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(name)
    tiny_run.run(shards, run, *FEW, "train.max_steps=6", resume=True)
    assert {name: (run / name).read_text() for name in names} == {name: name for name in names}
    assert json.loads((run / "report.json").read_text())["steps"] == 6
    with pytest.raises(InputError) as caught:
        tiny_run.run(shards, run, *FEW, overwrite=True)
    assert caught.value.code == "not_replaceable"
    assert {name: (run / name).read_text() for name in names} == {name: name for name in names}


def test_another_name_of_a_log_keeps_its_content(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in ("log.jsonl", "speed.jsonl"):
        (tmp_path / name).write_text('{"step": 1}\n')
        os.link(tmp_path / name, tmp_path / "run" / name)
    with MetricLogger(tmp_path / "run", title="", num_updates=2, step=1, log_bytes=12) as recorder:
        recorder.record(2, "train", {"loss": 1.0})
    for name in ("log.jsonl", "speed.jsonl"):
        assert (tmp_path / name).read_text() == '{"step": 1}\n'
        assert len((tmp_path / "run" / name).read_text().splitlines()) == 2


@pytest.mark.parametrize("name", ["mine.txt", "tokenizer/mine.txt", "manifest.json"])
def test_preparing_removes_no_file_and_follows_no_link(tmp_path: Path, name: str) -> None:
    """Try the hidden folder of an unfinished preparation, and a data folder that is replaced."""
    corpus, mine = tmp_path / "corpus.txt", tmp_path / "mine.txt"
    corpus.write_text(tiny_run.corpus(4))
    mine.write_text("mine")
    prepare([corpus], tiny_run.tokenizer(), tmp_path / "other", workers=1)
    for out, folder in (("new", tmp_path / ".new.unfinished"), ("other", tmp_path / "other")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        if name.endswith("json"):
            (folder / name).symlink_to(mine)
        else:
            (folder / name).write_text("mine")
        with pytest.raises(InputError) as caught:
            prepare([corpus], tiny_run.tokenizer(), tmp_path / out, workers=1, overwrite=True)
        assert caught.value.code == ("not_a_file" if name.endswith("json") else "not_replaceable")
        assert (folder / name).read_text() == mine.read_text() == "mine"


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
def test_what_is_no_regular_file_in_a_model_folder_is_one_error(
    finished: Path, tmp_path: Path, kind: str
) -> None:
    for name in (
        "bertsmith.json",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
    ):
        model = tmp_path / name.replace(".", "-")
        shutil.copytree(finished / "model", model)
        (model / name).unlink()
        if kind == "fifo":
            os.mkfifo(model / name)
        elif kind == "folder":
            (model / name).mkdir()
        else:
            (model / name).symlink_to("/dev/zero")
        try:
            bs.load(model)
        except InputError:
            continue
        assert name.startswith("tokenizer")  # vocab.txt is read instead


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            atomic.read_file(path)
        with pytest.raises(InputError) as caught:
            read_yaml(path)
        assert (caught.value.code, caught.value.location) == ("not_a_file", str(path))
        with pytest.raises(InputError) as caught:
            read_label_names(str(path))
        assert (caught.value.code, caught.value.location) == ("not_a_file", str(path))
    (tmp_path / "large").write_bytes(b"#" * 100)
    with pytest.raises(OSError, match="larger than 99 bytes"):
        atomic.read_file(tmp_path / "large", 99)
    shutil.copytree(tmp_path, tmp_path / "tokenizer", ignore=lambda *_: ["fifo", "tokenizer"])
    os.mkfifo(tmp_path / "tokenizer" / "tokenizer.json")
    with pytest.raises(InputError):
        Tokenizer.load(tmp_path / "tokenizer")
