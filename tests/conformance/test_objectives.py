"""The price of an objective: one that is written here alone is trained, saved, resumed, judged and loaded.

It has what BERT's own has not: a second encoder that shares the token table, a frozen teacher that must never be
saved, parts of the loss with weights of their own, counts that are not tokens, and a setting.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import Field
from safetensors.torch import load_file
from torch import nn

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError
from bertsmith.loss import Loss
from bertsmith.models.encoder import Encoder
from bertsmith.objectives.objective import MODEL, ModelParts, Objective
from bertsmith.objectives.settings import OBJECTIVES
from bertsmith.settings import Settings
from bertsmith.training import trainer


class ToySettings(Settings):
    """What is imitated how much."""

    imitation: float = Field(3.0, ge=0, description="weight of the distance to the teacher")


class Toy(Objective):
    """Each sequence's first row should look like a frozen teacher's, and its token's vector like the row."""

    name = "toy"
    settings_type = ToySettings
    frozen_modules = ("teacher",)

    def __init__(self, encoder: Encoder, generator: torch.Generator, imitation: float) -> None:
        super().__init__()
        config = self.config = encoder.config
        self.loss_weights = {"far": imitation, "words": 1.0}
        self.head = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        nn.init.normal_(self.head.weight, std=0.1, generator=generator)
        self.second = Encoder(config, generator)
        self.second.embeddings.token = encoder.embeddings.token
        self.teacher = Encoder(config, generator).requires_grad_(False)

    @classmethod
    def from_settings(cls, encoder: Encoder, generator: torch.Generator, data: Any, settings: Any) -> Toy:
        return cls(encoder, generator, settings.imitation)

    def counts(self, batch: Any) -> dict[str, int]:
        return {"far": batch.packed.num_sequences, "words": len(batch.rows)}

    def loss(self, encoder: Encoder, batch: Any) -> Loss:
        assert not self.teacher.training
        first = batch.packed.first_token_rows
        ours = self.head(encoder(batch.packed)[first])
        theirs = self.teacher(batch.packed)[first]
        second = self.second(batch.packed)[batch.rows]
        near = (second - encoder.embeddings.token(batch.labels)).square().sum()
        return Loss({"far": (ours - theirs).square().sum(), "words": near}, self.counts(batch))

    def export(self, encoder: Encoder) -> dict[str, ModelParts]:
        return {
            MODEL: ModelParts(self.config, {"encoder": encoder}),
            "second": ModelParts(self.config, {"encoder": self.second}),
        }


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(OBJECTIVES, "toy", Toy)
    return "objective.name=toy"


MORE = ("train.max_steps=6", "train.save_steps=2", "objective.imitation=2.5")


def test_it_is_trained_saved_and_loaded(toy: str, tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    model = tiny_run.run(shards, tmp_path / "run", toy, *MORE)
    assert model.report["objective"] == "toy"
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "train"]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    for line in steps:
        assert line["loss"] == pytest.approx(2.5 * line["far"] + line["words"], rel=1e-6)
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert {"far_loss", "words_loss"} <= model.report["held_out"].keys()
    assert not any(name.endswith("accuracy") for name in model.report["held_out"])
    second = bs.load(tmp_path / "run" / "second")
    ours, theirs = (m.encoder.embeddings.token.weight for m in (model, second))
    assert torch.equal(ours, theirs)
    mine, other = (m.encoder.blocks[0].attention.qkv.weight for m in (model, second))
    assert not torch.equal(mine, other)


def test_a_teacher_is_never_saved_and_a_shared_table_once(toy: str, tmp_path: Path) -> None:
    tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "run", toy, *MORE)
    weights = load_file(tmp_path / "run" / "checkpoints" / "step-6" / "weights.safetensors")
    assert not [name for name in weights if "teacher" in name]
    assert [name for name in weights if name.endswith("embeddings.token.weight")] == [
        "encoder.embeddings.token.weight"
    ]
    optimizer = load_file(tmp_path / "run" / "checkpoints" / "step-6" / "optimizer.safetensors")
    assert not [name for name in optimizer if "teacher" in name]


def test_it_resumes_to_the_bit(toy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = tiny_run.make_shards(tmp_path)
    straight = tiny_run.run(shards, tmp_path / "straight", toy, *MORE)
    update = trainer.update

    def killed(*arguments: Any) -> Any:
        if arguments[6] == 5:
            raise KeyboardInterrupt
        return update(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "update", killed)
        with pytest.raises(KeyboardInterrupt):
            tiny_run.run(shards, tmp_path / "resumed", toy, *MORE)
    resumed = tiny_run.run(shards, tmp_path / "resumed", toy, *MORE, resume=True)
    for file in ("log.jsonl", "model/model.safetensors", "second/model.safetensors"):
        assert (straight.path / file).read_bytes() == (resumed.path / file).read_bytes()


def test_its_settings_are_checked(toy: str, tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    with pytest.raises(InputError) as caught:
        tiny_run.run(shards, tmp_path / "run", toy, "objective.imitatoin=1")
    assert (caught.value.code, caught.value.argument) == ("unknown_setting", "objective.imitatoin")
    with pytest.raises(InputError) as caught:
        tiny_run.run(shards, tmp_path / "run", "objective.name=nothing")
    assert (caught.value.code, caught.value.argument) == ("unknown_name", "objective")
