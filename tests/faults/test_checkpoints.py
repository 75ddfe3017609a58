"""Checkpoints under faults: a full or failing disk, torn files, flipped bits, pickles (R1, R3, R4)."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_run
from bertsmith.errors import InputError, MachineError
from bertsmith.shards.shards import Shards
from bertsmith.training import checkpoint
from bertsmith.training.checkpoint import Checkpoint, load_newest, newest_name, prune, save, steps

NAMES = (
    "manifest.json",
    "state.json",
    "weights.safetensors",
    "optimizer.safetensors",
    "generator.safetensors",
)


def made(step: int) -> Checkpoint:
    values = torch.arange(6.0) + step
    tensors = {
        "weights": {"w": values},
        "optimizer": {"w/exp_avg": -values},
        "generator": {"state": values.byte()},
    }
    return Checkpoint(step, tensors, {"step": step, "log_bytes": 7})


def loaded(folder: Path) -> tuple[int | None, list[str]]:
    told: list[str] = []
    found = load_newest(folder, told.append)
    if found is None:
        return None, told
    assert found.state["step"] == found.step
    assert torch.equal(found.tensors["weights"]["w"], torch.arange(6.0) + found.step)
    return found.step, told


# What a save asks of the system; each call is a place where the disk can be full or fail.
PLACES: list[tuple[Any, str]] = [
    (os, "fsync"),
    (os, "rename"),
    (os, "replace"),
    (os, "open"),
    (Path, "mkdir"),
    (Path, "write_text"),
    (Path, "stat"),
    (Path, "open"),
    (checkpoint, "save_file"),
    (shutil, "rmtree"),
]


@contextmanager
def failing(at: int, error: Callable[[], BaseException]) -> Iterator[list[str]]:
    """The system's call number `at` (from 0, over all kinds) fails, once; yields the names of the calls made."""
    calls: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in PLACES:
            real = getattr(owner, name)

            def call(*args: Any, _real: Any = real, _name: str = name, **more: Any) -> Any:
                if _name == "rmtree" and more.get("ignore_errors"):
                    return _real(*args, **more)
                calls.append(_name)
                if len(calls) - 1 == at:
                    raise error()
                return _real(*args, **more)

            patch.setattr(owner, name, call)
        yield calls


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


class Killed(BaseException):
    """Stands for a SIGKILL."""


def calls_of_a_save(folder: Path) -> list[str]:
    for step in (1, 2):
        save(folder, made(step), keep=2)
    with failing(-1, full) as calls:
        save(folder, made(3), keep=2)
    return list(calls)


@pytest.mark.parametrize("error", [full, broken, Killed], ids=["full", "failing", "killed"])
def test_a_fault_at_every_call_leaves_the_old_or_the_new(
    tmp_path: Path, error: Callable[[], BaseException]
) -> None:
    calls = calls_of_a_save(tmp_path / "counted")
    assert {"fsync", "rename", "mkdir", "write_text", "save_file", "rmtree"} <= set(calls)
    assert len(calls) > 15
    for at, name in enumerate(calls):
        folder = tmp_path / f"at-{at}"
        for step in (1, 2):
            save(folder, made(step), keep=2)
        with failing(at, error), pytest.raises((MachineError, Killed)) as stopped:
            save(folder, made(3), keep=2)
        if error is not Killed:
            assert isinstance(stopped.value, MachineError), (at, name)
            assert stopped.value.exit_code == 1
            assert "\n" not in stopped.value.sentence
            assert str(folder) in stopped.value.sentence
        # Every step-N that is there is whole, and the newest of them is loaded without a word.
        for step in steps(folder):
            assert checkpoint._fault(folder / f"step-{step}") is None, (at, name)
        assert loaded(folder) in ((2, []), (3, [])), (at, name)
        save(folder, made(4), keep=2)  # and the next save goes well, and clears up
        assert loaded(folder) == (4, [])
        assert {path.name for path in folder.iterdir()} == {"step-4", f"step-{steps(folder)[0]}"}


@pytest.mark.parametrize("error", [full, broken, Killed], ids=["full", "failing", "killed"])
def test_a_fault_in_the_first_save_leaves_none_or_a_whole_one(
    tmp_path: Path, error: Callable[[], BaseException]
) -> None:
    at = 0
    while True:
        folder = tmp_path / f"at-{at}" / "checkpoints"
        try:
            with failing(at, error):
                save(folder, made(1), keep=1)
        except (MachineError, Killed):
            assert loaded(folder) in ((None, []), (1, []))
        else:
            break
        at += 1
    assert at > 10


def test_safetensors_own_error_is_a_full_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import SafetensorError

    def no_room(*_: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    save(tmp_path, made(1), keep=1)
    monkeypatch.setattr(checkpoint, "save_file", no_room)
    with pytest.raises(MachineError, match="full or failing") as stopped:
        save(tmp_path, made(2), keep=1)
    assert "step-1" in (stopped.value.remedy or "")
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_a_log_that_finds_no_room_is_one_sentence(tmp_path: Path) -> None:
    from bertsmith.training.progress import Recorder

    class Full:
        """A file on a full disk: what is written does not get there, now or at its closing."""

        def __init__(self, real: Any) -> None:
            self.real = real

        def write(self, content: bytes) -> int:
            return len(content)

        def flush(self) -> None:
            raise full()

        def close(self) -> None:
            self.real.close()
            raise full()

    with Recorder(tmp_path, title="", steps=1, step=0, tensorboard=False) as recorder:
        recorder._log = Full(recorder._log)  # type: ignore[assignment]
        with pytest.raises(MachineError, match=r"log\.jsonl: the log could not be written"):
            recorder.record(1, "train", {"loss": 1.0})


# --- R3 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_pruning_never_removes_the_last_whole_one(tmp_path: Path, keep: int) -> None:
    """For every choice of damaged ones among five: if any was whole, one still is."""
    for damaged in range(32):
        folder = tmp_path / f"{damaged}"
        for step in range(1, 6):
            save(folder, made(step), keep=9)
        whole = [step for step in range(1, 6) if not damaged & (1 << (step - 1))]
        for step in set(range(1, 6)) - set(whole):
            file = folder / f"step-{step}" / "weights.safetensors"
            file.write_bytes(file.read_bytes()[:-1])
        prune(folder, keep)
        if whole:
            assert loaded(folder)[0] == whole[-1]
        if 5 in whole:
            assert steps(folder) == list(range(6 - keep, 6))


def test_saving_over_a_damaged_newer_one_keeps_the_run_loadable(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, made(step), keep=1 + step)
    (tmp_path / "step-2" / "state.json").write_text("{")
    assert loaded(tmp_path)[0] == 1
    save(tmp_path, made(2), keep=1)
    assert loaded(tmp_path) == (2, [])
    assert steps(tmp_path) == [2]


# --- R4 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_any_flipped_bit_and_any_cut_is_refused_by_name_and_the_older_one_taken(
    tmp_path: Path, name: str
) -> None:
    for step in (1, 2):
        save(tmp_path, made(step), keep=2)
    file = tmp_path / "step-2" / name
    raw = file.read_bytes()
    draw = random.Random(name)
    bits = draw.sample(range(8 * len(raw)), min(8 * len(raw), 800))
    damaged = [raw[:n] for n in {0, 1, len(raw) // 2, len(raw) - 1, *draw.sample(range(len(raw)), 20)}]
    damaged.append(raw + b"\0")
    for bit in bits:
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for content in damaged:
        file.write_bytes(content)
        fault = checkpoint._fault(tmp_path / "step-2")
        assert fault is not None, content
        assert name in fault or name == "manifest.json"
    step, told = loaded(tmp_path)
    assert step == 1
    assert any("step-2" in text for text in told)
    assert any("step-1" in text for text in told)
    file.unlink()
    assert loaded(tmp_path)[0] == 1
    assert name in (checkpoint._fault(tmp_path / "step-2") or "")


def test_all_torn_is_an_input_error_that_names_the_newest_fault(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, made(step), keep=2)
        (tmp_path / f"step-{step}" / "weights.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"step-2.*weights\.safetensors") as refused:
        loaded(tmp_path)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pkl", ".ckpt", ".pth"])
def test_a_pickle_is_never_opened(tmp_path: Path, suffix: str) -> None:
    save(tmp_path, made(1), keep=2)
    trap = tmp_path / "opened"
    (tmp_path / "step-1" / f"model{suffix}").write_bytes(b"cos\nmkdir\n(V" + str(trap).encode() + b"\ntR.")
    with pytest.raises(InputError, match=f"model{suffix}: this is a pickle"):
        loaded(tmp_path)
    assert not trap.exists()


def test_a_folder_of_another_name_or_another_step_is_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, made(1), keep=9)
    (tmp_path / "step-9").write_text("a file")
    (tmp_path / "step-07").mkdir()
    (tmp_path / "step-²").mkdir()
    (tmp_path / "step-").mkdir()
    shutil.copytree(tmp_path / "step-1", tmp_path / "step-5")  # its manifest says 1
    shutil.copytree(tmp_path / "step-1", tmp_path / ".writing-8")
    assert steps(tmp_path) == [1, 5]
    step, told = loaded(tmp_path)
    assert step == 1
    assert "step-5" in told[0]
    assert newest_name(tmp_path / "nowhere") is None


def test_a_file_that_the_manifest_does_not_vouch_for_is_not_read(tmp_path: Path) -> None:
    save(tmp_path, made(1), keep=1)
    (tmp_path / "step-1" / "extra.safetensors").write_bytes(b"torn")
    assert loaded(tmp_path) == (1, [])


# --- a run over torn checkpoints ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("corpus"))


def test_a_run_falls_back_says_so_and_ends_as_if_nothing_had_happened(shards: Shards, tmp_path: Path) -> None:
    settings = ["train.epochs=2", "train.checkpoint_every=2", "train.keep_checkpoints=3"]
    for name in ("straight", "run"):
        tiny_run.run(shards, tmp_path / name, *settings)
    run = tmp_path / "run"
    shutil.rmtree(run / "model")
    newest = run / "checkpoints" / "step-8" / "weights.safetensors"
    raw = bytearray(newest.read_bytes())
    raw[len(raw) // 2] ^= 16
    newest.write_bytes(raw)
    told: list[str] = []
    tiny_run.run(shards, run, *settings, resume=True, tell=told.append)
    assert any("step-8/weights.safetensors" in text for text in told)
    assert any("step-6" in text for text in told)
    assert (run / "log.jsonl").read_bytes() == (tmp_path / "straight" / "log.jsonl").read_bytes()
    for name in ("weights", "optimizer", "generator"):
        file = f"checkpoints/step-8/{name}.safetensors"
        assert (run / file).read_bytes() == (tmp_path / "straight" / file).read_bytes()
    assert loaded_state(run)["tokens"] == loaded_state(tmp_path / "straight")["tokens"]


def loaded_state(run: Path) -> dict[str, Any]:
    return json.loads((run / "checkpoints" / "step-8" / "state.json").read_text())


def test_a_full_disk_in_the_middle_of_a_run(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third checkpoint finds no room: exit 1, nothing half-written; with room again, --resume is straight."""
    settings = ["train.epochs=2", "train.checkpoint_every=2"]
    tiny_run.run(shards, tmp_path / "straight", *settings)
    real, calls = checkpoint.save_file, []

    def no_room(tensors: Any, path: Path) -> None:
        calls.append(path)
        if len(calls) == 8:
            path.write_bytes(b"half")
            raise full()
        real(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", no_room)
    run = tmp_path / "run"
    with pytest.raises(MachineError, match="disk is full") as stopped:
        tiny_run.run(shards, run, *settings)
    assert "step-4" in (stopped.value.remedy or "")
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-2", "step-4"]
    monkeypatch.undo()
    tiny_run.run(shards, run, *settings, resume=True)
    assert (run / "log.jsonl").read_bytes() == (tmp_path / "straight" / "log.jsonl").read_bytes()
    weights = "model/model.safetensors"
    assert (run / weights).read_bytes() == (tmp_path / "straight" / weights).read_bytes()
