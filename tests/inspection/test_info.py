"""Test `info` of each kind of folder as tables and as JSON, its errors, and comparisons of two models."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import bertsmith as bs
import tiny_run
from bertsmith.artifacts.folder import write_folder
from bertsmith.cli.main import bertsmith
from bertsmith.errors import InputError, Stopped
from bertsmith.inspection.info import compare_models
from bertsmith.models.family import build_encoder, preset
from bertsmith.training.callbacks import MetricLogger


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make shards, a tokenizer, a run `bert`, a run `stopped` after 3 of 6 updates, and a classifier `moods`."""
    folder = tmp_path_factory.mktemp("info")
    shards = tiny_run.make_shards(folder)
    shards.tokenizer.save(folder / "tokenizer")
    tiny_run.run(shards, folder / "bert", "train.max_steps=6")
    original = MetricLogger.on_step_end

    def signal_then_step(self: MetricLogger, trainer: Any, result: Any) -> None:
        if trainer.state.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        original(self, trainer, result)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetricLogger, "on_step_end", signal_then_step)
        with pytest.raises(Stopped):
            tiny_run.run(shards, folder / "stopped", "train.max_steps=6", "train.eval_steps=2")
    rows = tiny_run.table(folder / "rows.csv", tiny_run.examples(12))
    settings = ["train.max_steps=4", "train.eval_steps=2", "train.threads=1", "task.max_length=20"]
    bs.finetune("classify", folder / "bert", folder / "moods", train=rows, validation=rows, settings=settings)
    return folder


def run_info(*arguments: object) -> tuple[dict[str, Any], str]:
    """Return the JSON document and the printed tables."""
    call = ["info", *map(str, arguments)]
    document, tables = (CliRunner().invoke(bertsmith, [*call, *more]) for more in (["--json"], []))
    assert document.exit_code == tables.exit_code == 0, tables.stderr
    report = json.loads(document.stdout)
    assert isinstance(report, dict)
    return report, tables.stdout + tables.stderr


def test_tables_show_rounded_scores_and_readable_names(folder: Path) -> None:
    _, shown = run_info(folder / "bert")
    assert "MLM loss" in shown
    assert "mlm_loss" not in shown
    assert not re.search(r"\d\.\d{5,}", shown)
    assert "None" not in shown


def test_a_missing_folder_is_an_error(folder: Path) -> None:
    with pytest.raises(InputError):
        bs.info(folder / "nothing-like-it")


def test_a_continued_run_shows_its_new_budget(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "bert", tmp_path / "bert")
    tiny_run.run(folder / "shards", tmp_path / "bert", "train.max_steps=9", resume=True)
    report, _ = run_info(tmp_path / "bert")
    assert report["run"]["settings"]["train.max_steps"] == 9
    assert (report["run"]["step"], report["run"]["of"]) == (9, 9)


def test_a_tokenizer(folder: Path) -> None:
    report, shown = run_info(folder / "tokenizer")
    tokenizer = tiny_run.tokenizer()
    assert (report["kind"], report["algorithm"], report["vocab_size"]) == ("tokenizer", "wordpiece", 46)
    assert report["specials"]["mask"] == {"token": "[MASK]", "id": 4}
    assert report["digest"] == tokenizer.digest
    assert report["lowercase"] is True
    for part in ("a tokenizer", "wordpiece", "[MASK]"):
        assert part in shown


def test_prepared_data(folder: Path) -> None:
    report, shown = run_info(folder / "shards")
    shards = bs.Shards.open(folder / "shards")
    assert report["kind"] == "data"
    assert {name: report[name] for name in shards.counts} == shards.counts
    assert report["files"] == [str(folder / "corpus.txt")]
    assert report["tokenizer"]["digest"] == shards.tokenizer_digest
    assert report["made"].startswith("20")
    for part in ("wordpiece",):
        assert part in shown


def test_a_finished_run_and_a_stopped_one(folder: Path) -> None:
    report, shown = run_info(folder / "bert")
    run = report["run"]
    assert (run["verb"], run["finished"], run["step"], run["of"]) == ("pretrain", True, 6, 6)
    assert run["scores"] == bs.load(folder / "bert").report["held_out"]
    assert run["settings"]["train.learning_rate"] == 0.001
    assert "train.max_grad_norm" not in run["settings"]
    assert run["model"] == str(folder / "bert" / "model")
    assert report["architecture"] == "BertForPreTraining"
    assert "pretrain, finished" in shown
    report, shown = run_info(folder / "stopped")
    run = report["run"]
    assert (run["finished"], run["step"], run["of"], run["model_of_step"]) == (False, 3, 6, 3)
    assert "mlm_loss" in run["scores"]
    for part in ("not finished", "step 3 of 6", "--resume"):
        assert part in " ".join(shown.replace("│", " ").split())  # a long path wraps


def test_a_fine_tuning_run_and_one_without_a_model(folder: Path, tmp_path: Path) -> None:
    report, shown = run_info(folder / "moods")
    run = report["run"]
    assert (run["verb"], run["finished"], run["of"]) == ("finetune classify", True, 4)
    assert run["settings"]["task.max_length"] == 20
    assert run["scores"]["accuracy"] == bs.load(folder / "moods").report["validation"]["accuracy"]
    assert run["best_step"] in (2, 4)
    assert "accuracy" in shown
    shutil.copytree(folder / "moods", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "model")
    (tmp_path / "killed" / "report.json").unlink()
    report, shown = run_info(tmp_path / "killed")
    assert report["run"]["model"] is None
    assert (report["run"]["verb"], report["run"]["finished"]) == ("finetune", False)
    assert "none yet" in shown


def test_a_model_folder_is_as_before(folder: Path) -> None:
    report, _ = run_info(folder / "bert" / "model")
    assert report["kind"] == "model"
    assert report["parameters"] == sum(term["parameters"] for term in report["terms"])


@pytest.mark.parametrize(
    ("name", "preset", "architecture", "parameters"),
    [
        ("bert-base-uncased", "bert-base-uncased", "BertModel", 109_482_240),
        ("albert-xxlarge", "albert-xxlarge-v2", "AlbertModel", 222_595_584),
        ("distilbert-base-uncased", "distilbert-base-uncased", "DistilBertModel", 66_362_880),
    ],
)
def test_a_published_name_without_cached_weights_has_its_sizes(
    name: str, preset: str, architecture: str, parameters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    report = bs.info(name)
    assert (report["kind"], report["path"], report["architecture"]) == ("preset", preset, architecture)
    assert report["parameters"] == parameters


def test_other_paths_are_errors_with_suggestions(folder: Path, tmp_path: Path) -> None:
    for path, hint in (
        (folder, r"\S+bert, .*shards"),
        (folder / "bert" / "checkpoints" / "step-6", r"\S+bert$"),
        (folder / "bert" / "checkpoints", r"\S+bert$"),
        (folder / "rows.csv", "tokenizer"),
        (tmp_path, "tokenizer"),
    ):
        with pytest.raises(InputError) as caught:
            bs.info(path)
        assert (caught.value.code, caught.value.location) == ("not_describable", str(path))
        assert re.search(hint, str(caught.value.hint))
    with pytest.raises(InputError) as caught:
        bs.info(folder / "berd")
    assert "bert" in str(caught.value.hint)


def test_without_a_name_it_describes_the_machine() -> None:
    report = bs.info()
    assert report["kind"] == "machine"
    assert report["cores"] >= 1
    assert report["precision"] in ("fp32", "bf16")
    assert report["runs_on"].split(":")[0] in ("cpu", "cuda")


def rows(document: dict[str, object], part: str) -> dict[str, tuple[object, object]]:
    differences = document[part]
    assert isinstance(differences, list)
    return {row["what"]: (row["a"], row["b"]) for row in differences}


def test_two_presets() -> None:
    document = compare_models("bert-base-uncased", "roberta-base")
    assert rows(document, "settings") == {
        "model_type": ("bert", "roberta"),
        "vocab_size": (30_522, 50_265),
        "max_position_embeddings": (512, 514),
        "first_position": ("zero", "after_padding"),
        "type_vocab_size": (2, 1),
        "layer_norm_eps": (1e-12, 1e-5),
        "pad_token_id": (0, 1),
    }
    traits = rows(document, "family")
    assert traits["usual tokenizer"] == ("wordpiece", "byte_level_bpe")
    assert traits["pre-trained with data.sentence_task"] == ("nsp", "none")
    assert traits["pre-trained with train.adam_beta2"] == (0.999, 0.98)
    assert "pre-trained with objective" not in traits  # both have the same
    assert rows(document, "parameters") == {
        "token embeddings": (23_440_896, 38_603_520),
        "position embeddings": (393_216, 394_752),
        "segment embeddings": (1_536, 768),
        "sum": (108_891_648, 124_055_040),
    }


def test_a_folder_and_a_preset(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    config = preset("distilbert-base-cased", vocab_size=50, **sizes)
    folder = write_folder(tmp_path / "m", config, {"encoder": build_encoder(config, torch.Generator())})
    document = compare_models(folder, "distilbert-base-cased")
    assert rows(document, "settings")["num_hidden_layers"] == (1, 6)
    assert document["family"] == []
    assert rows(document, "parameters")["the layers' LayerNorms"] == (4 * 16, 6 * 4 * 768)


def test_two_runs(tmp_path: Path) -> None:
    """Training settings are compared if both are runs."""
    shards = tiny_run.make_shards(tmp_path)
    for name, steps in (("a", 2), ("b", 3)):
        tiny_run.run(shards, tmp_path / name, f"train.max_steps={steps}")
    document = compare_models(tmp_path / "a", tmp_path / "b")
    assert rows(document, "runs") == {"train.max_steps": (2, 3)}
    assert document["settings"] == document["family"] == []
    assert compare_models(tmp_path / "a", "bert-tiny-uncased")["runs"] == []


def test_a_model_does_not_differ_from_itself() -> None:
    document = compare_models("electra-small-generator", "electra-small-generator")
    assert document["settings"] == document["family"] == []
    assert [row["what"] for row in document["parameters"]] == ["sum"]


def test_a_mistyped_name_gets_a_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError) as caught:
        compare_models("bert-base-uncased", "robreta-base")
    assert (caught.value.code, caught.value.location) == ("model_not_found", "robreta-base")
    assert "roberta-base" in str(caught.value.hint)
    with pytest.raises(InputError):
        compare_models("nothing/like-it", "roberta-base")
