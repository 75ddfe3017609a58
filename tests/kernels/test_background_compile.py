"""Kernels that are not compiled yet: training waits, other commands compile them in the background."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bertsmith as bs
import tiny_run
from bertsmith import device
from bertsmith.device import ComputeContext
from bertsmith.kernels import backend_selection, background_compile, kernel_cache
from bertsmith.kernels.reference import REFERENCE, KernelBackend
from bertsmith.pretraining.settings import PretrainTrainSettings
from bertsmith.training.settings import TrainSettings

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the backends that are loaded, and each start of "background" compilation."""
    names: list[str] = []
    monkeypatch.setattr(kernel_cache, "is_complete", lambda: False)
    monkeypatch.setattr(background_compile, "start_background_compile", lambda: names.append("background"))
    monkeypatch.setattr(backend_selection, "load_backend", lambda name: names.append(name))
    monkeypatch.setattr(device, "LONG_RUN_MINUTES", 3.0)
    return names


def test_inference_does_not_wait(loads: list[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bertsmith")
    caplog.clear()
    assert backend_selection.select_training_backend("auto", 128, waits=False).name == "torch"
    assert loads == ["background"]
    assert caplog.messages == [
        "kernels are being compiled for this machine, once, in the background; until then torch computes "
        "without them"
    ]
    loads.clear()
    for name, hidden_size, waits, expected in (
        ("auto", 64, False, "torch"),  # needs none
        ("torch", 128, False, "torch"),
        ("numba", 128, False, "numba"),  # explicit
        ("auto", 128, True, "numba"),
    ):
        backend_selection.select_training_backend(name, hidden_size, waits=waits)
        assert loads.pop() == expected
    assert len(caplog.messages) == 1


def test_compiled_kernels_are_used_at_once(loads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "is_complete", lambda: True)
    backend_selection.select_training_backend("auto", 128, waits=False)
    assert loads == ["numba"]


@pytest.mark.parametrize(
    ("updates", "minutes", "waits"),
    [
        (None, None, True),
        (500, None, True),
        (1, None, True),
        (0, None, False),  # a preview
        (None, 2.9, False),
        (None, 3, True),
    ],
)
def test_training_waits(loads: list[str], updates: int | None, minutes: float | None, waits: bool) -> None:
    train = PretrainTrainSettings(max_minutes=minutes)
    ComputeContext.create("cpu", "fp32").with_kernels(train, 128, updates)
    assert loads == ["numba" if waits else "background"]


def test_the_backend_of_fine_tuning_depends_on_the_number_of_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "base", "train.max_steps=1")
    rows = [{"text": text, "label": label} for text, label in tiny_run.examples(40)]
    update_counts: list[int | None] = []

    class OtherBackend(KernelBackend):
        name = "numba"

    def with_kernels(
        context: ComputeContext, settings: Any, hidden_size: int, updates: int | None
    ) -> ComputeContext:
        update_counts.append(updates)
        return replace(context, kernels=OtherBackend())

    monkeypatch.setattr(ComputeContext, "with_kernels", with_kernels)
    run = bs.finetune(
        "classify",
        base,
        tmp_path / "run",
        train=rows,
        validation_split=0.25,
        num_train_epochs=2,
        batch_size=8,
    )
    assert update_counts == [8]
    assert "kernels: numba\n" in (run.path / "settings.yaml").read_text(encoding="utf-8")


def test_a_preview_does_not_wait(loads: list[str]) -> None:
    train = TrainSettings(max_steps=10_000)
    context = ComputeContext.for_training(train)
    context.with_kernels(train, 128, 0)
    assert loads == ["background"]
    context.with_kernels(train, 128, train.max_steps)
    assert loads == ["background", "numba"]


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let kernels be cached in an empty folder, which is returned."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    folder = kernel_cache.cache_folder()
    assert folder is not None
    return folder


def test_an_error_of_compilation_is_reported(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("inference", "training"):  # their import fails
        monkeypatch.setitem(sys.modules, f"bertsmith.kernels.cpu.{name}", None)
    with pytest.raises(SystemExit) as exit_info:
        background_compile.main()
    assert exit_info.value.code == 2
    assert re.fullmatch(
        r"error: the kernels cannot be compiled here: import of .*\n       repair or remove Numba\n",
        capsys.readouterr().err,
    )
    monkeypatch.setattr(background_compile, "cache_folder", lambda: None)
    with pytest.raises(SystemExit) as exit_info:
        background_compile.main()
    assert exit_info.value.code == 2
    assert "NUMBA_CACHE_DIR" in capsys.readouterr().err


def test_one_process_compiles_at_a_time_and_none_waits_forever(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is that of the cache's folder, which nobody else can open."""
    events: list[str] = []
    monkeypatch.setattr(background_compile, "compile_all", lambda: events.append("compiled"))
    monkeypatch.setattr(background_compile, "_MAX_WAIT", 0.3)
    handle = os.open(cache_dir, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with monkeypatch.context() as background:
        background.setattr(sys, "argv", ["background", background_compile._UNLESS_RUNNING])
        background_compile.main()
        assert events == []
    start = time.monotonic()
    background_compile.main()  # the other process was stopped
    assert time.monotonic() - start >= 0.3
    monkeypatch.setattr(background_compile, "_MAX_WAIT", 60)
    threading.Timer(0.3, lambda: os.close(handle)).start()  # the other process ends
    background_compile.main()
    assert events == ["compiled"] * 2
    assert list(cache_dir.iterdir()) == []


def test_two_processes_may_compile_the_same_kernel(cache_dir: Path) -> None:
    code = (
        "from bertsmith.kernels.cpu import launcher\n"
        "from bertsmith.kernels import kernel_cache\n"
        "print(kernel_cache.cache_folder())"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    assert [process.communicate()[0].decode().strip() for process in processes] == [str(cache_dir)] * 2
    assert len(list(cache_dir.rglob("*.nbi"))) == 1


def test_without_numba_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(backend_selection, "is_numba_available", lambda: False)
    with pytest.raises(SystemExit) as exit_info:
        background_compile.main()
    assert exit_info.value.code == 2
    assert "install the extra: pip install 'bertsmith[fast]'" in capsys.readouterr().err


def test_start_does_not_wait_for_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = tmp_path / "python with a blank"
    stub.write_text('#!/bin/sh\nsleep 5\necho "$@" > "$0.arguments"\n', encoding="utf-8")
    os.chmod(stub, 0o700)
    monkeypatch.setattr(sys, "executable", str(stub))
    start = time.monotonic()
    background_compile.start_background_compile()
    assert time.monotonic() - start < 4
    arguments = Path(f"{stub}.arguments")
    for _ in range(300):
        if arguments.exists() and arguments.read_text(encoding="utf-8"):
            break
        time.sleep(0.1)
    assert (
        arguments.read_text(encoding="utf-8")
        == "-P -m bertsmith.kernels.background_compile unless-another-does\n"
    )


def test_repeated_runs_use_the_backend_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if background compilation ends in between."""
    base = tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "base", "train.max_steps=1")
    rows = [{"text": text, "label": label} for text, label in tiny_run.examples(40)]
    names: list[str] = []

    def select(name: str, *_: Any, **__: Any) -> KernelBackend:
        names.append(name)
        return REFERENCE

    monkeypatch.setattr(device, "select_training_backend", select)
    settings = ["train.max_steps=2", "train.report_to=none"]
    bs.finetune_repeatedly(
        "classify", base, tmp_path / "runs", train=rows, validation_split=0.25, restarts=3, settings=settings
    )
    assert names == ["auto", "torch", "torch"]


def test_a_numba_that_cannot_be_imported_is_reported(
    loads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_selection, "is_numba_available", lambda: True)
    monkeypatch.setitem(sys.modules, "numba", None)
    backend_selection.select_training_backend("auto", 128, waits=False)
    assert loads == ["numba"]  # which reports the error
