"""Read and validate the body of a request, find its model, and have it answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect, Request

from bertsmith.errors import InputError
from bertsmith.inference.predictor import Predictor
from bertsmith.serving.engine import Engine
from bertsmith.serving.limits import Limits
from bertsmith.serving.metrics import ServerMetrics
from bertsmith.serving.models import ModelRegistry, ServedModel
from bertsmith.tasks.batching import Answers


@dataclass
class ServerState:
    """The parts of a server, as `request.app.state.server`.

    Attributes:
        registry: The models.
        engine: Answers requests.
        limits: The limits.
        metrics: The metrics.
        num_open: The number of accepted requests that have no complete answer yet.
        is_draining: True if new requests are refused.
    """

    registry: ModelRegistry
    engine: Engine
    limits: Limits
    metrics: ServerMetrics
    num_open: int = 0
    is_draining: bool = False


class Body(BaseModel):
    """Base class of the bodies of requests; values are not converted, and unknown names are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


BodyT = TypeVar("BodyT", bound=BaseModel)


def server_state(request: Request) -> ServerState:
    """Return the parts of the server."""
    state: ServerState = request.app.state.server
    return state


def served_model(request: Request, name: str | None = None) -> ServedModel:
    """Return the model of a name, by default of the URL's parameter `model`; without one, the first model."""
    registry = server_state(request).registry
    name = name or request.path_params.get("model")
    return registry.default if name is None else registry[name]


async def read_body(request: Request, body_class: type[BodyT]) -> BodyT:
    """Read and validate the JSON body of a request.

    Raises:
        InputError: The body is too large, arrives too slowly, or is not the JSON that the class describes.
    """
    return validate(body_class, await _read_json(request))


def validate(body_class: type[BodyT], value: Any, location: str = "") -> BodyT:
    """Validate a body, or the part of it at a location; raise InputError for the first mistake."""
    try:
        return body_class.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        argument = ".".join(filter(None, [location, *map(str, first["loc"])]))
        field = body_class.model_fields.get(str(first["loc"][0])) if first["loc"] else None
        hint = field.description if field is not None else None
        raise InputError("invalid_body", first["msg"], argument=argument or None, hint=hint) from None


async def answer(
    request: Request, predictor: Predictor, inputs: Sequence[Any], prepared: Sequence[Any] | None = None
) -> Answers:
    """Have inputs answered, unless the client goes away.

    Args:
        request: The request, whose body has been read.
        predictor: The predictor.
        inputs: The inputs as `Predictor.preprocess` takes them.
        prepared: The model's inputs; None: `Predictor.preprocess` makes them.

    Raises:
        ClientDisconnect: The client went away; nothing more is computed for it.
        BertsmithError: As `Engine.answer` raises it.
    """
    engine = server_state(request).engine
    answers = asyncio.ensure_future(engine.answer(predictor, inputs, prepared))
    disconnect = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((answers, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if answers.done():
            return answers.result()
        raise ClientDisconnect
    finally:
        answers.cancel()
        disconnect.cancel()


def check_num_inputs(request: Request, count: int) -> None:
    """Raise InputError if a request has no inputs, or more than the limit."""
    limit = server_state(request).limits.max_inputs
    if not count:
        raise InputError("no_inputs", "there are no inputs", argument="inputs", hint="send at least one")
    if count > limit:
        message = f"there are {count:,} inputs, more than {limit:,}"
        raise InputError("too_many_inputs", message, argument="inputs", hint="send several requests")


def total_tokens(answers: Answers, predictor: Predictor) -> int:
    """Return the number of tokens that answers cost."""
    return sum(predictor.sizes(answers.items))


async def _read_json(request: Request) -> Any:
    limits = server_state(request).limits
    if request.headers.get("content-encoding", "identity") != "identity":
        message = "compressed bodies are not read"
        raise InputError(
            "content_encoding_unsupported", message, hint="send the body without Content-Encoding"
        )
    length = request.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > 15 or int(length) > limits.max_body_bytes):
        raise _too_large(limits)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.max_body_seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limits.max_body_bytes:
                    raise _too_large(limits)
    except TimeoutError:
        message = f"the body did not arrive in {limits.max_body_seconds:g} s"
        raise InputError("body_too_slow", message) from None
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InputError("invalid_json", f"the body is not valid JSON: {error}") from None
    depth = limits.max_json_depth
    if body.count(b"[") + body.count(b"{") > depth and _is_deeper(value, depth):
        raise InputError("json_too_deep", f"lists and objects are nested more than {depth} deep")
    return value


def _too_large(limits: Limits) -> InputError:
    message = f"the body has more than {limits.max_body_bytes:,} bytes"
    return InputError("body_too_large", message, hint="send several requests")


def _is_deeper(value: Any, depth: int) -> bool:
    """Return True if lists and dicts are nested deeper."""
    level = [value]
    for _ in range(depth):
        children: list[Any] = []
        for container in level:
            if isinstance(container, list | dict):
                children += container.values() if isinstance(container, dict) else container
        if not (level := children):
            return False
    return any(isinstance(container, list | dict) for container in level)
