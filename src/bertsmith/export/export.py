"""Export a model to the formats of other tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bertsmith.artifacts.config_schema import read_json
from bertsmith.artifacts.locate import CONFIG_FILE
from bertsmith.artifacts.sentence_transformers import sentence_transformers_files
from bertsmith.device import CPU, ComputeContext
from bertsmith.errors import InputError
from bertsmith.export.exported_model import ExportedModel
from bertsmith.export.formats import Format, get_format, write_onnx
from bertsmith.export.padded_model import PaddedModel
from bertsmith.export.verification import Verifier
from bertsmith.inference.embedding import embedding_config
from bertsmith.inference.model import Model, load
from bertsmith.io.atomic import atomic_folder, check_output_folder, write_errors, write_text
from bertsmith.io.sources import Source
from bertsmith.models.family import get_family
from bertsmith.notebook import Report
from bertsmith.tasks.fitted_task import FittedTask, load_task

_RECORD_FILE = "export.json"


def export_model(
    model: str | Path | Model,
    output_dir: str | Path,
    *,
    to: str | Sequence[str] = "onnx",
    data: Source | None = None,
) -> Report:
    """Export a model, so that ONNX Runtime, transformers.js, OpenVINO, or sentence-transformers run it.

    The exported file has the encoder with the heads of the task, and the outputs of transformers: `logits`,
    `start_logits` and `end_logits` for spans, or `last_hidden_state` for a model without heads. Each file is
    compared with the original: on up to 1,000 labeled examples if there are any, on sample texts, and on random
    tokens. Nothing is written if an output in fp32 differs by more than 0.0001, or if the score in int8 is outside
    of its 95 % bootstrap interval.

    Args:
        model: A run, a model folder, or a published name.
        output_dir: The new folder. It also gets the configuration, the tokenizer, and for a model without heads
            the files of sentence-transformers.
        to: "onnx", "onnx-int8" (dynamic quantization, per channel), "openvino", or several of them.
        data: Labeled examples for the comparison; None: the run's validation file if there is one.

    Returns:
        The task, and for each format its `file`, `bytes`, `difference`, `score` and `score_before` (with
        examples), `seconds` and `seconds_before`.

    Raises:
        InputError: The model cannot be exported, a package is missing, or the comparison fails.
    """
    names = [to] if isinstance(to, str) else list(dict.fromkeys(to))
    formats = {name: get_format(name) for name in names}
    out = Path(output_dir)
    check_output_folder(out)
    original = load(model.path if isinstance(model, Model) else model, CPU, precision="fp32")
    task = _task_of(original)
    padded = _padded_model(original, task)
    verifier = Verifier(original, padded, None if task is None else original.predictor, data)
    with write_errors(out), atomic_folder(out) as folder, TemporaryDirectory() as temporary:
        onnx_file = Path(temporary) / "model.onnx"
        write_onnx(padded, onnx_file)
        files = [_write(name, formats[name], onnx_file, folder, padded, verifier) for name in names]
        report = {"model": str(original.path), "task": None if task is None else task.name, "files": files}
        _write_other_files(folder, original, padded, task, report)
    return Report({**report, "output_dir": str(out)}, ("files",))


def _task_of(model: Model) -> FittedTask | None:
    """Return the task of a model; None if it was not fine-tuned for one."""
    try:
        return model.task
    except InputError as error:
        if error.code != "not_fine_tuned":
            raise
        return None


def _padded_model(model: Model, task: FittedTask | None) -> PaddedModel:
    """Return the module to export, whose weights are copies in fp32."""
    with torch.inference_mode(False):
        encoder = model.folder.encoder()
        copied = (
            None if task is None else load_task(model.path, model.folder, ComputeContext.create(CPU, "fp32"))
        )
        return PaddedModel(encoder, None if copied is None else copied.model)


def _write(
    name: str, target: Format, onnx_file: Path, folder: Path, model: PaddedModel, verifier: Verifier
) -> dict[str, Any]:
    """Write and verify a file of the output folder; return its part of the report."""
    file = folder / target.file
    file.parent.mkdir(exist_ok=True)
    if target.convert is None:
        file.write_bytes(onnx_file.read_bytes())
    else:
        target.convert(onnx_file, file)
    exported = ExportedModel(target.open(file), model)
    size = sum(part.stat().st_size for part in file.parent.glob(f"{file.stem}.*"))
    report = verifier.verify(exported, is_int8=target.is_int8)
    return {"format": name, "file": target.file, "bytes": size, **report}


def _write_other_files(
    folder: Path, model: Model, padded: PaddedModel, task: FittedTask | None, report: Mapping[str, Any]
) -> None:
    """Write the configuration, the tokenizer, the files of sentence-transformers, and the record of the export."""
    config = {**read_json(model.model_folder / CONFIG_FILE), "dtype": "float32"}
    config.pop("torch_dtype", None)
    if model.labels is not None:
        config["id2label"] = {str(i): label for i, label in enumerate(model.labels)}
        config["label2id"] = {label: i for i, label in enumerate(model.labels)}
    json_files: dict[str, Any] = {CONFIG_FILE: config}
    if padded.model is None:
        config["architectures"] = [f"{get_family(model.folder.config.model_type).class_prefix}Model"]
        embedding = embedding_config(model.model_folder, None, None, None)
        json_files |= sentence_transformers_files(model.folder.config, embedding)
    decoding = {} if task is None else {"metadata": task.metadata, "decoder_state": task.decoder.state}
    json_files[_RECORD_FILE] = {**report, **decoding, "model": model.path.name}
    for name, content in json_files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_text(folder / name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    model.tokenizer.save(folder)
