"""Exported folders in transformers.js, on Node and in a browser, and in sentence-transformers' ONNX backend.

The tests download nothing. NODE_PATH names a folder with the package transformers.js:
ONNXRUNTIME_NODE_INSTALL_CUDA=skip npm i --ignore-scripts @huggingface/transformers
SENTENCE_TRANSFORMERS_PYTHON names the Python of an environment with `sentence-transformers[onnx]<6` and
`transformers<4.58`, which do not fit beside the versions of the other tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertsmith as bs
import tiny_run
from browser import Browser, chromium

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

TEXTS = ["kaba lode", "mi", "kagi kafo lode kaba"]
STEPS = ["train.max_steps=2", "train.batch_size=4", "train.threads=1", "train.report_to=none"]
CLASSIFY = """
  const answers = {};
  for (const dtype of ["fp32", "q8"]) {
    const classify = await pipeline("text-classification", "exported", { dtype });
    answers[dtype] = await classify(texts, { top_k: null });
  }
"""
NODE_SCRIPT = f"""
const {{ env, pipeline }} = require("@huggingface/transformers");
env.allowRemoteModels = false;
env.localModelPath = process.argv[1];
(async (texts) => {{ {CLASSIFY} console.log(JSON.stringify(answers)); }})(JSON.parse(process.argv[2]));
"""
PAGE_SCRIPT = f"""
(async (texts) => {{
  const {{ env, pipeline }} = await import("/transformers.min.js");
  env.allowRemoteModels = false;
  env.allowLocalModels = true;
  env.localModelPath = "/";
  env.backends.onnx.wasm.wasmPaths = "/onnxruntime/";
  {CLASSIFY}
  return answers;
}})({json.dumps(TEXTS)})
"""
SENTENCE_SCRIPT = """
import json, sys
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], backend="onnx", device="cpu", model_kwargs={"file_name": sys.argv[2]})
print(json.dumps(model.encode(json.loads(sys.argv[3])).tolist()))
"""


@pytest.fixture(scope="module")
def moods(base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    """Return a classifier, beside whose folder is the folder of its export."""
    root = tmp_path_factory.mktemp("moods")
    rows = [{"text": text, "label": label} for text, label in tiny_run.examples(24)]
    model = bs.finetune("classify", base, root / "run", train=rows, validation=rows, settings=STEPS)
    bs.export_model(model, root / "exported", to=["onnx", "onnx-int8"])
    return model


def assert_equal_scores(answers: dict[str, Any], model: bs.Model) -> None:
    for dtype, tolerance in (("fp32", 1e-5), ("q8", 1e-2)):  # int8: rounded weights
        for answer, prediction in zip(answers[dtype], model.predict(TEXTS), strict=True):
            scores = {entry["label"]: entry["score"] for entry in answer}
            assert scores == pytest.approx(prediction.scores, abs=tolerance)


def node_modules() -> Path:
    folders = [Path(path) for path in os.environ.get("NODE_PATH", "").split(os.pathsep)]
    for folder in folders:
        if (folder / "@huggingface" / "transformers").is_dir():
            return folder
    pytest.skip("NODE_PATH names no folder with @huggingface/transformers (see the docstring)")


def test_transformers_js_classifies_as_predict_does_on_node(moods: bs.Model) -> None:
    node_modules()
    node = shutil.which("node") or pytest.skip("Node.js is missing")
    command = [node, "-e", NODE_SCRIPT, str(moods.path.parent), json.dumps(TEXTS)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert_equal_scores(json.loads(result.stdout), moods)


def test_transformers_js_classifies_as_predict_does_in_a_browser(moods: bs.Model, tmp_path: Path) -> None:
    modules = node_modules()
    if chromium() is None:
        pytest.skip("Chromium is missing")
    (tmp_path / "index.html").write_text("<!doctype html><title>transformers.js</title>")
    scripts = modules / "@huggingface" / "transformers" / "dist"
    (tmp_path / "transformers.min.js").symlink_to(scripts / "transformers.min.js")
    (tmp_path / "onnxruntime").symlink_to(modules / "onnxruntime-web" / "dist")
    (tmp_path / "exported").symlink_to(moods.path.parent / "exported")
    with served(tmp_path) as url, Browser() as browser:
        browser.open(url, 800)
        assert_equal_scores(browser.ask(PAGE_SCRIPT), moods)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the files of a folder on this machine; yield the URL."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_sentence_transformers_embeds_as_embed_does(base: bs.Model, tmp_path: Path) -> None:
    python = os.environ.get("SENTENCE_TRANSFORMERS_PYTHON")
    if python is None:
        pytest.skip("SENTENCE_TRANSFORMERS_PYTHON is not set (see the docstring)")
    rows = [{"sentence1": text, "sentence2": other, "label": 1.0} for text, other in tiny_run.examples(24)]
    rows[0]["label"] = 0.0
    model = bs.finetune("embed", base, tmp_path / "run", train=rows, validation=rows, settings=STEPS)
    bs.export_model(model, tmp_path / "exported", to=["onnx", "onnx-int8"])
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for name, tolerance in (("model.onnx", 1e-5), ("model_quantized.onnx", 0.05)):
        command = [python, "-c", SENTENCE_SCRIPT, str(tmp_path / "exported"), name, json.dumps(TEXTS)]
        result = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=240, env=environment
        )
        np.testing.assert_allclose(json.loads(result.stdout), model.embed(TEXTS), atol=tolerance)
