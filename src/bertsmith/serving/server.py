"""Run the application: the socket, signals, and the end, at which accepted requests are finished."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names, pluralize
from bertsmith.serving.app import create_app
from bertsmith.serving.limits import Limits
from bertsmith.serving.models import ModelRegistry
from bertsmith.serving.requests import ServerState

_POLL_SECONDS = 0.02
_LAST_REQUEST_SECONDS = (
    1.0  # in which open connections may send another request before a draining server ends
)
_MAX_HEAD_BYTES = 65_536  # of a request: its URL and headers
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")

logger = logging.getLogger(__name__)


def serve(
    models: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key: str | None = None,
    auth: bool = True,
    cors_origins: Sequence[str] = (),
    limits: Limits | None = None,
    device: str = "auto",
    precision: str = "auto",
) -> None:
    """Serve models over HTTP until SIGTERM or SIGINT.

    Args:
        models: Runs, model folders, or published names, each also as "NAME=PATH"; the first is the default.
        host: The address to listen on.
        port: The port; 0: any free one.
        api_key: The key that requests must send as "Authorization: Bearer KEY".
        auth: False: serve other machines without a key.
        cors_origins: The origins whose pages may send requests.
        limits: The limits; None: the defaults.
        device: The device, as in `load`.
        precision: The precision, as in `load`.

    Raises:
        InputError: A model cannot be loaded, the address cannot be used, or other machines could send requests
            without a key.
    """
    host = host.strip("[]")  # of an IPv6 address, as in URLs
    if not api_key and auth and not _is_loopback(host):
        message = "other machines can reach this address, so requests need a key"
        hint = (
            f"give {option('api_key')} or set BERTSMITH_API_KEY; or allow everyone by {option('auth', False)}"
        )
        raise InputError("api_key_missing", message, argument="host", hint=hint)
    if api_key is not None and (
        not api_key.isascii() or not api_key.isprintable() or " " in api_key or not api_key
    ):
        message = "the key is not printable ASCII without spaces"
        raise InputError("invalid_api_key", message, argument="api_key", hint="choose another one")
    hosts = (*_LOOPBACK_NAMES, host) if not api_key and _is_loopback(host) else ()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends without Nagle's delay only if the protocol of the socket is explicit.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        _listen(listener, host, port)
        _allow_many_connections()
        registry = ModelRegistry(models, device, precision)
        app = create_app(registry, limits, api_key=api_key, cors_origins=cors_origins, hosts=hosts)
        Server(app).run(sockets=[listener])


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _allow_many_connections() -> None:
    """Raise the number of open files to what the system allows; each connection is one."""
    with suppress(ImportError, OSError, ValueError):
        import resource  # not on Windows

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _listen(listener: socket.socket, host: str, port: int) -> None:
    """Listen before the models are loaded, so that a second server fails at once; connections wait until then."""
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except (OSError, UnicodeError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        hint = f"choose another {option('port')} or {option('host')}"
        raise InputError(
            "address_unavailable", f"cannot listen on {host}, port {port}: {reason}", hint=hint
        ) from None


class _HTTPProtocol(HttpToolsProtocol):
    """HTTP with limits of the bytes and the time of a request's head, and of the time to take an answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        state: ServerState = self.config.app.state.server  # type: ignore[union-attr]
        self._limits = state.limits
        transport.set_write_buffer_limits(high=0)  # writing is paused until the client has taken everything
        self._start_head()
        self._write_timer = self._head_timer  # until writing is paused

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._limits.max_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._write_timer.cancel()
        super().resume_writing()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_timer.cancel()
        self._start_head()

    def data_received(self, data: bytes) -> None:
        self._has_body_end = False
        super().data_received(data)
        if self._in_head and not self._has_body_end:  # otherwise only some of the data belong to the head
            self._head_bytes += len(data)
        if self._head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def on_message_complete(self) -> None:
        self._has_body_end = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self.cycle.response_complete and self.cycle.more_body:  # nothing limits the rest of the body
            self.transport.close()
        super().on_response_complete()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_timer.cancel()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_timer.cancel()
        self._write_timer.cancel()
        super().connection_lost(exc)

    def _start_head(self) -> None:
        self._in_head, self._head_bytes = True, 0
        self._head_timer = self.loop.call_later(self._limits.max_body_seconds, self.transport.abort)


class Server(uvicorn.Server):
    """A server that drains on SIGTERM and SIGINT, and loads its models again on SIGHUP.

    Draining refuses new requests with 503, finishes those that were accepted, and returns, after `max_seconds` and
    a second for last requests at the latest. A second signal ends all connections at once.
    """

    def __init__(self, app: Starlette) -> None:
        """Create a server of an application of `create_app`; `run` and `serve` take its sockets."""
        self._state: ServerState = app.state.server
        super().__init__(
            uvicorn.Config(
                app,
                http=_HTTPProtocol,
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                ws="none",
                lifespan="on",
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals; outside the main thread, they belong to other code."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        handlers = {signal.SIGTERM: self.drain, signal.SIGINT: self.drain, signal.SIGHUP: self.reload}
        previous = {number: signal.getsignal(number) for number in handlers}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number, previous_handler in previous.items():
                loop.remove_signal_handler(number)
                signal.signal(number, previous_handler)

    def reload(self) -> None:
        """Load the models again in a thread that does not keep the process alive."""
        threading.Thread(target=self._state.registry.reload, daemon=True).start()

    def drain(self) -> None:
        """Refuse new requests, and stop when all others have their answers; a second call stops at once."""
        if self._state.is_draining:
            self._stop_at_once()
            return
        self._state.is_draining = self._state.registry.is_closed = True
        if self._state.num_open:
            count = pluralize(self._state.num_open, "request")
            logger.info("finishing %s; a second signal stops at once", count)
        self._draining = asyncio.ensure_future(self._stop_when_idle())
        asyncio.get_running_loop().call_later(self._state.limits.max_seconds, self._stop_at_once)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and log the address."""
        await super().startup(sockets)
        for listener in sockets or ():
            address, port = listener.getsockname()[:2]
            url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
            logger.info("%s: serving %s", url, join_names([model.name for model in self._state.registry]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new connections, and end the open ones; after draining, first answer their last requests."""
        if self._state.is_draining:
            await self._stop_listening(sockets or [])
            end_time = time.monotonic() + _LAST_REQUEST_SECONDS
            while self.server_state.connections and time.monotonic() < end_time:
                await asyncio.sleep(_POLL_SECONDS)
        await super().shutdown(sockets)

    async def _stop_listening(self, listeners: Sequence[socket.socket]) -> None:
        """Close the sockets that listen, and accept connections that wait there: the system would reset them."""
        waiting = []
        for listener in listeners:
            with suppress(OSError):  # until none waits
                while True:
                    waiting.append(listener.accept()[0])
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        for connection in waiting:
            connection.setblocking(False)
            await loop.connect_accepted_socket(self._create_protocol, connection)

    def _create_protocol(self) -> _HTTPProtocol:
        return _HTTPProtocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    async def _stop_when_idle(self) -> None:
        while self._state.num_open:
            await asyncio.sleep(_POLL_SECONDS)
        self.should_exit = True

    def _stop_at_once(self) -> None:
        self.should_exit = True
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for task in self.server_state.tasks:
            task.cancel()
