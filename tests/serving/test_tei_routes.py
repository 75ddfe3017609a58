"""The routes of Text Embeddings Inference, their options, and their errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tiny_run
from served_models import World

WORDS = tiny_run.WORDS
TEXT, OTHER = " ".join(WORDS[:5]), " ".join(WORDS[7:9])
TEXTS = [" ".join(WORDS[i : i + 3]) for i in range(4)]
LONG = " ".join(WORDS * 20)


def near(expected: Any) -> Any:
    return pytest.approx(expected, rel=1e-4, abs=1e-5)


def post(world: World, path: str, **body: Any) -> Any:
    reply = world.client.post(path, body)
    assert reply.status == 200, reply.body
    return reply.value


def error(world: World, path: str, **body: Any) -> tuple[int, str]:
    """Return the status and the code of an error, which is a string as in TEI."""
    reply = world.client.post(path, body)
    assert isinstance(reply.value["error"], str)
    assert isinstance(reply.value["error_type"], str)
    return reply.status, reply.value["code"]


def test_embed(world: World) -> None:
    unit = world["bert"].embed([TEXT, OTHER], normalize=True)
    np.testing.assert_array_equal(np.float32(post(world, "/embed", inputs=[TEXT, OTHER])), unit)
    np.testing.assert_array_equal(np.float32(post(world, "/embed", inputs=TEXT)), unit[:1])
    ids = world["bert"].tokenizer.encode_ids([TEXT])[0]
    for inputs in (ids, [ids], world["bert"].tokenizer(TEXT).ids):
        np.testing.assert_array_equal(np.float32(post(world, "/embed", inputs=inputs)), unit[:1])
    plain = np.float32(post(world, "/embed", inputs=TEXT, normalize=False))
    np.testing.assert_array_equal(plain, [world["bert"].embed(TEXT)])
    short = np.float32(post(world, "/embed", inputs=TEXT, dimensions=4))
    np.testing.assert_allclose(short, unit[:1, :4] / np.linalg.norm(unit[0, :4]), rtol=1e-5)


def test_embed_truncates_at_either_side(world: World) -> None:
    model = world["bert"]
    ids, size = model.tokenizer.encode_ids([LONG])[0], model.folder.config.max_length - 2
    assert len(ids) > size
    right, left = (
        post(world, "/embed", inputs=LONG, truncation_direction=side) for side in ("Right", "left")
    )
    assert right == post(world, "/embed", inputs=ids[:size])
    assert left == post(world, "/embed", inputs=ids[-size:]) != right
    for path in ("/embed", "/embed_all"):
        assert error(world, path, inputs=LONG, truncate=False) == (422, "text_too_long")


def test_embed_all(world: World) -> None:
    (vectors,) = post(world, "/embed_all", inputs=TEXT)
    assert len(vectors) == len(world["bert"].tokenizer(TEXT).ids)
    np.testing.assert_allclose(np.mean(vectors, 0), world["bert"].embed(TEXT), rtol=1e-4, atol=1e-6)


def test_similarity(world: World) -> None:
    a, b = world["bert"].embed([TEXT, OTHER], normalize=True)
    inputs = {"source_sentence": TEXT, "sentences": [OTHER, TEXT]}
    assert post(world, "/similarity", inputs=inputs) == near([float(a @ b), 1])


def test_predict(world: World) -> None:
    predictions = world["nli"].predict([TEXT, OTHER], [OTHER, TEXT])
    one = post(world, "/predict", inputs=[TEXT, OTHER])  # one pair, not two texts
    assert {row["label"]: row["score"] for row in one} == near(dict(predictions[0].scores))
    batch = post(world, "/predict", inputs=[[TEXT, OTHER], [OTHER, TEXT]])
    assert batch[0] == one
    assert batch[1][0]["label"] == predictions[1].label
    logits = {
        row["label"]: row["score"] for row in post(world, "/predict", inputs=[TEXT, OTHER], raw_scores=True)
    }
    exponentials = np.exp([logits[row["label"]] for row in one])
    assert (exponentials / exponentials.sum()).tolist() == near([row["score"] for row in one])


def test_rerank(world: World) -> None:
    ranks = post(world, "/rerank", query=TEXT, texts=TEXTS, return_text=True)
    scores = [p.scores["entailment"] for p in world["nli"].predict([TEXT] * 4, TEXTS)]
    assert [rank["index"] for rank in ranks] == sorted(range(4), key=lambda i: -scores[i])
    assert all(rank["text"] == TEXTS[rank["index"]] for rank in ranks)
    assert [rank["score"] for rank in ranks] == near([scores[rank["index"]] for rank in ranks])
    logits = post(world, "/rerank", query=TEXT, texts=TEXTS, raw_scores=True)
    assert "text" not in logits[0]
    assert error(world, "/rerank", query=TEXT, texts=[LONG], truncate=False) == (422, "text_too_long")


def test_tokenize_and_decode(world: World) -> None:
    tokenizer, text = world["bert"].tokenizer, TEXT.capitalize()
    (tokens,) = post(world, "/tokenize", inputs=text)
    assert [token["id"] for token in tokens] == tokenizer(text).ids
    assert all(
        text[token["start"] : token["stop"]] == token["text"] for token in tokens if not token["special"]
    )
    assert tokens[0] == {
        "id": tokenizer.cls_token_id,
        "text": "[CLS]",
        "special": True,
        "start": None,
        "stop": None,
    }
    (plain,) = post(world, "/tokenize", inputs=[text], add_special_tokens=False)
    assert plain == tokens[1:-1]
    ids = [token["id"] for token in tokens]
    assert post(world, "/decode", ids=ids) == [TEXT]
    assert post(world, "/decode", ids=[ids], skip_special_tokens=False) == [f"[CLS] {TEXT} [SEP]"]


def test_info_and_health(world: World) -> None:
    info = world.client.get("/info").value
    assert info["model_id"] == "bert"
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert info["max_input_length"] == world["bert"].folder.config.max_length
    assert world.client.get("/health").status == 200


def test_the_openai_route_without_version(world: World) -> None:
    body = {"input": TEXT, "encoding_format": "float"}
    reply = post(world, "/embeddings", **body)
    assert reply["model"] == "bert"  # the first model that embeds
    assert reply == post(world, "/v1/embeddings", **body)


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/embed_sparse", {"inputs": TEXT}, 404, "route_missing"),
        ("/embed", {"inputs": []}, 400, "no_inputs"),
        ("/embed", {"inputs": [TEXT] * 33}, 413, "too_many_inputs"),
        ("/embed", {"inputs": [10**6]}, 422, "token_id_out_of_range"),
        ("/embed", {"inputs": [TEXT, 1]}, 422, "invalid_body"),
        ("/embed", {"inputs": {"text": TEXT}}, 422, "invalid_body"),
        ("/embed", {"inputs": TEXT, "prompt_name": "query"}, 422, "unknown_prompt"),
        ("/embed", {"inputs": TEXT, "truncate": "yes"}, 422, "invalid_body"),
        ("/embed_all", {"inputs": TEXT, "dimensions": 10**6}, 422, "too_many_dimensions"),
        ("/similarity", {"inputs": {"source_sentence": TEXT, "sentences": [1]}}, 422, "invalid_body"),
        ("/predict", {"inputs": [["a", "b", "c"]]}, 422, "invalid_body"),
        ("/predict", {"inputs": [["a"], ["b", "c"]]}, 422, "invalid_body"),
        ("/predict", {"inputs": []}, 422, "invalid_body"),
        ("/predict", {"inputs": [TEXT, OTHER], "truncation_direction": "left"}, 422, "invalid_body"),
        ("/rerank", {"query": TEXT, "texts": []}, 400, "no_inputs"),
        ("/rerank", {"query": TEXT}, 422, "invalid_body"),
        ("/tokenize", {"inputs": []}, 400, "no_inputs"),
        ("/decode", {"ids": [-1]}, 422, "token_id_out_of_range"),
        ("/decode", {"ids": [[1], 2]}, 422, "invalid_body"),
    ],
)
def test_errors_are_strings(world: World, path: str, body: dict[str, Any], status: int, code: str) -> None:
    assert error(world, path, **body) == (status, code)


def test_other_methods_are_errors_in_the_same_form(world: World) -> None:
    reply = world.client.get("/embed")
    assert (reply.status, reply.value["code"], reply.headers["Allow"]) == (405, "method_not_allowed", "POST")


def test_a_prompt_is_put_before_texts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertsmith.serving.compatible.read_prompts", lambda folder: {"query": f"{OTHER} "})
    assert post(world, "/embed", inputs=TEXT, prompt_name="query") == post(
        world, "/embed", inputs=f"{OTHER} {TEXT}"
    )
    assert error(world, "/embed", inputs=[1, 2], prompt_name="query") == (422, "prompt_before_ids")
    assert error(world, "/embed", inputs=TEXT, prompt_name="passage") == (422, "unknown_prompt")
