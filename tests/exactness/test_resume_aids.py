"""Runs whose evaluations lower the rate or end them, and runs whose layers are trained one after another: killed
anywhere and resumed, each is the run that was not."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load

import bertsmith as bs
import tiny_run
from bertsmith.errors import Stopped
from bertsmith.training import checkpoint, trainer
from bertsmith.training.callbacks import MetricLogger
from run_equality import Killed, assert_same, outcome

SETTINGS = [
    "train.max_steps=24",
    "train.batch_size=4",
    "train.learning_rate=2e-3",
    "train.eval_steps=2",
    "train.save_steps=5",
    "train.threads=1",
    "train.precision=fp32",
    "train.report_to=none",
    "train.logging_steps=1",
]

AIDS = {
    "plateau": [
        "train.lr_scheduler_type=reduce_lr_on_plateau",
        "train.lr_decay_factor=0.5",
        "train.lr_patience=1",
    ],
    "early": ["train.patience=3", "train.lr_scheduler_type=constant_with_warmup"],
    "early on a plateau": [
        "train.lr_scheduler_type=reduce_lr_on_plateau",
        "train.lr_patience=2",
        "train.patience=5",
    ],
    "one cycle": ["train.lr_scheduler_type=one_cycle_linear", "train.pct_start=0.4", "train.freeze_layers=1"],
    "steps": [
        "train.lr_scheduler_type=step",
        "train.lr_milestones=[0.3, 0.6]",
        "train.layerwise_lr_decay=0.7",
    ],
    "unfreezing": ["train.unfreeze_every=4"],
    "unfreezing uncorrected": ["train.unfreeze_every=4", "train.bias_correction=false"],
    "unfreezing by muon": ["train.unfreeze_every=3", "train.optim=muon", "train.layerwise_lr_decay=0.8"],
    "unfreezing by epochs": ["train.unfreeze_every=epoch", "train.freeze_embeddings=true"],
}


class Aided(NamedTuple):
    """A run with an aid that nothing stopped, and what made it."""

    name: str
    own: list[str]
    base: Path
    train: Path
    validation: Path
    straight: dict[str, Any]
    log: list[dict[str, Any]]
    report: dict[str, Any]

    def run(self, out: Path, *more: str, resume: bool = False, **named: Any) -> bs.Model:
        settings = [*SETTINGS, *self.own, *more]
        return bs.finetune(
            "classify",
            self.base,
            out,
            train=self.train,
            validation=self.validation,
            settings=settings,
            resume=resume,
            **named,
        )


def log_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("material")
    base = tiny_run.run(tiny_run.make_shards(folder), folder / "base", "train.max_steps=1").path
    # labels that texts say nothing of: a score is soon not surpassed
    rows = [(text, ("joy", "fear")[i * 7 % 5 % 2]) for i, (text, _) in enumerate(tiny_run.examples(20))]
    validation = [
        (text, ("joy", "fear")[i * 3 % 4 % 2]) for i, (text, _) in enumerate(tiny_run.examples(12, 1))
    ]
    return (
        base,
        tiny_run.table(folder / "train.csv", rows),
        tiny_run.table(folder / "validation.csv", validation),
    )


@pytest.fixture(scope="module", params=list(AIDS))
def aided(
    request: pytest.FixtureRequest,
    material: tuple[Path, Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Aided:
    out = tmp_path_factory.mktemp("aided") / "straight"
    aided = Aided(request.param, AIDS[request.param], *material, {}, [], {})
    model = aided.run(out)
    return aided._replace(straight=outcome(out), log=log_of(out), report=model.report)


def by_torchs_plateau(log: list[dict[str, Any]], factor: float, patience: int) -> list[float]:
    """The rates that torch's scheduler would give after the evaluations of a log, with our warm-up."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-3)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode="max", factor=factor, patience=patience, threshold=0, eps=0
    )
    found = []
    for line in log:
        if line["kind"] == "train":
            found.append(optimizer.param_groups[0]["lr"] * min(1, line["step"] / 2))  # a tenth of 24
        else:
            schedule.step(line["accuracy"])
    return found


def test_the_aid_is_at_work(aided: Aided) -> None:
    """So that what follows is about something."""
    rates = [line["learning_rate"] for line in aided.log if line["kind"] == "train"]
    state = aided.straight["state"]
    if "plateau" in aided.name:
        assert state["num_lr_reductions"] >= 2
        expected = by_torchs_plateau(aided.log, *((0.1, 1) if "early" in aided.name else (0.5, 0)))
        assert rates == pytest.approx(expected, rel=1e-12)
    if "early" in aided.name:
        assert state["step"] < 24
        assert aided.report["stopped_early"].startswith(f"stopped early after update {state['step']} of 24: ")
    else:
        assert (state["step"], aided.report["stopped_early"]) == (24, None)
    if "unfreezing" in aided.name:
        made = updates_made(aided.straight["optimizer.safetensors"])
        assert {n for name, n in made.items() if name.startswith("objective.")} == {24.0}
        every = 3 if "muon" in aided.name else 5 if "epochs" in aided.name else 4
        for part, thawed in (("blocks.1", every), ("blocks.0", 2 * every), ("embeddings", 3 * every)):
            steps = {n for name, n in made.items() if name.startswith(f"encoder.{part}.")}
            assert steps == (set() if (part, every) == ("embeddings", 5) else {24.0 - thawed})


def updates_made(optimizer: bytes) -> dict[str, float]:
    """How often each parameter was updated, by its name, as AdamW counts."""
    tensors = load(optimizer)
    return {name.removesuffix("/step"): float(t) for name, t in tensors.items() if name.endswith("/step")}


def die_after(patch: pytest.MonkeyPatch, owner: Any, name: str, call: int) -> None:
    """Die right behind the so-manieth call of a function."""
    function, calls = getattr(owner, name), [0]

    def deadly(*arguments: Any, **named: Any) -> Any:
        answer = function(*arguments, **named)
        calls[0] += 1
        if calls[0] == call:
            raise Killed
        return answer

    patch.setattr(owner, name, deadly)


PLACES = [
    *((MetricLogger, "on_step_end", call) for call in (1, 7, 11)),
    *((checkpoint, "save", call) for call in (1, 2)),
    (trainer, "write_plan", 2),  # the early end is decided and written, its checkpoint is not
]


@pytest.mark.parametrize(("owner", "name", "call"), PLACES, ids=[f"{p[1]} {p[2]}" for p in PLACES])
def test_killed_there_and_resumed_is_straight(
    aided: Aided, tmp_path: Path, owner: Any, name: str, call: int
) -> None:
    if name == "write_plan" and "early" not in aided.name:
        return
    with pytest.MonkeyPatch.context() as patch:
        die_after(patch, owner, name, call)
        try:
            aided.run(tmp_path / "run")
        except Killed:
            pass
        else:
            assert aided.straight["state"]["step"] < call  # there is no such call
            return
    model = aided.run(tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", aided.straight)
    clocks = ("seconds", "tokens_per_second", "wall_time")
    assert {k: v for k, v in model.report.items() if k not in clocks} == {
        k: v for k, v in aided.report.items() if k not in clocks
    }


def test_stopped_by_signals_and_resumed_is_straight(aided: Aided, tmp_path: Path) -> None:
    """Again and again, at every third update."""
    stepped = MetricLogger.on_step_end

    def signal_then_step(self: MetricLogger, trainer: Any, result: Any) -> None:
        if trainer.state.step % 3 == 0 and trainer.state.step > begun:
            os.kill(os.getpid(), signal.SIGINT)
        stepped(self, trainer, result)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetricLogger, "on_step_end", signal_then_step)
        for begun in range(0, 24, 3):
            try:
                aided.run(tmp_path / "run", resume=begun > 0)
            except Stopped:
                continue
            break
    assert_same(tmp_path / "run", aided.straight)


def test_a_run_that_stopped_early_is_finished(
    material: tuple[Path, Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    aided = Aided("early", AIDS["early"], *material, {}, [], {})
    run = tmp_path / "run"
    aided.run(run)
    before, log = outcome(run), log_of(run)
    made = before["state"]["step"]
    caplog.clear()
    aided.run(run, resume=True)
    assert_same(run, before)
    (line,) = (message for message in caplog.messages if "its model is unchanged" in message)
    assert line.startswith(f"{run}: the run stopped early after update {made} of 24: 3 evaluations in a row ")
    assert line.endswith(
        "(train.patience=3); its model is unchanged. To train it further, set a larger budget"
    )
    assert bs.info(run)["run"]["finished"]
    caplog.clear()
    aided.run(run, "train.max_steps=30", resume=True)
    assert any(
        line.startswith(f"the run was finished after {made} updates; train.max_steps=30 adds")
        for line in caplog.messages
    )
    later = log_of(run)
    assert later[: len(log)] == log
    evaluations = [line for line in later[len(log) :] if line["kind"] == "evaluation"]
    assert len(evaluations) >= 3  # it does not give up at the first
