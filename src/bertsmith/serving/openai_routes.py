"""OpenAI's routes: `/v1/embeddings`; its `/v1/models` is also the list of the native routes."""

from __future__ import annotations

import base64
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bertsmith.serving import compatible
from bertsmith.serving.errors import JSONResponse
from bertsmith.serving.requests import read_body


class EmbeddingsBody(compatible.CompatibleBody):
    """The body of /v1/embeddings."""

    input: Any
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)


async def embeddings(request: Request) -> Response:
    """Embed texts, given as strings or as token ids."""
    body = await read_body(request, EmbeddingsBody)
    model = compatible.choose_model(request, body.model, compatible.can_embed, "embed texts")
    options = compatible.VectorOptions(dimensions=body.dimensions)
    vectors, tokens = await compatible.embed(
        request, model, compatible.to_texts(body.input, "input"), options
    )
    data = [
        {
            "object": "embedding",
            "index": i,
            "embedding": to_base64(v) if body.encoding_format == "base64" else v,
        }
        for i, v in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return JSONResponse({"object": "list", "model": model.name, "data": data, "usage": usage})


def to_base64(vector: NDArray[np.float32]) -> str:
    """Return the bytes of little-endian float32 in base64."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


ROUTES = [
    Route("/v1/embeddings", embeddings, methods=["POST"]),
    Route("/embeddings", embeddings, methods=["POST"]),
]
