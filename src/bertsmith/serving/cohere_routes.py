"""Cohere's routes: `/v1/rerank`, `/v2/rerank`, and `/v2/embed`."""

from __future__ import annotations

import uuid
from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bertsmith.serving import compatible
from bertsmith.serving.errors import JSONResponse
from bertsmith.serving.openai_routes import to_base64
from bertsmith.serving.requests import read_body

_DIRECTIONS = {"NONE": None, "START": "left", "END": "right"}


class CohereDocument(compatible.CompatibleBody):
    """A document of Cohere's first version."""

    text: str


class CohereRerankBody(compatible.CompatibleBody):
    """The body of /v1/rerank and /v2/rerank."""

    query: str
    documents: list[str | CohereDocument]
    model: str | None = None
    top_n: int | None = Field(None, ge=1)
    return_documents: bool = False

    @property
    def texts(self) -> list[str]:
        """The texts of the documents."""
        return [document if isinstance(document, str) else document.text for document in self.documents]


class CohereEmbedBody(compatible.CompatibleBody):
    """The body of /v2/embed."""

    texts: list[str]
    model: str | None = None
    embedding_types: list[Literal["float", "base64"]] = Field(["float"], min_length=1)
    truncate: Literal["NONE", "START", "END"] = "END"
    output_dimension: int | None = Field(None, ge=1)


async def rerank_documents(request: Request) -> Response:
    """Return the relevance of documents to a query, the best first."""
    body = await read_body(request, CohereRerankBody)
    model = compatible.choose_model(request, body.model, compatible.can_rerank, "score pairs of texts")
    texts = body.texts
    ranks = (await compatible.rerank(request, model, body.query, texts))[: body.top_n]
    results = [
        {"index": index, "relevance_score": score}
        | ({"document": {"text": texts[index]}} if body.return_documents else {})
        for index, score in ranks
    ]
    return JSONResponse({"id": str(uuid.uuid4()), "results": results, "meta": _meta(request, search_units=1)})


async def embed_texts(request: Request) -> Response:
    """Embed texts."""
    body = await read_body(request, CohereEmbedBody)
    model = compatible.choose_model(request, body.model, compatible.can_embed, "embed texts")
    direction = _DIRECTIONS[body.truncate]
    options: dict[str, Any] = {
        "truncate": direction is not None,
        "truncation_direction": direction or "right",
    }
    vectors, tokens = await compatible.embed(
        request, model, body.texts, compatible.VectorOptions(dimensions=body.output_dimension, **options)
    )
    embeddings = {
        name: vectors if name == "float" else [to_base64(vector) for vector in vectors]
        for name in body.embedding_types
    }
    meta = _meta(request, input_tokens=tokens)
    return JSONResponse(
        {"id": str(uuid.uuid4()), "embeddings": embeddings, "texts": body.texts, "meta": meta}
    )


def _meta(request: Request, **billed_units: int) -> dict[str, Any]:
    version = request.url.path.split("/")[1].removeprefix("v")
    return {"api_version": {"version": version}, "billed_units": billed_units}


ROUTES = [
    Route("/v1/rerank", rerank_documents, methods=["POST"]),
    Route("/v2/rerank", rerank_documents, methods=["POST"]),
    Route("/v2/embed", embed_texts, methods=["POST"]),
]
