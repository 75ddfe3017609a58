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
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError, MachineError
from bertsmith.io import atomic
from bertsmith.training import checkpoint
from bertsmith.training.checkpoint import Checkpoint, load_newest, newest_name, prune, save, steps
from bertsmith.training.training_job import TrainState

NAMES = (
    "manifest.json",
    "state.json",
    "weights.safetensors",
    "optimizer.safetensors",
    "generator.safetensors",
)


STATE: dict[str, Any] = {
    "fingerprint": "f",
    "log_bytes": 7,
    "phase": 0,
    "position": {"epoch": 0, "instance": 8},
    "tokens": 100,
    "seconds": 1.5,
    "best_score": None,
    "best_step": None,
    "best_sha256": None,
    "best_state": {},
    "evaluation": {"mlm_loss": 2},
    "num_bad_evals": 0,
    "num_lr_reductions": 0,
    "plan": [{"step": 0, "updates": 9, "progress": 0.0, "threads": 1, "budget": {"epochs": 1}, "why": ""}],
}


def state_at(step: int, **changes: Any) -> TrainState:
    return TrainState.model_validate_json(json.dumps(STATE | {"step": step} | changes))


def made(step: int) -> Checkpoint:
    values = torch.arange(6.0) + step
    tensors = {
        "weights": {"w": values},
        "optimizer": {"w/exp_avg": -values},
        "generator": {"state": values.byte()},
    }
    return Checkpoint(state_at(step), tensors)


def loaded(folder: Path) -> tuple[int | None, list[str]]:
    """Return the step of the newest complete checkpoint, and what is logged."""
    with tiny_run.logged() as messages:
        found = load_newest(folder)
    if found is None:
        return None, messages
    step = found.state.step
    assert torch.equal(found.tensors["weights"]["w"], torch.arange(6.0) + step)
    return step, messages


# What a save asks of the system; each call is a place where the disk can be full or fail.
PLACES: list[tuple[Any, str]] = [
    (os, "fsync"),
    (os, "rename"),
    (os, "replace"),
    (os, "chmod"),
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
    forgiving: list[bool] = []  # inside a removal whose errors are nobody's business
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in PLACES:
            real = getattr(owner, name)

            def call(*args: Any, _real: Any = real, _name: str = name, **more: Any) -> Any:
                if forgiving:
                    return _real(*args, **more)
                if _name == "rmtree" and more.get("ignore_errors"):
                    forgiving.append(True)
                    try:
                        return _real(*args, **more)
                    finally:
                        forgiving.clear()
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
    assert {"fsync", "rename", "replace", "mkdir", "write_text", "save_file", "rmtree"} <= set(calls)
    assert len(calls) > 15
    for at, name in enumerate(calls):
        folder = tmp_path / f"at-{at}"
        for step in (1, 2):
            save(folder, made(step), keep=2)
        stopped: BaseException | None = None
        try:
            with failing(at, error):
                save(folder, made(3), keep=2)
        except (MachineError, Killed) as caught:
            stopped = caught
        assert isinstance(stopped, Killed) == (error is Killed)
        if isinstance(stopped, MachineError):
            assert stopped.exit_code == 1
            assert "\n" not in stopped.sentence_for("command line")
            assert str(folder) in stopped.sentence_for("command line")
        if stopped is None:  # only looking at what may be pruned may fail unsaid; then nothing is pruned
            assert loaded(folder) == (3, []), (at, name)
        # Every step-N that is there is whole, and the newest of them is loaded without a word.
        for step in steps(folder):
            assert checkpoint._find_damage(folder / f"step-{step}") is None, (at, name)
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
    assert "step-1" in (stopped.value.hint_for("command line") or "")
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_a_log_that_finds_no_room_is_one_sentence(tmp_path: Path) -> None:
    from bertsmith.training.callbacks import MetricLogger

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

    with MetricLogger(tmp_path, title="", num_updates=1, step=0) as recorder:
        recorder._log = Full(recorder._log)  # type: ignore[assignment]
        with pytest.raises(MachineError) as caught:
            recorder.record(1, "train", {"loss": 1.0})
        assert (caught.value.code, caught.value.location) == ("log_not_written", str(tmp_path / "log.jsonl"))


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
        fault = checkpoint._find_damage(tmp_path / "step-2")
        assert fault is not None, content
        assert name in fault or name == "manifest.json"
    step, told = loaded(tmp_path)
    assert step == 1
    assert any("step-2" in text for text in told)
    assert any("step-1" in text for text in told)
    file.unlink()
    assert loaded(tmp_path)[0] == 1
    assert name in (checkpoint._find_damage(tmp_path / "step-2") or "")


def test_all_torn_is_an_input_error_that_names_the_newest_fault(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, made(step), keep=2)
        (tmp_path / f"step-{step}" / "weights.safetensors").write_bytes(b"")
    with pytest.raises(InputError) as refused:
        loaded(tmp_path)
    assert refused.value.code == "no_complete_checkpoint"
    assert refused.value.location == str(tmp_path / "step-2" / "weights.safetensors")
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


def _step(name: str) -> int:
    return int(name.removeprefix("step-"))


def test_a_run_falls_back_says_so_and_ends_as_if_nothing_had_happened(
    shards: Shards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ["train.num_train_epochs=2", "train.save_steps=2", "train.save_total_limit=3"]
    for name in ("straight", "run"):
        tiny_run.run(shards, tmp_path / name, *settings)
    run = tmp_path / "run"
    shutil.rmtree(run / "model")
    earlier, last = sorted((path.name for path in (run / "checkpoints").iterdir()), key=_step)[-2:]
    newest = run / "checkpoints" / last / "weights.safetensors"
    raw = bytearray(newest.read_bytes())
    raw[len(raw) // 2] ^= 16
    newest.write_bytes(raw)
    caplog.clear()
    tiny_run.run(shards, run, *settings, resume=True)
    assert any(f"{last}/weights.safetensors" in text for text in caplog.messages)
    assert any(earlier in text for text in caplog.messages)
    assert (run / "log.jsonl").read_bytes() == (tmp_path / "straight" / "log.jsonl").read_bytes()
    for name in ("weights", "optimizer", "generator"):
        file = f"checkpoints/{last}/{name}.safetensors"
        assert (run / file).read_bytes() == (tmp_path / "straight" / file).read_bytes()
    assert loaded_state(run)["tokens"] == loaded_state(tmp_path / "straight")["tokens"]


def loaded_state(run: Path) -> dict[str, Any]:
    return json.loads((run / "checkpoints" / "step-8" / "state.json").read_text())


def test_a_full_disk_in_the_middle_of_a_run(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third checkpoint finds no room: exit 1, nothing half-written; with room again, --resume is straight."""
    settings = ["train.num_train_epochs=2", "train.save_steps=2"]
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
    with pytest.raises(MachineError) as stopped:
        tiny_run.run(shards, run, *settings)
    assert stopped.value.code == "disk_full"
    assert "step-4" in (stopped.value.hint or "")
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-2", "step-4"]
    monkeypatch.undo()
    tiny_run.run(shards, run, *settings, resume=True)
    assert (run / "log.jsonl").read_bytes() == (tmp_path / "straight" / "log.jsonl").read_bytes()
    weights = "model/model.safetensors"
    assert (run / weights).read_bytes() == (tmp_path / "straight" / weights).read_bytes()


# --- signed anew, by somebody else --------------------------------------------------------------------------


def signed(folder: Path, manifest: dict[str, Any] | None = None) -> None:
    """Write the manifest that fits the files as they are now, with what is given in place of its own."""
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": atomic.sha256_of_file(file)}
        for file in folder.iterdir()
        if file.name != "manifest.json"
    }
    whole = {"step": int(folder.name.removeprefix("step-")), "files": files} | (manifest or {})
    (folder / "manifest.json").write_text(json.dumps(whole))


BENT: list[tuple[str, Any]] = [
    *[(name, None) for name in TrainState.model_fields],  # missing
    ("log_bytes", "7"),
    ("log_bytes", -1),
    ("log_bytes", 10**30),
    ("step", 3),
    ("step", True),
    ("position", [0, 1]),
    ("position", {"epoch": 0}),
    ("tokens", 1.5),
    ("seconds", float("nan")),
    ("evaluation", {"accuracy": "high"}),
    ("best_step", 2),
    ("fingerprint", 7),
    ("plan", []),
    ("plan", [STATE["plan"][0] | {"step": 4}]),
    ("plan", [STATE["plan"][0] | {"updates": 0}]),
    ("plan", [STATE["plan"][0], STATE["plan"][0] | {"step": 10}]),
    ("unknown", 1),
]


@pytest.mark.parametrize(("key", "value"), BENT, ids=[f"{key}={value}"[:30] for key, value in BENT])
def test_a_bent_state_with_a_fitting_manifest_falls_back_to_the_older(
    tmp_path: Path, key: str, value: Any
) -> None:
    for step in (1, 2):
        save(tmp_path, made(step), keep=2)
    written = json.loads(made(2).state.model_dump_json())
    state = {k: v for k, v in written.items() if k != key} | ({} if value is None else {key: value})
    (tmp_path / "step-2" / "state.json").write_text(json.dumps(state))
    signed(tmp_path / "step-2")
    step, told = loaded(tmp_path)
    assert step == 1
    assert "step-2/state.json: the state is damaged" in told[0]
    assert "step-1" in told[1]
    shutil.rmtree(tmp_path / "step-1")
    with pytest.raises(InputError, match="the state is damaged"):
        loaded(tmp_path)


def test_a_state_that_is_no_object_or_nested_without_end_falls_back(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, made(step), keep=2)
    for text in ("", "[]", "7", "[" * 100_000, '{"a":' * 100_000, "\udcff"):
        (tmp_path / "step-2" / "state.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        signed(tmp_path / "step-2")
        assert loaded(tmp_path)[0] == 1


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/b.json", "..", "", "x.py"])
def test_a_manifest_names_files_of_its_own_folder_only(tmp_path: Path, name: str) -> None:
    for step in (1, 2):
        save(tmp_path, made(step), keep=2)
    outside = tmp_path / "outside.safetensors"
    shutil.copy(tmp_path / "step-1" / "weights.safetensors", outside)
    signed(tmp_path / "step-2")
    files = json.loads((tmp_path / "step-2" / "manifest.json").read_text())["files"]
    files[name] = {"bytes": outside.stat().st_size, "sha256": atomic.sha256_of_file(outside)}
    signed(tmp_path / "step-2", {"files": files})
    step, told = loaded(tmp_path)
    assert step == 1
    assert "the manifest is damaged" in told[0]


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("weights", {"w": torch.ones(5)}),
        ("weights", {"w": torch.ones(6, dtype=torch.float64)}),
        ("weights", {}),
        ("weights", {"v": torch.ones(6)}),
        ("optimizer", {"w/exp_avg": torch.ones(6)}),
        ("optimizer", {"v/exp_avg": torch.ones(6)}),
        ("optimizer", {"w/exp_avg": torch.ones(5)}),
        ("optimizer", {"w/momentum_buffer": torch.ones(6)}),
        ("generator", {"state": torch.ones(6)}),
        ("generator", {}),
        ("generator", None),
    ],
)
def test_tensors_of_another_model_with_a_fitting_manifest_fall_back(
    tmp_path: Path, name: str, tensors: dict[str, torch.Tensor] | None
) -> None:
    moments = {f"w/{part}": torch.ones(6) for part in ("exp_avg", "exp_avg_sq")}
    moments["w/step"] = torch.tensor(1.0)
    for step in (1, 2):
        good = made(step)
        save(tmp_path, Checkpoint(good.state, {**good.tensors, "optimizer": moments}), keep=2)
    parts = {"w": torch.ones(6)}
    expected = Checkpoint(
        TrainState(fingerprint="f"),
        {"weights": parts, "optimizer": moments, "generator": {"state": torch.ones(6).byte()}},
    )
    assert load_newest(tmp_path, expected).state.step == 2  # type: ignore[union-attr]
    file = tmp_path / "step-2" / f"{name}.safetensors"
    if tensors is None:
        file.write_bytes(b"\0" * 64)
    else:
        checkpoint.save_file(tensors, file)
    signed(tmp_path / "step-2")
    with tiny_run.logged() as messages:
        found = load_newest(tmp_path, expected)
    assert found is not None
    assert found.state.step == 1
    assert f"{name}.safetensors" in messages[0]
    with pytest.raises(InputError) as caught:
        load_newest(tmp_path, Checkpoint(TrainState(fingerprint="another"), expected.tensors))
    assert caught.value.code == "checkpoint_of_another_run"


# --- what killed writers leave, and numbers that are not finite ----------------------------------------------


def test_what_a_killed_pruning_left_is_removed_when_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, made(1), keep=1)

    removed = shutil.rmtree

    def killed(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:  # the checkpoint that is pruned
            raise Killed
        removed(path, ignore_errors=True)

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(Killed):
        save(tmp_path, made(2), keep=1)
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) > 1
    assert loaded(tmp_path) == (2, [])
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["weights", "optimizer"])
def test_numbers_that_are_not_finite_are_never_kept(tmp_path: Path, name: str, number: float) -> None:
    save(tmp_path, made(1), keep=2)
    bad = made(2)
    next(iter(bad.tensors[name].values()))[3] = number
    with pytest.raises(MachineError, match=f"the {name} of step 2") as refused:
        save(tmp_path, bad, keep=2)
    assert refused.value.code == "state_not_finite"
    assert "step-1" in (refused.value.hint or "")
    assert loaded(tmp_path) == (1, [])
    with pytest.raises(MachineError) as refused:
        checkpoint.save_best_weights(tmp_path, 2, bad.tensors[name])
    assert refused.value.code == "weights_not_finite"
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_an_epsilon_that_makes_weights_nan_leaves_no_checkpoint_of_them(
    shards: Shards, tmp_path: Path
) -> None:
    with pytest.raises(MachineError) as caught:
        tiny_run.run(
            shards, tmp_path / "run", "train.adam_epsilon=1e-46", "train.save_steps=1", "train.max_steps=8"
        )
    assert caught.value.code == "state_not_finite"
    assert steps(tmp_path / "run" / "checkpoints") == []


def test_best_weights_stay_as_long_as_a_checkpoint_refers_to_them(tmp_path: Path) -> None:
    folder, weights = tmp_path / "checkpoints", {"w": torch.ones(3)}
    names = []
    for step in range(1, 6):
        best = step - step % 2 or 1
        sha256 = checkpoint.save_best_weights(folder, best, weights)
        state = state_at(step, best_score=0.5, best_step=best, best_sha256=sha256)
        save(folder, Checkpoint(state, made(step).tensors), keep=2)
        names.append(sorted(path.name.partition(".")[0] for path in folder.iterdir()))
    assert names == [
        ["best-1", "step-1"],
        ["best-1", "best-2", "step-1", "step-2"],
        ["best-2", "step-2", "step-3"],
        ["best-2", "best-4", "step-3", "step-4"],
        ["best-4", "step-4", "step-5"],
    ]
    assert torch.equal(checkpoint.load_best_weights(folder, state)["w"], weights["w"])
    save(folder, made(6), keep=2)
    (folder / "best-4.safetensors").write_bytes(b"torn")
    assert loaded(folder)[0] == 6  # which needs none
    (folder / "step-6" / "state.json").unlink()
    newest = checkpoint.load_newest(folder)
    assert newest is not None
    assert (newest.state.step, newest.state.best_step, newest.state.best_score) == (5, None, None)
