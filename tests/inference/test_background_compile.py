"""The first answer comes soon: weights stay in their file's pages, nothing is imported that it does not need."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith import hardware


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier."""
    folder = tmp_path_factory.mktemp("soon")
    base = tiny_run.run(tiny_run.make_shards(folder), folder / "base", "train.max_steps=2")
    train = tiny_run.table(folder / "train.csv", tiny_run.examples(30))
    validation = tiny_run.table(folder / "validation.csv", tiny_run.examples(9, seed=3))
    bs.finetune(
        "classify", base, folder / "run", train=train, validation=validation, num_train_epochs=1, threads=1
    )
    return folder / "run"


def test_mapped_weights_give_the_same_answers(run: Path) -> None:
    texts = [text for text, _ in tiny_run.examples(12, seed=5)]
    copied, mapped = bs.load(run), bs.load(run, mapped=True)
    assert mapped.predict(texts) == copied.predict(texts)
    assert (mapped.embed(texts) == copied.embed(texts)).all()


def test_what_is_trained_has_memory_of_its_own(run: Path, tmp_path: Path) -> None:
    """Though the model that it begins from does not."""
    base = bs.load(run, mapped=True)
    before = {name: tensor.clone() for name, tensor in base.encoder.state_dict().items()}
    train = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30, seed=1))
    bs.finetune(
        "classify", base, tmp_path / "run", train=train, validation=train, learning_rate=1e-2, threads=1
    )
    for name, tensor in base.encoder.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert bs.load(run).folder.weights_digest() == base.folder.weights_digest()


def test_an_answer_waits_for_no_import_that_it_does_not_need(run: Path) -> None:
    code = (
        "import gc, sys; sys.argv = ['bertsmith', 'predict', *sys.argv[1:]]\n"
        "from bertsmith.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as ended: assert ended.code == 0\n"
        "needless = {'rich', 'pyarrow', 'sklearn', 'torch._dynamo', 'matplotlib', 'jinja2'} & set(sys.modules)\n"
        "print(sorted(needless), gc.isenabled(), gc.get_freeze_count() > 100_000)"
    )
    line = [sys.executable, "-c", code, str(run), "kaba lode"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] True True", done.stderr


@pytest.mark.parametrize("was_on", [True, False])
def test_the_collector_is_afterwards_as_it_was(monkeypatch: pytest.MonkeyPatch, was_on: bool) -> None:
    changed: list[str] = []
    monkeypatch.setattr(gc, "isenabled", lambda: was_on)
    for name in ("enable", "disable", "freeze"):
        monkeypatch.setattr(gc, name, lambda name=name: changed.append(name))
    with pytest.raises(ImportError), hardware.import_without_gc():
        raise ImportError
    assert changed == ["disable", "freeze", *(["enable"] if was_on else [])]
