"""The export of models that write text: one graph, in which other programs search."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import bertsmith as bs
import task_files
import tiny_run

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

DECODERS = {
    "transformer": [],
    "fixed vector": ["task.decoder_type=lstm", "task.attention_score=none"],
    "dot": ["task.decoder_type=lstm", "task.attention_score=dot"],
    "additive": ["task.decoder_type=lstm", "task.attention_score=additive", "task.num_beams=3"],
}


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_greedy_loop_writes_what_predict_writes(decoder: str, base: bs.Model, tmp_path: Path) -> None:
    train, validation = (task_files.translated(tmp_path / f"{part}.csv", i) for i, part in enumerate("tv"))
    options = [*task_files.STEPS, "train.max_steps=3", *DECODERS[decoder]]
    model = bs.finetune(
        "translate", base, tmp_path / "run", train=train, validation=validation, settings=options
    )
    fp32, int8 = bs.export_model(model, tmp_path / "out", to=["onnx", "onnx-int8"]).files
    assert fp32["difference"] <= 1e-4 < int8["difference"] < 1
    assert fp32["score"] == fp32["score_before"]

    session = onnxruntime.InferenceSession(tmp_path / "out" / "onnx" / "model.onnx")
    texts = [text for text, _ in tiny_run.examples(6, seed=3)]
    encodings = [model.tokenizer.encode(text) for text in texts]
    length = max(len(encoding.ids) for encoding in encodings)
    ids, mask = np.zeros((6, length), int), np.zeros((6, length), int)
    for i, encoding in enumerate(encodings):
        ids[i, : len(encoding.ids)], mask[i, : len(encoding.ids)] = encoding.ids, 1
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    written = np.full((6, 1), model.tokenizer.cls_token_id)
    for _ in range(20):
        (logits,) = session.run(None, inputs | {"decoder_input_ids": written})
        written = np.concatenate([written, logits[:, -1].argmax(-1)[:, None]], 1)
    for row, text in zip(written[:, 1:].tolist(), texts, strict=True):
        end = row.index(model.tokenizer.sep_token_id) if model.tokenizer.sep_token_id in row else 20
        translation = model.predict(text, num_beams=1, max_target_length=21).translation
        assert model.tokenizer.decode(row[:end]) == translation
