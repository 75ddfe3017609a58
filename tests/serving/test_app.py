"""Test what all routes share: keys, sites, health, metrics, the page, and time limits."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import bertsmith as bs
from bertsmith.inference.embedding import Embedder
from served import SECONDS, raw_post, served, wait_until

EMBED = "/v1/models/model/embed"
BODY = {"inputs": "kaba lode"}


@pytest.fixture
def source(base: bs.Model) -> str:
    return f"model={base.path}"


def test_requests_need_the_key(source: str) -> None:
    with served(source, api_key="secret") as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            reply = client.post(EMBED, BODY, **headers)
            assert (reply.status, reply.code) == (401, "unauthorized")
        assert client.get("/v1/models").status == client.get("/metrics").status == 401
        for scheme in ("Bearer", "bearer"):
            assert client.post(EMBED, BODY, Authorization=f"{scheme} secret").status == 200
        assert client.get("/health/live").status == client.get("/health/ready").status == 200
        assert client.get("/").status == 200


def test_a_body_that_is_refused_unread_ends_the_connection(source: str) -> None:
    with served(source, api_key="secret") as client:
        for path in (EMBED, "/nothing"):
            with client.connect(raw_post(path, b"x" * 100, length=10**9)) as connection:
                assert connection.recv(1000).startswith(b"HTTP/1.1 401 ")
                wait_until(lambda connection=connection: connection.recv(1000) == b"")


def test_pages_of_other_sites_are_refused_unless_they_are_named(source: str) -> None:
    site = "https://example.com"
    with served(source) as client:
        reply = client.post(EMBED, BODY, Origin=site)
        assert (reply.status, reply.code) == (403, "origin_refused")
        assert "access-control-allow-origin" not in reply.headers
        assert client.post(EMBED, BODY, Origin=f"http://127.0.0.1:{client.port}").status == 200
    with served(source, cors_origins=[site]) as client:
        reply = client.post(EMBED, BODY, Origin=site)
        assert reply.status == 200
        assert reply.headers["access-control-allow-origin"] == site
        assert client.post(EMBED, BODY, Origin="https://example.org").status == 403


def test_other_names_of_the_server_are_refused(source: str) -> None:
    site = "https://example.com"
    with served(source, hosts=["localhost", "::1"], cors_origins=[site]) as client:
        for host in ("evil.example", f"evil.example:{client.port}", "localhost.evil.example", "", "[::1"):
            reply = client.post(EMBED, BODY, Host=host, Origin=f"http://{host}")
            assert (reply.status, reply.code) == (403, "host_refused")
            assert client.get("/", Host=host).code == "host_refused"
        for host in ("localhost", "LOCALHOST:1", "[::1]:8000", "example.com"):
            assert client.post(EMBED, BODY, Host=host).status == 200
            assert client.post(EMBED, BODY, Host=host, Origin=site).status == 200


def test_a_request_that_takes_too_long_gets_504_and_one_too_many_429(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_run = threading.Event()
    limits = {"max_seconds": 0.5, "max_waiting": 1}
    with served(source, limits=limits) as client, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(Embedder, "forward", lambda embedder, items: [may_run.wait(SECONDS)])
        slow = pool.submit(client.post, EMBED, BODY)
        wait_until(lambda: client.state.engine.num_waiting == 1)
        reply = client.post(EMBED, BODY)
        assert (reply.status, reply.code, reply.headers["retry-after"]) == (429, "queue_full", "1")
        assert client.post(EMBED, {"no": "field"}).status == 429  # the body is not read
        assert client.get("/v1/models").status == 200
        assert (slow.result().status, slow.result().code) == (504, "timeout")
        may_run.set()


def test_an_unexpected_error_is_logged_and_not_shown(
    source: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Any, items: Any) -> None:
        raise RuntimeError("a detail")

    with served(source) as client:
        monkeypatch.setattr(Embedder, "forward", fail)
        reply = client.post(EMBED, BODY)
        assert (reply.status, reply.code) == (500, "internal_error")
        assert b"detail" not in reply.body
    assert any(record.exc_info for record in caplog.records)


def test_unknown_paths_methods_and_models_get_a_reason(source: str) -> None:
    with served(source) as client:
        assert (client.get("/v2").status, client.get("/v2").code) == (404, "not_found")
        assert (client.get(EMBED).status, client.get(EMBED).code) == (405, "method_not_allowed")
        reply = client.post("/v1/models/modle/embed", BODY)
        assert (reply.status, reply.code) == (404, "model_unknown")
        assert "'model'" in reply.value["message"]
        reply = client.post("/v1/models/model/predict", {"inputs": {"text": "a"}})
        assert (reply.status, reply.code) == (404, "route_missing")


def test_metrics_count_requests_failures_and_tokens(source: str) -> None:
    with served(source) as client:
        client.post(EMBED, BODY)
        client.post(EMBED, {})
        wait_until(lambda: client.state.num_open == 0)
        text = client.get("/metrics").body.decode()
        route = 'route="/v1/models/{model}/embed"'
        for line in (
            f"bertsmith_requests_total{{{route}}} 2.0",
            f"bertsmith_requests_success_total{{{route}}} 1.0",
            f'bertsmith_requests_failed_total{{code="invalid_body",{route}}} 1.0',
            f"bertsmith_request_seconds_count{{{route}}} 2.0",
            "bertsmith_queue_seconds_count 1.0",
            "bertsmith_tokenization_seconds_count 1.0",
            "bertsmith_inference_seconds_count 1.0",
            "bertsmith_batch_tokens_sum 4.0",
            "bertsmith_input_tokens_sum 4.0",
            "bertsmith_waiting_requests 0.0",
            "bertsmith_waiting_tokens 0.0",
        ):
            assert line in text.splitlines(), line


def test_requests_are_logged_with_their_values(source: str, caplog: pytest.LogCaptureFixture) -> None:
    with served(source) as client, caplog.at_level(logging.INFO, "bertsmith.serving.access"):
        client.post(EMBED, {})
        wait_until(lambda: any(r.name == "bertsmith.serving.access" for r in caplog.records))
    values: Any = next(r for r in caplog.records if r.name == "bertsmith.serving.access")
    assert values.getMessage() == f"POST {EMBED}"
    assert values.request["status"] == 422
    assert values.request["code"] == "invalid_body"


def test_the_page_loads_nothing_from_elsewhere(source: str) -> None:
    with served(source) as client:
        page = client.get("/")
    assert b"http://" not in page.body
    assert b"https://" not in page.body
    assert b"innerHTML" not in page.body
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


def test_two_models_need_two_names(base: bs.Model, tmp_path: Path) -> None:
    with pytest.raises(bs.InputError) as error, served(base.path, f"{base.path.name}={base.path}"):
        pass
    assert error.value.code == "duplicate_name"
