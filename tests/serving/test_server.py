"""The process: its arguments, signals, reload, and logs."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import bertsmith as bs
import tiny_run
from bertsmith.serving.server import serve
from served import SECONDS, Client, raw_post, served, wait_until

EMBED = "/v1/models/model/embed"


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
