"""What a fine-tuning run tells: every evaluation, the one that was kept, and whether anything was learnt."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import bertsmith
from bertsmith.errors import Stopped
from bertsmith.tasks.scores import Scores
from bertsmith.training.progress import Recorder
from bertsmith.workflows.finetune_report import evaluations, told_of_learning

SETTINGS = ["train.batch_size=6", "train.threads=1", "train.tensorboard=false", "train.precision=fp32"]
LEARN = [*SETTINGS, "train.epochs=4", "train.learning_rate=3e-3"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    folder = tmp_path_factory.mktemp("base")
    return tiny_run.run(tiny_run.make_shards(folder), folder / "bert", "train.max_steps=2")


def tuned(base: bs.Model, out: Path, *settings: str, resume: bool = False, told: Any = None) -> bs.Model:
    out.parent.mkdir(exist_ok=True)
    return bs.finetune(
        "classify",
        base,
        out,
        train=tiny_run.table(out.parent / "train.csv", tiny_run.examples(36)),
        dev=tiny_run.table(out.parent / "dev.csv", tiny_run.examples(12, seed=1)),
        settings=[*LEARN, *settings],
        resume=resume,
        tell=told or (lambda text: None),
    )


def test_each_evaluation_stands_in_the_report(base: bs.Model, tmp_path: Path) -> None:
    run = tuned(base, tmp_path / "run", "train.log_every=4")
    rows = run.report["evaluations"]
    assert [(row["epoch"], row["step"]) for row in rows] == [(1, 6), (2, 12), (3, 18), (4, 24)]
    (kept,) = (row for row in rows if row["best"])
    assert kept["step"] == run.report["best_step"]
    assert kept["accuracy"] == max(row["accuracy"] for row in rows) == run.report["dev"]["accuracy"]
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in log if line["kind"] == "train"}
    assert sorted(losses) == [4, 6, 8, 12, 16, 18, 20, 24]  # each evaluation has a loss beside it
    assert rows[1]["loss"] == pytest.approx((losses[8] + losses[12]) / 2)


def test_a_resumed_run_tells_the_same(
    base: bs.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = tuned(base, tmp_path / "a" / "run")
    stepped = Recorder.stepped

    def signal_then_step(self: Recorder, at: int, *rest: Any) -> None:
        if at == 15:
            os.kill(os.getpid(), signal.SIGINT)
        stepped(self, at, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "stepped", signal_then_step)
        with pytest.raises(Stopped):
            tuned(base, tmp_path / "b" / "run")
    resumed = tuned(base, tmp_path / "b" / "run", resume=True)
    for name in ("evaluations", "best_step", "dev", "examples"):
        assert resumed.report[name] == straight.report[name]
    assert len(resumed.report["evaluations"]) == 4


def test_the_command_line_shows_them(base: bs.Model, tmp_path: Path) -> None:
    train = tiny_run.table(tmp_path / "train.csv", [*tiny_run.examples(36), ("kaba", "awe")])
    call = ["finetune", "classify", "--model", base.path, "--train", train, "--dev-share", "0.3", "--out"]
    some = [word for setting in LEARN for word in ("--set", setting)]
    done = CliRunner().invoke(bertsmith, [*map(str, call), str(tmp_path / "run"), *some])
    assert done.exit_code == 0, done.output
    (kept,) = (line for line in done.stdout.splitlines() if "← kept" in line)
    best = json.loads((tmp_path / "run" / "report.json").read_text())
    assert str(best["best_step"]) in kept
    assert f"{best['dev']['accuracy']:.4f}" in kept
    assert "4 labels" in done.stderr
    assert f"warning: 1 label occurs only once in training: 'awe' ({train}:38)" in done.stderr
    assert any("'awe'" in line for line in best["warnings"])
    assert best["examples"]["labels"]["train"]["awe"] == 1


def test_no_better_than_the_most_frequent_label_is_said(base: bs.Model, tmp_path: Path) -> None:
    told: list[str] = []
    run = tuned(base, tmp_path / "run", "train.max_steps=1", "train.learning_rate=1e-9", told=told.append)
    report = run.report
    assert report["dev"]["accuracy"] <= report["baseline"]["accuracy"]
    (said,) = (line for line in report["warnings"] if "no better" in line)
    assert f"warning: {said}" in told
    assert "only 1 update was made" in said
    assert "--set train.epochs=10" in said
    better, worse = Scores({"f1": 0.5}), Scores({"f1": 0.4})
    assert told_of_learning("f1", better, worse, 500) == []
    assert "train.learning_rate" in told_of_learning("f1", worse, worse, 500)[0]


def test_an_evaluation_without_a_loss_before_it(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 3, "kind": "evaluation", "f1": 0.5}\n')
    assert evaluations(tmp_path, 2.0, None) == [
        {"step": 3, "epoch": 1.5, "loss": None, "f1": 0.5, "best": False}
    ]
