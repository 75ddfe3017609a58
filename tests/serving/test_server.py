"""The process: its arguments, signals, reload, and logs."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

import bertsmith as bs
import tiny_run
from bertsmith.serving import server
from bertsmith.serving.app import create_app
from bertsmith.serving.limits import Limits
from bertsmith.serving.models import ModelRegistry
from bertsmith.serving.server import serve
from served import SECONDS, Client, raw_post, serve_app, served, wait_until

EMBED = "/v1/models/model/embed"
LARGE_BYTES = 30_000_000  # more than the system buffers of a connection
GET_LARGE = b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextmanager
def process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], Client, list[str]]]:
    """Run `bertsmith serve`; yield the process, a client, and the lines of its log."""
    command = [sys.executable, "-m", "bertsmith", "serve", *arguments, "--port", "0", "--device", "cpu"]
    running = subprocess.Popen([*command, "--json-logs"], stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(iter(running.stderr.readline, "")))  # type: ignore[union-attr]
    try:
        lines.append(running.stderr.readline())
        reader.start()
        port = json.loads(lines[0])["message"].split(":")[2]
        no_state: Any = None
        yield running, Client(int(port), no_state, running.terminate), lines
    finally:
        running.kill()
        running.wait(SECONDS)
        reader.join(SECONDS)
        running.stderr.close()


def test_a_process_reloads_drains_and_logs(base: bs.Model, tmp_path: Path) -> None:
    source = tmp_path / "model"
    shutil.copytree(base.folder.path, source)
    body = {"inputs": "kaba lode migi"}
    with process(str(source)) as (running, client, lines):
        before = client.post(EMBED, body).value["embeddings"]
        other = tiny_run.run(
            tmp_path_shards(tmp_path), tmp_path / "other", "train.max_steps=1", "train.seed=5"
        )
        shutil.rmtree(source)
        running.send_signal(signal.SIGHUP)  # there is no model to load
        wait_until(lambda: any("not loaded again" in line for line in lines))
        assert client.post(EMBED, body).value["embeddings"] == before
        shutil.copytree(other.folder.path, source)
        running.send_signal(signal.SIGHUP)
        wait_until(lambda: client.post(EMBED, body).value["embeddings"] != before)
        with client.connect(raw_post(EMBED, b'{"inputs": "', length=17)) as open_connection:
            wait_until(lambda: b"requests_total" in client.get("/metrics").body)
            running.send_signal(signal.SIGTERM)
            wait_until(lambda: client.get("/health/ready").status == 503)
            assert client.post(EMBED, body).code == "draining"
            open_connection.sendall(b'kab"}')
            assert open_connection.recv(100).startswith(b"HTTP/1.1 200 ")
        assert running.wait(SECONDS) == 0
    values = [json.loads(line) for line in lines]
    assert {value["status"] for value in values if "status" in value} >= {200, 503}
    assert all({"time", "level", "logger", "message"} <= set(value) for value in values)


def tmp_path_shards(tmp_path: Path) -> Any:
    return tiny_run.make_shards(tmp_path / "corpus")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"host": "0.0.0.0"}, "api_key_missing"),
        ({"host": "::"}, "api_key_missing"),
        ({"host": "0.0.0.0", "api_key": ""}, "api_key_missing"),
        ({"api_key": "a b"}, "invalid_api_key"),
        ({"host": "999.1.1.1", "auth": False}, "address_unavailable"),
    ],
)
def test_arguments_are_checked_before_a_model_is_loaded(options: dict[str, Any], code: str) -> None:
    with pytest.raises(bs.InputError) as error:
        serve(["no model"], **options)
    assert error.value.code == code


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(bs.InputError) as error:
        serve(["no model"], port=listener.getsockname()[1])
    assert error.value.code == "address_unavailable"


def test_a_head_that_is_too_large_or_too_slow_ends_the_connection(base: bs.Model) -> None:
    with served(f"model={base.path}", limits={"max_body_seconds": 0.3}) as client:
        with client.connect(b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000) as connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
        for start in (b"", b"GET / HTTP/1.1\r\nX: "):
            with client.connect(start) as connection:
                assert connection.recv(100) == b""
        assert client.get("/health/live").status == 200


def test_an_answer_to_a_request_whose_body_is_missing_ends_the_connection(base: bs.Model) -> None:
    request = raw_post("/health/live", b"x", length=1_000_000).replace(b"POST", b"GET")
    with served(f"model={base.path}") as client, client.connect(request) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
        wait_until(lambda: connection.recv(1000) == b"")


def test_bodies_do_not_count_as_the_head_behind_them(base: bs.Model) -> None:
    requests = raw_post(EMBED, json.dumps({"inputs": "kaba " * 4000}).encode()) * 5
    with (
        served(f"model={base.path}") as client,
        client.connect(requests + b"GET /health/live HT") as connection,
    ):
        time.sleep(0.1)  # the rest arrives by itself
        connection.sendall(b"TP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answers = b"".join(iter(lambda: connection.recv(100_000), b""))
    assert answers.count(b"HTTP/1.1 200 ") == 6


def large_app(base: bs.Model, limits: dict[str, Any]) -> Starlette:
    app = create_app(ModelRegistry([f"model={base.path}"], "cpu", "fp32"), Limits.of(limits, "test"))
    app.router.routes.append(Route("/large", lambda request: Response(bytes(LARGE_BYTES))))
    return app


def test_a_client_of_a_draining_server_has_answers_until_its_connection_is_refused(base: bs.Model) -> None:
    request, statuses = raw_post(EMBED, b'{"inputs": "kaba"}'), list[bytes]()

    def ask_until_refused() -> None:
        with suppress(ConnectionRefusedError):
            while True:
                connection = client.connect()
                time.sleep(0.02)  # a busy client
                with connection:
                    connection.sendall(request)
                    statuses.append(connection.recv(12))

    with served(f"model={base.path}") as client:
        threads = [threading.Thread(target=ask_until_refused) for _ in range(8)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(statuses) > 8)
        client.drain()
        for thread in threads:
            thread.join(SECONDS)
    assert set(statuses) == {b"HTTP/1.1 200", b"HTTP/1.1 503"}


def test_an_answer_that_is_not_taken_in_time_is_dropped(base: bs.Model) -> None:
    with serve_app(large_app(base, {"max_seconds": 0.2})) as client, client.connect(GET_LARGE) as connection:
        size = len(connection.recv(100))
        time.sleep(1)
        with suppress(ConnectionResetError):
            while data := connection.recv(1_000_000):
                size += len(data)
    assert 0 < size < LARGE_BYTES


@pytest.mark.parametrize(("limits", "num_signals"), [({"max_seconds": 0.5}, 1), ({}, 2)])
def test_clients_that_do_not_take_their_answers_do_not_delay_the_end(
    limits: dict[str, Any], num_signals: int, base: bs.Model, caplog: pytest.LogCaptureFixture
) -> None:
    with serve_app(large_app(base, limits)) as client:
        connections = [client.connect(GET_LARGE * 2) for _ in range(3)]
        for connection in connections:
            assert connection.recv(100)
        wait_until(lambda: client.state.num_open == 3)  # the second answers
        start_time = time.monotonic()
        for _ in range(num_signals):
            client.drain()
    assert time.monotonic() - start_time < Limits().max_seconds / 2
    for connection in connections:
        connection.close()
    assert not any(record.exc_info for record in caplog.records)


def test_a_second_server_of_a_port_ends_before_it_loads_models(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    codes = []

    def load(*arguments: Any) -> None:
        monkeypatch.undo()
        with pytest.raises(bs.InputError) as error:
            serve(["no model"], port=port)
        codes.append(error.value.code)
        raise bs.InputError("loaded", "the first server loads its models")

    monkeypatch.setattr(server, "ModelRegistry", load)
    with pytest.raises(bs.InputError) as error:
        serve(["no model"], port=port)
    assert [*codes, error.value.code] == ["address_unavailable", "loaded"]


def test_an_address_may_have_the_brackets_of_urls() -> None:
    with pytest.raises(bs.InputError) as error:
        serve(["no model"], host="[::1]", port=0)
    assert error.value.code != "api_key_missing"


def test_many_idle_connections_harm_no_request(base: bs.Model) -> None:
    with served(f"model={base.path}") as client:
        connections = [client.connect() for _ in range(300)]
        assert client.post(EMBED, {"inputs": "kaba"}).status == 200
        for connection in connections:
            connection.close()


def test_signals_belong_to_other_code_outside_the_main_thread(base: bs.Model) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with served(f"model={base.path}"):
        assert signal.getsignal(signal.SIGTERM) is before
