"""The loop stops before an update that would spoil the weights, and its log goes on where the checkpoint says."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import tiny_run
from bertsmith.corpus.shards import Shards
from bertsmith.device import ComputeContext
from bertsmith.errors import MachineError, Stopped
from bertsmith.instances.batches import SyntheticStream
from bertsmith.loss import Loss
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.objectives.language_modeling import MaskedLM
from bertsmith.training import checkpoint
from bertsmith.training.budget import TrainingBudget
from bertsmith.training.callbacks import StepResult, TrainerCallback
from bertsmith.training.data_loader import Phase
from bertsmith.training.settings import TrainSettings
from bertsmith.training.train_step import TrainModule
from bertsmith.training.trainer import Trainer
from bertsmith.training.training_job import Evaluation, EvaluationResult, TrainingJob

SIX = ("train.max_steps=6", "train.save_steps=2", "train.gradient_accumulation_steps=2")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("loop"))


def spoil(monkeypatch: pytest.MonkeyPatch, call: int, how: str) -> None:
    """From the call-th batch on the loss is not a number, or only its gradient is not."""
    loss, calls = MaskedLM.loss, [0]

    def spoiled(self: MaskedLM, encoder: Any, batch: Any) -> Loss:
        found = loss(self, encoder, batch)
        calls[0] += 1
        if calls[0] < call:
            return found
        wrong = float("nan") * found.sums["nsp"] if how == "loss" else (found.sums["nsp"] * 0).sqrt()
        return Loss({**found.sums, "nsp": wrong}, found.counts)

    monkeypatch.setattr(MaskedLM, "loss", spoiled)


@pytest.mark.parametrize("how", ["loss", "gradient"])
def test_stops_before_an_update_that_is_not_finite(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    straight = tiny_run.run(shards, tmp_path / "straight", *SIX)
    with monkeypatch.context() as patch:
        spoil(patch, call=10, how=how)  # the second batch of update 5
        with pytest.raises(MachineError, match=r"step 5 \(epoch \d, instances \d+ to \d+") as caught:
            tiny_run.run(shards, tmp_path / "run", *SIX)
    assert caught.value.code == f"{how}_not_finite"
    assert caught.value.exit_code == 1
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [2, 4]
    kept = checkpoint.load_newest(tmp_path / "run" / "checkpoints")
    assert kept is not None
    assert all(torch.isfinite(tensor).all() for tensor in kept.tensors["weights"].values())
    resumed = tiny_run.run(shards, tmp_path / "run", *SIX, resume=True)
    for file in ("log.jsonl", "model/model.safetensors"):
        assert (resumed.path / file).read_bytes() == (straight.path / file).read_bytes()


def test_weights_stay_as_they_were_when_the_loss_is_not_finite(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first bad update leaves the weights of the one before, which the checkpoint of step 4 holds."""
    from bertsmith.training import trainer

    seen: list[dict[str, torch.Tensor]] = []
    update = trainer.train_step

    def watched(strategy: Any, *rest: Any) -> Any:
        try:
            return update(strategy, *rest)
        except MachineError:
            seen.append({name: tensor.clone() for name, tensor in strategy.module.saved_tensors().items()})
            raise

    monkeypatch.setattr(trainer, "train_step", watched)
    spoil(monkeypatch, call=9, how="loss")  # the first batch of update 5
    with pytest.raises(MachineError):
        tiny_run.run(shards, tmp_path / "run", *SIX)
    kept = load_file(tmp_path / "run" / "checkpoints" / "step-4" / "weights.safetensors")
    assert seen[0].keys() == kept.keys()
    assert all(torch.equal(seen[0][name], kept[name]) for name in kept)


@pytest.mark.parametrize("change", ["longer", "torn", "shorter", "gone"])
def test_a_log_of_another_length_goes_on_at_a_whole_line(
    shards: Shards,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    change: str,
) -> None:
    straight = (tiny_run.run(shards, tmp_path / "straight", *SIX).path / "log.jsonl").read_text()
    with monkeypatch.context() as patch:
        spoil(patch, call=9, how="loss")
        with pytest.raises(MachineError):
            tiny_run.run(shards, tmp_path / "run", *SIX)
    log = tmp_path / "run" / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    assert len(lines) == 4
    if change == "longer":
        log.write_text("".join(lines) + '{"step": 5, "kind": "train"}\n{"st')
    elif change == "torn":
        log.write_text("".join(lines)[:-7])
    elif change == "shorter":
        log.write_text("".join(lines[:2]))
    else:
        log.unlink()
    caplog.clear()
    tiny_run.run(shards, tmp_path / "run", *SIX, resume=True)
    if change == "longer":
        assert log.read_text() == straight
    else:
        steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
        assert steps[-3:] == [5, 6, 6]
        assert any("lines are missing" in line for line in caplog.messages)


def tiny_module() -> TrainModule:
    config = ModelConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    generator = torch.Generator().manual_seed(0)
    return TrainModule(Encoder(config, generator), MaskedLM(config, generator))


def test_a_stopped_job_that_saves_no_unfinished_model_names_none(tmp_path: Path) -> None:
    class StopAtTwo(TrainerCallback):
        def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
            if trainer.state.step == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    settings = TrainSettings(max_steps=3, batch_size=2, report_to="none")
    phases, budget = [Phase(SyntheticStream(60, 12, 0.3), 1.0, 2)], TrainingBudget({"max_steps": 3}, 3, 1)
    job = TrainingJob(phases, settings, tmp_path, "test", "", budget, callbacks=[StopAtTwo()])
    with pytest.raises(Stopped) as caught:
        Trainer(tiny_module(), job, ComputeContext.create("cpu", "fp32")).fit()
    assert caught.value.hint_for("python") == "continue with the same command and resume=True"


def test_the_state_of_the_best_evaluation_is_in_checkpoints(tmp_path: Path) -> None:
    scores = iter([0.5, 0.75, 0.25])

    def evaluate() -> EvaluationResult:
        score = next(scores)
        return EvaluationResult({"score": score}, {"threshold": score / 2})

    settings = TrainSettings(max_steps=3, eval_steps=1, save_steps=1, batch_size=2, report_to="none")
    job = TrainingJob(
        [Phase(SyntheticStream(60, 12, 0.3), 1.0, 2)],
        settings,
        tmp_path,
        "test",
        "",
        TrainingBudget({"max_steps": 3}, 3, 1),
        Evaluation(evaluate, best_metric="score"),
    )
    output = Trainer(tiny_module(), job, ComputeContext.create("cpu", "fp32")).fit()
    saved = checkpoint.newest_state(tmp_path / "checkpoints")
    assert saved is not None
    assert saved.best_state == output.state.best_state == {"threshold": 0.375}
    assert (saved.best_step, saved.best_score, saved.num_bad_evals) == (2, 0.75, 1)


@pytest.mark.parametrize("optim", ["adamw", "muon"])
def test_one_cycle_of_lines_cycles_beta_1_of_every_group_of_adamw(tmp_path: Path, optim: str) -> None:
    """S86: 0.95, 0.85 at the peak, 0.95, in the optimizer itself."""
    betas: list[set[float]] = []

    class Record(TrainerCallback):
        def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
            groups = trainer.strategy.optimizer.param_groups
            betas.append({group["betas"][0] for group in groups if "betas" in group})

    values = {"max_steps": 8, "batch_size": 2, "report_to": "none", "optim": optim}
    settings = TrainSettings.of({**values, "lr_scheduler_type": "one_cycle_linear"}, "test")
    phases, budget = [Phase(SyntheticStream(60, 12, 0.3), 1.0, 2)], TrainingBudget({"max_steps": 8}, 8, 1)
    job = TrainingJob(phases, settings, tmp_path, "test", "", budget, callbacks=[Record()])
    Trainer(tiny_module(), job, ComputeContext.create("cpu", "fp32")).fit()
    assert all(len(values) == 1 for values in betas)
    cycle = [values.pop() for values in betas]
    assert (cycle[0], cycle[3], cycle[7]) == pytest.approx((0.95, 0.85, 0.95))
    assert cycle[:4] == sorted(cycle[:4], reverse=True)
    assert cycle[3:] == sorted(cycle[3:])
