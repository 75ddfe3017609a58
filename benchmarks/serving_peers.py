"""The peers of serving.py: `/embed` by sentence-transformers and by ONNX Runtime, behind Starlette on uvicorn.

    python serving_peers.py sentence-transformers|onnxruntime MODEL PORT

A model is called in a thread of the pool for each request, as tutorials do it. For ONNX Runtime, MODEL is a folder
that `bertsmith export` wrote.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

MAX_LENGTH = 256  # tokens, of MiniLM
Embed = Callable[[Sequence[str]], np.ndarray[Any, np.dtype[np.float32]]]


def sentence_transformers(model: str) -> Embed:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    transformer = SentenceTransformer(model, device="cpu")
    return lambda texts: transformer.encode(list(texts), show_progress_bar=False)


def onnxruntime(model: str) -> Embed:
    import onnxruntime as ort
    from tokenizers import Tokenizer

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(str(Path(model) / "onnx" / "model.onnx"), options)
    names = {value.name for value in session.get_inputs()}
    tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_LENGTH)
    tokenizer.enable_padding()

    def embed(texts: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
        encodings = tokenizer.encode_batch(list(texts))
        mask = np.array([encoding.attention_mask for encoding in encodings])
        inputs = {
            "input_ids": np.array([encoding.ids for encoding in encodings]),
            "attention_mask": mask,
            "token_type_ids": np.array([encoding.type_ids for encoding in encodings]),
        }
        hidden = session.run(None, {name: inputs[name] for name in names})[0]
        vectors = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    return embed


def main() -> None:
    peer, model, port = sys.argv[1:]
    embed = {"sentence-transformers": sentence_transformers, "onnxruntime": onnxruntime}[peer](model)

    async def answer(request: Request) -> JSONResponse:
        inputs = (await request.json())["inputs"]
        vectors = await run_in_threadpool(embed, [inputs] if isinstance(inputs, str) else inputs)
        return JSONResponse(vectors.tolist())

    app = Starlette(routes=[Route("/embed", answer, methods=["POST"])])
    uvicorn.run(app, port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
