"""The examples of CONTRIBUTING.md work, and its map of packages is current."""

import importlib
import re
import sys
from pathlib import Path

import pytest

import bertsmith as bs
import tiny_run
from bertsmith.models.family import FAMILIES
from bertsmith.tasks.registry import TASKS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the Python examples into their files, and make them importable."""
    folder = tmp_path / "examples"
    for name, code in re.findall(
        r"^```python\n# (\S+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S
    ):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    for name in ("count", "count.parts", "toy_family"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    return folder


def test_toy_task_and_toy_family(examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "count", "count:TASK")
    monkeypatch.setitem(FAMILIES, "toy", "toy_family:TOY")
    shards = tiny_run.make_shards(tmp_path)
    bert = tiny_run.run(shards, tmp_path / "bert", "train.max_steps=1")
    rows = [{"text": text, "number": len(text.split())} for text, _ in tiny_run.examples(20, 0)]
    run = bs.finetune(
        "count", bert, tmp_path / "counter", train=rows, validation_split=0.2, max_steps=2, threads=1
    )
    again = bs.load(run.path)
    assert len(again.predict(["one two three", "one"])) == 2

    toy = bs.pretrain(shards, tmp_path / "toy", preset="toy-tiny", max_steps=1, threads=1, sequence_length=32)
    loaded = bs.load(toy.path)
    assert loaded.encoder.config.model_type == "toy"
    assert loaded.fill_mask("[MASK]", top_k=1)
    train = [{"text": text, "label": label} for text, label in tiny_run.examples(20, 0)]
    classifier = bs.finetune(
        "classify", toy, tmp_path / "moods", train=train, validation_split=0.2, max_steps=1, threads=1
    )
    assert bs.load(classifier.path).predict("kaba").label in classifier.labels


def test_callback_example_runs(examples: Path) -> None:
    exec((examples / "callback").read_text(encoding="utf-8"), {})


def test_package_map_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    package_map = importlib.import_module("package_map").package_map()
    assert package_map in PAGE.read_text(encoding="utf-8"), "run python docs/package_map.py"


def test_keyword_types_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    generated = importlib.import_module("keyword_types").keyword_types()
    module = ROOT / "src" / "bertsmith" / "keywords.py"
    assert generated == module.read_text(encoding="utf-8"), "run python docs/keyword_types.py"
