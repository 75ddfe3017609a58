"""Fine-tuning of every kind, killed anywhere and resumed, is the run that was not: weights, log, scores."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import bertsmith as bs
import tiny_run
from bertsmith.errors import Stopped
from bertsmith.finetuning.job import FinetuneJob
from bertsmith.finetuning.run import finetune
from bertsmith.training import checkpoint
from bertsmith.training.callbacks import MetricLogger
from run_equality import Killed, assert_same, outcome
from task_files import FILES, OWN

SETTINGS = [
    "train.max_steps=11",
    "train.batch_size=5",
    "train.gradient_accumulation_steps=2",
    "train.learning_rate=2e-3",
    "train.eval_steps=3",
    "train.save_steps=4",
    "train.threads=1",
    "train.precision=fp32",
    "train.report_to=none",
    "train.logging_steps=1",
]


class Tuning(NamedTuple):
    """A task with settings of its own, its files, and the run that nothing stopped."""

    task: str
    own: list[str]
    base: Path
    train: Path
    validation: Path
    straight: dict[str, Any]
    validation_scores: dict[str, Any]

    def run(self, out: Path, *, resume: bool = False) -> bs.Model:
        return finetune(
            self.task,
            self.base,
            out,
            train=self.train,
            validation=self.validation,
            settings=[*SETTINGS, *self.own],
            resume=resume,
        )


@pytest.fixture(scope="module", params=list(FILES))
def tuning(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    folder = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    shards = tiny_run.make_shards(folder)
    base = tiny_run.run(shards, folder / "base", "model.num_hidden_layers=1", "train.max_steps=1").path
    suffix, write = FILES[request.param]
    files = [write(folder / f"{name}.{suffix}", seed) for seed, name in enumerate(("train", "validation"))]
    tuning = Tuning(request.param.split()[0], OWN.get(request.param, []), base, *files, {}, {})
    model = tuning.run(folder / "straight")
    return tuning._replace(
        straight=outcome(folder / "straight"), validation_scores=model.report["validation"]
    )


def die_at(patch: pytest.MonkeyPatch, owner: Any, name: str, call: int, *, after: bool) -> None:
    """Die in the so-manieth call of a function, before or after it did its work."""
    function, calls = getattr(owner, name), [0]

    def deadly(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == call and not after:
            raise Killed
        answer = function(*arguments, **named)
        if calls[0] == call:
            raise Killed
        return answer

    patch.setattr(owner, name, deadly)


@pytest.mark.parametrize(
    ("where", "call", "after"),
    [
        ("on_step_end", 2, True),
        ("on_step_end", 7, True),
        ("evaluate", 1, False),
        ("evaluate", 2, True),
        ("save_best_weights", 1, True),  # between the best weights and the checkpoint that refers to them
        ("save", 1, False),
        ("save", 2, True),
        ("save", 3, True),  # the last checkpoint; the model is not yet written
    ],
)
def test_killed_there_and_resumed_is_straight(
    tuning: Tuning, tmp_path: Path, where: str, call: int, after: bool
) -> None:
    owner: Any = {"on_step_end": MetricLogger, "evaluate": FinetuneJob}.get(where, checkpoint)
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, owner, where, call, after=after)
        with pytest.raises(Killed):
            tuning.run(tmp_path / "run")
    model = tuning.run(tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", tuning.straight)
    assert model.report["validation"] == tuning.validation_scores


def test_killed_again_and_again(tuning: Tuning, tmp_path: Path) -> None:
    """At random moments of one run, each time of another kind."""
    draw = random.Random(tuning.task)
    for number in range(5):
        owner, name = draw.choice(
            [(MetricLogger, "on_step_end"), (checkpoint, "save"), (checkpoint, "save_best_weights")]
        )
        with pytest.MonkeyPatch.context() as patch:
            die_at(patch, owner, name, draw.randint(1, 4), after=draw.random() < 0.5)
            try:
                tuning.run(tmp_path / "run", resume=number > 0)
            except Killed:
                continue
    tuning.run(tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", tuning.straight)


@pytest.mark.parametrize("step", [1, 3, 8, 10])
def test_stopped_by_a_signal_and_resumed_is_straight(tuning: Tuning, tmp_path: Path, step: int) -> None:
    """The unfinished model that is left, of the best weights so far, does not touch the run."""
    stepped = MetricLogger.on_step_end

    def signal_then_step(self: MetricLogger, trainer: Any, result: Any) -> None:
        if trainer.state.step == step:
            os.kill(os.getpid(), signal.SIGINT)
        stepped(self, trainer, result)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetricLogger, "on_step_end", signal_then_step)
        with pytest.raises(Stopped):
            tuning.run(tmp_path / "run")
    unfinished = bs.load(tmp_path / "run")
    assert unfinished.folder.record["unfinished"]["of"] == 11
    assert unfinished.evaluate(tuning.validation).examples > 0
    tuning.run(tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", tuning.straight)
