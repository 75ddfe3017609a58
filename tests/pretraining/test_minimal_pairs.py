"""Minimal pairs on a run's way: they change no weight, are counted in its minutes, and survive a resume."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import bertsmith as bs
import tiny_run
from bertsmith import hardware
from bertsmith.cli.main import main
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError
from bertsmith.inference.minimal_pairs import MinimalPairs
from bertsmith.pretraining import job as workflow
from bertsmith.runs import compute_setup
from bertsmith.training import trainer
from bertsmith.training.callbacks import MetricLogger
from run_equality import Killed, assert_same, outcome

STEPS = ("train.max_steps=6", "train.eval_steps=2", "train.save_steps=1")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty pairs of two phenomena."""
    file = tmp_path_factory.mktemp("file") / "pairs.csv"
    rows = [
        (f"{a} {b} {a}", f"{a} {a} {b}", name)
        for a in tiny_run.WORDS[:10]
        for b, name in (("lode", "order"), ("mizu", "mizu"))
    ]
    return tiny_run.table(file, rows, header="good,bad,phenomenon")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def straight(shards: Shards, pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("straight") / "run"
    tiny_run.run(shards, out, *STEPS, evaluate_pairs=pairs)
    return out


def log(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in (run / "log.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def test_weights_generator_and_losses_are_those_of_a_run_without_pairs(
    shards: Shards, straight: Path, tmp_path: Path
) -> None:
    tiny_run.run(shards, tmp_path / "run", *STEPS)
    with_pairs, without = outcome(straight), outcome(tmp_path / "run")
    files = [name for name in without if name not in ("state", "log")]
    assert len(files) >= 4
    assert [name for name in files if with_pairs[name] != without[name]] == []
    assert with_pairs["state"]["fingerprint"] == without["state"]["fingerprint"]
    assert log(straight, "train") == log(tmp_path / "run", "train")
    for one, other in zip(log(straight, "evaluation"), log(tmp_path / "run", "evaluation"), strict=True):
        del one["pairs_accuracy"]
        assert one == other


def test_each_evaluation_and_the_report_say_the_accuracy(straight: Path, pairs: Path) -> None:
    model = bs.load(straight)
    found = model.score_pairs(pairs)
    accuracies = [line["pairs_accuracy"] for line in log(straight, "evaluation")]
    assert len(accuracies) == 3
    assert accuracies[-1] == model.report["held_out"]["pairs_accuracy"] == found["accuracy"]
    assert model.folder.record["held_out"]["pairs_accuracy"] == found["accuracy"]


def test_a_fixed_sample_is_scored(
    shards: Shards, pairs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    some = ("evaluate.pairs_sample=7", "data.validation_split=0", "train.seed=3")
    model = tiny_run.run(shards, tmp_path / "run", *STEPS, *some, evaluate_pairs=pairs)
    assert any("7 of 20 minimal pairs" in line for line in caplog.messages)
    lines = log(tmp_path / "run", "evaluation")
    assert [line.keys() for line in lines] == [{"step", "kind", "pairs_accuracy"}] * 3
    assert lines[-1]["pairs_accuracy"] == model.score_pairs(pairs, sample=7)["accuracy"]
    assert model.report["held_out"] == {"pairs_accuracy": lines[-1]["pairs_accuracy"]}


@pytest.mark.parametrize("named", [True, False], ids=["the same command", "without --evaluate-pairs"])
def test_a_killed_run_continues_with_its_pairs(
    shards: Shards, pairs: Path, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    log_step = MetricLogger.on_step_end

    def killed(self: MetricLogger, trainer: Any, result: Any) -> None:
        log_step(self, trainer, result)
        if trainer.state.step == 4:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(MetricLogger, "on_step_end", killed)
        with pytest.raises(Killed):
            tiny_run.run(shards, tmp_path / "run", *STEPS, evaluate_pairs=pairs)
    again = {"evaluate_pairs": pairs} if named else {}
    tiny_run.run(shards, tmp_path / "run", *STEPS, resume=True, **again)
    assert_same(tmp_path / "run", outcome(straight))


def test_pairs_may_come_and_go_at_a_resume(shards: Shards, pairs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    moved = tmp_path / "moved.csv"
    moved.write_bytes(pairs.read_bytes())
    tiny_run.run(shards, run, *STEPS[1:], "train.max_steps=2", evaluate_pairs=moved)
    moved.unlink()
    with pytest.raises(InputError) as caught:
        tiny_run.run(shards, run, *STEPS, resume=True)
    assert (caught.value.location, caught.value.argument) == (str(moved), "evaluate_pairs")
    without = tiny_run.run(shards, run, *STEPS[1:], "train.max_steps=4", "evaluate.pairs=none", resume=True)
    assert "pairs_accuracy" not in without.report["held_out"]
    tiny_run.run(shards, run, *STEPS[1:], "train.max_steps=6", evaluate_pairs=pairs, resume=True)
    assert ["pairs_accuracy" in line for line in log(run, "evaluation")] == [True, False, True]


def test_a_file_that_cannot_be_read_is_told_before_a_run_is_written(
    shards: Shards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "bad.csv").write_text("good,bad\nkaba,\n")
    for name, location in (("gone.csv", "gone.csv"), ("bad.csv", "bad.csv:2")):
        caplog.clear()
        with pytest.raises(InputError) as caught:
            tiny_run.run(shards, tmp_path / "run", *STEPS, evaluate_pairs=tmp_path / name)
        assert caught.value.location == str(tmp_path / location)
        assert not (tmp_path / "run").exists()
        # before anything is counted or measured
        about_settings = ("so the defaults are used", "settings that differ")
        assert all(any(part in line for part in about_settings) for line in caplog.messages)


def test_a_budget_of_minutes_holds_the_pairs_too(
    shards: Shards, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a made-up clock: an update takes a second, a pair a fifth, six of them at each evaluation."""
    now = 0.0
    scored: list[int] = []

    def counted(of: MinimalPairs, *rest: Any, plainly: Any = workflow.score_pairs) -> Any:
        nonlocal now
        now += 0.2 * len(of)
        scored.append(len(of))
        return plainly(of, *rest)

    for module in (trainer, compute_setup):

        def timed(*arguments: Any, update: Any = module.train_step) -> Any:  # type: ignore[attr-defined]
            nonlocal now
            now += 1.0
            return update(*arguments)

        monkeypatch.setattr(module, "train_step", timed)
    monkeypatch.setattr(workflow, "score_pairs", counted)
    monkeypatch.setattr(hardware, "clock", lambda: now)
    settings = ("evaluate.pairs_sample=6", "train.eval_steps=10")
    model = tiny_run.run(shards, tmp_path / "run", *settings, minutes=1, evaluate_pairs=pairs)
    assert set(scored) == {6}
    assert 55 < now <= 61
    assert 40 < model.report["steps"] < 56


def test_the_command_line_prints_the_accuracy_and_the_table(
    shards: Shards,
    pairs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tiny = [word for setting in tiny_run.SETTINGS for word in ("--set", setting)]
    command = ["pretrain", "--preset", "bert-tiny-uncased", "--data", str(shards.folder), *tiny]
    command += [
        "--set",
        "train.max_steps=2",
        "--output-dir",
        str(tmp_path / "run"),
        "--evaluate-pairs",
        str(pairs),
    ]

    def call(*more: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["bertsmith", *command, *more])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    code, _, error = call("--set", "evaluate.pairs=other.csv")
    assert (code, (tmp_path / "run").exists()) == (2, False)
    assert "--evaluate-pairs and --set evaluate.pairs exclude each other" in error
    code, out, _ = call()
    assert code == 0
    assert "pairs accuracy" in out
    monkeypatch.setattr(sys, "argv", ["bertsmith", "info", str(tmp_path / "run")])
    with pytest.raises(SystemExit):
        main()
    assert "pairs accuracy" in capsys.readouterr().out


def test_pairs_in_another_encoding(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    pairs = tmp_path / "pairs.csv"
    pairs.write_bytes("good,bad\nkaba café lode,café kaba lode\n".encode("cp1252"))
    with pytest.raises(InputError) as caught:
        tiny_run.run(shards, tmp_path / "run", *STEPS, evaluate_pairs=pairs)
    assert "--set evaluate.pairs_encoding=" in (caught.value.hint_for("command line") or "")
    assert "--encoding" not in (caught.value.hint_for("command line") or "")
    assert not (tmp_path / "run").exists()
    named = "evaluate.pairs_encoding=cp1252"
    model = tiny_run.run(shards, tmp_path / "run", *STEPS, named, evaluate_pairs=pairs)
    assert "pairs_accuracy" in model.report["held_out"]
