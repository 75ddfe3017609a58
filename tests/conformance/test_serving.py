"""A model of every task answers over HTTP as `predict` does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import bertsmith as bs
from served import plain, served
from task_files import FILES, OWN

SETTINGS = ["train.max_steps=1", "train.threads=1", "train.precision=fp32", "train.report_to=none"]
TEXTS = ["kaba kade kagi", "", "lofo migi " * 60]
INPUTS: dict[str, dict[str, Any]] = {
    "classify": {"text": TEXTS},
    "classify many": {"text": TEXTS},
    "regress": {"text": TEXTS},
    "tag": {"words": [["kaba", "lode"], ["migi"], []]},
    "tag crf": {"words": ["kaba lode.", "migi"]},
    "tag roles": {"words": [["kaba", "lode"], ["migi", "pede", "ride"]], "predicate": [0, 2]},
    "answer": {"question": ["lode", "kaba"], "context": ["kaba migi pede", "lode " * 80]},
    "choose": {"context": ["kaba", "lode"], "choices": [["migi", "pede"], ["ride", "soba", "tuzu"]]},
    "relate": {"text": ["<e1>kaba</e1> lode <e2>migi</e2>"]},
    "embed": {"text": ["kaba", "lode migi"], "text_pair": ["lode", "kaba"]},
    "translate": {"text": TEXTS},
}


@pytest.mark.parametrize("name", list(FILES))
def test_answers_over_http_are_those_of_predict(name: str, base: bs.Model, tmp_path: Path) -> None:
    suffix, write = FILES[name]
    train, validation = (write(tmp_path / f"{n}.{suffix}", seed) for seed, n in enumerate(("train", "dev")))
    settings = [*SETTINGS, *OWN.get(name, [])]
    files = {"train": train, "validation": validation}
    bs.finetune(name.split()[0], base, tmp_path / "run", **files, settings=settings)
    model, inputs = bs.load(tmp_path / "run", "cpu", precision="fp32"), INPUTS[name]
    saved = model.save(tmp_path / "run-copy", examples=validation)
    passed = bs.load(saved, "cpu", precision="fp32").self_test()
    assert passed is not None
    assert (passed["examples"] > 0, passed["difference"]) == (True, 0)
    with served(tmp_path / "run") as client:
        path = "/v1/models/run/predict"
        reply = client.post(path, {"inputs": inputs})
        assert reply.status == 200, reply.value
        assert reply.value["predictions"] == [plain(p.to_dict()) for p in model.predict(**inputs)]
        single = {key: values[0] for key, values in inputs.items()}
        if isinstance(next(iter(single.values())), str):
            reply = client.post(path, {"inputs": single})
            assert reply.value["predictions"] == [plain(model.predict(**single).to_dict())]
        described = client.get("/v1/models/run").value
        assert described["task"] == name.split()[0]
        assert set(inputs) <= set(described["inputs"])
        assert client.post(path, {"inputs": described["example"]}).status == 200
        assert not set(described["example"]) & set(described["optional_inputs"])
        schema = client.get("/openapi.json").value["paths"][path]["post"]["requestBody"]
        assert set(inputs) <= set(json.dumps(schema).split('"'))
        for value in (5, {"a": 1}, [[[["kaba"]]]], [None], [{"text": "a"}], [5, "kaba"], ["kaba", ["lode"]]):
            broken = client.post(path, {"inputs": dict.fromkeys(inputs, value)})
            assert broken.status in (200, 422), broken.value
        assert client.post(path, {"inputs": {**inputs, "nothing": ["a"]}}).code == "unknown_input"
