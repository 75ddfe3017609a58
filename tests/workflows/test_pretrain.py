"""Budgets, presets and resumes of pre-training as people type them; the finished model in any order of calls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith.data.batches import split_documents
from bertsmith.data.shards import Shards
from bertsmith.errors import InputError
from bertsmith.training import loop


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("pretrain"))


def stopped_at(step: int, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """From now on a run is torn before this update."""
    update = loop.update

    def torn(*arguments: object) -> object:
        if arguments[-1] == step:
            raise KeyboardInterrupt
        return update(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "update", torn)
    return monkeypatch


def test_the_same_command_in_minutes_resumes(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("train.checkpoint_every=1",)
    with monkeypatch.context() as patch:
        stopped_at(2, patch)
        with pytest.raises(KeyboardInterrupt):
            tiny_run.run(shards, tmp_path / "run", *settings, minutes=0.01)
    model = tiny_run.run(shards, tmp_path / "run", *settings, minutes=0.01, resume=True)
    assert model.report["steps"] >= 2


def test_minutes_and_assignments_stand_in_place_of_a_recipes_budget(shards: Shards, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("train:\n  max_tokens: 100000000\n")
    model = tiny_run.run(shards, tmp_path / "a", "train.max_steps=3", recipe=recipe)
    assert model.report["steps"] == 3
    with pytest.raises(InputError, match="max_steps and max_minutes are budgets both"):
        tiny_run.run(shards, tmp_path / "b", "train.max_steps=3", recipe=recipe, minutes=1)
    assert not (tmp_path / "b").exists()


def test_another_preset_at_resume_is_refused(shards: Shards, tmp_path: Path) -> None:
    one = ["train.max_steps=1", "train.threads=1", "data.sequence_length=32", "train.tensorboard=false"]
    bs.pretrain(shards, tmp_path / "run", preset="bert-tiny-uncased", settings=one)
    bs.pretrain(shards, tmp_path / "run", preset="bert-tiny-uncased", settings=one, resume=True)
    with pytest.raises(InputError, match="it cannot go on with"):
        bs.pretrain(shards, tmp_path / "run", preset="bert-mini-uncased", settings=one, resume=True)


def test_a_resume_of_nothing_says_so(shards: Shards, tmp_path: Path) -> None:
    told: list[str] = []
    tiny_run.run(shards, tmp_path / "typo", "train.max_steps=1", resume=True, tell=told.append)
    assert any("no run in" in line for line in told)


def test_the_encoder_is_an_ordinary_module_whoever_asked_first(shards: Shards, tmp_path: Path) -> None:
    tiny_run.run(shards, tmp_path / "run", "train.max_steps=1")
    model = bs.load(tmp_path / "run")
    model.fill_mask("kaba [MASK].")
    hidden = model.encoder(torch.tensor([[2, 7, 3]]))
    hidden.sum().backward()
    assert all(p.grad is not None for p in model.encoder.embeddings.token.parameters())


def test_two_masks_give_two_answers(shards: Shards, tmp_path: Path) -> None:
    model = tiny_run.run(shards, tmp_path / "run", "train.max_steps=1")
    answers = model.fill_mask("kaba [MASK] lode [MASK].", top_k=3)
    assert [len(answer) for answer in answers] == [3, 3]
    assert answers[1][0]["text"] == f"kaba [MASK] lode {answers[1][0]['token']}."


def test_many_documents_of_one_sentence_are_told(tmp_path: Path) -> None:
    file = tmp_path / "corpus.txt"
    file.write_text("\n\n".join(f"{word} lode." for word in tiny_run.WORDS) + "\n\n" + tiny_run.corpus(6))
    shards = bs.prepare([file], tiny_run.tokenizer(), tmp_path / "shards")
    told: list[str] = []
    tiny_run.run(shards, tmp_path / "run", "train.max_steps=1", tell=told.append)
    assert any("of the pairs are IsNext" in line for line in told)


def test_equal_documents_fall_on_one_side() -> None:
    hashes = np.array([5, 5, 5, 900, 901, 901, 902, 903], dtype=np.uint64)
    training, held_out = split_documents(hashes, 1e-18)
    assert not set(hashes[training].tolist()) & set(hashes[held_out].tolist())
    assert set(hashes[held_out].tolist()) == {5, 900}
