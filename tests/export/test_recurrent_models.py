"""The export of recurrent models, which equal the original on padded batches of mixed lengths."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import bertsmith as bs
import task_files
import tiny_run
from bertsmith.corpus.shards import Shards
from bertsmith.export.exported_model import padded_inputs
from bertsmith.tasks.batching import TokenSequence

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SIZES = ["model.hidden_size=16", "model.intermediate_size=24"]
ELMO = [*SIZES, "model.embedding_size=8"]
NNLM = ["model.hidden_size=20", "model.intermediate_size=8", "model.embedding_size=4", "model.context_size=3"]
MODELS = {
    "rnn": ("rnn", SIZES),
    "lstm": ("lstm", SIZES),
    "both directions": ("lstm", [*SIZES, "objective.name=mlm_nsp"]),
    "backwards": ("lstm", [*SIZES, "model.backwards=true"]),
    "elmo": ("elmo", ELMO),
    "characters": ("elmo", [*ELMO, "model.embedding_type=char_cnn", "model.tie_word_embeddings=false"]),
    "nnlm": ("nnlm", NNLM),
    "nnlm backwards": ("nnlm", [*NNLM, "model.backwards=true"]),
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("corpus"))


def pretrained(name: str, shards: Shards, folder: Path) -> bs.Model:
    family, sizes = MODELS[name]
    changes = ["model.max_position_embeddings=64", "data.sequence_length=32", "train.batch_size=4"]
    settings = [*changes, "train.learning_rate=1e-2", "train.max_steps=2", "train.precision=fp32", *sizes]
    return bs.pretrain(shards, folder, preset=f"{family}-mini", settings=settings)


@pytest.mark.parametrize("name", MODELS)
def test_hidden_states_of_batches_of_mixed_lengths_equal_the_original(
    name: str, shards: Shards, tmp_path: Path
) -> None:
    model = pretrained(name, shards, tmp_path / "run")
    (file,) = bs.export_model(model, tmp_path / "out").files
    assert file["difference"] <= 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "out" / "onnx" / "model.onnx")
    draw = np.random.default_rng(0)
    for lengths in ([1], [1, 2], [9, 1, 30, 9], [2, 64, 3]):
        rows = [draw.integers(5, model.tokenizer.vocab_size, n).tolist() for n in lengths]
        sequences = [
            TokenSequence(np.array(row, np.int32), np.zeros(len(row), np.uint8), 0, 0) for row in rows
        ]
        inputs = padded_inputs(sequences, model.tokenizer.pad_token_id)
        names = [value.name for value in session.get_inputs()]
        (padded,) = session.run(None, {name: inputs[name] for name in names})
        expected = model.encoder(bs.Packed.from_lists(rows, [[0] * n for n in lengths])).detach().numpy()
        states = np.concatenate([states[:n] for states, n in zip(padded, lengths, strict=True)])
        np.testing.assert_allclose(states, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "task"), [("both directions", "classify"), ("backwards", "tag"), ("nnlm", "classify")]
)
def test_tasks_answer_as_the_original(name: str, task: str, shards: Shards, tmp_path: Path) -> None:
    base = pretrained(name, shards, tmp_path / "base")
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
