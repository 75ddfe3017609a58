"""The description of the native routes by OpenAPI."""

from __future__ import annotations

import inspect
from importlib.metadata import version
from typing import Any

from bertsmith.serving import native
from bertsmith.serving.models import ModelRegistry, ServedModel

_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("message", "type", "code", "param")},
        },
        "message": {"type": "string"},
    },
}
_STATUSES = {
    "400": "The body is not JSON.",
    "401": "The key is missing or wrong.",
    "413": "The body is too large, or has too many inputs or tokens.",
    "422": "The inputs or settings are invalid.",
    "429": "Too many requests are waiting; Retry-After says when to try again.",
    "503": "The server is stopping.",
    "504": "There was no answer in time.",
}


def openapi(registry: ModelRegistry) -> dict[str, Any]:
    """Return the OpenAPI document of the routes of all models."""
    paths: dict[str, Any] = {"/v1/models": {"get": _operation(native.list_models)}}
    for model in registry:
        path = f"/v1/models/{model.name}"
        paths[path] = {"get": _operation(native.show_model)}
        for name in model.routes:
            paths[f"{path}/{name}"] = {"post": _post(model, name)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "bertsmith", "version": version("bertsmith")},
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _post(model: ServedModel, name: str) -> dict[str, Any]:
    """Return the description of a route of a model; of its task with the names of the inputs and settings."""
    schema = native.BODIES[name].model_json_schema()
    if name == "predict":
        task = model.predictor.task
        texts = {"anyOf": [{"type": "string"}, {"type": "array"}]}
        declaration = task.declaration
        schema["properties"]["inputs"] = {
            "type": "object",
            "properties": dict.fromkeys(declaration.inputs, texts),
            "required": [name for name in declaration.inputs if name not in declaration.optional_inputs],
            "additionalProperties": False,
        }
        schema["properties"]["settings"] = declaration.settings_type.model_json_schema()
    handlers = {route.path.rpartition("/")[2]: route.endpoint for route in native.ROUTES}
    operation = _operation(handlers[name])
    operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _operation(handler: Any) -> dict[str, Any]:
    answer = {"description": "The answer.", "content": {"application/json": {"schema": {"type": "object"}}}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    errors = {status: {"description": text, "content": error} for status, text in _STATUSES.items()}
    return {"summary": inspect.getdoc(handler), "responses": {"200": answer, **errors}}
