"""What only a GPU can show, skipped without one: the losses of the CPU, exact resume, every verb."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import bertsmith as bs
import tiny_run
from bertsmith.training import trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

FEW = ("train.max_steps=9", "train.save_steps=2", "train.eval_steps=3")
FULL = (*FEW, "train.precision=fp32")
WAYS = [
    ("train.precision=fp32", "train.kernels=torch"),
    ("train.precision=bf16", "train.kernels=torch"),
    ("train.precision=bf16", "train.kernels=flash"),
    ("train.precision=bf16", "train.kernels=triton"),
    ("train.precision=bf16", "train.kernels=triton", "train.gradient_accumulation_steps=1"),  # CUDA graphs
]


def test_the_losses_are_those_of_the_cpu(tmp_path: Path) -> None:
    """Without dropout, which each device draws for itself."""
    shards = tiny_run.make_shards(tmp_path)
    still = ("model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0", *FULL)
    held = [
        tiny_run.run(shards, tmp_path / device, *still, f"train.device={device}").report["held_out"]
        for device in ("cpu", "cuda")
    ]
    assert held[1]["mlm_loss"] == pytest.approx(held[0]["mlm_loss"], abs=1e-4)
    assert held[1]["nsp_loss"] == pytest.approx(held[0]["nsp_loss"], abs=1e-4)


@pytest.mark.parametrize("way", WAYS[1:], ids=" ".join)
def test_bf16_loses_as_much_as_fp32(tmp_path: Path, way: tuple[str, ...]) -> None:
    """Flash attention and programs of Triton, from the same first weights, without dropout."""
    shards = tiny_run.make_shards(tmp_path)
    still = ("model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0", *FEW)
    held = [
        tiny_run.run(shards, tmp_path / str(number), *still, *settings, "train.device=cuda").report[
            "held_out"
        ]
        for number, settings in enumerate((WAYS[0], way))
    ]
    assert held[1]["mlm_loss"] == pytest.approx(held[0]["mlm_loss"], rel=5e-3)


def test_recorded_updates_lose_as_much_as_others(tmp_path: Path) -> None:
    """CUDA graphs, of batches that are filled up, without dropout."""
    shards = tiny_run.make_shards(tmp_path)
    still = ("model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0", "train.max_steps=60")
    recorded, as_usual = (
        tiny_run.run(
            *(shards, tmp_path / graphs, *still, *WAYS[4], "train.device=cuda", f"train.cuda_graphs={graphs}")
        ).report["held_out"]
        for graphs in ("true", "false")
    )
    assert recorded["mlm_loss"] == pytest.approx(as_usual["mlm_loss"], rel=5e-3)


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_a_resumed_run_is_the_unbroken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: tuple[str, ...]
) -> None:
    shards = tiny_run.make_shards(tmp_path)
    settings = (*FEW, *way, "train.device=cuda", "train.deterministic=true")
    straight = tiny_run.run(shards, tmp_path / "straight", *settings)
    update = trainer.train_step

    def killed(*arguments: Any) -> Any:
        if arguments[3] == 6:
            raise KeyboardInterrupt
        return update(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "train_step", killed)
        with pytest.raises(KeyboardInterrupt):
            tiny_run.run(shards, tmp_path / "resumed", *settings)
    resumed = tiny_run.run(shards, tmp_path / "resumed", *settings, resume=True)
    for file in ("log.jsonl", "model/model.safetensors"):
        assert (straight.path / file).read_bytes() == (resumed.path / file).read_bytes()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_verb_runs_there(tmp_path: Path, precision: str) -> None:
    base = tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "bert", f"train.precision={precision}")
    assert base.report["device"].startswith("cuda")
    assert base.encoder.embeddings.token.weight.is_cuda
    assert len(base.fill_mask("kaba [MASK] lode")[0]) == 5
    tables = [tiny_run.table(tmp_path / f"{i}.csv", tiny_run.examples(30, seed=i)) for i in range(2)]
    run = bs.finetune(
        "classify",
        base,
        tmp_path / "run",
        train=tables[0],
        validation=tables[1],
        settings=["train.max_steps=3", "train.report_to=none", f"train.precision={precision}"],
    )
    there, here = (
        [one.to_dict() for one in bs.load(run.path).predict(["kaba lode"])],
        [one.to_dict() for one in bs.load(run.path, "cpu").predict(["kaba lode"])],
    )
    assert there[0]["scores"] == pytest.approx(here[0]["scores"], abs=1e-4)
    weights = load_file(run.model_folder / "model.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())
