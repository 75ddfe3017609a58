"""Frozen layers, layers that are trained one after another, layers with rates of their own."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError
from bertsmith.finetuning.model import freeze_layers, unfreeze_steps
from bertsmith.finetuning.settings import FinetuneTrainSettings
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.tasks.base import TaskModel
from bertsmith.tasks.registry import get_task
from bertsmith.training.optimizer import create_adamw, create_optimizer
from bertsmith.training.train_step import TrainModule

FEW = ["train.max_steps=3", "train.threads=1", "train.precision=fp32", "train.report_to=none"]


def made(
    task: str = "classify", own: dict[str, Any] | None = None, *, layers: int = 4, **sizes: Any
) -> tuple[Encoder, TaskModel]:
    """A small encoder and a head. own: settings of the task."""
    config = ModelConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=16,
        **sizes,
    )
    draw, kind = torch.Generator().manual_seed(0), get_task(task)
    facts: dict[str, Any] = (
        {"data_format": "graded"} if task == "embed" else {"labels": ["a", "b"], "numbered": False}
    )
    return Encoder(config, draw), kind.part("model")(config, draw, facts, kind.settings_type(**own or {}))


def layer_of(name: str) -> str:
    """The part of the model that a parameter is of: a layer's number, "embeddings" or "head"."""
    found = re.match(r"encoder\.(?:blocks\.(\d+)|(embeddings))\.", name)
    return (found[1] or found[2]) if found else "head"


def settled(encoder: Encoder, head: TaskModel, **settings: Any) -> FinetuneTrainSettings:
    train = FinetuneTrainSettings(**settings)
    freeze_layers(encoder, head, "embed", train)
    return train


@pytest.mark.parametrize(
    ("settings", "frozen"),
    [
        ({}, set()),
        ({"freeze_embeddings": True}, {"embeddings"}),
        ({"freeze_layers": 2}, {"embeddings", "0", "1"}),
        ({"freeze_layers": 4}, {"embeddings", "0", "1", "2", "3"}),
    ],
)
def test_what_is_frozen_needs_no_gradient_and_has_no_moments(
    settings: dict[str, Any], frozen: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bertsmith")
    encoder, head = made()
    train = settled(encoder, head, **settings)
    trained = TrainModule(encoder, head)
    named = dict(trained.named_parameters())
    assert {layer_of(name) for name, p in named.items() if not p.requires_grad} == frozen
    held = {p for group in create_optimizer(trained, train).param_groups for p in group["params"]}
    assert {layer_of(name) for name, p in named.items() if p in held} == (
        {"embeddings", "0", "1", "2", "3", "head"} - frozen
    )
    number = sum(p.numel() for p in named.values() if p.requires_grad)
    assert len(caplog.messages) == bool(frozen)
    if frozen:
        assert caplog.messages[0].endswith(
            f": {number:,} of {sum(p.numel() for p in named.values()):,} parameters are trained"
        )


@pytest.mark.parametrize("below", ["linear", "bilstm"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_each_layers_rate_is_a_multiple_of_the_one_above(optimizer: str, below: str) -> None:
    """Sun et al. 2019: the top layer and the head have the whole rate, and so has what is new below the head."""
    encoder, head = made(own={"head": below})
    train = settled(encoder, head, layerwise_lr_decay=0.5, optim=optimizer, muon_learning_rate=1e-3)
    names = {p: name for name, p in TrainModule(encoder, head).named_parameters()}
    assert any("recurrent" in name for name in names.values()) == (below == "bilstm")
    rates: dict[tuple[str, bool], set[float]] = {}
    for group in create_optimizer(TrainModule(encoder, head), train).param_groups:
        for p in group["params"]:
            rates.setdefault((layer_of(names[p]), "momentum" in group), set()).add(
                group.get("lr_multiplier", 1.0)
            )
    expected = {"head": 1.0, "3": 1.0, "2": 0.5, "1": 0.25, "0": 0.125, "embeddings": 0.0625}
    assert {layer: found for (layer, muon), found in rates.items() if not muon} == {
        layer: {rate} for layer, rate in expected.items()
    }
    ratio = 1e-3 / train.learning_rate
    by_muon = {layer: found for (layer, muon), found in rates.items() if muon}
    assert by_muon.keys() == ({"0", "1", "2", "3"} if optimizer == "muon" else set())
    for layer, found in by_muon.items():
        assert list(found) == pytest.approx([ratio * expected[layer]])


def begins(
    settings: dict[str, Any], task: str = "classify", own: dict[str, Any] | None = None, **more: Any
) -> dict[str, set[int]]:
    """From which update on the parameters of each part are trained."""
    encoder, head = made(task, own)
    train = settled(encoder, head, **settings)
    since = unfreeze_steps(encoder, head, train, **{"updates_per_epoch": 7.4, **more})
    found: dict[str, set[int]] = {}
    for name, p in TrainModule(encoder, head).named_parameters():
        if p.requires_grad:
            found.setdefault(layer_of(name), set()).add(since.get(p, 1))
    return found


def test_layers_are_unfrozen_from_the_top_down() -> None:
    by_updates = {"head": {1}, "3": {11}, "2": {21}, "1": {31}, "0": {41}, "embeddings": {51}}
    assert begins({"unfreeze_every": 10}) == by_updates
    assert begins({"unfreeze_every": 10}, own={"head": "bilstm"}) == by_updates
    assert begins({"unfreeze_every": "epoch"})["3"] == {8}
    assert begins({"unfreeze_every": "epoch"}, updates_per_epoch=0.2)["2"] == {3}
    kept = begins({"unfreeze_every": 10, "freeze_layers": 2})
    assert kept == {name: by_updates[name] for name in ("head", "3", "2")}
    # a task without a head begins with the top layer
    assert begins({"unfreeze_every": 10}, "embed") == {
        "3": {1}, "2": {11}, "1": {21}, "0": {31}, "embeddings": {41}
    }  # fmt: skip
    assert begins({}) == {name: {1} for name in by_updates}


@pytest.mark.parametrize(
    ("settings", "code"),
    [({"freeze_layers": 5}, "freeze_layers_too_many"), ({"freeze_layers": 4}, "nothing_to_train")],
)
def test_what_leaves_nothing_to_train_is_refused(settings: dict[str, Any], code: str) -> None:
    with pytest.raises(InputError) as refused:
        settled(*made("embed"), **settings)
    assert refused.value.code == code
    assert refused.value.argument == "train.freeze_layers"


@pytest.mark.parametrize("share", ["all", "attention", "feed_forward"])
@pytest.mark.parametrize("name", ["freeze_layers", "unfreeze_every", "layerwise_lr_decay"])
def test_layers_that_are_one_are_not_set_apart(share: str, name: str) -> None:
    value = 0.5 if name == "layerwise_lr_decay" else 2
    with pytest.raises(InputError) as caught:
        settled(*made(share=share), **{name: value})
    assert caught.value.code == "layers_share_weights"
    assert caught.value.argument == f"train.{name}"
    encoder, head = made(share=share)
    settled(encoder, head, freeze_layers=4)
    assert not any(p.requires_grad for p in encoder.parameters())
    settled(*made(share=share), freeze_embeddings=True)


def test_without_bias_correction_each_counts_its_own_updates() -> None:
    """A parameter that is trained from update 3 on moves as if its first update were the run's first."""
    late, early = (nn.Parameter(torch.full((3, 2), 0.5)) for _ in range(2))
    alone = nn.Parameter(late.detach().clone())
    usual: dict[str, Any] = {"betas": (0.9, 0.999), "epsilon": 1e-6, "weight_decay": 0.1}
    both = create_adamw({"late": late, "early": early}.items(), bias_correction=False, **usual)
    own = create_adamw({"alone": alone}.items(), bias_correction=False, **usual)
    for step in range(1, 7):
        early.grad = torch.full((3, 2), float(step))
        if step >= 3:
            late.grad = torch.full((3, 2), 0.1 * step)
            alone.grad = late.grad.clone()
        for optimizer in (both, own) if step >= 3 else (both,):
            for group in optimizer.param_groups:
                group["lr"] = 0.01
            optimizer.step()
        assert torch.equal(late, alone)
    assert not torch.equal(late, torch.full((3, 2), 0.5))


def test_a_finished_run_has_the_bases_weights_where_they_were_frozen(
    base: bs.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bertsmith")
    rows = tiny_run.table(tmp_path / "rows.csv", tiny_run.examples(12))
    run = bs.finetune(
        "classify", base, tmp_path / "run", train=rows, validation=rows, settings=FEW, freeze_layers=1
    )
    assert any(line.startswith("the embeddings and the first layer are frozen: ") for line in caplog.messages)
    before, after = (load_file(model.model_folder / "model.safetensors") for model in (base, run))
    same = {name for name in before.keys() & after.keys() if torch.equal(before[name], after[name])}
    frozen = {name for name in after if ".embeddings." in name or "layer.0." in name}
    assert frozen
    assert frozen <= same
    assert {name for name in after if "layer.1." in name and name.endswith("weight")}.isdisjoint(same)


@pytest.mark.parametrize(
    ("setting", "argument"),
    [
        ("train.unfreeze_every=0", "train.unfreeze_every"),
        ("train.unfreeze_every=day", "train.unfreeze_every"),
        ("train.layerwise_lr_decay=1.5", "train.layerwise_lr_decay"),
        ("train.lr_milestones=[1.5]", "train.lr_milestones"),
        ("train.patience=0", "train.patience"),
    ],
)
def test_a_wrong_value_is_reported_with_its_name(setting: str, argument: str) -> None:
    from bertsmith.finetuning.settings import FinetuneSettings

    with pytest.raises(InputError) as refused:
        FinetuneSettings().changed([setting])
    assert (refused.value.code, refused.value.argument) == ("invalid_setting", argument)


def test_one_share_needs_no_brackets_and_pre_training_knows_no_plateau() -> None:
    from bertsmith.finetuning.settings import FinetuneSettings
    from bertsmith.pretraining.settings import PretrainSettings

    assert FinetuneSettings().changed(["train.lr_milestones=0.6"]).train.lr_milestones == (0.6,)
    assert (
        FinetuneSettings().changed(["train.lr_scheduler_type=reduce_lr_on_plateau"]).train.lr_scheduler_type
        == "reduce_lr_on_plateau"
    )
    with pytest.raises(InputError, match=r"pre-training has no such score: set train\.lr_scheduler_type="):
        PretrainSettings().changed(["train.lr_scheduler_type=reduce_lr_on_plateau"])


def test_positions_that_are_not_learned_never_thaw() -> None:
    encoder, head = made(position="sinusoidal")
    train = settled(encoder, head, unfreeze_every=1)
    found = unfreeze_steps(encoder, head, train, 10)
    assert encoder.embeddings.token.weight in found
    assert encoder.embeddings.position.weight not in found
