"""transformers.js runs exported models in Node.

The test downloads nothing. It needs a folder with the package, which NODE_PATH names:
ONNXRUNTIME_NODE_INSTALL_CUDA=skip npm i --ignore-scripts @huggingface/transformers
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import bertsmith as bs
import tiny_run

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SCRIPT = """
const { env, pipeline } = require("@huggingface/transformers");
env.allowRemoteModels = false;
env.localModelPath = process.argv[1];
(async () => {
  const answers = {};
  for (const dtype of ["fp32", "q8"]) {
    const classify = await pipeline("text-classification", "exported", { dtype });
    answers[dtype] = await classify(JSON.parse(process.argv[2]), { top_k: null });
  }
  console.log(JSON.stringify(answers));
})();
"""


def test_transformers_js_classifies_as_predict_does(base: bs.Model, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is missing")
    check = [node, "-e", 'require.resolve("@huggingface/transformers")']
    if subprocess.run(check, capture_output=True, check=False).returncode:
        pytest.skip("Node.js does not find @huggingface/transformers (see the docstring)")
    rows = [{"text": text, "label": label} for text, label in tiny_run.examples(24)]
    settings = ["train.max_steps=2", "train.batch_size=4", "train.threads=1", "train.report_to=none"]
    model = bs.finetune("classify", base, tmp_path / "run", train=rows, validation=rows, settings=settings)
    bs.export_model(model, tmp_path / "exported", to=["onnx", "onnx-int8"])
    texts = ["kaba lode", "mi", "kagi kafo lode kaba"]
    command = [node, "-e", SCRIPT, str(tmp_path), json.dumps(texts)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    answers = json.loads(result.stdout)
    for dtype, tolerance in (("fp32", 1e-5), ("q8", 1e-2)):
        for answer, prediction in zip(answers[dtype], model.predict(texts), strict=True):
            scores = {entry["label"]: entry["score"] for entry in answer}
            assert scores == pytest.approx(prediction.scores, abs=tolerance)
