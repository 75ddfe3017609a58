"""The HTTP application: its routes, and what holds for all of them: keys, time limits, errors, metrics, logs."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Sequence, Set
from contextlib import asynccontextmanager, suppress
from importlib import resources
from time import perf_counter
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertsmith.errors import InputError, MachineError
from bertsmith.serving import cohere_routes, huggingface_routes, native, openai_routes, tei_routes
from bertsmith.serving.engine import Engine
from bertsmith.serving.errors import ErrorResponse, JSONResponse, error_response
from bertsmith.serving.limits import Limits
from bertsmith.serving.metrics import ServerMetrics
from bertsmith.serving.models import ModelRegistry
from bertsmith.serving.openapi import openapi
from bertsmith.serving.requests import ServerState, server_state

access_logger = logging.getLogger("bertsmith.serving.access")
"""Logs each request; a record has the values in `request`."""

_OPEN_PATHS = ("/", "/health", "/health/live", "/health/ready")  # GET needs no key: nothing about the models
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def create_app(
    registry: ModelRegistry,
    limits: Limits | None = None,
    *,
    api_key: str | None = None,
    cors_origins: Sequence[str] = (),
    hosts: Sequence[str] = (),
) -> Starlette:
    """Create the application; its state `server` is a `ServerState`.

    Args:
        registry: The models.
        limits: The limits; None: the defaults.
        api_key: The key that requests need; None: none.
        cors_origins: The origins whose pages may send requests, such as "https://example.com"; "*": all.
        hosts: The names by which requests may address the server, besides those in `cors_origins`, so that no
            other name leads to it (DNS rebinding); empty: any.
    """
    limits, metrics = limits or Limits(), ServerMetrics()
    state = ServerState(registry, Engine(limits, metrics), limits, metrics)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with state.engine:
            yield

    names = {*hosts, *map(_host_name, cors_origins)} if hosts and "*" not in cors_origins else set()
    middleware = [Middleware(_Gate, state=state, api_key=api_key, origins=cors_origins, hosts=names)]
    if cors_origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
        middleware.insert(0, cors)
    app = Starlette(
        routes=[
            Route("/", _page, methods=["GET"]),
            Route("/openapi.json", _openapi, methods=["GET"]),
            Route("/health/live", _live, methods=["GET"]),
            Route("/health/ready", _ready, methods=["GET"]),
            Route("/metrics", _metrics, methods=["GET"]),
            *native.ROUTES,
            *openai_routes.ROUTES,
            *tei_routes.ROUTES,
            *cohere_routes.ROUTES,
            *huggingface_routes.ROUTES,
        ],
        middleware=middleware,
        exception_handlers={
            HTTPException: lambda request, error: _in_form(error_response(error), request.url.path)
        },
        lifespan=lifespan,
    )
    app.state.server = state
    return app


class _Gate:
    """Refuses requests without a key or while the server drains, ends slow ones, answers errors, and counts."""

    def __init__(
        self, app: ASGIApp, state: ServerState, api_key: str | None, origins: Sequence[str], hosts: Set[str]
    ) -> None:
        self._app, self._state, self._cors_origins, self._hosts = app, state, origins, hosts
        self._key = None if api_key is None else api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, code, is_accepted, start_time = 0, "", False, perf_counter()

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self._state.is_draining:  # the client sends its next request elsewhere
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        try:
            try:
                async with asyncio.timeout(self._state.limits.max_seconds):
                    is_accepted = self._check(scope)
                    self._state.num_open += is_accepted
                    await self._app(scope, receive, send_and_note)
            except ClientDisconnect:
                code = "client_disconnected"
            except Exception as error:
                code = await self._send_error(
                    error, is_started=bool(status), scope=scope, receive=receive, send=send_and_note
                )
        except asyncio.CancelledError:  # the server stops at once, also while an error is sent
            code = "client_disconnected"
        finally:
            self._state.num_open -= is_accepted
            self._note(scope, status, code, perf_counter() - start_time)

    def _check(self, scope: Scope) -> bool:
        """Return False for a request that a server answers while it drains; raise an error for a refused one."""
        headers = Headers(scope=scope)
        if self._hosts and _host_name(headers.get("host", "//localhost")) not in self._hosts:
            hint = "use localhost, or start the server with --cors-origin or --api-key"
            raise InputError("host_refused", "the server has no such name", argument="Host", hint=hint)
        origin, allowed = headers.get("origin"), self._cors_origins
        is_allowed = origin in (None, *allowed) or "*" in allowed
        if origin is not None and not is_allowed and origin.partition("://")[2] != headers.get("host"):
            hint = "start the server with --cors-origin to allow it"
            raise InputError("origin_refused", "pages of other sites may not send requests", hint=hint)
        if scope["path"] in _OPEN_PATHS and scope["method"] in ("GET", "HEAD"):
            return False
        if self._key is not None:
            scheme, _, key = headers.get("authorization", "").partition(" ")
            if not hmac.compare_digest(key.encode(), self._key) or scheme.lower() != "bearer":
                hint = "send the header 'Authorization: Bearer KEY'"
                raise InputError("unauthorized", "the key is missing or wrong", hint=hint)
        if self._state.is_draining:
            raise MachineError(
                "draining", "the server is stopping", hint="send the request to another server"
            )
        if scope["method"] == "POST":
            self._state.engine.check_queue()  # before the body is read
        return True

    async def _send_error(
        self, error: Exception, *, is_started: bool, scope: Scope, receive: Receive, send: Send
    ) -> str:
        """Answer with an error, unless an answer has begun, and return its code."""
        if isinstance(error, TimeoutError):
            seconds = self._state.limits.max_seconds
            error = MachineError("timeout", f"there was no answer in {seconds:g} s", hint="try again later")
        response = error_response(error)
        if not is_started:
            await _in_form(response, scope["path"])(scope, receive, send)
        return response.code

    def _note(self, scope: Scope, status: int, code: str, seconds: float) -> None:
        """Count and log a request."""
        metrics, route = self._state.metrics, getattr(scope.get("route"), "path", "unknown")
        metrics.requests.labels(route).inc()
        metrics.request_seconds.labels(route).observe(seconds)
        if code or status >= 400:
            metrics.failures.labels(route, code or str(status)).inc()
        else:
            metrics.successes.labels(route).inc()
        if access_logger.isEnabledFor(logging.INFO):
            values = {"route": route, "status": status, "code": code, "seconds": round(seconds, 6)}
            access_logger.info("%s %s", scope["method"], scope["path"], extra={"request": values})


def _host_name(url: str) -> str:
    """Return the name of an origin or of the header Host, without the port; an invalid one is its own name."""
    with suppress(ValueError):
        return urlsplit(url if "//" in url else f"//{url}").hostname or url
    return url


def _in_form(response: ErrorResponse, path: str) -> JSONResponse:
    """Return an error in the form that the clients of a path read."""
    return tei_routes.error_as_string(response) if path in tei_routes.PATHS else response


async def _page(request: Request) -> Response:
    """Return the page to try the routes."""
    page = resources.files("bertsmith.serving").joinpath("page.html").read_text(encoding="utf-8")
    return HTMLResponse(page, headers=_PAGE_HEADERS)


async def _openapi(request: Request) -> Response:
    """Describe the routes of the served models."""
    return JSONResponse(openapi(server_state(request).registry))


async def _live(request: Request) -> Response:
    """Answer as long as the process runs."""
    return JSONResponse({"status": "live"})


async def _ready(request: Request) -> Response:
    """Answer 200 if requests are accepted, and 503 while the server stops."""
    if server_state(request).is_draining:
        return ErrorResponse(503, "draining", "the server is stopping")
    return JSONResponse({"status": "ready"})


async def _metrics(request: Request) -> Response:
    """Return the metrics in Prometheus's format."""
    return Response(server_state(request).metrics.text(), media_type="text/plain; version=0.0.4")
