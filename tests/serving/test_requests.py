"""The bodies of requests: whatever is sent, the answer says what is wrong with it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

import bertsmith as bs
from served import Client, raw_post, served, wait_until

LIMITS = {"max_body_bytes": 2000, "max_body_seconds": 0.5, "max_inputs": 3, "max_tokens": 500}
EMBED = "/v1/models/model/embed"


@pytest.fixture(scope="module")
def client(base: bs.Model) -> Iterator[Client]:
    with served(f"model={base.path}", limits=LIMITS) as client:
        yield client


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b'{"inputs": NaN}', 400, "invalid_json"),
        (b'{"inputs": "\xff"}', 400, "invalid_json"),
        (b'{"inputs": "\\ud800"}', 400, "invalid_json"),
        (b"[" * 1500, 400, "invalid_json"),
        (b"[" * 900 + b"]" * 900, 400, "json_too_deep"),
        (b'{"inputs": ' + b"[" * 16 + b"]" * 16 + b"}", 400, "json_too_deep"),
        (b"[1]", 422, "invalid_body"),
        (b"{}", 422, "invalid_body"),
        (b'{"inputs": 5}', 422, "invalid_body"),
        (b'{"inputs": ["a", 5]}', 422, "invalid_body"),
        (b'{"inputs": "a", "pooling": "cls"}', 422, "invalid_body"),
        (b'{"inputs": "a", "normalize": 1}', 422, "invalid_body"),
        (b'{"inputs": []}', 400, "no_inputs"),
        (b'{"inputs": ["a", "b", "c", "d"]}', 413, "too_many_inputs"),
        (b'{"inputs": "' + b"a" * 2000 + b'"}', 413, "body_too_large"),
    ],
)
def test_a_wrong_body_gets_a_reason(client: Client, body: bytes, status: int, code: str) -> None:
    reply = client.send("POST", EMBED, body)
    assert (reply.status, reply.code) == (status, code)


def test_the_error_names_the_part_of_the_body(client: Client) -> None:
    assert client.post(EMBED, {"inputs": "a", "normalize": "yes"}).value["error"]["param"] == "normalize"


def test_an_input_that_costs_too_many_tokens_is_refused(client: Client) -> None:
    reply = client.post("/v1/models/model/score", {"inputs": "kaba lode migi " * 20})
    assert (reply.status, reply.code) == (413, "too_many_tokens")


def test_compressed_bodies_are_refused(client: Client) -> None:
    reply = client.send("POST", EMBED, b"{}", {"Content-Encoding": "gzip"})
    assert (reply.status, reply.code) == (415, "content_encoding_unsupported")


def test_a_large_body_is_refused_while_it_is_sent(client: Client) -> None:
    with client.connect(raw_post(EMBED, b"x" * 100, length=10**9)) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
    head = f"POST {EMBED} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with client.connect(head + (b"400\r\n" + b"x" * 1024 + b"\r\n") * 3) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_slow_body_is_refused(client: Client) -> None:
    with client.connect(raw_post(EMBED, b'{"inputs"', length=30)) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 408 ")


def test_random_bodies_are_answered_without_a_failure_of_the_server(client: Client) -> None:
    rng = random.Random(0)
    values: list[Any] = [None, True, 5, 1e400, "", "kaba", [], {}, "\x00", [[]], {"a": 1}, 2**70]
    paths = [f"/v1/models/model/{route}" for route in ("embed", "fill-mask", "score", "predict", "other")]
    statuses = set()
    for _ in range(300):
        names = ["inputs", *rng.choices(["settings", "top_k", "normalize", "variant"], k=rng.randrange(2))]
        body = json.dumps({name: rng.choice(values) for name in names}).encode()
        if rng.random() < 0.3:
            at = rng.randrange(len(body))
            body = body[:at] + rng.randbytes(2) + body[at:]
        reply = client.send("POST", rng.choice(paths), body)
        statuses.add(reply.status)
        assert reply.status == 200 or reply.code
    assert statuses == {200, 400, 404, 422}


def test_no_request_stays_open(client: Client) -> None:
    wait_until(lambda: client.state.num_open == 0 and client.state.engine.num_waiting == 0)
