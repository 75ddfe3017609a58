"""The routes of a model: settings of a call, what each route returns, and what it refuses."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from served import plain
from served_models import World

QUESTION = {"question": "lode", "context": "kaba migi pede lode kaba"}
TEXTS = ["kaba lode", "", "migi pede " * 50]


def test_settings_of_a_call_are_those_of_predict(world: World) -> None:
    path, model = "/v1/models/answers/predict", world.models["answers"]
    for settings in ({"n_best": 2}, {"max_length": 12, "stride": 4}, {"n_best": 1, "null_threshold": 9.0}):
        reply = world.client.post(path, {"inputs": QUESTION, "settings": settings})
        assert reply.status == 200, reply.value
        expected = model.predict(**QUESTION, **settings).to_dict()
        [prediction] = reply.value["predictions"]
        assert prediction["answer"] == expected["answer"]
        assert len(prediction["n_best"]) == len(expected["n_best"]) <= settings.get("n_best", 20)
    again = world.client.post(path, {"inputs": QUESTION}).value["predictions"][0]
    assert len(again["n_best"]) == len(model.predict(**QUESTION).n_best)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"n_bets": 2}, "unknown_setting"),
        ({"n_best": 0}, "invalid_setting"),
        ({"max_length": 10**6}, "max_length_too_large"),
        ({"stride": 1}, "stride_too_small"),
        ({"batch_size": 1}, "fixed_setting_changed"),
        ({"encoding": "cp1252"}, "setting_without_effect"),
        ({"n_best": 2, "context_column": "a"}, "setting_without_effect"),
        ({"head": "bilstm"}, "fixed_setting_changed"),
        ({"second_encoder": "/etc"}, "fixed_setting_changed"),
    ],
)
def test_wrong_settings_are_refused(world: World, settings: dict[str, Any], code: str) -> None:
    reply = world.client.post("/v1/models/answers/predict", {"inputs": QUESTION, "settings": settings})
    assert (reply.status, reply.code) == (422, code)


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ({"question": "lode"}, "input_missing"),
        ({}, "no_inputs"),
        ({"question": ["lode"], "context": ["kaba", "migi"]}, "length_mismatch"),
        ({"text": ["lode"]}, "unknown_input"),
    ],
)
def test_wrong_inputs_are_refused(world: World, inputs: dict[str, Any], code: str) -> None:
    reply = world.client.post("/v1/models/answers/predict", {"inputs": inputs})
    assert (reply.status, reply.code) == (400 if code == "no_inputs" else 422, code)


def test_vectors_scores_and_masks_are_those_of_the_model(world: World) -> None:
    model, path = world.models["bert"], "/v1/models/bert"
    reply = world.client.post(f"{path}/embed", {"inputs": TEXTS}).value
    np.testing.assert_allclose(reply["embeddings"], model.embed(TEXTS), atol=1e-5)
    assert reply["usage"]["inputs"] == 3
    unit = world.client.post(f"{path}/embed", {"inputs": TEXTS, "normalize": True}).value["embeddings"]
    np.testing.assert_allclose(unit, model.embed(TEXTS, normalize=True), atol=1e-5)
    scores = world.client.post(f"{path}/score", {"inputs": TEXTS}).value["scores"]
    for score, expected in zip(scores, model.score(TEXTS), strict=True):
        assert score == pytest.approx(expected.to_dict(), abs=1e-3)
    texts = ["kaba [MASK] lode [MASK]", "[MASK]"]
    masks = world.client.post(f"{path}/fill-mask", {"inputs": texts, "top_k": 3}).value["predictions"]
    expected_masks = [[[p.to_dict() for p in mask] for mask in text] for text in model.fill_mask(texts, 3)]
    assert [[[p["token"] for p in mask] for mask in text] for text in masks] == [
        [[p["token"] for p in mask] for mask in text] for text in expected_masks
    ]
    assert world.client.post(f"{path}/fill-mask", {"inputs": "kaba"}).code == "mask_missing"
    assert (
        world.client.post(f"{path}/score", {"inputs": "a", "variant": "left_to_right"}).code
        == "unknown_variant"
    )


def test_models_are_described_by_name(world: World) -> None:
    listed = world.client.get("/v1/models").value["data"]
    assert [model["id"] for model in listed] == list(world.models)
    assert world.client.get("/v1/models/tags").value == next(m for m in listed if m["id"] == "tags")
    assert listed[0]["routes"] == ["embed", "fill-mask", "score"]
    assert listed[0]["mask_token"] == "[MASK]"
    labels = {model["id"]: model.get("labels") for model in listed}
    assert (sorted(labels["nli"]), labels["grades"]) == (["contradiction", "entailment", "neutral"], None)
    paths = set(world.client.get("/openapi.json").value["paths"])
    assert {f"/v1/models/{m['id']}/{route}" for m in listed for route in m["routes"]} <= paths


@pytest.mark.parametrize("name", ["nli", "grades", "tags", "answers"])
def test_the_example_of_a_model_has_what_it_needs(world: World, name: str) -> None:
    path = f"/v1/models/{name}"
    described = world.client.get(path).value
    assert world.client.post(f"{path}/predict", {"inputs": described["example"]}).status == 200
    assert {*described["example"], *described["optional_inputs"]} == set(described["inputs"])
    body = world.client.get("/openapi.json").value["paths"][f"{path}/predict"]["post"]["requestBody"]
    properties = body["content"]["application/json"]["schema"]["properties"]
    assert properties["inputs"]["required"] == list(described["example"])
    assert "max_length" in properties["settings"]["properties"]
    assert "encoding" not in properties["settings"]["properties"]


def test_answers_in_a_mix_of_clients_are_those_of_each_alone(world: World) -> None:
    texts = ["kaba", "lode migi pede", "ride soba tuzu kaba " * 5, "migi"]
    requests = [
        (f"/v1/models/{model}/{route}", {"inputs": inputs})
        for text in texts
        for model, route, inputs in (
            ("bert", "embed", text),
            ("bert", "fill-mask", f"{text} [MASK]"),
            ("bert", "score", text),
            ("tags", "predict", {"words": [text, "lode"]}),
            ("answers", "predict", {"question": "kaba", "context": text}),
            ("answers", "embed", text),
        )
    ]
    alone = {i: plain(world.client.post(*request).value) for i, request in enumerate(requests)}
    order = random.Random(0).choices(range(len(requests)), k=300)
    with ThreadPoolExecutor(32) as pool:
        replies = list(pool.map(lambda i: (i, world.client.post(*requests[i])), order))
    assert len(replies) == len(order)
    for i, reply in replies:
        assert reply.status == 200
        assert reply.value == alone[i]
