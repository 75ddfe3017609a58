"""A server in a thread, and requests to it."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest
from starlette.applications import Starlette

from bertsmith.serving.app import create_app
from bertsmith.serving.limits import Limits
from bertsmith.serving.models import ModelRegistry
from bertsmith.serving.requests import ServerState
from bertsmith.serving.server import Server

SECONDS = 60  # after which a test fails; a machine under load is slow


class Reply(NamedTuple):
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of an error."""
        error = self.value["error"]
        assert {"message", "type", "code", "param"} == set(error)
        assert self.value["message"] == error["message"]
        assert "Traceback" not in error["message"]
        return str(error["code"])


def plain(value: Any) -> Any:
    """Return what JSON makes of a value, with numbers that are compared approximately."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return pytest.approx(value, abs=1e-5) if isinstance(value, float) else value


class Client:
    """Sends requests to a server on this machine, each on a connection of its own."""

    def __init__(self, port: int, state: ServerState, drain: Callable[[], object]) -> None:
        self.port, self.state, self.drain = port, state, drain
        self.url = f"http://127.0.0.1:{port}"

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Reply(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.send("GET", path, None, headers)

    def post(self, path: str, value: Any, **headers: str) -> Reply:
        return self.send("POST", path, json.dumps(value).encode(), headers)

    def connect(self, data: bytes = b"") -> socket.socket:
        """Return a connection on which some bytes were sent."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)
        connection.sendall(data)
        return connection


def raw_post(path: str, body: bytes, length: int | None = None) -> bytes:
    """Return the bytes of a POST request."""
    size = len(body) if length is None else length
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode() + body


def wait_until(holds: Any) -> None:
    """Wait until a condition holds."""
    end_time = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end_time, "the condition never held"
        time.sleep(0.002)


@contextmanager
def serve_app(app: Starlette) -> Iterator[Client]:
    """Serve an application on any free port."""
    server = Server(app)
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve([listener])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(run()))
        thread.start()
        try:
            wait_until(lambda: server.started)
            drain = partial(loops[0].call_soon_threadsafe, server.drain)
            yield Client(listener.getsockname()[1], app.state.server, drain)
        finally:
            server.should_exit = True
            thread.join(SECONDS)
            assert not thread.is_alive()


@contextmanager
def served(*sources: Any, limits: Mapping[str, Any] | None = None, **options: Any) -> Iterator[Client]:
    """Serve models on any free port."""
    registry = ModelRegistry(list(map(str, sources)), "cpu", "fp32")
    with serve_app(create_app(registry, Limits.of(limits or {}, "test"), **options)) as client:
        yield client
