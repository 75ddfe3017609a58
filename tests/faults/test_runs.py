"""A run folder: one run at a time, never mixed with anybody's files, and true words on what resuming finds."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_run
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError
from bertsmith.finetuning.run import finetune
from bertsmith.io import atomic
from run_equality import killed_in

FEW = ["train.max_steps=4", "train.save_steps=2"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def finished(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("finished") / "run"
    tiny_run.run(shards, run, *FEW)
    return run


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_of_somebody_elses_files_is_refused_and_untouched(
    shards: Shards, finished: Path, tmp_path: Path
) -> None:
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(12))
    for name in ("log.jsonl", "report.json", "thesis.tex"):
        out = tmp_path / f"out-{name}"
        out.mkdir()
        (out / name).write_text("mine")
        for resume in (False, True):
            with pytest.raises(InputError) as caught:
                tiny_run.run(shards, out, *FEW, resume=resume)
            assert caught.value.code == "output_exists"
            with pytest.raises(InputError) as caught:
                finetune("classify", finished, out, train=rows, validation=rows, resume=resume)
            assert caught.value.code == "output_exists"
        assert content(out) == {name: b"mine"}


def test_a_second_run_or_preparation_in_the_same_folder_is_refused(
    shards: Shards, finished: Path, tmp_path: Path
) -> None:
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(12))
    (tmp_path / "corpus.txt").write_text(tiny_run.corpus())
    before = content(finished)
    with atomic.folder_lock(finished, "run"):
        for resume in (False, True):
            with pytest.raises(InputError) as caught:
                tiny_run.run(shards, finished, *FEW, resume=resume)
            assert caught.value.code == "folder_locked"
            with pytest.raises(InputError) as caught:
                finetune("classify", finished, finished, train=rows, validation=rows, resume=resume)
            assert caught.value.code == "folder_locked"
    assert content(finished) == before
    second: list[InputError] = []

    def meanwhile(_: int) -> None:
        with pytest.raises(InputError) as refused:
            prepare([tmp_path / "corpus.txt"], tiny_run.tokenizer(), tmp_path / "out", workers=1)
        assert refused.value.code == "folder_locked"
        assert str(refused.value.location).endswith("out")
        second.append(refused.value)

    prepare([tmp_path / "corpus.txt"], tiny_run.tokenizer(), tmp_path / "out", workers=1, progress=meanwhile)
    assert second
    Shards.open(tmp_path / "out").verify()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "out", "train.csv"]


def remove(name: str) -> Callable[[Path], None]:
    return lambda run: shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()


def empty(name: str) -> Callable[[Path], None]:
    def emptied(run: Path) -> None:
        if (run / name).is_dir():
            remove(name)(run)
            (run / name).mkdir()
        else:
            (run / name).write_text("")

    return emptied


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (remove("settings.yaml"), "is missing, and step-4 cannot be continued"),
        (empty("settings.yaml"), "is empty, and step-4 cannot be continued"),
    ],
)
def test_a_run_without_its_settings_says_so(
    shards: Shards, finished: Path, tmp_path: Path, harm: Callable[[Path], None], words: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    harm(run)
    before = content(run)
    with pytest.raises(InputError) as caught:
        tiny_run.run(shards, run, *FEW, resume=True)
    assert caught.value.code == "run_settings_missing"
    assert (caught.value.code, caught.value.location) == ("run_settings_missing", str(run / "settings.yaml"))
    assert content(run) == before


@pytest.mark.parametrize("harm", [remove("checkpoints"), empty("checkpoints")])
def test_a_run_without_checkpoints_starts_again_and_says_so(
    shards: Shards,
    finished: Path,
    tmp_path: Path,
    harm: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    harm(run)
    caplog.clear()
    tiny_run.run(shards, run, *FEW, resume=True)
    assert any(
        "checkpoints: there is no checkpoint; the run starts again" in text for text in caplog.messages
    )
    assert (run / "log.jsonl").read_bytes() == (finished / "log.jsonl").read_bytes()


def test_a_run_goes_into_a_link_to_an_empty_folder(shards: Shards, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    tiny_run.run(shards, tmp_path / "link", *FEW)
    assert (tmp_path / "target" / "model" / "model.safetensors").is_file()
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "shards").mkdir()
    (tmp_path / "way").symlink_to(tmp_path / "shards")
    (tmp_path / "corpus.txt").write_text(tiny_run.corpus())
    prepare([tmp_path / "corpus.txt"], tiny_run.tokenizer(), tmp_path / "way", workers=1)
    Shards.open(tmp_path / "shards").verify()


def test_all_files_of_a_run_can_be_read_by_whoever_may_read_one(finished: Path) -> None:
    modes = {stat.S_IMODE(path.stat().st_mode) for path in finished.rglob("*") if path.is_file()}
    assert len(modes) == 1


def test_a_resume_in_a_folder_inside_or_around_a_run_makes_nothing(
    shards: Shards, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished, tmp_path / "runs" / "moods")
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(12))
    monkeypatch.chdir(tmp_path)
    before = content(tmp_path)
    for out in ("runs/moods/model", "runs/moods/checkpoints/step-4", "runs"):
        with pytest.raises(InputError) as caught:
            tiny_run.run(shards, Path(out), *FEW, resume=True)
        assert (caught.value.code, caught.value.argument) == ("output_exists", "output_dir")
        with pytest.raises(InputError) as caught:
            finetune("classify", finished, out, train=rows, validation=rows, resume=True)
        assert (caught.value.code, caught.value.argument) == ("output_exists", "output_dir")
    assert content(tmp_path) == before


def test_a_run_that_has_settings_and_no_checkpoint_is_resumed(
    shards: Shards, finished: Path, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    shutil.copy(finished / "settings.yaml", tmp_path / "run")
    tiny_run.run(shards, tmp_path / "run", *FEW, resume=True)
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == (finished / "log.jsonl").read_bytes()


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_has_saved_nothing_starts_with_and_without_resume(
    shards: Shards, finished: Path, tmp_path: Path, resume: bool
) -> None:
    run = tmp_path / "run"
    with killed_in(1):
        tiny_run.run(shards, run, *FEW, resume=resume)
    (run / "empty").mkdir()
    (run / ".model.0123456789abcdef.bertsmith").mkdir()  # left by a killed writer
    tiny_run.run(shards, run, *FEW, resume=resume)
    assert (run / "log.jsonl").read_bytes() == (finished / "log.jsonl").read_bytes()
    shutil.rmtree(run / "checkpoints")  # the model of a finished run is not replaced
    with pytest.raises(InputError) as caught:
        tiny_run.run(shards, run, *FEW)
    assert caught.value.code == "run_exists"
