"""The export to ONNX: files that other programs open, and answers that equal `predict`."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import bertsmith as bs
import task_files
from bertsmith.cli.main import bertsmith
from bertsmith.errors import InputError
from bertsmith.export import verification
from bertsmith.export.formats import FORMATS
from bertsmith.export.sample_texts import SAMPLE_TEXTS
from bertsmith.tasks.base import TaskModel

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SEQUENCE = ["batch", "sequence"]
OUTPUTS = {  # by task: the outputs and their axes
    "classify": {"logits": ["batch", 3]},
    "tag crf": {"logits": [*SEQUENCE, 5], "start": [5], "transitions": [5, 5], "end": [5]},
    "answer": {"start_logits": SEQUENCE, "end_logits": SEQUENCE},
    "choose": {"logits": ["batch", "choices"]},
    "relate": {"logits": ["batch", 3]},
    "embed": {"last_hidden_state": [*SEQUENCE, 32]},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("onnx")


def finetuned(name: str, base: bs.Model, root: Path, *settings: str) -> bs.Model:
    """Return a run of a task, or of a task and variant, that is kept for the module."""
    folder = root / "".join([name.replace(" ", "_"), *settings]).replace("/", "_")
    if folder.exists():
        return bs.load(folder)
    suffix, make = task_files.FILES[name]
    train, validation = (
        make(root / f"{part}_{folder.name}.{suffix}", seed) for seed, part in enumerate("tv")
    )
    options = [*task_files.STEPS, *task_files.OWN.get(name, []), "train.max_steps=2", *settings]
    task = name.split()[0]
    return bs.finetune(task, base, folder, train=train, validation=validation, settings=options)


@pytest.fixture(scope="module")
def exported(base: bs.Model, root: Path) -> tuple[bs.Model, Path, dict[str, Any]]:
    """Return a classifier, the folder of its export in fp32 and int8, and the report of the command line."""
    moods = finetuned("classify", base, root)
    arguments = ["export", str(moods.path), "--output-dir", str(root / "exported"), "--json"]
    result = CliRunner().invoke(bertsmith, [*arguments, "--to", "onnx", "--to", "onnx-int8"])
    assert result.exit_code == 0, result.output
    return moods, root / "exported", json.loads(result.stdout)


def test_the_files_in_fp32_and_int8_are_compared_with_the_original(
    exported: tuple[bs.Model, Path, dict[str, Any]],
) -> None:
    model, folder, report = exported
    fp32, int8 = report["files"]
    assert (fp32["file"], int8["file"]) == ("onnx/model.onnx", "onnx/model_quantized.onnx")
    assert 0 <= fp32["difference"] <= 1e-4 < int8["difference"]
    assert fp32["score"] == fp32["score_before"] == pytest.approx(model.evaluate(validation(model)).accuracy)
    low, high = int8["interval"]
    assert low <= int8["score"] <= high
    assert [file["bytes"] for file in report["files"]] == [
        (folder / file["file"]).stat().st_size for file in report["files"]
    ]
    assert int8["bytes"] < fp32["bytes"]
    weights = onnx.load(folder / int8["file"]).graph.initializer
    # Without VNNI, ONNX Runtime adds products with signed weights in 16 bits, which saturate.
    assert onnx.TensorProto.INT8 not in {tensor.data_type for tensor in weights}
    config = json.loads((folder / "config.json").read_text())
    assert config["id2label"] == {"0": "anger", "1": "fear", "2": "joy"}
    assert config["label2id"] == {"anger": 0, "fear": 1, "joy": 2}
    assert (folder / "tokenizer.json").is_file()
    assert not list(folder.glob("onnx/*.data"))


def validation(model: bs.Model) -> Path:
    return next(model.path.parent.glob(f"v_{model.path.name}.*"))


@pytest.mark.parametrize("name", OUTPUTS)
def test_each_task_answers_as_the_original(name: str, base: bs.Model, root: Path, tmp_path: Path) -> None:
    report = bs.export_model(finetuned(name, base, root), tmp_path / "out")
    (file,) = report.files
    assert file["difference"] <= 1e-4
    assert file["score"] == file["score_before"]
    session = onnxruntime.InferenceSession(tmp_path / "out" / "onnx" / "model.onnx")
    assert {output.name: output.shape for output in session.get_outputs()} == OUTPUTS[name]
    axes = ["batch", "choices", "sequence"] if name == "choose" else SEQUENCE
    inputs = {value.name: value.shape for value in session.get_inputs()}
    extra = {"marker_indices": ["batch", 2]} if name == "relate" else {}
    assert inputs == dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), axes) | extra


def test_an_embedding_model_has_the_files_of_sentence_transformers(
    base: bs.Model, root: Path, tmp_path: Path
) -> None:
    model = finetuned("embed", base, root)
    bs.export_model(model, tmp_path / "out")
    pooling = json.loads((tmp_path / "out" / "1_Pooling" / "config.json").read_text())
    assert pooling == {
        "word_embedding_dimension": 32,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_cls_token": False,
        "pooling_mode_max_tokens": False,
    }
    for folder in (tmp_path / "out", model.model_folder):
        values = json.loads((folder / "sentence_bert_config.json").read_text())
        assert values["max_seq_length"] == 64
    session = onnxruntime.InferenceSession(tmp_path / "out" / "onnx" / "model.onnx")
    encoding = model.tokenizer.encode("kaba lode")
    ids = np.array([encoding.ids])
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    vector = session.run(None, inputs)[0][0].mean(0)
    np.testing.assert_allclose(vector / np.linalg.norm(vector), model.embed("kaba lode"), atol=1e-5)


def test_the_example_answers_without_torch_as_predict_does(
    exported: tuple[bs.Model, Path, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, folder, _ = exported
    texts = ["kaba lode", "mizu", "a text with unknown words kagi kafo"]
    monkeypatch.setattr(sys, "argv", ["onnx_runtime.py", str(folder), *texts])
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it is an error
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "onnx_runtime.py"), run_name="__main__")
    monkeypatch.undo()
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    predictions = model.predict(texts)
    assert [row[0] for row in rows] == [prediction.label for prediction in predictions]
    np.testing.assert_allclose([float(row[1]) for row in rows], [p.score for p in predictions], atol=1e-4)


def test_nothing_is_written_if_the_score_in_int8_is_outside_of_its_interval(
    base: bs.Model, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "score_interval", lambda *_: (1.5, 2.0))
    with pytest.raises(InputError) as error:
        bs.export_model(finetuned("classify", base, root), tmp_path / "out", to="onnx-int8")
    assert error.value.code == "export_differs"
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_if_an_output_differs(
    base: bs.Model, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_changed(file: Path) -> Any:
        session = original.open(file)
        return lambda inputs: {name: values + 1e-3 for name, values in session(inputs).items()}

    original = FORMATS["onnx"]
    monkeypatch.setitem(FORMATS, "onnx", original._replace(open=open_changed))
    with pytest.raises(InputError) as error:
        bs.export_model(finetuned("classify", base, root), tmp_path / "out")
    assert error.value.code == "export_differs"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["Rain.", SAMPLE_TEXTS[-1]])
def test_a_model_without_a_task_is_compared_on_sample_texts(
    text: str, base: bs.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = base.tokenizer.encode(text).ids

    def open_changed(file: Path) -> Any:
        def run(inputs: Any) -> dict[str, Any]:
            rows = inputs["input_ids"]
            is_text = (
                (rows[:, : len(ids)] == ids).all(1) if rows.shape[1] >= len(ids) else np.zeros(len(rows))
            )
            return {name: values + is_text[:, None, None] for name, values in session(inputs).items()}

        session = original.open(file)
        return run

    original = FORMATS["onnx"]
    assert "sample texts" in bs.export_model(base, tmp_path / "same").files[0]["checked_on"]
    monkeypatch.setitem(FORMATS, "onnx", original._replace(open=open_changed))
    with pytest.raises(InputError) as error:
        bs.export_model(base, tmp_path / "out")
    assert error.value.code == "export_differs"


def test_what_cannot_be_exported_is_an_error(
    base: bs.Model, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moods = finetuned("classify", base, root)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    cases: list[tuple[str, dict[str, Any]]] = [
        ("unknown_export_format", {"to": "tflite"}),
        ("output_exists", {"output_dir": tmp_path / "full"}),
        ("export_data_without_task", {"model": base, "data": validation(moods)}),
    ]
    for code, arguments in cases:
        with pytest.raises(InputError) as error:
            bs.export_model(**({"model": moods, "output_dir": tmp_path / "out"} | arguments))
        assert error.value.code == code
    monkeypatch.setitem(FORMATS, "openvino", FORMATS["openvino"]._replace(packages=("no_such_package",)))
    with pytest.raises(InputError) as error:
        bs.export_model(moods, tmp_path / "out", to="openvino")
    assert error.value.code == "export_package_missing"
    monkeypatch.setattr(
        type(moods.task.model), "logits", TaskModel.logits
    )  # as a task of one's own may have it
    with pytest.raises(InputError) as error:
        bs.export_model(moods, tmp_path / "out")
    assert error.value.code == "export_without_logits"
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
