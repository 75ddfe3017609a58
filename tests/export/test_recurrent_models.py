"""The export of fine-tuned recurrent models; test_recurrent_families.py has that of all families."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import bertsmith as bs
import task_files
import tiny_run
from bertsmith.corpus.shards import Shards

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

MODELS = {
    "both directions": ["lstm", "model.hidden_size=16", "objective.name=mlm_nsp"],
    "backwards": ["lstm", "model.hidden_size=16", "model.backwards=true"],
    "nnlm": [
        "nnlm",
        "model.hidden_size=44",
        "model.embedding_size=4",
        "model.context_size=5",
        "model.backwards=true",
    ],
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize(
    ("name", "task"), [("both directions", "classify"), ("backwards", "tag"), ("nnlm", "classify")]
)
def test_tasks_answer_as_the_original(name: str, task: str, shards: Shards, tmp_path: Path) -> None:
    family, *sizes = MODELS[name]
    changes = ["model.intermediate_size=24", "model.max_position_embeddings=64", "data.sequence_length=32"]
    settings = [*changes, "train.batch_size=4", "train.max_steps=2", *sizes]
    base = bs.pretrain(shards, tmp_path / "base", preset=f"{family}-mini", settings=settings)
    check_task(task, base, tmp_path)


def test_a_bilstm_tagger_answers_as_the_original(base: bs.Model, tmp_path: Path) -> None:
    check_task("tag", base, tmp_path, "task.head=bilstm", "task.layers=sum_all")


def check_task(task: str, base: bs.Model, folder: Path, *settings: str) -> None:
    suffix, make = task_files.FILES[task]
    train, validation = (make(folder / f"{part}.{suffix}", seed) for seed, part in enumerate("tv"))
    options = [*task_files.STEPS, *task_files.OWN.get(task, []), "train.max_steps=2", *settings]
    run = bs.finetune(task, base, folder / "run", train=train, validation=validation, settings=options)
    report = bs.export_model(run, folder / "out", to=["onnx", "onnx-int8"])
    fp32, int8 = report.files
    assert fp32["difference"] <= 1e-4
    assert fp32["score"] == fp32["score_before"]
    assert int8["difference"] < 1
    assert json.loads((folder / "out" / "export.json").read_text())["task"] == task
