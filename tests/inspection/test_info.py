"""`info` of each kind of folder, as a table and as one JSON document; and of what is none of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import bertsmith
from bertsmith.errors import InputError, Stopped
from bertsmith.training.metric_logger import Recorder


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """shards, a tokenizer, a finished run `bert`, a run `stopped` after 3 of 6 updates, a classifier `moods`."""
    folder = tmp_path_factory.mktemp("world")
    shards = tiny_run.make_shards(folder)
    shards.tokenizer.save(folder / "tokenizer")
    tiny_run.run(shards, folder / "bert", "train.max_steps=6")
    stepped = Recorder.stepped

    def signal_then_step(self: Recorder, number: int, *rest: Any) -> None:
        if number == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        stepped(self, number, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "stepped", signal_then_step)
        with pytest.raises(Stopped):
            tiny_run.run(shards, folder / "stopped", "train.max_steps=6", "train.evaluate_every=2")
    rows = tiny_run.table(folder / "rows.csv", tiny_run.examples(12))
    few = ["train.max_steps=4", "train.evaluate_every=2", "train.threads=1", "task.max_length=20"]
    bs.finetune("classify", folder / "bert", folder / "moods", train=rows, dev=rows, settings=few)
    return folder


def asked(*arguments: object) -> tuple[dict[str, Any], str]:
    """The JSON document, and the tables."""
    call = ["info", *map(str, arguments)]
    document, tables = (CliRunner().invoke(bertsmith, [*call, *more]) for more in (["--json"], []))
    assert document.exit_code == tables.exit_code == 0, tables.stderr
    found = json.loads(document.stdout)
    assert isinstance(found, dict)
    return found, tables.stdout + tables.stderr


def test_figures_are_rounded_and_named_for_people(world: Path) -> None:
    _, shown = asked(world / "bert")
    assert "MLM loss" in shown
    assert "mlm_loss" not in shown
    assert not re.search(r"\d\.\d{5,}", shown)
    assert "None" not in shown


def test_what_is_missing_may_be_anything_that_info_takes(world: Path) -> None:
    with pytest.raises(InputError) as refused:
        bs.info(world / "nothing-like-it")
    assert refused.value.remedy == (
        "name a run, a model folder, prepared data, a tokenizer or a published name"
    )


def test_a_run_that_was_continued_shows_the_budget_it_has_now(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "bert", tmp_path / "bert")
    tiny_run.run(world / "shards", tmp_path / "bert", "train.max_steps=9", resume=True)
    found, shown = asked(tmp_path / "bert")
    assert found["run"]["settings"]["train.max_steps"] == 9
    assert (found["run"]["step"], found["run"]["of"]) == (9, 9)
    assert "begun with train.max_steps=6, continued with train.max_steps=9, in all" in " ".join(shown.split())


def test_a_tokenizer(world: Path) -> None:
    found, shown = asked(world / "tokenizer")
    tokenizer = tiny_run.tokenizer()
    assert (found["kind"], found["algorithm"], found["vocab_size"]) == ("tokenizer", "wordpiece", 46)
    assert found["specials"]["mask"] == {"token": "[MASK]", "id": 4}
    assert found["digest"] == tokenizer.digest
    assert found["lowercase"] is True
    for part in ("a tokenizer", "wordpiece", "lower-cased", "[MASK] 4"):
        assert part in shown


def test_prepared_data(world: Path) -> None:
    found, shown = asked(world / "shards")
    shards = bs.Shards.open(world / "shards")
    assert found["kind"] == "data"
    assert {name: found[name] for name in shards.counts} == shards.counts
    assert found["files"] == [str(world / "corpus.txt")]
    assert found["tokenizer"]["digest"] == shards.tokenizer_digest
    assert found["made"].startswith("20")
    for part in ("prepared data", "1 file: ", "1 shard", "wordpiece"):
        assert part in shown


def test_a_finished_run_and_a_stopped_one(world: Path) -> None:
    found, shown = asked(world / "bert")
    run = found["run"]
    assert (run["verb"], run["finished"], run["step"], run["of"]) == ("pretrain", True, 6, 6)
    assert run["scores"] == bs.load(world / "bert").report["held_out"]
    assert run["settings"]["train.learning_rate"] == 0.001
    assert "train.clip_norm" not in run["settings"]
    assert run["model"] == str(world / "bert" / "model")
    assert found["architecture"] == "BertForPreTraining"
    assert "pretrain, finished" in shown
    found, shown = asked(world / "stopped")
    run = found["run"]
    assert (run["finished"], run["step"], run["of"], run["model_of_step"]) == (False, 3, 6, 3)
    assert "mlm_loss" in run["scores"]
    for part in ("not finished: step 3 of 6", "--resume", "(of step 3)"):
        assert part in " ".join(shown.replace("│", " ").split())  # a long path wraps


def test_a_fine_tuning_run_and_one_without_a_model(world: Path, tmp_path: Path) -> None:
    found, shown = asked(world / "moods")
    run = found["run"]
    assert (run["verb"], run["finished"], run["of"]) == ("finetune classify", True, 4)
    assert run["settings"]["task.max_length"] == 20
    assert run["scores"]["accuracy"] == bs.load(world / "moods").report["dev"]["accuracy"]
    assert run["best_step"] in (2, 4)
    assert "accuracy" in shown
    shutil.copytree(world / "moods", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "model")
    (tmp_path / "killed" / "report.json").unlink()
    found, shown = asked(tmp_path / "killed")
    assert found["run"]["model"] is None
    assert (found["run"]["verb"], found["run"]["finished"]) == ("finetune", False)
    assert "none yet" in shown


def test_a_model_folder_is_as_before(world: Path) -> None:
    found, _ = asked(world / "bert" / "model")
    assert found["kind"] == "model"
    assert found["parameters"] == sum(term["parameters"] for term in found["terms"])


@pytest.mark.parametrize(
    ("name", "known", "architecture", "parameters"),
    [
        ("bert-base-uncased", "bert-base-uncased", "BertModel", 109_482_240),
        ("albert-xxlarge", "albert-xxlarge-v2", "AlbertModel", 222_595_584),
        ("distilbert-base-uncased", "distilbert-base-uncased", "DistilBertModel", 66_362_880),
    ],
)
def test_a_published_name_without_weights_here_has_its_sizes(
    name: str, known: str, architecture: str, parameters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = bs.info(name)
    assert (found["kind"], found["path"], found["architecture"]) == ("preset", known, architecture)
    assert found["parameters"] == parameters


def test_what_is_none_of_these_says_what_may_be_meant(world: Path, tmp_path: Path) -> None:
    for folder, words in (
        (world, r"this is no run, no model.*\nin it: \S+bert \(a run\), .*shards \(prepared data\)"),
        (world / "bert" / "checkpoints" / "step-6", r"is a checkpoint of a run.*\nname the run: \S+bert$"),
        (world / "bert" / "checkpoints", r"a part of a run.*\nname the run: \S+bert$"),
        (world / "rows.csv", "this is a file"),
        (tmp_path, "nothing of these in it"),
        (world / "berd", "did you mean"),
    ):
        with pytest.raises(InputError, match=words):
            bs.info(folder)


def test_without_a_name_it_is_the_machine() -> None:
    found = bs.info()
    assert found["kind"] == "machine"
    assert found["cores"] >= 1
    assert found["precision"] in ("fp32", "bf16")
    assert found["runs_on"].split(":")[0] in ("cpu", "cuda")
