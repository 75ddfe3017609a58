"""Test the list of runs: their states, scores, and differing settings, also of damaged ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import bertsmith
from bertsmith.errors import InputError
from bertsmith.inspection.runs import RunSummary, list_runs
from bertsmith.io import atomic

SETTINGS = ["train.max_steps=4", "train.batch_size=8", "train.threads=1", "train.report_to=none"]


@pytest.fixture(scope="module")
def finished(base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the runs `low` and `deep/high`, which differ in the learning rate."""
    folder = tmp_path_factory.mktemp("finished")
    train = tiny_run.table(folder / "train.csv", tiny_run.examples(24))
    validation = tiny_run.table(folder / "validation.csv", tiny_run.examples(12, seed=1))
    for name, rate in (("low", 1e-4), ("deep/high", 1e-2)):
        settings = [*SETTINGS, f"train.learning_rate={rate}"]
        out = folder / name
        bs.finetune("classify", base, out, train=train, validation=validation, settings=settings)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "runs")


def by_name(folder: Path) -> dict[str, RunSummary]:
    return {run.run: run for run in list_runs(folder).runs}


def test_finished_runs_have_scores_intervals_and_the_settings_that_differ(folder: Path) -> None:
    runs = by_name(folder)
    assert list(runs) == ["deep/high", "low"]
    report = json.loads((folder / "low" / "report.json").read_text())
    low = runs["low"]
    assert (low.status, low.step, low.num_updates) == ("finished", 4, 4)
    assert (low.metric, low.score) == ("accuracy", report["validation"]["accuracy"])
    assert low.interval == report["intervals"]["accuracy"]
    assert [run.settings for run in runs.values()] == [
        {"train.learning_rate": 0.01},
        {"train.learning_rate": 0.0001},
    ]


def test_runs_sort_by_score_and_runs_without_one_are_last(folder: Path) -> None:
    for name, score in (("low", 0.9), ("deep/high", 0.1)):
        file = folder / name / "report.json"
        report = json.loads(file.read_text())
        report["validation"]["accuracy"] = score
        file.write_text(json.dumps(report))
    shutil.copytree(folder / "low", folder / "a")
    for file in ("report.json", "log.jsonl"):
        (folder / "a" / file).unlink()
    assert [run.run for run in list_runs(folder, sort="score").runs] == ["low", "deep/high", "a"]


def test_running_and_interrupted_runs(folder: Path) -> None:
    (folder / "low" / "report.json").unlink()
    assert by_name(folder)["low"].status == "interrupted"
    with atomic.folder_lock(folder / "low", "run"):
        assert by_name(folder)["low"].status == "running"
    log = folder / "low" / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:2]) + lines[2][:-5])  # killed while it wrote
    assert by_name(folder)["low"].status == "interrupted"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("settings.yaml", "train: ["),
        ("settings.yaml", None),
        ("report.json", "{"),
        ("report.json", '{"steps": "x"}'),
        ("log.jsonl", "damaged\n"),
    ],
)
def test_damaged_runs_are_listed_with_a_reason(folder: Path, file: str, content: str | None) -> None:
    path = folder / "low" / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    low = by_name(folder)["low"]
    assert low.status == "damaged"
    assert low.reason
    assert by_name(folder)["deep/high"].status == "finished"


def test_damaged_checkpoints(folder: Path) -> None:
    (folder / "low" / "report.json").unlink()
    for state in (folder / "low" / "checkpoints").glob("step-*/state.json"):
        state.write_text("{")
    assert by_name(folder)["low"].status == "damaged"


def test_folders_without_runs_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        list_runs(tmp_path)
    assert (error.value.code, error.value.location) == ("no_runs", str(tmp_path))
    with pytest.raises(InputError):
        list_runs(tmp_path / "none")


def test_the_command_prints_a_table_and_json(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (folder / "low" / "settings.yaml").write_text("[")
    result = CliRunner().invoke(bertsmith, ["runs", str(folder)])
    assert result.exit_code == 0
    assert all(word in result.stdout for word in ("deep/high", "low", "damaged", "accuracy"))
    assert "low: " in result.stderr
    document = json.loads(CliRunner().invoke(bertsmith, ["runs", str(folder), "--json"]).stdout)
    assert document == list_runs(folder).to_dict()


@pytest.mark.parametrize(
    "changes",
    [
        {"intervals": None},
        {"intervals": [1, 2]},
        {"intervals": {"accuracy": [None, None]}},
        {"validation": {"accuracy": "x"}},
        {"validation": 1},
        {"seconds": "y"},
        {"steps": None},
        {"decided_by": 3},
    ],
)
def test_a_report_of_other_types_is_damaged_and_hides_no_other_run(folder: Path, changes: object) -> None:
    file = folder / "low" / "report.json"
    assert isinstance(changes, dict)
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    result = CliRunner().invoke(bertsmith, ["runs", str(folder), "--sort", "score"])
    assert result.exit_code == 0, result.output
    assert {name: run.status for name, run in by_name(folder).items()} == {
        "low": "damaged",
        "deep/high": "finished",
    }
