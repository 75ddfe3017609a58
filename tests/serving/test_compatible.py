"""Test the shared parts of the routes of other servers' clients."""

from __future__ import annotations

import pytest

from served import plain
from served_models import World


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_a_named_model_that_cannot_do_it_has_no_such_route(path: str, world: World) -> None:
    reply = world.client.post(path, {"query": "a", "documents": ["b"], "model": "bert"})
    assert (reply.status, reply.code) == (404, "route_missing")


def test_null_is_the_default_format_of_vectors(world: World) -> None:
    body = {"input": "kaba", "model": "bert"}
    expected = world.client.post("/v1/embeddings", body).value["data"]
    assert world.client.post("/v1/embeddings", {**body, "encoding_format": None}).value["data"] == plain(
        expected
    )
