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
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.inference.minimal_pairs import MinimalPairs, read_pairs
from bertsmith.inference.scoring import Scorer
from bertsmith.pretraining import minimal_pairs
from bertsmith.pretraining.minimal_pairs import PairsEvaluation
from bertsmith.pretraining.settings import EvaluateSettings
from bertsmith.runs import compute_setup
from bertsmith.training import trainer
from bertsmith.training.callbacks import MetricLogger
from bertsmith.training.time_budget import Throughput
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
    assert model.report["pairs"] == json.loads(json.dumps(found))
    assert {name: group["pairs"] for name, group in found["by_phenomenon"].items()} == {
        "mizu": 10,
        "order": 10,
    }


def test_a_fixed_sample_is_scored_on_the_way_and_all_at_the_end(
    shards: Shards, pairs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    some = ("evaluate.pairs_sample=7", "data.validation_split=0", "train.seed=3")
    model = tiny_run.run(shards, tmp_path / "run", *STEPS, *some, evaluate_pairs=pairs)
    assert (
        "each evaluation scores 7 of 20 minimal pairs, always the same ones (evaluate.pairs_sample)"
        in caplog.messages
    )
    lines = log(tmp_path / "run", "evaluation")
    assert [line.keys() for line in lines] == [{"step", "kind", "pairs_accuracy"}] * 3
    assert lines[-1]["pairs_accuracy"] == model.score_pairs(pairs, sample=7)["accuracy"]
    assert (model.report["pairs"]["pairs"], model.report["pairs"]["of"]) == (20, 20)
    assert model.report["held_out"] == {"pairs_accuracy": model.score_pairs(pairs)["accuracy"]}


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
    model = tiny_run.run(shards, tmp_path / "run", *STEPS, resume=True, **again)
    assert_same(tmp_path / "run", outcome(straight))
    assert model.report["pairs"] == bs.load(straight).report["pairs"]


def test_pairs_may_come_and_go_at_a_resume(
    shards: Shards, pairs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    moved = tmp_path / "moved.csv"
    moved.write_bytes(pairs.read_bytes())
    tiny_run.run(shards, run, *STEPS[1:], "train.max_steps=2", evaluate_pairs=moved)
    moved.unlink()
    with pytest.raises(InputError) as caught:
        tiny_run.run(shards, run, *STEPS, resume=True)
    assert (caught.value.location, caught.value.argument) == (str(moved), "evaluate_pairs")
    without = tiny_run.run(shards, run, *STEPS[1:], "train.max_steps=4", "evaluate.pairs=none", resume=True)
    assert "pairs" not in without.report
    again = tiny_run.run(shards, run, *STEPS[1:], "train.max_steps=6", evaluate_pairs=pairs, resume=True)
    assert again.report["pairs"]["pairs"] == 20
    assert ["pairs_accuracy" in line for line in log(run, "evaluation")] == [True, False, True]
    caplog.clear()
    tiny_run.run(shards, tmp_path / "plain", *STEPS)
    tiny_run.run(shards, tmp_path / "plain", *STEPS, resume=True, evaluate_pairs=pairs)
    assert any("its model is unchanged" in line for line in caplog.messages)
    assert "the minimal pairs were not scored" in caplog.messages[-1]
    tiny_run.run(shards, run, *STEPS[1:], "train.max_steps=6", resume=True, evaluate_pairs=pairs)
    assert "were not scored" not in caplog.messages[-1]


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
        assert all("so the defaults are used" in line for line in caplog.messages)


class Costly(Scorer):
    """A scorer whose texts cost a token each."""

    def cost(self, texts: Any) -> int:
        return len(texts)


def on_the_way(straight: Path, pairs: Path, **settings: Any) -> PairsEvaluation:
    model = bs.load(straight)
    of = model.scorer()
    scorer = Costly(of.encoder, of.head, of.tokenizer, ComputeContext.create("cpu", "fp32"))
    return PairsEvaluation(read_pairs(pairs), EvaluateSettings(pairs=str(pairs), **settings), scorer)


def test_what_pairs_cost_is_expected_in_updates_and_fewer_are_scored_where_minutes_are_short(
    straight: Path, pairs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    speeds = Throughput({0: 3.0}, evaluation_updates=1.0)
    some = on_the_way(straight, pairs, pairs_sample=5)
    same = some.within_budget(speeds, 10.0, None)  # of a run that continues
    assert (speeds.evaluation_updates, same.settings, caplog.messages) == (
        pytest.approx(1 + 10 / 30),
        some.settings,
        [],
    )
    assert speeds.closing_seconds == pytest.approx((2 * (1 + 10 / 30) + 40 / 30) * 3)
    speeds.evaluation_seconds = 8.0  # as one took: twice as long as expected
    assert speeds.closing_seconds == pytest.approx(2 * (2 * (1 + 10 / 30) + 40 / 30) * 3)

    speeds = Throughput({0: 3.0}, evaluation_updates=1.0)
    fewer = some.within_budget(speeds, 10.0, 0.25)  # 4 s for all of them, of 15 s in all
    assert fewer.settings.pairs_at_end == 7
    # An evaluation takes at most half of what the end takes, so that the end has the better figure.
    assert (len(fewer.sample), len(fewer.final_pairs)) == (3, 7)
    assert speeds.closing_seconds == pytest.approx((2 * (1 + 6 / 30) + 14 / 30) * 3)
    assert caplog.messages == [
        "scoring all 20 minimal pairs would take about 4 s: 7 of them are scored at the end "
        "(evaluate.pairs_at_end); `bertsmith score` scores all",
        "scoring minimal pairs takes about 1 s at each evaluation, and 1 s at the end",
    ]
    asked = on_the_way(straight, pairs, pairs_sample=5, pairs_at_end=20)
    assert len(asked.within_budget(Throughput({0: 3.0}), 10.0, 0.25).final_pairs) == 20
    assert caplog.messages[2:] == [
        "scoring minimal pairs takes about 1 s at each evaluation, and 4 s at the end"
    ]


def test_a_budget_of_minutes_holds_the_pairs_too(
    shards: Shards, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a made-up clock: an update takes a second, a pair a fifth, six of them at each evaluation."""
    now = 0.0
    scored: list[int] = []

    def counted(of: MinimalPairs, *rest: Any, plainly: Any = minimal_pairs.score_pairs) -> Any:
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
    monkeypatch.setattr(minimal_pairs, "score_pairs", counted)
    monkeypatch.setattr(hardware, "clock", lambda: now)
    settings = ("evaluate.pairs_sample=6", "train.eval_steps=10", "evaluate.pairs_at_end=20")
    model = tiny_run.run(shards, tmp_path / "run", *settings, minutes=1, evaluate_pairs=pairs)
    assert scored[-1] == 20
    assert set(scored[:-1]) == {6}
    assert 55 < now <= 61
    assert 40 < model.report["steps"] < 56


def test_a_run_that_is_interrupted_while_it_scores_pairs_has_its_model(
    shards: Shards, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: PairsEvaluation) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PairsEvaluation, "final_report", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tiny_run.run(shards, tmp_path / "run", *STEPS, evaluate_pairs=pairs)
    model = bs.load(tmp_path / "run")
    assert (model.unfinished, model.report["steps"], "pairs" in model.report) == (None, 6, False)
    assert 0 <= model.report["held_out"]["pairs_accuracy"] <= 1


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

    code, _, told = call("--set", f"evaluate.pairs={pairs}")
    assert (code, (tmp_path / "run").exists()) == (2, False)
    assert "--evaluate-pairs and --set evaluate.pairs exclude each other" in told
    code, out, _ = call()
    assert code == 0
    assert "accuracy on minimal pairs" in out
    assert "of 20 pairs (chance: 50 %)" in out
    assert "by phenomenon" in out
    assert "PAIRS" not in out
    monkeypatch.setattr(sys, "argv", ["bertsmith", "info", str(tmp_path / "run")])
    with pytest.raises(SystemExit):
        main()
    assert "accuracy on minimal pairs" in capsys.readouterr().out
    code, out, _ = call("--resume", "--json")
    assert json.loads(out)["pairs"]["by_phenomenon"].keys() == {"mizu", "order"}


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
    assert (
        tiny_run.run(shards, tmp_path / "run", *STEPS, named, evaluate_pairs=pairs).report["pairs"]["pairs"]
        == 1
    )
