"""A budget of minutes is kept by a clock that is made up, whatever the machine does; so are the threads chosen."""

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
from bertsmith.hardware import Precision
from bertsmith.runs.compute_setup import configs_to_measure, describe_measurement
from bertsmith.training import autotune, checkpoint, trainer
from bertsmith.training.autotune import (
    Autotuner,
    ExecutionConfig,
    ThreadMonitor,
    benchmark_configs,
    estimate_update_seconds,
    execution_configs,
    fastest_config,
    thread_counts,
)
from bertsmith.training.callbacks import MetricLogger
from bertsmith.training.run_plan import PLAN
from bertsmith.training.settings import TrainSettings

SECONDS = 60.0


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("pace"))


class Clock:
    """Stands still but for updates, which take what `cost` says, by their number (0: of a trial) and the time."""

    def __init__(self, cost: Callable[[int, float], float], patch: pytest.MonkeyPatch) -> None:
        self.now, self.rates = 0.0, dict[int, float]()
        patch.setattr(hardware, "clock", lambda: self.now)
        for module in (trainer, autotune):

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


MACHINES_THAT_STOP: dict[str, Callable[[int, float], float]] = {
    "sleeps": lambda step, now: 45.0 if 20 < now < 60 else 2.0,
    "steady": lambda step, now: 2.0,
}


@pytest.mark.parametrize(
    ("name", "schedule", "told_of"),
    [
        ("sleeps", "linear", True),
        ("sleeps", "warmup_stable_decay", True),
        ("sleeps", "constant_with_warmup", False),
        ("steady", "warmup_stable_decay", False),
    ],
)
def test_a_rate_that_had_no_time_to_come_down_is_told(
    shards: Shards,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    schedule: str,
    told_of: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A laptop that sleeps through the rest of the minutes: the run ends on time, with a high rate."""
    clock = Clock(MACHINES_THAT_STOP[name], monkeypatch)
    caplog.clear()
    command = ("train.gradient_accumulation_steps=1", f"train.lr_scheduler_type={schedule}")
    model = tiny_run.run(shards, tmp_path / "run", *command, minutes=1)
    said = [line for line in caplog.messages if line.startswith("the time was over after")]
    assert said == [line for line in model.report["remarks"] if line.startswith("the time was")]
    assert bool(said) == told_of
    if not told_of:
        return
    rate = clock.rates[model.report["steps"]]
    assert rate > 0.5 * max(clock.rates.values())
    assert f"a learning rate of {rate:.2g}, {rate / 1e-3:.0%} of the highest" in said[0]
    # what it advises brings the rate down
    more = tiny_run.run(shards, tmp_path / "run", *command, minutes=3, resume=True)
    assert clock.rates[more.report["steps"]] < 0.1 * max(clock.rates.values())
    assert not any(line.startswith("the time was") for line in more.report["remarks"])


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
        patch.setattr(Autotuner, "propose", lambda *_: None)
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


# --- threads and precision ----------------------------------------------------------------------------------


def test_the_quickest_way_is_taken_and_fewer_threads_only_where_they_are_clearly_quicker() -> None:
    assert thread_counts(2) == [2, 1]
    assert thread_counts(16) == [16, 8, 4, 3, 2, 1]
    assert execution_configs([2, 1], ["fp32", "bf16"]) == [
        ExecutionConfig(2, "fp32"),
        ExecutionConfig(1, "fp32"),
        ExecutionConfig(2, "bf16"),
    ]

    def best(two: float, one: float, half: float) -> ExecutionConfig:
        return fastest_config(
            {
                ExecutionConfig(2, "fp32"): two,
                ExecutionConfig(1, "fp32"): one,
                ExecutionConfig(2, "bf16"): half,
            }
        )

    assert best(1.0, 1.6, 1.3) == ExecutionConfig(2, "fp32")
    assert best(1.0, 0.95, 0.97) == ExecutionConfig(2, "fp32")
    assert best(1.0, 0.6, 1.3) == ExecutionConfig(1, "fp32")
    assert best(1.0, 1.6, 0.5) == ExecutionConfig(2, "bf16")


SPEEDS = {
    ExecutionConfig(2, "fp32"): 0.4,
    ExecutionConfig(1, "fp32"): 0.7,
    ExecutionConfig(2, "bf16"): 0.5,
    ExecutionConfig(1, "bf16"): 0.9,
}


def test_precision_is_that_of_the_models_own_update(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """bf16 wins a large product and loses the update of a small model: fp32 is taken; and the other way round."""
    for faster in ("fp32", "bf16"):
        now = [0.0]

        def timed(*arguments: Any, faster: str = faster, now: list[float] = now) -> Any:
            now[0] += 0.4 if arguments[0].context.precision == faster else 0.5
            return {}

        with monkeypatch.context() as patch:
            patch.setattr(hardware, "clock", lambda now=now: now[0])
            patch.setattr(autotune, "train_step", timed)
            products_are(patch, "bf16")
            caplog.clear()
            one = ("train.max_steps=1", "train.precision=auto")
            model = tiny_run.run(shards, tmp_path / faster, *one)
        assert model.report["precision"] == faster
        assert any(f" s in {faster} on 1 thread (" in line for line in caplog.messages)


def products_are(patch: pytest.MonkeyPatch, precision: Precision) -> None:
    """Faster in this precision."""
    choice = hardware.PrecisionChoice(precision, "drawn")
    patch.setattr(hardware, "choose_precision", lambda device=None: choice)


def test_bf16_is_not_tried_where_its_products_are_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine had runs choose it by chance."""
    for precision, expected in (("fp32", ["fp32"]), ("bf16", ["fp32", "bf16"])):
        products_are(monkeypatch, precision)
        found = configs_to_measure(TrainSettings(threads=1), ComputeContext.create("cpu", "fp32"))
        assert [way.precision for way in found] == expected
        asked = configs_to_measure(
            TrainSettings(threads=1, precision="bf16"), ComputeContext.create("cpu", "bf16")
        )
        assert [way.precision for way in asked] == ["bf16"]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_trial_changes_nothing(shards: Shards, tmp_path: Path, optimizer: str) -> None:
    """A run that measured is the run that did not, to the bit."""
    ten = ("train.max_steps=6", "train.learning_rate=1e-2", f"train.optim={optimizer}")
    plain = tiny_run.run(shards, tmp_path / "plain", *ten)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autotune, "_MAX_BF16_TIME", 0.0)
        timed = tiny_run.run(shards, tmp_path / "timed", *ten, "train.precision=auto")
    for file in ("log.jsonl", "model/model.safetensors"):
        assert (plain.path / file).read_bytes() == (timed.path / file).read_bytes()


def test_a_collapse_is_noticed_once_and_fewer_threads_are_left_again() -> None:
    watch = ThreadMonitor(2)
    quiet = [watch.is_due(0, 0.3, 2) for _ in range(50)]
    busy = [watch.is_due(0, 1.0, 2) for _ in range(12)]
    assert not any(quiet)
    assert busy.index(True) == 6  # when most of the last dozen were slow
    watch.pause()
    assert not any(watch.is_due(0, 1.0, 2) for _ in range(63))
    watch.pause()
    assert not any(watch.is_due(0, 0.4, 1) for _ in range(255))
    assert any(watch.is_due(0, 0.4, 1) for _ in range(2))


class Threads:
    """Threads that are only counted; an update takes what `cost` says of its number and theirs."""

    def __init__(self, cost: Callable[[int, int], float], patch: pytest.MonkeyPatch) -> None:
        self.now, self.number, self.used = 0.0, 2, dict[int, int]()
        patch.delenv("OMP_NUM_THREADS", raising=False)
        patch.setattr(hardware, "available_cores", lambda: 2)
        patch.setattr(hardware, "clock", lambda: self.now)
        patch.setattr(hardware, "configure_process", lambda threads=None: 2)
        patch.setattr(hardware, "set_num_threads", lambda count: setattr(self, "number", count))
        patch.setattr(torch, "get_num_threads", lambda: self.number)
        for module in (trainer, autotune):

            def timed(*arguments: Any, update: Any = module.train_step) -> Any:  # type: ignore[attr-defined]
                step = arguments[3] or max(self.used, default=0)
                self.now += cost(step, self.number)
                if arguments[3]:
                    self.used[step] = self.number
                return update(*arguments)

            patch.setattr(module, "train_step", timed)


def crowded(step: int, threads: int) -> float:
    """Two threads are quicker, but for the updates from 40 to 150, when other work stands in their way."""
    return (0.3 if threads == 2 else 0.5) if not 40 <= step < 150 else (3.0 if threads == 2 else 0.8)


def test_threads_step_down_in_a_crowd_and_come_back(
    shards: Shards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = (
        "train.max_steps=330",
        "train.threads=none",
        "train.gradient_accumulation_steps=1",
        "train.logging_steps=50",
    )
    caplog.clear()
    with pytest.MonkeyPatch.context() as patch:
        threads = Threads(crowded, patch)
        tiny_run.run(shards, tmp_path / "run", *settings)
    assert threads.used[39] == 2
    assert threads.used[60] == 1
    assert threads.used[330] == 2
    entries = [json.loads(line) for line in (tmp_path / "run" / PLAN).read_text().splitlines()]
    assert [entry["threads"] for entry in entries] == [2, 1, 2]
    assert any("computing on 1 thread from update" in line for line in caplog.messages)


def test_threads_stay_where_few_updates_are_left(
    shards: Shards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    with pytest.MonkeyPatch.context() as patch:
        threads = Threads(crowded, patch)  # a collapse at update 40, noticed at update 46
        settings = ("train.max_steps=60", "train.threads=none", "train.gradient_accumulation_steps=1")
        tiny_run.run(shards, tmp_path / "run", *settings)
    assert set(threads.used.values()) == {2}
    assert not any("not on 2" in line for line in caplog.messages)


def test_minutes_are_counted_from_where_the_command_began(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(lambda step, now: 0.5, monkeypatch)
    clock.now = 12.0  # spent on loading the program
    model = tiny_run.run(shards, tmp_path / "run", minutes=SECONDS / 60, start_time=0.0)
    assert abs(clock.now - SECONDS) < 2
    assert abs(model.report["seconds"] - SECONDS) < 2


def test_threads_that_were_asked_for_stay(shards: Shards, tmp_path: Path) -> None:
    for how in ("settings", "environment"):
        with pytest.MonkeyPatch.context() as patch:
            threads = Threads(crowded, patch)
            named = "train.threads=2" if how == "settings" else "train.threads=none"
            if how == "environment":
                patch.setenv("OMP_NUM_THREADS", "2")
            tiny_run.run(
                shards, tmp_path / how, "train.max_steps=80", "train.gradient_accumulation_steps=1", named
            )
        assert set(threads.used.values()) == {2}


def test_more_threads_than_cores_are_told(
    shards: Shards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    many = hardware.available_cores() + 1
    tiny_run.run(shards, tmp_path / "run", "train.max_steps=1", f"train.threads={many}")
    assert sum(line.startswith(f"this run uses {many} threads on ") for line in caplog.messages) == 1


def test_a_resume_uses_the_threads_that_its_updates_were_made_on(
    shards: Shards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = (
        "train.max_steps=70",
        "train.threads=none",
        "train.gradient_accumulation_steps=1",
        "train.save_steps=30",
    )
    stepped = MetricLogger.on_step_end

    def step_and_die(self: MetricLogger, trainer: Any, result: Any) -> None:
        stepped(self, trainer, result)
        if trainer.state.step == 58:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        first = Threads(crowded, patch)
        patch.setattr(MetricLogger, "on_step_end", step_and_die)
        with pytest.raises(Killed):
            tiny_run.run(shards, tmp_path / "run", *settings)
    with pytest.MonkeyPatch.context() as patch:
        second = Threads(crowded, patch)
        tiny_run.run(shards, tmp_path / "run", *settings, resume=True)
    assert {1, 2} == set(first.used.values())
    assert {n: first.used[n] for n in range(31, 59)} == {n: second.used[n] for n in range(31, 59)}
    caplog.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        tiny_run.run(shards, tmp_path / "run", *settings, "train.max_steps=90", resume=True)
    assert any("adds 20 updates" in line for line in caplog.messages)


def trial_of(
    seconds: dict[tuple[int, Precision], float], enough: float
) -> tuple[dict[ExecutionConfig, float], list[tuple[ExecutionConfig, int]], float]:
    """A trial of updates of 32 sequences that take so long by threads and precision, with time for so many of the
    quickest: what it finds, the updates that it makes with their sizes, and how long it takes."""
    seen: list[tuple[ExecutionConfig, int]] = []
    now = [0.0]
    threads = [2]

    class Stream:
        def size(self, epoch: int) -> int:
            return 1000

        def batch(self, epoch: int, start: int, stop: int) -> Any:
            return Batch(stop - start)

    class Batch:
        epoch, place = 0, ""

        def __init__(self, tokens: int) -> None:
            self.tokens = tokens

    def timed(strategy: Any, work: Any, *rest: Any) -> Any:
        way = ExecutionConfig(threads[0], strategy.context.precision)
        now[0] += seconds[way.threads, way.precision] * work.tokens / 32
        seen.append((way, work.tokens))

    from bertsmith.device import ComputeContext
    from bertsmith.training.data_loader import Phase
    from bertsmith.training.train_step import TrainModule

    class Counting(torch.nn.Linear):
        def counts(self, batch: Any) -> dict[str, int]:
            return {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware, "clock", lambda: now[0])
        patch.setattr(hardware, "set_num_threads", lambda count: threads.__setitem__(0, count))
        patch.setattr(autotune, "train_step", timed)
        found = benchmark_configs(
            TrainModule(torch.nn.Linear(1, 1), Counting(1, 1)),
            Phase(Stream(), 1.0, 32),
            TrainSettings(),
            ComputeContext.create("cpu", "fp32"),
            execution_configs([2, 1], ["fp32", "bf16"]),
            lambda seconds: enough * seconds,
        )
    return found, seen, now[0]


def test_a_trial_measures_whole_batches_where_there_is_time() -> None:
    """Growing parts of a batch, each way in turn; what is hopeless is dropped; the last size counts."""
    seconds: dict[tuple[int, Precision], float] = {(2, "fp32"): 1.0, (1, "fp32"): 1.5, (2, "bf16"): 9.0}
    found, seen, spent = trial_of(seconds, 12.0)
    assert found == {ExecutionConfig(2, "fp32"): 1.0, ExecutionConfig(1, "fp32"): 1.5}
    assert [tokens for way, tokens in seen if way == ExecutionConfig(2, "bf16")] == [
        4,
        4,
    ]  # the first is not counted
    assert spent <= 12.0


@pytest.mark.parametrize(("times", "sizes"), [(1.0, [4, 8]), (2.0, [4])])
def test_a_trial_without_time_compares_two_sizes_where_they_are_soon_measured(
    times: float, sizes: list[int]
) -> None:
    """One update of each way was too few to choose by. Here a first round takes 0.375 s, and twice as long."""
    seconds: dict[tuple[int, Precision], float] = {(2, "fp32"): 1.0, (1, "fp32"): 1.2, (2, "bf16"): 0.8}
    found, seen, _ = trial_of({way: times * one for way, one in seconds.items()}, 0.0)
    warm, rounds = seen[:2], seen[2:]
    assert {way.precision for way, _ in warm} == {"fp32", "bf16"}  # an update of each, which is not counted
    assert rounds == [(way, size) for size in sizes for way in found]
    assert found == pytest.approx({ExecutionConfig(*way): times * one for way, one in seconds.items()})


@pytest.mark.parametrize(
    ("size", "seconds", "smaller", "whole", "expected"),
    [
        (8, 1.0, None, 64, 8.0),  # nothing to compare with: in proportion
        (8, 1.0, (4, 0.6), 64, 6.6),  # 0.1 s a sequence, and 0.2 s whatever their number
        (32, 1.0, (16, 0.5), 64, 2.0),  # all of it grows
        (32, 1.0, (16, 1.2), 64, 1.0),  # noise: more sequences never take less time
        (32, 1.0, (16, 0.1), 64, 2.0),  # nor more than in proportion
        (64, 1.0, (32, 0.9), 64, 1.0),  # a whole batch is not estimated
    ],
)
def test_what_an_update_takes_whatever_its_size_is_counted_once(
    size: int, seconds: float, smaller: tuple[int, float] | None, whole: int, expected: float
) -> None:
    assert estimate_update_seconds(size, seconds, smaller, whole) == pytest.approx(expected)


def test_the_measured_speeds_say_why_one_is_taken() -> None:
    here = ComputeContext.create("cpu", "fp32")
    found = {
        ExecutionConfig(2, "fp32"): 0.122,
        ExecutionConfig(1, "fp32"): 0.113,
        ExecutionConfig(2, "bf16"): 4.07,
    }
    assert describe_measurement(found, ExecutionConfig(2, "fp32"), 0.122, here) == (
        "an update takes about 0.122 s in fp32 on 2 threads (fp32 on 1 thread: 0.113 s, not enough faster to "
        "leave threads idle; bf16 on 2 threads: 4.07 s)"
    )
    found = {
        ExecutionConfig(2, "fp32"): 0.133,
        ExecutionConfig(1, "fp32"): 0.124,
        ExecutionConfig(2, "bf16"): 0.07,
    }
    assert describe_measurement(found, ExecutionConfig(2, "bf16"), 0.07, here) == (
        "an update takes about 0.07 s in bf16 on 2 threads (fp32 on 2 threads: 0.133 s; fp32 on 1 thread: 0.124 "
        "s)"
    )
