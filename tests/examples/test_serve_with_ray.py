"""Ray Serve runs the server of `bertsmith serve`: the example starts, and its replicas answer."""

from __future__ import annotations

import json
import runpy
import socket
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import bertsmith as bs

EXAMPLE = Path(__file__).parents[2] / "examples" / "serve_with_ray.py"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray and the packages that it imports
def test_replicas_answer(base: bs.Model) -> None:
    reason = (
        "Ray Serve is not installed: pip install 'ray[serve]' (44 packages, so it is not in the extra dev)"
    )
    serve = pytest.importorskip("ray.serve", reason=reason, exc_type=ImportError)
    import ray

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"port": port})
        serve.run(runpy.run_path(str(EXAMPLE))["deploy"]({"models": f"bert={base.path}", "replicas": "2"}))
        texts = ["kaba lode", "mi"]
        body = json.dumps({"model": "bert", "input": texts}).encode()
        for _ in range(4):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/embeddings", body, timeout=60) as reply:
                vectors = [item["embedding"] for item in json.load(reply)["data"]]
            np.testing.assert_allclose(vectors, base.embed(texts), rtol=1e-5, atol=1e-6)
    finally:
        serve.shutdown()
        ray.shutdown()
