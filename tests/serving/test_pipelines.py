"""The routes of Hugging Face's tags answer as the pipelines of transformers do."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import pipeline

import tiny_run
from served_models import World

WORDS = tiny_run.WORDS
TEXT = " ".join(WORDS[:5])
PAIR = {"text": TEXT, "text_pair": WORDS[7]}


def reference(world: World, tag: str, model: str, **options: Any) -> Any:
    return pipeline(tag, model=str(world[model].model_folder), device="cpu", **options)


def post(world: World, tag: str, model: str, inputs: Any, **parameters: Any) -> Any:
    reply = world.client.post(f"/models/{model}/{tag}", {"inputs": inputs, "parameters": parameters})
    assert reply.status == 200, reply.body
    return reply.value


def near(rows: list[dict[str, Any]]) -> Any:
    return [{**row, "score": pytest.approx(row["score"], rel=1e-5, abs=1e-6)} for row in rows]


def test_text_classification(world: World) -> None:
    pipe = reference(world, "text-classification", "nli", top_k=None)
    for function in ("none", "sigmoid", "softmax"):
        expected = pipe(PAIR, function_to_apply=function)
        assert post(world, pipe.task, "nli", PAIR, function_to_apply=function) == [near(expected)]
    assert post(world, pipe.task, "nli", PAIR) == [near(pipe(PAIR))]


@pytest.mark.parametrize("multi_label", [False, True])
def test_zero_shot_classification(world: World, multi_label: bool) -> None:
    pipe = reference(world, "zero-shot-classification", "nli")
    options: dict[str, Any] = {"hypothesis_template": "ka {}", "multi_label": multi_label}
    reply = pipe(TEXT, WORDS[:3], **options)
    rows = zip(reply["labels"], reply["scores"], strict=True)
    expected = [{"label": label, "score": score} for label, score in rows]
    assert post(world, pipe.task, "nli", TEXT, candidate_labels=WORDS[:3], **options) == near(expected)


def test_fill_mask(world: World) -> None:
    pipe, text = reference(world, "fill-mask", "bert"), f"{TEXT} [MASK]"
    assert post(world, pipe.task, "bert", text, top_k=3) == near(pipe(text, top_k=3))
