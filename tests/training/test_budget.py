"""Budgets of minutes, on a simulated clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_run
from bertsmith import hardware
from bertsmith.corpus.shards import Shards
from bertsmith.device import ComputeContext
from bertsmith.runs import compute_setup
from bertsmith.runs.compute_setup import measure_update_seconds
from bertsmith.training import checkpoint, trainer
from bertsmith.training.budget import TimeBudget
from bertsmith.training.callbacks import MetricLogger
from bertsmith.training.data_loader import Phase
from bertsmith.training.run_plan import PLAN
from bertsmith.training.settings import TrainSettings
from bertsmith.training.train_step import TrainModule

SECONDS = 60.0


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("pace"))


class Clock:
    """Stands still but for updates, which take what `cost` says, by their number (0: of a trial) and the time."""

    def __init__(self, cost: Callable[[int, float], float], patch: pytest.MonkeyPatch) -> None:
        self.now, self.rates = 0.0, dict[int, float]()
        patch.setattr(hardware, "clock", lambda: self.now)
        for module in (trainer, compute_setup):

            def timed(*arguments: Any, update: Any = module.train_step) -> Any:  # type: ignore[attr-defined]
                self.now += cost(arguments[3], self.now)
                self.rates[arguments[3]] = arguments[2]
                return update(*arguments)

            patch.setattr(module, "train_step", timed)


MACHINES: dict[str, Callable[[int, float], float]] = {
    "steady": lambda step, now: 0.5,
    "slows down": lambda step, now: 0.4 if now < 30 else 0.8,
    "speeds up": lambda step, now: 1.0 if now < 30 else 0.5,
    "late": lambda step, now: 0.4 if now < 50 else 0.8,
    "a slow trial": lambda step, now: 0.5 if step else 0.3 if now else 14.0,
    "a quick trial": lambda step, now: 1.0 if step else 0.01,
    "very slow": lambda step, now: 7.0,
    "uneven": lambda step, now: 0.2 if step % 8 else 2.0,
}


@pytest.mark.parametrize("name", list(MACHINES))
def test_minutes_are_kept(
    shards: Shards,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock(MACHINES[name], monkeypatch)
    caplog.clear()
    model = tiny_run.run(
        shards, tmp_path / "run", "train.gradient_accumulation_steps=1", minutes=SECONDS / 60
    )
    longest = 7.0 if name == "very slow" else 3.0  # an update, or 5 %
    assert abs(clock.now - SECONDS) <= longest
    made = model.report["steps"]
    assert clock.rates[made] <= 0.1 * max(clock.rates.values()) or made < 20
    entries = [json.loads(line) for line in (tmp_path / "run" / PLAN).read_text().splitlines()]
    assert entries[-1]["updates"] == made
    assert len(entries) <= 40
    assert "measuring the speed of an update ..." in caplog.messages
    short = any("a model learns little" in line for line in caplog.messages)
    assert short == (name != "a quick trial")


def test_one_update_is_made_however_short_the_time(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Clock(lambda step, now: 100.0, monkeypatch)
    caplog.clear()
    model = tiny_run.run(shards, tmp_path / "run", minutes=0.5)
    assert model.report["steps"] == 1
    (line,) = (
        line for line in caplog.messages if line.startswith("the time is over before the first update")
    )
    assert line.endswith(" of 30 s; the run makes one update")
    assert not any("of which" in line for line in caplog.messages)


def test_whichever_of_minutes_and_updates_comes_first(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(lambda step, now: 0.5, monkeypatch)
    few = tiny_run.run(shards, tmp_path / "few", "train.max_steps=7", minutes=1)
    assert few.report["steps"] == 7
    assert len((tmp_path / "few" / PLAN).read_text().splitlines()) == 1
    some = tiny_run.run(shards, tmp_path / "some", "train.max_steps=70", minutes=0.5)
    assert 50 <= some.report["steps"] <= 60


class Killed(BaseException):
    """Stands for a SIGKILL."""


def run_killed(shards: Shards, run: Path, step: int, *, resume: bool = False) -> None:
    """A run of a minute on a machine that slows down at update 40, killed after `step`."""
    stepped = MetricLogger.on_step_end

    def step_and_die(self: MetricLogger, trainer: Any, result: Any) -> None:
        stepped(self, trainer, result)
        if trainer.state.step == step:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        Clock(lambda number, now: 0.5 if number < 40 else 1.0, patch)
        patch.setattr(MetricLogger, "on_step_end", step_and_die)
        if step:
            with pytest.raises(Killed):
                tiny_run.run(shards, run, "train.save_steps=15", minutes=1, resume=resume)
        else:
            tiny_run.run(shards, run, "train.save_steps=15", minutes=1, resume=resume)


def outcome(run: Path) -> list[bytes]:
    last = run / "checkpoints" / str(checkpoint.newest_name(run / "checkpoints"))
    files = [*sorted(last.glob("*.safetensors")), run / "log.jsonl", run / PLAN]
    return [file.read_bytes() for file in files]


def test_a_killed_run_makes_its_updates_again_as_they_were_made(shards: Shards, tmp_path: Path) -> None:
    """After two kills: equal to the bit to a run that makes all its updates in one go under the same plan."""
    run, again = tmp_path / "run", tmp_path / "again"
    run_killed(shards, run, 44)
    known = (run / PLAN).read_text()
    assert len(known.splitlines()) > 2
    run_killed(shards, run, 58, resume=True)
    assert (run / PLAN).read_text().startswith(known)
    run_killed(shards, run, 0, resume=True)
    run_killed(shards, again, 1)
    (again / PLAN).write_bytes((run / PLAN).read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TimeBudget, "propose", lambda *_: None)
        run_killed(shards, again, 0, resume=True)
    assert outcome(again) == outcome(run)


def test_time_that_was_spent_before_counts(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run_killed(shards, tmp_path / "run", 46)
    clock = Clock(lambda step, now: 0.5, monkeypatch)
    caplog.clear()
    command = {"minutes": 1, "resume": True}
    model = tiny_run.run(shards, tmp_path / "run", "train.save_steps=15", **command)
    spent = 39 * 0.5 + 6 * 1.0  # until the checkpoint of step 45
    assert abs(clock.now - (SECONDS - spent)) < 4
    assert any(line.startswith("resumed after update 45 of ") for line in caplog.messages)
    made, now = model.report["steps"], clock.now
    caplog.clear()
    tiny_run.run(shards, tmp_path / "run", "train.save_steps=15", **command)
    assert clock.now == now
    assert not any("resumed after" in line for line in caplog.messages)
    assert any(f"the run is finished after {made} updates" in line for line in caplog.messages)
    more = tiny_run.run(shards, tmp_path / "run", "train.save_steps=15", **command | {"minutes": 1.5})
    assert more.report["steps"] > made
    assert abs(clock.now - now - 30) < 4


def test_minutes_are_counted_from_where_the_command_began(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(lambda step, now: 0.5, monkeypatch)
    clock.now = 12.0  # spent on loading the program
    model = tiny_run.run(shards, tmp_path / "run", minutes=SECONDS / 60, start_time=0.0)
    assert abs(clock.now - SECONDS) < 2
    assert abs(model.report["seconds"] - SECONDS) < 2


def test_more_threads_than_cores_are_told(
    shards: Shards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    many = hardware.available_cores() + 1
    tiny_run.run(shards, tmp_path / "run", "train.max_steps=1", f"train.threads={many}")
    assert sum(line.startswith(f"this run uses {many} threads on ") for line in caplog.messages) == 1


def test_threads_and_precision_depend_on_the_machine_only(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with a step budget is not measured, so that the same command gives the same model under any load."""
    monkeypatch.setattr(compute_setup, "train_step", lambda *_: pytest.fail("an update was measured"))
    monkeypatch.setattr(hardware, "available_cores", lambda: 1)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    run = tmp_path / "run"
    settings = ("train.max_steps=1", "train.threads=none", "train.precision=auto")
    model = tiny_run.run(shards, run, *settings)
    assert model.report["precision"] == hardware.choose_precision()
    assert json.loads((run / PLAN).read_text())["threads"] == 1


def measured_updates(
    seconds_of: Callable[[int], float], max_seconds: float, accumulation: int = 1
) -> tuple[float, list[int]]:
    """Return the estimated seconds of an update of 32 sequences, and the size of each measured update."""
    sizes: list[int] = []
    now = [0.0]

    class Batch:
        epoch, place = 0, ""

        def __init__(self, tokens: int) -> None:
            self.tokens = tokens

    class Stream:
        def size(self, epoch: int) -> int:
            return 1000

        def batch(self, epoch: int, start: int, stop: int) -> Any:
            return Batch(stop - start)

    class Counting(torch.nn.Linear):
        def counts(self, batch: Any) -> dict[str, int]:
            return {}

    def timed(strategy: Any, update: Any, *rest: Any) -> None:
        now[0] += seconds_of(update.tokens)
        sizes.append(update.tokens)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware, "clock", lambda: now[0])
        patch.setattr(compute_setup, "train_step", timed)
        seconds = measure_update_seconds(
            TrainModule(torch.nn.Linear(1, 1), Counting(1, 1)),
            Phase(Stream(), 1.0, 32),
            TrainSettings(gradient_accumulation_steps=accumulation),
            ComputeContext.create("cpu", "fp32"),
            max_seconds,
        )
    return seconds, sizes


@pytest.mark.parametrize(
    ("seconds_of", "max_seconds", "accumulation", "sizes", "expected"),
    [
        (lambda size: size / 32, 12.0, 1, [4, 4, 8, 16, 32], 1.0),  # a whole batch needs no estimate
        (lambda size: size / 32, 0.0, 1, [4, 4], 1.0),  # in proportion to the size
        (lambda size: 0.2 + 0.1 * size, 2.5, 2, [4, 4, 8], 6.6),  # 0.2 s do not depend on the size
        (lambda size: 1.0, 5.0, 2, [4, 4, 8, 16], 1.0),  # larger parts take as long
    ],
)
def test_an_update_is_estimated_from_parts_of_it(
    seconds_of: Callable[[int], float],
    max_seconds: float,
    accumulation: int,
    sizes: list[int],
    expected: float,
) -> None:
    estimate, measured = measured_updates(seconds_of, max_seconds, accumulation)
    assert measured == sizes
    assert estimate == pytest.approx(expected)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_measurement_changes_nothing(shards: Shards, tmp_path: Path, optimizer: str) -> None:
    settings = ("train.max_steps=6", "train.learning_rate=1e-2", f"train.optim={optimizer}")
    plain = tiny_run.run(shards, tmp_path / "plain", *settings)
    measured = tiny_run.run(shards, tmp_path / "measured", *settings, minutes=60)
    for file in ("log.jsonl", "model/model.safetensors"):
        assert (plain.path / file).read_bytes() == (measured.path / file).read_bytes()


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"learning_rate": 2e-5}, []),
        ({"learning_rate": 2e-6}, ["learning_rate"]),
        ({"learning_rate": 2e-6, "weight_decay": 0.0}, []),
        ({"learning_rate": 2e-5, "optim": "muon", "muon_learning_rate": 1e-7}, ["muon_learning_rate"]),
    ],
)
def test_weight_decay_below_what_fp32_resolves_is_said(
    changes: dict[str, Any], names: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "bertsmith")
    settings = TrainSettings(**changes)
    compute_setup.warn_about_weight_decay(settings)
    assert [record.args[0] for record in caplog.records if record.args] == names
    factor = 1 - torch.tensor(settings.learning_rate * settings.weight_decay)
    assert bool(factor == 1) == (settings.weight_decay == 0 or "learning_rate" in names)
