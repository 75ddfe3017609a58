"""The server of tests of other servers' routes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import bertsmith as bs
import task_files
import tiny_run
from served import served
from served_models import World

FEW = {"max_steps": 2, "threads": 1, "report_to": "none"}


@pytest.fixture(scope="session")
def world(base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("clients")
    words = tiny_run.WORDS
    rows = [
        {"a": text, "b": other, "label": label, "number": str(i / 9)}
        for i, ((text, _), other) in enumerate(zip(tiny_run.examples(12), words * 2, strict=False))
        for label in [("entailment", "neutral", "contradiction")[i % 3]]
    ]
    pairs: dict[str, Any] = {
        "text_column": "a",
        "second_column": "b",
        "train": rows,
        "validation": rows,
        **FEW,
    }
    models = {"bert": base, "nli": bs.finetune("classify", base, folder / "nli", **pairs)}
    models["grades"] = bs.finetune("regress", base, folder / "grades", label_column="number", **pairs)
    for name, task in (("tags", "tag"), ("answers", "answer")):
        suffix, write = task_files.FILES[task]
        file = write(folder / f"{name}.{suffix}", 0)
        models[name] = bs.finetune(task, base, folder / name, train=file, validation=file, **FEW)
    with served(*(f"{name}={model.path}" for name, model in models.items())) as client:
        yield World(
            client, {name: bs.load(model.path, "cpu", precision="fp32") for name, model in models.items()}
        )
