"""bf16: products in half precision, weights and losses in full; it trains as fp32 does and resumes exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tiny_run
from bertsmith.corpus.shards import Shards


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("precision"), documents=60)


def test_bf16_trains_as_fp32_does(shards: Shards, tmp_path: Path) -> None:
    held = {}
    for precision in ("fp32", "bf16"):
        model = tiny_run.run(
            shards, tmp_path / precision, f"train.precision={precision}", "train.max_steps=60"
        )
        held[precision] = model.report["held_out"]
        weights = load_file(model.model_folder / "model.safetensors")
        assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert held["bf16"]["mlm_loss"] == pytest.approx(held["fp32"]["mlm_loss"], rel=0.01)
    assert held["bf16"]["mlm_loss"] != held["fp32"]["mlm_loss"]


def test_bf16_resumes_exactly(shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bertsmith.training import trainer

    settings = ("train.precision=bf16", "train.max_steps=9", "train.save_steps=2")
    straight = tiny_run.run(shards, tmp_path / "straight", *settings)

    def killed(*arguments: object, _update: object = trainer.update) -> object:
        if arguments[6] == 6:
            raise KeyboardInterrupt
        return _update(*arguments)  # type: ignore[operator]

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "update", killed)
        with pytest.raises(KeyboardInterrupt):
            tiny_run.run(shards, tmp_path / "resumed", *settings)
    resumed = tiny_run.run(shards, tmp_path / "resumed", *settings, resume=True)
    for file in ("log.jsonl", "model/model.safetensors"):
        assert (straight.path / file).read_bytes() == (resumed.path / file).read_bytes()
