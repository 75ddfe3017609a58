"""Test `watch`: what it shows of runs in each state, when it ends, and its page."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import bertsmith, main
from bertsmith.errors import InputError
from bertsmith.inspection import watch
from bertsmith.inspection.watch import RunWatcher
from bertsmith.io import atomic


@pytest.fixture(scope="module")
def pretrained(base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pretrained") / "bert"
    tiny_run.run(tiny_run.make_shards(out.parent), out, "train.max_steps=6", "train.eval_steps=2")
    return out


@pytest.fixture
def run(pretrained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pretrained, tmp_path / "bert")


def test_charts_overlay_runs_by_update(run: Path) -> None:
    other = shutil.copytree(run, run.parent / "other")
    watcher = RunWatcher([run, other])
    charts = watcher.charts()
    assert list(charts)[:3] == ["loss", "validation MLM loss", "learning rate"]
    assert list(charts["loss"]) == [str(run), str(other)]
    assert list(charts["loss"][str(run)]) == [1, 2, 3, 4, 5, 6]
    assert list(charts["validation MLM loss"][str(run)]) == [2, 4, 6]
    assert watcher.is_over
    assert not watcher.update()


def test_a_long_search_for_runs_is_not_repeated_at_each_update(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = []

    def find_slowly(folder: Path) -> list[Path]:
        searches.append(folder)
        time.sleep(0.2)
        return [run]

    monkeypatch.setattr(watch, "find_runs", find_slowly)
    watcher = RunWatcher([run.parent])
    count = len(searches)
    watcher.update()
    assert len(searches) == count


def test_a_run_is_awaited_followed_and_over(run: Path) -> None:
    later = run.parent / "later"
    watcher = RunWatcher([later])
    assert ([row.status for row in watcher.runs], watcher.is_over) == (["not started"], False)
    later.mkdir()
    with atomic.folder_lock(later, "run"):  # a run prepares its data, and has no settings yet
        assert watcher.update()
        assert ([row.status for row in watcher.runs], watcher.is_over) == (["running"], False)
    later.rmdir()
    shutil.copytree(run, later)
    report = (later / "report.json").read_text()
    (later / "report.json").unlink()
    with atomic.folder_lock(later, "run"):
        assert watcher.update()
        assert ([row.status for row in watcher.runs], watcher.is_over) == (["running"], False)
    assert watcher.update()
    assert ([row.status for row in watcher.runs], watcher.is_over) == (["interrupted"], True)
    (later / "report.json").write_text(report)
    assert watcher.update()
    assert [row.status for row in watcher.runs] == ["finished"]


def test_a_run_whose_folder_is_removed_is_over(run: Path) -> None:
    with atomic.folder_lock(run, "run"):
        watcher = RunWatcher([run])
    shutil.rmtree(run)
    assert watcher.update()
    assert ([row.status for row in watcher.runs], watcher.is_over) == (["interrupted"], True)


def test_a_folder_of_runs_stands_for_its_runs(run: Path) -> None:
    empty = run.parent / "runs"
    empty.mkdir()
    watcher = RunWatcher([empty])
    assert [row.run for row in watcher.runs] == [str(empty)]
    shutil.copytree(run, empty / "a")
    shutil.copytree(run, empty / "b")
    watcher.update()
    assert [row.run for row in watcher.runs] == [str(empty / "a"), str(empty / "b")]


def test_what_is_no_run_is_an_error(run: Path) -> None:
    (run.parent / "notes").mkdir()
    (run.parent / "notes" / "file").touch()
    for name, waits in (("notes", True), ("none/none", True), ("none", False)):
        with pytest.raises(InputError) as error:
            RunWatcher([run.parent / name], waits=waits)
        assert error.value.location == str(run.parent / name)


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_the_printed_charts_fit(run: Path, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    result = CliRunner().invoke(bertsmith, ["watch", str(run), "--once"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "finished" in result.stdout
    assert "validation MLM loss" in result.stdout
    assert all(len(line) <= columns for line in lines if "finished" not in line)


def test_json_has_the_curves(run: Path) -> None:
    document = json.loads(CliRunner().invoke(bertsmith, ["watch", str(run), "--json"]).stdout)
    assert document["curves"][str(run)]["loss"]["steps"] == [1, 2, 3, 4, 5, 6]
    assert document["runs"][0]["status"] == "finished"


def test_the_page_is_escaped_and_reloads_while_a_run_is_running(run: Path, tmp_path: Path) -> None:
    from bertsmith.reports.curves import render_curves_page

    name = "<img src=x onerror=alert(1)>"
    evil = shutil.copytree(run, run.parent / name)
    page = tmp_path / "page.html"
    result = CliRunner().invoke(bertsmith, ["watch", str(evil), "--page", str(page)])
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert "<img" not in text
    assert "&lt;img" in text
    assert 'http-equiv="refresh"' not in text  # finished
    assert text.count("<svg") == len(RunWatcher([run]).charts())
    assert "<script" not in text
    watcher = RunWatcher([run])
    rows = [row.to_dict() for row in watcher.runs]
    assert '<meta http-equiv="refresh" content="5">' in render_curves_page(rows, watcher.charts(), 5)


def test_a_page_is_rewritten_until_the_run_is_finished(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, report = tmp_path / "page.html", run / "report.json"
    text = report.read_text()
    report.unlink()
    pages = []

    def finish(seconds: float) -> None:
        pages.append(page.read_text())
        lock.__exit__(None, None, None)
        report.write_text(text)

    monkeypatch.setattr("bertsmith.cli.watch.time.sleep", finish)
    lock = atomic.folder_lock(run, "run")
    lock.__enter__()
    result = CliRunner().invoke(bertsmith, ["watch", str(run), "--page", str(page)])
    assert result.exit_code == 0, result.output
    assert ["running" in text for text in pages] == [True]
    assert "running" not in page.read_text()
    assert "finished" in page.read_text()


def test_ctrl_c_ends_with_130(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bertsmith.cli.watch.time.sleep", interrupt)
    monkeypatch.setattr(sys, "argv", ["bertsmith", "watch", str(run), "--page", str(tmp_path / "page.html")])
    with atomic.folder_lock(run, "run"), pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert capsys.readouterr().err.strip() == "stopped"
