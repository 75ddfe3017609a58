"""A range test on each task's own batches: afterwards everything is as it was, to the bit."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import bertsmith
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.finetuning.data import read_training
from bertsmith.finetuning.model import build_model
from bertsmith.finetuning.settings import settings_type
from bertsmith.models.encoder import Encoder
from bertsmith.packed import Packed
from bertsmith.tasks.batching import ItemStream
from bertsmith.tasks.registry import TASKS, get_task
from bertsmith.training.data_loader import Phase
from bertsmith.training.lr_range_test import lr_range_test
from bertsmith.training.optimizer import create_optimizer, set_learning_rate
from bertsmith.training.train_step import TrainModule
from task_files import FILES, OWN

FEW: dict[str, Any] = {"threads": 1, "precision": "fp32", "batch_size": 5}


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("name", list(FILES))
def test_every_task_has_its_curve_and_leaves_the_model_alone(
    base: bs.Model, tmp_path: Path, name: str
) -> None:
    suffix, write = FILES[name]
    file, before = write(tmp_path / f"train.{suffix}", 0), digests(base.path)
    settings = [f"train.{key}={value}" for key, value in FEW.items()]
    found = bs.find_rate(
        name.split()[0], base, train=file, seeds=2, steps=12, settings=[*settings, *OWN.get(name, [])]
    )
    assert len(found.rates) == 12
    assert list(found.losses) == [0, 1]
    assert found.losses[0][0] != found.losses[1][0]  # another head, or another order and dropout
    assert all(math.isfinite(loss) for losses in found.losses.values() for loss in losses)
    assert digests(base.path) == before
    document = found.to_dict()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert found.message.startswith(("suggestion: ", "no suggestion: "))


def test_a_frozen_encoder_is_read_as_a_run_reads_it(
    base: bs.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its states are computed once for all seeds, in evaluation, and no update asks it again."""
    computed = []
    hidden_states = Encoder.hidden_states

    def counted(encoder: Encoder, packed: Packed) -> list[torch.Tensor]:
        computed.append(packed)
        return hidden_states(encoder, packed)

    monkeypatch.setattr(Encoder, "hidden_states", counted)
    monkeypatch.setattr(Encoder, "forward", lambda *_: pytest.fail("the encoder was asked again"))
    file = FILES["tag"][1](tmp_path / "train.jsonl", 0)
    found = bs.find_rate("tag", base, train=file, seeds=2, steps=12, freeze_encoder=True, **FEW)
    assert len(computed) == 1
    assert list(found.losses) == [0, 1]


def test_no_task_is_forgotten() -> None:
    assert {name.split()[0] for name in FILES} == set(TASKS)


class Made:
    """A model under training, as a run has it: moments, gradients, a generator that was drawn from."""

    def __init__(self, base: bs.Model, file: Path, *settings: str) -> None:
        kind = get_task("classify")
        values = {"base": str(base.path), "files": {"train": str(file)}}
        chosen = settings_type(kind).of(values, "test").changed(settings)
        self.settings = chosen.train
        self.place = ComputeContext.create("auto", "fp32", 3)
        examples, facts = read_training(kind, chosen.files, chosen.task)
        encoder, task = build_model(kind, base.folder, chosen, facts, self.place)
        self.trained = TrainModule(encoder, task.model)
        items = task.encode(examples, base.tokenizer)
        self.phase = Phase(ItemStream(task.model.collate, items, 0), 1.0, 4)
        self.optimizer = create_optimizer(self.trained, self.settings)
        self.trained.train()
        for start in (0, 4):
            batch = self.phase.stream.batch(0, start, start + 4)
            self.optimizer.zero_grad()
            self.trained.loss(batch).reduce(batch.counts, {}).backward()
            set_learning_rate(self.optimizer, 1e-3)
            self.optimizer.step()

    def state(self) -> dict[str, torch.Tensor]:
        """All of it, by name."""
        trained, optimizer = self.trained, self.optimizer
        found = {f"weights {name}": tensor for name, tensor in trained.state_dict().items()}
        for name, p in trained.named_parameters():
            found[f"needs {name}"] = torch.tensor(p.requires_grad)
            if p.grad is not None:
                found[f"gradient {name}"] = p.grad
            found |= {f"{key} {name}": tensor for key, tensor in optimizer.state.get(p, {}).items()}
        found |= {f"rate {n}": torch.tensor(g["lr"]) for n, g in enumerate(optimizer.param_groups)}
        found["generator"] = self.place.generator.get_state()
        found |= {f"mode {name}": torch.tensor(m.training) for name, m in trained.named_modules()}
        return {name: tensor.detach().clone() for name, tensor in found.items()}


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("train.optim=muon", "train.muon_learning_rate=1e-4", "train.gradient_accumulation_steps=2"),
        ("train.freeze_layers=1", "train.layerwise_lr_decay=0.5"),
        ("train.bias_correction=false", "train.dataloader_num_workers=0"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("high", [1e-3, 1e30])
def test_afterwards_everything_is_as_it_was(
    base: bs.Model, tmp_path: Path, settings: tuple[str, ...], high: float
) -> None:
    """Weights, buffers, gradients, the run's own optimiser, the generator, the mode; also after a divergence."""
    made = Made(base, tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30)), *settings)
    before = made.state()
    rates = np.geomspace(1e-6, high, 30).tolist()
    losses = lr_range_test(made.trained, made.phase, made.settings, made.place, rates)
    assert_equal(made.state(), before)
    assert (len(losses) < 30) == (high > 1)
    again = lr_range_test(made.trained, made.phase, made.settings, made.place, rates)
    assert again == losses  # from the same state, the same
    made.trained.eval()
    still = made.state()
    lr_range_test(made.trained, made.phase, made.settings, made.place, rates[:3])
    assert_equal(made.state(), still)


def test_it_stops_where_the_mean_loss_is_four_times_its_best(
    base: bs.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S85: 20 rates, so that the mean reaches over one of them: its decay is exp(-1)."""
    made = Made(base, tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30)))
    losses = [1.0] * 8 + [0.25] * 6 + [1.1] * 6

    def step(strategy: Any, update: Any, rate: float, step: int) -> dict[str, torch.Tensor]:
        return {"loss": torch.tensor(losses[step - 1])}

    monkeypatch.setattr("bertsmith.training.lr_range_test.train_step", step)
    rates = np.geomspace(1e-6, 10, 20).tolist()
    seen = lr_range_test(made.trained, made.phase, made.settings, made.place, rates)
    # The mean is lowest after 14 updates, 0.252, and after 3, 4, and 5 more 1.058, 1.084, and 1.094.
    assert len(seen) == 17
    losses[14:] = [0.9] * 6  # its mean never is four times the lowest
    assert len(lr_range_test(made.trained, made.phase, made.settings, made.place, rates)) == 20


def test_an_interruption_leaves_it_as_it_was_too(base: bs.Model, tmp_path: Path) -> None:
    made = Made(base, tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30)))
    before = made.state()

    def interrupted(step: int, loss: float) -> None:
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lr_range_test(
            made.trained,
            made.phase,
            made.settings,
            made.place,
            np.geomspace(1e-6, 1, 9).tolist(),
            interrupted,
        )
    assert_equal(made.state(), before)


def test_data_in_memory_and_keywords(base: bs.Model, tmp_path: Path) -> None:
    rows = [{"title": text, "label": label} for text, label in tiny_run.examples(24)]
    found = bs.find_rate(
        "classify",
        base,
        train=rows,
        text_column="title",
        seeds=1,
        steps=10,
        seed=5,
        low=1e-5,
        high=1e-2,
        **FEW,
    )
    assert list(found.losses) == [5]
    assert (found.rates[0], found.rates[-1]) == (pytest.approx(1e-5), pytest.approx(1e-2))


def call(*words: object) -> Any:
    return CliRunner().invoke(bertsmith, ["lr-find", "classify", *map(str, words)])


def test_the_verb_writes_a_plot_and_one_document(base: bs.Model, tmp_path: Path) -> None:
    train = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30))
    out = tmp_path / "plots" / "rates.png"
    words = ["--model", base.path, "--train", train, "--steps", 15, "--seeds", 2, "--threads", 1]
    words += ["--set", "train.precision=fp32", "--output", out]
    made = call(*words)
    assert made.exit_code == 0, made.output
    assert out.read_bytes().startswith(b"\x89PNG\r\n")
    assert "training loss by learning rate, smoothed" in made.stdout
    assert "suggestion: " in made.stdout
    again = call(*words)
    assert isinstance(again.exception, InputError)
    assert str(out) in str(again.exception)
    out.unlink()
    document = json.loads(call(*words, "--json").stdout)
    assert (len(document["rates"]), list(document["seeds"]), document["plot"]) == (15, ["0", "1"], str(out))
    seed = document["seeds"]["0"]
    assert {"losses", "smoothed", "lowest_at", "steepest_at", "falls_clearly", "diverges_at"} == seed.keys()
    assert document["seconds"] > 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--low", "1e-2", "--high", "1e-3"), "rates_invalid"),
        (("--steps", "5"), "steps_too_few"),
        (("--seeds", "2", "--set", "train.freeze_layers=3"), "freeze_layers_too_many"),
        (("--batch-size", "4", "--set", "train.batch_size=8"), None),
    ],
)
def test_what_cannot_be_done_is_said(
    base: bs.Model, tmp_path: Path, words: tuple[str, ...], code: str | None
) -> None:
    train = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(12))
    failed = call("--model", base.path, "--train", train, *words)
    if code is None:
        assert failed.exit_code == 2
        return
    assert isinstance(failed.exception, InputError)
    assert failed.exception.code == code
