"""No body of a request to the routes of other servers makes the server fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from served_models import World

BODIES: dict[str, Any] = {
    "/v1/embeddings": {"model": "bert", "input": ["kaba"], "encoding_format": "float", "dimensions": 2},
    "/embed": {
        "inputs": ["kaba", [5, 6]],
        "truncate": False,
        "truncation_direction": "left",
        "normalize": True,
    },
    "/embed_all": {"inputs": "kaba", "prompt_name": None, "dimensions": None},
    "/similarity": {
        "inputs": {"source_sentence": "ka", "sentences": ["lo"]},
        "parameters": {"truncate": True},
    },
    "/predict": {"inputs": [["ka", "lo"]], "raw_scores": False, "truncate": True},
    "/rerank": {"query": "ka", "texts": ["lo"], "raw_scores": True, "return_text": True},
    "/tokenize": {"inputs": ["ka"], "add_special_tokens": True},
    "/decode": {"ids": [[5]], "skip_special_tokens": True},
    "/v1/rerank": {"query": "ka", "documents": [{"text": "lo"}], "top_n": 1, "return_documents": True},
    "/v2/rerank": {"model": "nli", "query": "ka", "documents": ["lo"]},
    "/v2/embed": {"model": "bert", "texts": ["ka"], "embedding_types": ["float"], "truncate": "END"},
    "/": {"inputs": ["[MASK]"], "parameters": {"top_k": 2, "targets": ["[SEP]"]}},
    "/models/nli/text-classification": {
        "inputs": {"text": "ka", "text_pair": "lo"},
        "parameters": {"top_k": 1, "function_to_apply": "none"},
    },
    "/models/nli/zero-shot-classification": {
        "inputs": "ka",
        "parameters": {"candidate_labels": ["lo"], "multi_label": True, "hypothesis_template": "{}"},
    },
    "/models/tags/token-classification": {
        "inputs": "ka lo",
        "parameters": {"aggregation_strategy": "none", "ignore_labels": []},
    },
    "/models/answers/question-answering": {
        "inputs": {"question": "ka", "context": "lo mi"},
        "parameters": {"top_k": 2, "max_answer_len": 3, "max_seq_len": 20, "handle_impossible_answer": True},
    },
    "/models/bert/feature-extraction": {"inputs": "ka", "normalize": True, "dimensions": 3},
    "/models/bert/sentence-similarity": {"inputs": {"source_sentence": "ka", "sentences": ["lo"]}},
}
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 7, 1.5, 2**40, "", " ", "ka", "x" * 3000, "\x00", "[MASK]", "{0.__class__}"),
    *(
        [],
        [[]],
        [None],
        [1],
        [-1],
        [[1], "ka"],
        ["", ""],
        [["ka", "lo", "mi"]],
        [{}],
        {},
        {"text": 1},
        {"ka": []},
    ),
)


def mutations(value: Any) -> Iterator[Any]:
    """Yield a value with another value in place of each of its parts, and without each."""
    yield from VALUES
    if isinstance(value, dict):
        for key in value:
            rest = {name: item for name, item in value.items() if name != key}
            yield rest
            for item in mutations(value[key]):
                yield {**rest, key: item}
        yield {**value, "unknown": 1}
    if isinstance(value, list):
        for i in range(len(value)):
            for item in mutations(value[i]):
                yield [*value[:i], item, *value[i + 1 :]]


@pytest.mark.parametrize("path", BODIES)
def test_the_server_does_not_fail(world: World, path: str) -> None:
    assert world.client.post(path, BODIES[path]).status == 200
    for body in mutations(BODIES[path]):
        reply = world.client.post(path, body)
        assert reply.status == 200 or 400 <= reply.status < 500, (body, reply.body)


@pytest.mark.parametrize("path", ["/", "/v1/models/bert/fill-mask"])
def test_answers_are_bounded(world: World, path: str) -> None:
    text = "ka " * 40_000 + "[MASK] " * 100
    reply = world.client.post(path, {"inputs": text})
    assert (reply.status, reply.code) == (413, "answer_too_large")
