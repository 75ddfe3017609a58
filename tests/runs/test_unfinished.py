"""A stopped or killed run leaves a model that answers and says what it is, until the finished one replaces it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import bertsmith as bs
import tiny_run
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError, Stopped
from bertsmith.training import checkpoint
from bertsmith.training.callbacks import MetricLogger

STEPS = ["train.max_steps=8", "train.save_steps=100"]
TUNE = [
    "train.max_steps=12",
    "train.batch_size=6",
    "train.learning_rate=2e-3",
    "train.threads=1",
    "train.precision=fp32",
    "train.report_to=none",
    "train.logging_steps=1",
]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def finished(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    return tiny_run.run(shards, tmp_path_factory.mktemp("finished") / "run", *STEPS)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.table(tmp_path_factory.mktemp("rows") / "rows.csv", tiny_run.examples(36))


def signal_at(patch: pytest.MonkeyPatch, step: int, number: int = signal.SIGINT) -> None:
    """A signal comes in at this update."""
    stepped = MetricLogger.on_step_end

    def signal_then_step(self: MetricLogger, trainer: Any, result: Any) -> None:
        if trainer.state.step == step:
            os.kill(os.getpid(), number)
        stepped(self, trainer, result)

    patch.setattr(MetricLogger, "on_step_end", signal_then_step)


def tune(base: bs.Model, rows: Path, out: Path, *settings: str, resume: bool = False) -> bs.Model:
    return bs.finetune(
        "classify", base, out, train=rows, validation=rows, settings=[*TUNE, *settings], resume=resume
    )


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_pre_training_leaves_a_model_that_says_what_it_is(
    shards: Shards,
    finished: bs.Model,
    rows: Path,
    tmp_path: Path,
    number: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        signal_at(patch, 5, number)
        with pytest.raises(Stopped, match=r"resume=True, or use the unfinished model in .*run$"):
            tiny_run.run(shards, run, *STEPS)
    caplog.clear()
    model = bs.load(run)
    warning = f"{run}: this model is of an unfinished run (step 5 of 8)"
    assert caplog.messages == [warning]
    assert model.folder.record["unfinished"] == {"step": 5, "of": 8}
    assert len(model.fill_mask("kaba [MASK] lode.")[0]) == 5
    saved = load_file(run / "checkpoints" / "step-5" / "weights.safetensors")
    torch.testing.assert_close(
        model.encoder.embeddings.token.weight, saved["encoder.embeddings.token.weight"], rtol=0, atol=0
    )
    caplog.clear()
    bs.finetune("classify", run, tmp_path / "moods", train=rows, validation=rows, settings=TUNE)
    assert [message for message in caplog.messages if "unfinished" in message] == [warning]
    caplog.clear()
    resumed = tiny_run.run(shards, run, *STEPS, resume=True)
    assert not any("unfinished" in message for message in caplog.messages)
    assert resumed.unfinished is None
    for name, tensor in weights(finished.path).items():
        assert torch.equal(weights(run)[name], tensor)
    assert bs.load(run).report["steps"] == 8


@pytest.mark.parametrize("every", [3, 100], ids=["the best so far", "the last"])
def test_a_stopped_fine_tuning_leaves_its_best_or_its_last_weights(
    finished: bs.Model, rows: Path, tmp_path: Path, every: int
) -> None:
    """It answers, and the resumed run is the one that was not stopped."""
    setting, run = f"train.eval_steps={every}", tmp_path / "run"
    straight = tune(finished, rows, tmp_path / "straight", setting)
    with pytest.MonkeyPatch.context() as patch:
        signal_at(patch, 11)
        with pytest.raises(Stopped):
            tune(finished, rows, run, setting)
    model = bs.load(run)
    state = json.loads((run / "checkpoints" / "step-11" / "state.json").read_text())
    best = state["best_step"] or 11
    assert model.folder.record["unfinished"] == {"step": best, "of": 12}
    file = f"best-{best}.safetensors" if state["best_step"] else "step-11/weights.safetensors"
    saved = load_file(run / "checkpoints" / file)
    assert torch.equal(model.encoder.embeddings.token.weight, saved["encoder.embeddings.token.weight"])
    assert model.predict(["kaba"])[0].label in model.labels
    if state["best_step"]:
        assert (
            model.evaluate(rows).accuracy
            == state["best_score"]
            == model.folder.record["validation"]["accuracy"]
        )
    resumed = tune(finished, rows, run, setting, resume=True)
    assert resumed.report["validation"] == straight.report["validation"]
    for name, tensor in weights(straight.path).items():
        assert torch.equal(weights(run)[name], tensor)


def test_a_killed_run_leaves_the_model_of_a_checkpoint(shards: Shards, tmp_path: Path) -> None:
    """The first checkpoint's and, as far as a hundredth of the time allows, a later one's."""
    save = checkpoint.save

    def save_and_die(folder: Path, what: checkpoint.Checkpoint, keep: int) -> Path:
        if what.state.step == 4:
            raise KeyboardInterrupt
        return save(folder, what, keep)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", save_and_die)
        with pytest.raises(KeyboardInterrupt):
            tiny_run.run(shards, tmp_path / "run", "train.max_steps=8", "train.save_steps=2")
    model = bs.load(tmp_path / "run")
    assert model.folder.record["unfinished"] == {"step": 2, "of": 8}
    assert model.fill_mask("kaba [MASK].")


def test_models_on_the_way_take_a_hundredth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a second; checkpoints are ten seconds apart."""
    from bertsmith.runs import run_folder
    from bertsmith.training.training_job import TrainState

    clock, written = [0.0], []

    def write(state: TrainState, mark: dict[str, Any]) -> None:
        clock[0] += 1
        written.append(state.step)

    monkeypatch.setattr(run_folder.time, "monotonic", lambda: clock[0])
    on_the_way = run_folder.IntermediateSaver(write)
    for step in range(1, 41):
        clock[0] += 10
        on_the_way.save(TrainState(step=step), 41, is_stopping=False)
    on_the_way.save(TrainState(step=41), 41, is_stopping=True)
    assert written == [1, 11, 21, 31, 41]


def test_a_run_without_a_model_says_how_to_get_one(
    shards: Shards, finished: bs.Model, tmp_path: Path
) -> None:
    shutil.copytree(finished.path, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    with pytest.raises(InputError) as caught:
        bs.load(tmp_path / "run")
    assert (caught.value.code, caught.value.location) == ("model_not_written", str(tmp_path / "run"))
