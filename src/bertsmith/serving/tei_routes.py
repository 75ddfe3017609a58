"""The routes of Text Embeddings Inference (TEI), with its options, and errors as strings.

Other than there, `truncate` is true by default, and several models may be served: the first that can answers.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bertsmith.errors import InputError
from bertsmith.inference.embedding import TokenEmbedder
from bertsmith.inference.predictor import with_class
from bertsmith.serving import compatible
from bertsmith.serving.engine import TOKENIZATION_THREADS
from bertsmith.serving.errors import ErrorResponse, JSONResponse
from bertsmith.serving.models import ServedModel
from bertsmith.serving.requests import answer, check_num_inputs, read_body, server_state
from bertsmith.tasks.windows import NO_LIMIT
from bertsmith.tokenizer.tokenizer import Encoding

_MAX_NUMBERS = 5_000_000  # of the vectors of tokens, some 60 MB of JSON
_ERROR_TYPES = {"no_inputs": "Empty", "queue_full": "Overloaded", "draining": "Unhealthy"}


class TeiEmbedBody(compatible.VectorOptions):
    """The body of /embed and /embed_all."""

    inputs: Any
    normalize: bool | None = True


class SimilarityBody(compatible.CompatibleBody):
    """The body of /similarity."""

    inputs: compatible.SimilarityInputs
    parameters: compatible.VectorOptions = compatible.VectorOptions()


class ScoreOptions(compatible.CompatibleBody):
    """The options of /predict and /rerank. Pairs and windows are truncated at the right only."""

    truncate: bool | None = True
    truncation_direction: Literal["right", "Right"] = "right"
    raw_scores: bool = False


class TeiPredictBody(ScoreOptions):
    """The body of /predict: a text, a pair of texts, or a list of lists of one or two texts."""

    inputs: Any


class TeiRerankBody(ScoreOptions):
    """The body of /rerank."""

    query: str
    texts: list[str]
    return_text: bool = False


class TokenizeBody(compatible.CompatibleBody):
    """The body of /tokenize."""

    inputs: str | list[str]
    add_special_tokens: bool = True
    prompt_name: str | None = None


class DecodeBody(compatible.CompatibleBody):
    """The body of /decode."""

    ids: list[int] | list[list[int]]
    skip_special_tokens: bool = True


async def embed_texts(request: Request) -> Response:
    """Return a vector for each text."""
    body = await read_body(request, TeiEmbedBody)
    model = compatible.choose_model(request, None, compatible.can_embed, "embed texts")
    vectors, _ = await compatible.embed(request, model, compatible.to_texts(body.inputs, "inputs"), body)
    return JSONResponse(vectors)


async def embed_tokens(request: Request) -> Response:
    """Return a vector for each token of each text."""
    body = await read_body(request, TeiEmbedBody)
    model = compatible.choose_model(request, None, compatible.can_embed, "embed texts")
    texts = compatible.to_texts(body.inputs, "inputs")
    check_num_inputs(request, len(texts))
    embedder = with_class(compatible.with_options(model.embedder, body), TokenEmbedder)
    answers = await answer(request, embedder, compatible.add_prompt(model, texts, body.prompt_name))
    if sum(states.size for states in answers.predictions) > _MAX_NUMBERS:
        message, hint = (
            f"the answer would have more than {_MAX_NUMBERS:,} numbers",
            "send fewer or shorter texts",
        )
        raise InputError("answer_too_large", message, argument="inputs", hint=hint)
    return await asyncio.to_thread(JSONResponse, answers.predictions)


async def similarity(request: Request) -> Response:
    """Return the cosine of a text and each of others."""
    body = await read_body(request, SimilarityBody)
    model = compatible.choose_model(request, None, compatible.can_embed, "embed texts")
    texts: list[compatible.Text] = [body.inputs.source_sentence, *body.inputs.sentences]
    vectors, _ = await compatible.embed(request, model, texts, body.parameters)
    return JSONResponse(compatible.cosines(vectors))


async def predict(request: Request) -> Response:
    """Return the scores of all labels, the best first; a list of them for a batch."""
    body = await read_body(request, TeiPredictBody)
    model = compatible.choose_model(request, None, compatible.can_classify, "classify texts")
    rows, is_batch = _rows(body.inputs)
    inputs = {"text": [row[0] for row in rows]}
    if rows and len(rows[0]) > 1:
        inputs["text_pair"] = [row[-1] for row in rows]
    function: compatible.Function | None = "none" if body.raw_scores else _default_function(model)
    scores = await compatible.score_labels(
        request, model, inputs, function, truncate=body.truncate is not False
    )
    answers = [[{"score": score, "label": label} for label, score in by_label.items()] for by_label in scores]
    return JSONResponse(answers if is_batch else answers[0])


def _rows(inputs: Any) -> tuple[list[list[str]], bool]:
    """Return the texts of each input, one or two, and whether the inputs are a batch."""
    if isinstance(inputs, str):
        return [[inputs]], False
    if isinstance(inputs, list):
        is_batch = not all(isinstance(text, str) for text in inputs)
        rows = inputs if is_batch else [inputs]
        sizes = {len(row) if _are_texts(row) else 0 for row in rows}
        if sizes <= {1} or sizes == {2}:
            return rows, is_batch
    message = "this is not a text, a pair of texts, or a list of lists of one text each, or of two each"
    raise InputError("invalid_body", message, argument="inputs")


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _default_function(model: ServedModel) -> Literal["sigmoid"] | None:
    """Return "sigmoid" for a model with one output, as TEI does; None for probabilities of labels."""
    return "sigmoid" if len(model.predictor.task.labels or ()) < 2 else None


async def rerank_texts(request: Request) -> Response:
    """Return the relevance of texts to a query, the best first."""
    body = await read_body(request, TeiRerankBody)
    model = compatible.choose_model(request, None, compatible.can_rerank, "score pairs of texts")
    ranks = await compatible.rerank(
        request, model, body.query, body.texts, logits=body.raw_scores, truncate=body.truncate is not False
    )
    texts = [{"text": body.texts[index]} if body.return_text else {} for index, _ in ranks]
    return JSONResponse(
        [{"index": index, **text, "score": score} for (index, score), text in zip(ranks, texts, strict=True)]
    )


async def tokenize(request: Request) -> Response:
    """Return the tokens of each text with their characters."""
    body, model = await read_body(request, TokenizeBody), server_state(request).registry.default
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    check_num_inputs(request, len(texts))
    prompted = [str(text) for text in compatible.add_prompt(model, texts, body.prompt_name)]

    def tokens() -> list[list[dict[str, Any]]]:
        encodings = model.model.tokenizer.encode_batch(prompted, max_length=NO_LIMIT)
        pairs = zip(prompted, encodings, strict=True)
        return [_tokens(text, encoding, special=body.add_special_tokens) for text, encoding in pairs]

    return JSONResponse(await asyncio.to_thread(tokens))


def _tokens(text: str, encoding: Encoding, *, special: bool) -> list[dict[str, Any]]:
    tokens = []
    for i, token, (start, stop), source in zip(
        encoding.ids, encoding.tokens, encoding.offsets, encoding.sequence_ids, strict=True
    ):
        if source is not None:
            tokens.append({"id": i, "text": text[start:stop], "special": False, "start": start, "stop": stop})
        elif special:
            tokens.append({"id": i, "text": token, "special": True, "start": None, "stop": None})
    return tokens


async def decode(request: Request) -> Response:
    """Return the text of token ids."""
    body, tokenizer = (
        await read_body(request, DecodeBody),
        server_state(request).registry.default.model.tokenizer,
    )
    rows: list[Any] = [body.ids] if body.ids and isinstance(body.ids[0], int) else list(body.ids)
    check_num_inputs(request, len(rows))
    if not all(0 <= i < len(tokenizer) for row in rows for i in row):
        hint = f"use ids from 0 to {len(tokenizer) - 1:,}"
        raise InputError("token_id_out_of_range", "no token has one of the ids", argument="ids", hint=hint)
    keep = not body.skip_special_tokens
    texts = [await asyncio.to_thread(tokenizer.decode, row, keep_special_tokens=keep) for row in rows]
    return JSONResponse(texts)


async def info(request: Request) -> Response:
    """Describe the first model and the limits."""
    state = server_state(request)
    model, limits = state.registry.default, state.limits
    model_type: dict[str, Any] = {}
    if compatible.can_classify(model):
        labels = model.predictor.task.labels or []
        names = {
            "id2label": dict(enumerate(labels)),
            "label2id": {label: i for i, label in enumerate(labels)},
        }
        model_type["reranker" if compatible.can_rerank(model) else "classifier"] = names
    elif compatible.can_embed(model):
        model_type["embedding"] = {"pooling": model.embedder.config.pooling}
    return JSONResponse(
        {
            "model_id": model.name,
            "model_sha": None,
            "model_dtype": model.model.precision,
            "served_model_name": model.name,
            "model_type": model_type,
            "max_concurrent_requests": limits.max_waiting,
            "max_input_length": model.max_length,
            "max_batch_tokens": limits.max_batch_tokens,
            "max_batch_requests": None,
            "max_client_batch_size": limits.max_inputs,
            "auto_truncate": True,
            "tokenization_workers": TOKENIZATION_THREADS,
            "version": version("bertsmith"),
            "sha": None,
            "docker_label": None,
        }
    )


async def embed_sparse(request: Request) -> Response:
    """Refuse sparse vectors."""
    message = "this server has no sparse vectors (SPLADE)"
    raise InputError("route_missing", message, hint="POST /embed returns dense ones")


async def health(request: Request) -> Response:
    """Answer 200 if requests are accepted, and 503 while the server stops."""
    if server_state(request).is_draining:
        return error_as_string(ErrorResponse(503, "draining", "the server is stopping"))
    return JSONResponse({"status": "ready"})


def error_as_string(response: ErrorResponse) -> JSONResponse:
    """Return an error in TEI's form, in which `error` is a string."""
    kind = _ERROR_TYPES.get(response.code) or ("Validation" if response.status_code < 500 else "Backend")
    body = {"error": response.message, "error_type": kind, "code": response.code}
    headers = {
        name: response.headers[name]
        for name in ("Retry-After", "Connection", "Allow")
        if name in response.headers
    }
    return JSONResponse(body, response.status_code, headers)


ROUTES = [
    Route("/embed", embed_texts, methods=["POST"]),
    Route("/embed_all", embed_tokens, methods=["POST"]),
    Route("/embed_sparse", embed_sparse, methods=["POST"]),
    Route("/similarity", similarity, methods=["POST"]),
    Route("/predict", predict, methods=["POST"]),
    Route("/rerank", rerank_texts, methods=["POST"]),
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/decode", decode, methods=["POST"]),
    Route("/info", info, methods=["GET"]),
    Route("/health", health, methods=["GET"]),
]
PATHS = frozenset(route.path for route in ROUTES)
"""The paths whose errors are strings."""
