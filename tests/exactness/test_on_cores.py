"""Processes that a run starts itself on the cores of its machine: the same run as on threads, exact when resumed,
none left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import bertsmith as bs
import of_several
import tiny_run
from bertsmith import hardware
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError, MachineError, Stopped
from bertsmith.hardware import OfSeveral
from bertsmith.pretraining import distributed_run
from bertsmith.pretraining.settings import settings_of
from bertsmith.runs import compute_setup
from bertsmith.training import on_cores
from bertsmith.training.distributed import Processes
from bertsmith.training.execution_benchmark import Way
from bertsmith.training.run_plan import read_plan

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has memory of this kind")

TWO, STEPS, NO_DROPOUT = "train.processes=2", of_several.STEPS, of_several.NO_DROPOUT


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("cores"))


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes that runs of a test start; all of them have ended behind it."""
    begun: list[subprocess.Popen[str]] = []
    begin = on_cores._begun

    def recorded(module: str) -> subprocess.Popen[str]:
        begun.append(begin(module))
        return begun[-1]

    monkeypatch.setattr(on_cores, "_begun", recorded)
    yield begun
    assert all(one.poll() is not None for one in begun)


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def test_two_make_what_one_makes(
    shards: Shards, tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    """To rounding, with an evaluation on the way; and once more in the same process."""
    settings = (*NO_DROPOUT, *STEPS, "train.evaluate_every=3")
    one = tiny_run.run(shards, tmp_path / "one", *settings)
    assert not started
    two = tiny_run.run(shards, tmp_path / "two", *settings, TWO)
    again = tiny_run.run(shards, tmp_path / "again", *settings, TWO)
    assert len(started) == 2
    assert [entry.processes for entry in read_plan(two.path, [])] == [2]
    assert (one.report["processes"], two.report["processes"], two.report["threads"]) == (1, 2, 1)
    left, right = (load_file(run.path / "model" / "model.safetensors") for run in (one, two))
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=2e-5, atol=2e-6)
    assert two.report["held_out"] == pytest.approx(one.report["held_out"], rel=1e-4)
    assert weights(two.path) == weights(again.path)


def test_resumed_is_straight_to_the_bit(shards: Shards, tmp_path: Path) -> None:
    """With dropout, which each draws for itself, and Muon: the settings say how many processes there were."""
    settings = (*STEPS, *of_several.MUON, TWO)
    straight = tiny_run.run(shards, tmp_path / "straight", *settings)
    with (
        of_several.after(6, lambda: signal.raise_signal(signal.SIGTERM), leader=True),
        pytest.raises(Stopped, match="after step 6 of 9"),
    ):
        tiny_run.run(shards, tmp_path / "resumed", *settings)
    resumed = tiny_run.run(shards, tmp_path / "resumed", *settings, resume=True)
    assert resumed.report["processes"] == 2
    for file in ("log.jsonl", "model/model.safetensors"):
        assert (resumed.path / file).read_bytes() == (straight.path / file).read_bytes()


def test_another_number_goes_on_to_rounding(shards: Shards, tmp_path: Path) -> None:
    with (
        of_several.after(6, lambda: signal.raise_signal(signal.SIGTERM), leader=True),
        pytest.raises(Stopped),
    ):
        tiny_run.run(shards, tmp_path / "run", *STEPS, TWO)
    told: list[str] = []
    moved = tiny_run.run(shards, tmp_path / "run", *STEPS, "train.processes=1", resume=True, tell=told.append)
    assert any("on 1 thread from here on, not on 1 thread in each of 2 processes" in line for line in told)
    assert [entry.processes for entry in read_plan(moved.path, [])] == [2, 1]


def test_what_the_others_need_besides_settings(shards: Shards, tmp_path: Path) -> None:
    """The weights of the model that a run begins with; a teacher."""
    first = tiny_run.run(shards, tmp_path / "first", *NO_DROPOUT, "train.max_steps=2")
    settings = [*of_several.STUDENT, "train.threads=1"]

    def both(count: int) -> list[bs.Model]:
        given = [*settings, f"train.processes={count}"]
        return [
            bs.pretrain(shards, tmp_path / f"further-{count}", model=first, settings=given),
            bs.distill(shards, tmp_path / f"student-{count}", first, settings=given),
        ]

    for one, two in zip(both(1), both(2), strict=True):
        assert two.report["processes"] == 2
        left, right = (load_file(run.path / "model" / "model.safetensors") for run in (one, two))
        for name in left:
            torch.testing.assert_close(left[name], right[name], rtol=2e-5, atol=2e-6)


def test_more_processes_than_cores_are_refused(shards: Shards, tmp_path: Path) -> None:
    many = (os.cpu_count() or 1) + 1
    with pytest.raises(InputError, match=rf"^train\.processes={many}: this machine has \d+ core"):
        tiny_run.run(shards, tmp_path / "run", f"train.processes={many}")
    assert not (tmp_path / "run").exists()


def test_more_threads_than_cores_are_told(shards: Shards, tmp_path: Path) -> None:
    told: list[str] = []
    many = hardware.allowed_cores() + 1
    tiny_run.run(shards, tmp_path / "run", "train.max_steps=1", f"train.threads={many}", tell=told.append)
    assert sum(line.startswith(f"{many} threads take turns on ") for line in told) == 1


@pytest.fixture
def two_free_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of two cores, whose trial of threads takes both; runs are long enough for another trial."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("bertsmith.hardware.allowed_cores", lambda: 2)
    monkeypatch.setattr("bertsmith.hardware.own_cores", lambda: 2)
    monkeypatch.setattr(compute_setup, "best_way", lambda found: Way(2, "fp32"))
    monkeypatch.setattr(distributed_run, "_TRIAL_SHARE", 1e6)


@pytest.mark.usefixtures("two_free_threads")
@pytest.mark.parametrize(("seconds", "count"), [((1.0, 1.2), 2), ((1.0, 1.02), 1)])
def test_as_many_as_threads_where_that_is_clearly_quicker(
    shards: Shards,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: tuple[float, float],
    count: int,
) -> None:
    monkeypatch.setattr(distributed_run, "tried_together", lambda *_: seconds)
    told: list[str] = []
    run = tiny_run.run(shards, tmp_path / "run", "train.max_steps=2", "train.threads=none", tell=told.append)
    said = f": {'2 make' if count == 2 else 'one makes'} the run"
    assert any(line.startswith("an update takes about 1 s in 2") and line.endswith(said) for line in told)
    kept = settings_of(run.path / "settings.yaml").from_file(run.path / "settings.yaml")
    assert (kept.train.processes, run.report["processes"]) == (count, count)


@pytest.mark.usefixtures("two_free_threads")
def test_a_trial_changes_nothing(shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ("train.max_steps=3", "train.threads=none")
    tried: list[Any] = []
    try_both = distributed_run.tried_together

    def watched(*given: Any) -> Any:
        tried.append(try_both(*given))
        return tried[-1]

    monkeypatch.setattr(distributed_run, "tried_together", watched)
    monkeypatch.setattr(distributed_run, "_CLEARLY", 0.0)
    after = tiny_run.run(shards, tmp_path / "after", *settings)
    assert len(tried) == 1
    assert all(seconds > 0 for seconds in tried[0])
    monkeypatch.setattr(distributed_run, "_TRIAL_SHARE", 0.0)
    plain = tiny_run.run(shards, tmp_path / "plain", *settings)
    assert len(tried) == 1
    assert weights(after.path) == weights(plain.path)


@pytest.mark.usefixtures("two_free_threads")
def test_a_short_run_or_one_with_threads_of_its_own_is_left_alone(
    shards: Shards,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    started: list[subprocess.Popen[str]],
) -> None:
    tiny_run.run(shards, tmp_path / "threads", "train.max_steps=2", "train.threads=2")
    monkeypatch.setattr(distributed_run, "_TRIAL_SHARE", 0.02)
    tiny_run.run(shards, tmp_path / "short", "train.max_steps=2", "train.threads=none")
    monkeypatch.setattr(distributed_run, "_TRIAL_SHARE", 1e6)
    monkeypatch.setattr("bertsmith.hardware.memory_bytes", lambda device: 10**9)
    tiny_run.run(shards, tmp_path / "memory", "train.max_steps=2", "train.threads=none")
    assert not started


def test_one_that_is_lost_ends_the_run_which_goes_on_later(
    shards: Shards, tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    settings = (*STEPS, TWO)
    straight = tiny_run.run(shards, tmp_path / "straight", *settings)
    with (
        of_several.after(6, lambda: started[-1].kill(), leader=True),
        pytest.raises(MachineError, match="a process of this run is lost"),
    ):
        tiny_run.run(shards, tmp_path / "lost", *settings)
    resumed = tiny_run.run(shards, tmp_path / "lost", *settings, resume=True)
    assert weights(resumed.path) == weights(straight.path)


def test_others_that_cannot_start_are_done_without(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(distributed_run, "__name__", "bertsmith.not_there")
    told: list[str] = []
    run = tiny_run.run(shards, tmp_path / "run", "train.max_steps=2", TWO, tell=told.append)
    assert "the other processes of this run could not be started; it goes on in one" in told
    assert run.report["processes"] == 1
    capfd.readouterr()


def test_killed_with_the_one_that_leads(shards: Shards, tmp_path: Path) -> None:
    """Nothing lets the others go then: they notice that nobody leads them, or what they would write errors to
    would not come to its end."""
    home = Path(__file__).parents[1]
    code = f"""
import os, signal
from pathlib import Path
import of_several, tiny_run
with of_several.after(3, lambda: os.kill(os.getpid(), signal.SIGKILL), leader=True):
    tiny_run.run(Path({str(shards.folder)!r}), Path({str(tmp_path / "killed")!r}), "train.processes=2")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(home), *sys.path]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert "Traceback" not in done.stderr


def test_a_number_beside_torchruns_is_refused(shards: Shards, tmp_path: Path) -> None:
    run = tiny_run.run(shards, tmp_path / "run", "train.max_steps=1", TWO)
    chosen = settings_of(run.path / "settings.yaml").from_file(run.path / "settings.yaml")
    distributed_run.check_processes(chosen, Processes(OfSeveral(0, 2, 0, 2)))
    with pytest.raises(InputError, match=r"train\.processes=2, and torchrun has started 3"):
        distributed_run.check_processes(chosen, Processes(OfSeveral(0, 3, 0, 3)))
    many = (os.cpu_count() or 1) + 1  # torchrun's may be on several machines
    chosen = chosen.changed([f"train.processes={many}"])
    distributed_run.check_processes(chosen, Processes(OfSeveral(0, many, 0, 1)))
