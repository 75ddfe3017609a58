"""Restarts, folds and grids: ordinary runs in one folder, continued exactly, and what they come to."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bertsmith as bs
import tiny_run
from bertsmith.cli.tables import print_repeats
from bertsmith.errors import Diverged, InputError, Stopped
from bertsmith.experiments.grid import PlannedRun
from bertsmith.experiments.multirun import MultirunReport, RunResult, summarize_runs, summarize_scores
from bertsmith.training.callbacks import MetricLogger
from run_equality import assert_same, outcome

SETTINGS = [
    "train.max_steps=4",
    "train.batch_size=6",
    "train.learning_rate=2e-3",
    "train.save_steps=2",
    "train.threads=1",
    "train.precision=fp32",
    "train.report_to=none",
    "train.logging_steps=1",
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    folder = tmp_path_factory.mktemp("base")
    tiny_run.table(folder / "train.csv", tiny_run.examples(30))
    tiny_run.table(folder / "validation.csv", tiny_run.examples(12, seed=1))
    return tiny_run.run(tiny_run.make_shards(folder), folder / "bert", "train.max_steps=2")


def repeated(base: bs.Model, out: Path, *settings: str, **more: Any) -> MultirunReport:
    folder = base.path.parent
    if "folds" not in more:
        more.setdefault("validation", folder / "validation.csv")
    more.setdefault("train", folder / "train.csv")
    varied = [str(one).partition("=")[0].replace("-", "_") for one in more.get("grid", ())]
    settings = tuple(one for one in [*SETTINGS, *settings] if one.split("=")[0][6:] not in varied)
    return bs.finetune_repeatedly("classify", base, out, settings=settings, **more)


def tuned(base: bs.Model, out: Path, *settings: str, resume: bool = False) -> bs.Model:
    folder = base.path.parent
    return bs.finetune(
        "classify",
        base,
        out,
        train=folder / "train.csv",
        validation=folder / "validation.csv",
        settings=[*SETTINGS, *settings],
        resume=resume,
    )


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def test_restarts_are_the_runs_of_these_seeds(
    base: bs.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bertsmith")
    report = repeated(base, tmp_path / "runs", "train.seed=3", restarts=2)
    messages = list(caplog.messages)
    assert [row.run for row in report.runs] == ["seed-3", "seed-4"]
    tuned(base, tmp_path / "alone", "train.seed=4")
    assert_same(tmp_path / "runs" / "seed-4", outcome(tmp_path / "alone"))
    assert weights(tmp_path / "runs" / "seed-3") != weights(tmp_path / "runs" / "seed-4")
    scores = [bs.load(tmp_path / "runs" / row.run).report["validation"]["accuracy"] for row in report.runs]
    assert [row.score for row in report.runs] == scores
    assert report.summary.mean == pytest.approx(np.mean(scores))
    assert report.to_dict() == json.loads((tmp_path / "runs" / "report.json").read_text())
    assert report.best == ["seed-3", "seed-4"][int(np.argmax(scores))]
    # the table of labels is that of the same data: once
    assert sum("label" in text and "share" in text for text in messages) == 1


def test_test_examples_are_the_same_for_all_restarts_and_folds_and_choose_none(
    base: bs.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held_out = []
    for name, options in (("seeds", {"restarts": 2}), ("folds", {"folds": 3})):
        report = repeated(base, tmp_path / name, test_split=0.2, **options)
        runs = [bs.load(tmp_path / name / row.run) for row in report.runs]
        scores = [run.report["test"]["accuracy"] for run in runs]
        assert [row.test_score for row in report.runs] == scores
        assert report.test is not None
        assert report.test.best == scores[[row.run for row in report.runs].index(str(report.best))]
        assert report.test.mean == pytest.approx(np.mean(scores))
        assert report.test.deviation == pytest.approx(np.std(scores, ddof=1))
        split = tmp_path / name / report.runs[0].run / "split"
        held_out.append(sorted((split / "test.jsonl").read_text().splitlines()))
        tests = [(run.path / "split" / "test.jsonl").read_text().splitlines() for run in runs]
        others = [
            line
            for run in runs
            for part in ("train", "validation")
            for line in (run.path / "split" / f"{part}.jsonl").read_text().splitlines()
        ]
        assert all(sorted(test) == held_out[0] for test in tests)
        assert not set(held_out[0]) & set(others)
        print_repeats(name, report.to_dict())
        assert "test examples, which chose no run" in capsys.readouterr().out
    assert report.summary.pooled is not None
    assert report.summary.pooled["examples"] == 24  # of 30 rows: the folds leave out the test examples
    assert repeated(base, tmp_path / "none", restarts=2).test is None


@pytest.mark.parametrize(
    ("grid", "restarts"),
    [
        ({"seed": range(10**9)}, None),
        ({"learning_rate": [i / 1e6 for i in range(1, 40)], "batch_size": list(range(1, 40))}, None),
        ({"learning_rate": [1e-4, 1e-3]}, 501),
    ],
)
def test_a_grid_has_a_limit(base: bs.Model, tmp_path: Path, grid: Any, restarts: int | None) -> None:
    with pytest.raises(InputError) as caught:
        bs.finetune_repeatedly("classify", base, tmp_path / "x", train="t.csv", grid=grid, restarts=restarts)
    assert (caught.value.code, caught.value.argument) == ("too_many_runs", "grid")
    assert not (tmp_path / "x").exists()


SCORES = st.integers(0, 1000).map(lambda thousandths: thousandths / 1000)


@given(st.lists(SCORES, min_size=1, max_size=12), SCORES)
def test_the_summary_is_what_numpy_has(scores: list[float], baseline: float) -> None:
    runs = [PlannedRun(f"seed-{i}", {}, {"train.seed": i}) for i in range(len(scores))]
    common = {"best_step": 1, "steps": 1, "seconds": 1.0, "decided_by": "f1", "baseline_name": "majority"}
    reports = [{**common, "validation": {"f1": score}, "baseline": {"f1": baseline}} for score in scores]
    results = [RunResult.from_report(run, report) for run, report in zip(runs, reports, strict=True)]
    report = summarize_runs(results, reports[0])
    found = report.summary
    assert found.mean == pytest.approx(np.mean(scores))
    assert found.median == pytest.approx(np.median(scores))
    assert found.best == max(scores)
    if len(scores) > 1:
        assert found.deviation == pytest.approx(np.std(scores, ddof=1), abs=1e-12)
    else:
        assert found.deviation is None
    assert found.degenerate == [f"seed-{i}" for i, s in enumerate(scores) if s <= baseline]
    sound = [s for s in scores if s > baseline]
    if found.degenerate and sound:
        assert found.mean_without_degenerate == pytest.approx(np.mean(sound))
    assert bool(report.warnings) == bool(found.degenerate)


def test_a_run_below_a_baseline_that_reads_the_texts_is_not_degenerate() -> None:
    """TF-IDF is a rival, not an answer that never looks."""
    common = {"best_step": 1, "steps": 1, "seconds": 1.0, "decided_by": "ndcg", "baseline_name": "TF-IDF"}
    report = {**common, "validation": {"ndcg": 0.7}, "baseline": {"ndcg": 0.9}, "baseline_reads": True}
    found = summarize_runs(
        [RunResult.from_report(PlannedRun("seed-0", {}, {"train.seed": 0}), report)], report
    )
    assert found.summary.degenerate == []
    assert found.warnings == []


def test_a_run_that_diverges_is_reported_and_the_others_follow(
    base: bs.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stepped = MetricLogger.on_step_end

    def diverging(self: MetricLogger, trainer: Any, result: Any) -> None:
        if self._path.parent.name == "seed-1" and trainer.state.step == 2:
            raise Diverged("loss_not_finite", "the loss of step 2 is nan")
        stepped(self, trainer, result)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetricLogger, "on_step_end", diverging)
        report = repeated(base, tmp_path / "runs", restarts=3)
    assert [row.score is None for row in report.runs] == [False, True, False]
    assert report.runs[1].failure == "the loss of step 2 is nan"
    assert "seed-1" in report.summary.degenerate
    assert report.summary.scores == 2
    assert any(
        record.levelno == logging.WARNING and "seed-1: the loss of step 2 is nan" in record.getMessage()
        for record in caplog.records
    )
    again = repeated(base, tmp_path / "runs", restarts=3, resume=True)
    assert [row.score is None for row in again.runs] == [False, False, False]


def test_each_example_is_held_out_once_and_all_answers_are_scored_together(
    base: bs.Model, tmp_path: Path
) -> None:
    report = repeated(base, tmp_path / "runs", folds=3)
    assert [row.run for row in report.runs] == ["fold-1", "fold-2", "fold-3"]
    held, right = [], 0
    for fold in ("fold-1", "fold-2", "fold-3"):
        validation = tmp_path / "runs" / fold / "split" / "validation.jsonl"
        rows = [json.loads(line) for line in validation.read_text().splitlines()]
        train = (tmp_path / "runs" / fold / "split" / "train.jsonl").read_text().splitlines()
        assert len(rows) + len(train) == 30
        held += [row["text"] for row in rows]
        answers = [
            one.to_dict() for one in bs.load(tmp_path / "runs" / fold).predict([row["text"] for row in rows])
        ]
        right += sum(a["label"] == row["label"] for a, row in zip(answers, rows, strict=True))
    assert sorted(held) == sorted(text for text, _ in tiny_run.examples(30))
    assert report.summary.pooled["examples"] == 30
    assert report.summary.pooled["accuracy"] == pytest.approx(right / 30)


def test_a_grid_is_every_combination_and_each_cell_may_have_seeds(base: bs.Model, tmp_path: Path) -> None:
    grid = ["learning_rate=2e-3,1e-3", "batch-size=3"]
    report = repeated(base, tmp_path / "runs", grid=grid, restarts=2)
    names = [row.run for row in report.runs]
    assert names[:2] == ["learning_rate=0.002,batch_size=3,seed-0", "learning_rate=0.002,batch_size=3,seed-1"]
    assert len(set(names)) == 4
    assert [cell.settings for cell in report.cells] == [
        {"train.learning_rate": rate, "train.batch_size": 3} for rate in (2e-3, 1e-3)
    ]
    assert all(cell.scores == 2 for cell in report.cells)
    tuned(base, tmp_path / "alone", "train.learning_rate=1e-3", "train.batch_size=3", "train.seed=1")
    assert_same(tmp_path / "runs" / names[-1], outcome(tmp_path / "alone"))


def stop_at(patch: pytest.MonkeyPatch, step: int) -> None:
    """A signal after so many updates of all runs together."""
    stepped, calls = MetricLogger.on_step_end, [0]

    def signal_then_step(self: MetricLogger, trainer: Any, result: Any) -> None:
        calls[0] += 1
        if calls[0] == step:
            os.kill(os.getpid(), signal.SIGINT)
        stepped(self, trainer, result)

    patch.setattr(MetricLogger, "on_step_end", signal_then_step)


@pytest.fixture(scope="module")
def straight(base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MultirunReport]:
    out = tmp_path_factory.mktemp("straight")
    return out, repeated(base, out, restarts=2)


@pytest.mark.parametrize("step", [3, 6])
def test_stopped_in_any_run_and_resumed_is_straight(
    base: bs.Model, tmp_path: Path, straight: tuple[Path, MultirunReport], step: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, step)
        with pytest.raises(Stopped) as caught:
            repeated(base, tmp_path / "runs", restarts=2)
    assert f"seed-{(step - 1) // 4}" in str(caught.value)
    assert not (tmp_path / "runs" / "report.json").exists()
    done = tmp_path / "runs" / "seed-0" / "report.json"
    before = done.stat().st_mtime_ns if step > 4 else None
    report = repeated(base, tmp_path / "runs", restarts=2, resume=True)
    for name in ("seed-0", "seed-1"):
        assert_same(tmp_path / "runs" / name, outcome(straight[0] / name))
    assert [row.validation for row in report.runs] == [row.validation for row in straight[1].runs]
    assert before in (None, done.stat().st_mtime_ns)


def test_more_restarts_may_follow_and_none_may_be_left_out(base: bs.Model, tmp_path: Path) -> None:
    repeated(base, tmp_path / "runs", restarts=2)
    kept = weights(tmp_path / "runs" / "seed-1")
    report = repeated(base, tmp_path / "runs", restarts=3, resume=True)
    assert [row.run for row in report.runs] == ["seed-0", "seed-1", "seed-2"]
    assert weights(tmp_path / "runs" / "seed-1") == kept
    with pytest.raises(InputError) as caught:
        repeated(base, tmp_path / "runs", restarts=2, resume=True)
    assert caught.value.code == "runs_differ"
    assert caught.value.location == str(tmp_path / "runs")
    with pytest.raises(InputError) as caught:
        repeated(base, tmp_path / "runs", "train.learning_rate=1e-3", restarts=3, resume=True)
    assert "0.001" in str(caught.value)


def test_a_folder_of_runs_is_begun_continued_or_replaced_as_a_run_is(base: bs.Model, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    repeated(base, out, restarts=2, resume=True)  # nothing to continue: it starts
    with pytest.raises(InputError) as caught:
        repeated(base, out, restarts=2)
    assert caught.value.code == "run_exists"
    assert caught.value.location == str(out)
    repeated(base, out, folds=2, overwrite=True)
    assert sorted(path.name for path in out.iterdir()) == ["fold-1", "fold-2", "report.json", "runs.json"]
    (out / "notes.txt").write_text("mine")
    with pytest.raises(InputError) as caught:
        repeated(base, out, restarts=2, overwrite=True)
    assert "notes.txt" in str(caught.value)
    tuned(base, tmp_path / "one")
    with pytest.raises(InputError) as caught:
        repeated(base, tmp_path / "one", restarts=2, resume=True)
    assert caught.value.code == "output_exists"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    with pytest.raises(InputError) as caught:
        repeated(base, tmp_path / "full", restarts=2)
    assert str(tmp_path / "full") in str(caught.value)


def test_where_one_run_is_wanted_the_best_of_several_is_named(base: bs.Model, tmp_path: Path) -> None:
    report = repeated(base, tmp_path / "runs", restarts=2)
    best = tmp_path / "runs" / report.best
    with pytest.raises(InputError) as caught:
        bs.load(tmp_path / "runs")
    assert caught.value.code == "folder_of_runs"
    assert caught.value.location == str(tmp_path / "runs")
    assert str(best) in caught.value.hint
    with pytest.raises(InputError) as caught:
        tuned(base, tmp_path / "runs", resume=True)
    assert str(tmp_path / "runs") in str(caught.value)
    found = bs.info(tmp_path / "runs")
    assert (found["kind"], found["best"], found["summary"]) == ("runs", report.best, report.summary.to_dict())
    (tmp_path / "runs" / "report.json").unlink()
    assert [row["finished"] for row in bs.info(tmp_path / "runs")["unfinished"]] == [True, True]


WRONG: list[tuple[dict[str, Any], Sequence[str], str | None, str | None]] = [
    ({"restarts": 2, "folds": 2}, (), "restarts_with_folds", None),
    ({"restarts": 1}, (), "number_of_runs_invalid", "restarts"),
    ({"folds": 2, "validation": "validation.csv"}, (), "folds_with_validation", "validation"),
    ({"folds": 2, "validation_split": 0.1}, (), "folds_with_validation", "validation_split"),
    ({"restarts": 2, "grid": {"seed": [1, 2]}}, (), "setting_in_grid", "train.seed"),
    ({"grid": {"seed": []}}, (), "grid_invalid", "grid"),
    ({"grid": {"learning_rat": [1]}}, (), "unknown_setting", "grid"),
    ({"grid": ["learning_rate=a"]}, (), "invalid_setting", "grid"),
    ({"grid": ["learning_rate"]}, (), "grid_invalid", "grid"),
    ({"grid": ["learning_rate=1e-4,,1"]}, (), "not_yaml", "grid"),
    ({"grid": ["batch_size=2"]}, ["train.batch_size=3"], "setting_in_grid", "train.batch_size"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "settings", "code", "argument"), WRONG)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    base: bs.Model,
    tmp_path: Path,
    more: dict[str, Any],
    settings: Sequence[str],
    code: str | None,
    argument: str | None,
) -> None:
    with pytest.raises(InputError) as caught:
        bs.finetune_repeatedly(
            "classify", base, tmp_path / "runs", train="train.csv", settings=settings, **more
        )
    assert code in (None, caught.value.code)
    assert caught.value.argument == argument
    assert not (tmp_path / "runs").exists()


def test_lists_and_names_that_no_folder_has(base: bs.Model, tmp_path: Path) -> None:
    grid = ["lr_milestones=[0.5,0.9],[0.4,0.8]"]
    report = repeated(base, tmp_path / "runs", "train.max_steps=1", grid=grid)
    assert [row.settings for row in report.runs] == [
        {"train.lr_milestones": [0.5, 0.9]},
        {"train.lr_milestones": [0.4, 0.8]},
    ]
    assert all((tmp_path / "runs" / row.run / "model").is_dir() for row in report.runs)


def test_the_first_run_s_precision_holds_for_all(
    base: bs.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertsmith.experiments import multirun

    asked: list[Mapping[str, Any]] = []
    finetune = multirun.finetune

    def listening(*given: Any, **named: Any) -> Any:
        asked.append(named["settings"])
        return finetune(*given, **named)

    monkeypatch.setattr(multirun, "finetune", listening)
    free = [s for s in SETTINGS if not s.startswith("train.precision")]
    folder = base.path.parent
    bs.finetune_repeatedly(
        "classify",
        base,
        tmp_path / "runs",
        train=folder / "train.csv",
        validation=folder / "validation.csv",
        restarts=2,
        settings=[*free, "train.max_steps=1"],
    )
    first = bs.load(tmp_path / "runs" / "seed-0").report["precision"]
    assert "train.precision" not in asked[0]
    assert asked[1]["train.precision"] == first


def test_summary_of_nothing_is_nothing() -> None:
    found = summarize_scores([RunResult("a", {}, {})])
    assert found.mean is found.best is found.deviation is None
