"""Errors as HTTP answers: a status for each code, and one JSON body that the clients of other servers read."""

from __future__ import annotations

import logging
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response

from bertsmith.errors import BertsmithError, InputError

logger = logging.getLogger(__name__)

STATUS = {
    "invalid_json": 400,
    "json_too_deep": 400,
    "no_inputs": 400,
    "unauthorized": 401,
    "host_refused": 403,
    "origin_refused": 403,
    "model_unknown": 404,
    "route_missing": 404,
    "body_too_slow": 408,
    "answer_too_large": 413,
    "body_too_large": 413,
    "too_many_inputs": 413,
    "too_many_tokens": 413,
    "content_encoding_unsupported": 415,
    "queue_full": 429,
    "out_of_memory": 503,
    "draining": 503,
    "timeout": 504,
}
"""The status of errors by code. Other errors of the input have 422, all others 500."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_UNREAD = (401, 403, 404, 405, 408, 413, 415)  # the rest of the body is not read, so the connection ends
_RETRY_AFTER = {429: 1, 503: 1}  # seconds


class JSONResponse(Response):
    """A JSON answer; floats of NumPy arrays have the digits of their type."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the JSON of a value."""
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


class ErrorResponse(JSONResponse):
    """The answer to a request that is refused or failed.

    Attributes:
        code: The code of the error.
        message: A sentence, with a hint if there is one.
    """

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        """Create the answer.

        Args:
            status: The HTTP status.
            code: The code of the error.
            message: A sentence, with a hint if there is one.
            param: The part of the request that is wrong.
        """
        self.code, self.message = code, message
        kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        error = {"message": message, "type": kind, "code": code, "param": param}
        headers = {"Retry-After": str(_RETRY_AFTER[status])} if status in _RETRY_AFTER else {}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if status in _UNREAD:
            headers["Connection"] = "close"
        super().__init__({"error": error, "message": message}, status, headers)


def error_response(error: Exception) -> ErrorResponse:
    """Return the answer for an exception; an unexpected one is logged, and the answer does not mention it."""
    if isinstance(error, BertsmithError):
        status = STATUS.get(error.code, 422 if isinstance(error, InputError) else 500)
        if status == 500:
            logger.error("%s", error)
        hint = f"; {error.hint_for('python')}" if error.hint else ""
        return ErrorResponse(status, error.code, error.sentence_for("python") + hint, error.argument)
    if isinstance(error, HTTPException):
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        response = ErrorResponse(
            error.status_code, code, f"{error.detail}; GET /openapi.json lists the routes"
        )
        response.headers.update(error.headers or {})
        return response
    logger.error("unexpected error", exc_info=error)
    return ErrorResponse(500, "internal_error", "the server failed; its log has the reason")
