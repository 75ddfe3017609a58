"""Kernels that are not compiled yet: long runs wait for them, short commands have them compiled beside them."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bertsmith as bs
import tiny_run
from bertsmith.device import ComputeContext
from bertsmith.experiments.ablate import _await_kernels
from bertsmith.kernels import backend_selection, background_compile
from bertsmith.kernels.reference import REFERENCE, KernelBackend
from bertsmith.models.family import preset
from bertsmith.pretraining.settings import PretrainSettings, PretrainTrainSettings
from bertsmith.runs import run_folder
from bertsmith.training.settings import TrainSettings

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was begun to be compiled beside a command, and what was compiled while it waited."""
    found: list[str] = []
    monkeypatch.setattr(backend_selection, "_are_compiled", lambda: False)
    monkeypatch.setattr(background_compile, "start_background_compile", lambda: found.append("beside"))
    monkeypatch.setattr(backend_selection, "load_backend", lambda name: found.append(name))
    monkeypatch.setattr(run_folder, "_LONG", 500)
    monkeypatch.setattr(run_folder, "_LONG_MINUTES", 3.0)
    return found


def test_a_short_run_does_not_wait(begun: list[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bertsmith")
    caplog.clear()
    assert backend_selection.select_training_backend("auto", 128, is_long=False).name == "torch"
    assert begun == ["beside"]
    assert caplog.messages == [
        "kernels are being compiled for this machine, once, in the background; until then torch computes "
        "without them"
    ]
    begun.clear()
    for asked, width, is_long, found in (
        ("auto", 64, False, "torch"),  # needs none
        ("torch", 128, False, "torch"),
        ("numba", 128, False, "numba"),  # asked for by name
        ("auto", 128, True, "numba"),
    ):
        backend_selection.select_training_backend(asked, width, is_long=is_long)
        assert begun.pop() == found
    assert len(caplog.messages) == 1


def test_compiled_kernels_are_used_by_all(begun: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_selection, "_are_compiled", lambda: True)
    backend_selection.select_training_backend("auto", 128, is_long=False)
    assert begun == ["numba"]


@pytest.mark.parametrize(
    ("updates", "minutes", "waits"),
    [
        (None, None, True),
        (500, None, True),
        (499, None, False),
        (0, None, False),
        (None, 2.9, False),
        (None, 3, True),
    ],
)
def test_which_runs_are_long(
    begun: list[str], updates: int | None, minutes: float | None, waits: bool
) -> None:
    train = PretrainTrainSettings(max_minutes=minutes)
    run_folder.with_kernels(
        ComputeContext.create("cpu", "fp32"), train, preset("bert-tiny-uncased"), updates=updates
    )
    assert begun == ["numba" if waits else "beside"]


def test_fine_tuning_is_as_long_as_its_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted first; and what is chosen then is what computes."""
    base = tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "base", "train.max_steps=1")
    rows = [{"text": text, "label": label} for text, label in tiny_run.examples(40)]
    asked: list[int | None] = []

    class Other(KernelBackend):
        name = "numba"

    def with_kernels(place: ComputeContext, *given: Any, updates: int | None) -> ComputeContext:
        asked.append(updates)
        return replace(place, kernels=Other())

    monkeypatch.setattr("bertsmith.finetuning.job.with_kernels", with_kernels)
    found = bs.finetune(
        "classify",
        base,
        tmp_path / "run",
        train=rows,
        dev_share=0.25,
        epochs=2,
        batch_size=8,
    )
    assert asked == [8]
    assert "kernels: numba\n" in (found.path / "settings.yaml").read_text(encoding="utf-8")


def test_a_look_is_short(begun: list[str]) -> None:
    train = TrainSettings(max_steps=10_000)
    run_folder.place_of(train, preset("bert-tiny-uncased"), is_look=True)
    assert begun == ["beside"]
    run_folder.place_of(train, preset("bert-tiny-uncased"))
    assert begun == ["beside", "numba"]


def test_one_process_compiles_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of those that would compile the same."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("inference", "training"):  # their import fails
        monkeypatch.setitem(sys.modules, f"bertsmith.kernels.cpu.{name}", None)
    with pytest.raises(SystemExit) as ended:
        background_compile.main()
    assert ended.value.code == 2
    assert re.fullmatch(
        r"error: the kernels cannot be compiled here: import of .*\n       repair or remove Numba\n",
        capsys.readouterr().err,
    )
    (lock,) = tmp_path.iterdir()
    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.setenv("NUMBA_CACHE_DIR", str(tmp_path / "other"))
        assert background_compile._lock() != lock
    assert background_compile._lock() == lock
    monkeypatch.setattr(sys, "argv", ["beside", background_compile._UNLESS])
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        background_compile.main()
    lock.unlink()
    lock.symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic"):
        background_compile.main()


def test_without_numba_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(backend_selection, "is_numba_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        background_compile.main()
    assert ended.value.code == 2
    assert "install the extra: pip install 'bertsmith[fast]'" in capsys.readouterr().err


def test_the_command_does_not_wait_for_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = tmp_path / "python with a blank"
    stub.write_text('#!/bin/sh\nsleep 5\necho "$@" > "$0.said"\n', encoding="utf-8")
    os.chmod(stub, 0o700)
    monkeypatch.setattr(sys, "executable", str(stub))
    begin = time.monotonic()
    background_compile.start_background_compile()
    assert time.monotonic() - begin < 4
    said = Path(f"{stub}.said")
    for _ in range(300):
        if said.exists() and said.read_text(encoding="utf-8"):
            break
        time.sleep(0.1)
    assert (
        said.read_text(encoding="utf-8") == "-P -m bertsmith.kernels.background_compile unless-another-does\n"
    )


def test_repeated_runs_compute_with_the_kernels_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever those that were begun to be compiled are ready."""
    base = tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "base", "train.max_steps=1")
    rows = [{"text": text, "label": label} for text, label in tiny_run.examples(40)]
    asked: list[str] = []

    def for_training(name: str, *_: Any, **__: Any) -> KernelBackend:
        asked.append(name)
        return REFERENCE

    monkeypatch.setattr(run_folder, "select_training_backend", for_training)
    settings = ["train.max_steps=2", "train.tensorboard=false"]
    bs.finetune_repeatedly(
        "classify", base, tmp_path / "runs", train=rows, dev_share=0.25, restarts=3, settings=settings
    )
    assert asked == ["auto", "torch", "torch"]


def test_rows_of_an_ablation_wait_for_their_kernels(begun: list[str]) -> None:
    rows = [
        PretrainSettings(model=preset(name), train=PretrainTrainSettings(device="cpu", max_steps=3))
        for name in ("bert-tiny-uncased", "bert-mini-uncased")
    ]
    _await_kernels(rows)
    assert begun == ["numba", "numba"]


def test_a_numba_that_cannot_be_imported_is_told(begun: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_selection, "is_numba_available", lambda: True)
    monkeypatch.setitem(sys.modules, "numba", None)
    backend_selection.select_training_backend("auto", 128, is_long=False)
    assert begun == ["numba"]  # which says why it cannot be
