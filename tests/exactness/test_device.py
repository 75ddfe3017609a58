"""The place of numbers: nothing is made on another device, the host waits once a step, seeds mean the same.

Held on a CPU: the step runs on torch's `meta` device, where a mode refuses every tensor that is made elsewhere and
counts what makes the host wait. What only a GPU can show is in `test_gpu.py`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tiny_run
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.inference.model import load
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.objectives.language_modeling import MaskedLM
from bertsmith.pretraining.data import create_stream
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.tasks.base import TaskModel
from bertsmith.tasks.batching import Item, TokenSequence
from bertsmith.tasks.settings import ClassSettings
from bertsmith.training import trainer
from bertsmith.training.data_loader import START, Update, iterate_updates
from bertsmith.training.optimizer import create_optimizer
from bertsmith.training.settings import TrainSettings
from bertsmith.training.train_step import DeferredFiniteCheck, GradientStrategy, TrainModule, train_step
from task_files import fitted_task

CONFIG = ModelConfig(
    vocab_size=46,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=64,
)
META = torch.device("meta")


class Watch(TorchDispatchMode):
    """Counts the operations that make the host wait, and refuses tensors that are made off a device.

    What is sent there counts as made on the host on purpose. On `meta` nothing can be asked: all is finite there.
    """

    def __init__(self, only: torch.device | None = None) -> None:
        super().__init__()
        self.only, self.waits = only, Counter[str]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.name().removeprefix("aten::").partition(".")[0]
        given = [t for t in tree_leaves((args, kwargs or {})) if isinstance(t, Tensor)]
        if name in ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select"):
            self.waits[name] += 1
            if name == "_local_scalar_dense" and given[0].device.type == "meta":
                return True
        found = func(*args, **(kwargs or {}))
        if self.only is not None and name != "lift_fresh":  # what NumPy made, on its way there
            made = [t for t in tree_leaves(found) if isinstance(t, Tensor) and t.device != self.only]
            assert not made, f"{func.name()} makes a tensor on {made[0].device}"
        return found


def pretraining(folder: Path) -> tuple[Encoder, MaskedLM, Any]:
    shards = tiny_run.make_shards(folder)
    generator = torch.Generator().manual_seed(0)
    chosen = PretrainSettings(model=CONFIG)
    stream = create_stream(shards, torch.arange(shards.documents).numpy(), chosen, 32)
    encoder = Encoder(CONFIG, generator)
    return encoder, MaskedLM(CONFIG, generator), stream


def one(encoder: Encoder, objective: Any, work: Update, place: ComputeContext) -> Watch:
    trained = TrainModule(encoder, objective).train()
    optimizer: torch.optim.Optimizer
    if place.device.type == "meta":  # where torch has no fused AdamW
        optimizer = torch.optim.SGD(trained.parameters(), foreach=True)
    else:
        optimizer = create_optimizer(trained, TrainSettings())
    settings = TrainSettings()
    only = place.device if place.device.type == "meta" else None
    strategy = GradientStrategy(trained, place, settings, optimizer)
    with Watch(only):
        train_step(strategy, work, 1e-3, 1)  # the first also makes the optimiser's state
    with Watch(only) as watch:
        train_step(strategy, work, 1e-3, 2)
    return watch


def classified() -> tuple[Encoder, TaskModel, Update]:
    generator = torch.Generator().manual_seed(0)
    encoder = Encoder(CONFIG, generator)
    metadata = {"labels": ["a", "b", "c"], "pairs": False}
    task = fitted_task("classify", CONFIG, generator, metadata, ClassSettings()).model.train()
    encodings = tiny_run.tokenizer().encode_batch([text for text, _ in tiny_run.examples(9)])
    items = [Item(i, (TokenSequence.from_encoding(e),), i % 3) for i, e in enumerate(encodings)]
    batch = task.collate(items)
    return encoder, task, Update(batch.counts, batch.tokens, 0, [batch], START)


def test_the_host_waits_once_a_step(tmp_path: Path) -> None:
    encoder, objective, stream = pretraining(tmp_path)
    place = ComputeContext.create("cpu", "fp32")
    work = next(iterate_updates(stream, 8, 1, START, 0, objective.counts))
    assert one(encoder, objective, work, place).waits == {"_local_scalar_dense": 1}
    batches = [stream.batch(0, 0, 8), stream.batch(0, 8, 16)]
    counts = {part: sum(batch.counts[part] for batch in batches) for part in ("mlm", "nsp")}
    several = Update(counts, 0, 0, batches, START)
    assert one(encoder, objective, several, place).waits == {"_local_scalar_dense": 1}
    assert one(*classified(), place).waits == {"_local_scalar_dense": 1}


def test_the_host_does_not_wait_where_it_runs_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether an update was finite is fetched, and looked at during the next one."""
    encoder, objective, stream = pretraining(tmp_path)
    place, checks, looked = ComputeContext.create("cpu", "fp32"), DeferredFiniteCheck(), []

    class Answer:
        def item(self) -> bool:
            looked.append(True)
            return True

    monkeypatch.setattr(ComputeContext, "is_async", property(lambda _: True))
    monkeypatch.setattr(ComputeContext, "start_copy_to_host", lambda *_: Answer)
    trained = TrainModule(encoder, objective).train()
    strategy = GradientStrategy(trained, place, TrainSettings())
    for number, work in zip(
        range(1, 4), iterate_updates(stream, 8, 1, START, 0, objective.counts), strict=False
    ):
        with Watch() as watch:
            train_step(strategy, work, 1e-3, number, checks)
        assert watch.waits == {}
        assert len(looked) == number - 1


@pytest.mark.parametrize(
    ("runs_ahead", "asked", "mode"), [(True, True, 2), (True, False, 0), (False, True, 0)]
)
def test_a_run_on_a_gpu_takes_deterministic_algorithms_where_that_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_ahead: bool, asked: bool, mode: int
) -> None:
    """On a processor there are no others, and what was set before the run is set behind it."""
    made, modes, filled = trainer.train_step, [], []

    def watched(*given: Any) -> Any:
        modes.append(torch.get_deterministic_debug_mode())
        filled.append(torch.utils.deterministic.fill_uninitialized_memory)
        return made(*given)

    monkeypatch.setattr(trainer, "train_step", watched)
    monkeypatch.setattr(ComputeContext, "is_async", property(lambda _: runs_ahead))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that it is put back, whatever the run makes of it
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    settings = ("train.max_steps=2", f"train.deterministic={asked}")
    tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "run", *settings)
    assert (modes, filled) == ([mode] * 2, [mode == 0] * 2)
    assert (os.environ.get("CUBLAS_WORKSPACE_CONFIG") is not None) is (mode == 2)
    assert torch.get_deterministic_debug_mode() == 0
    assert torch.utils.deterministic.fill_uninitialized_memory


def test_what_has_no_deterministic_algorithm_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ComputeContext.create("cpu", "fp32")
    monkeypatch.setattr(ComputeContext, "is_async", property(lambda _: True))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    torch.set_deterministic_debug_mode("warn")
    try:
        with pytest.raises(InputError) as caught, place.deterministic():
            raise RuntimeError("index_sum does not have a deterministic implementation, but you set …")
        assert (caught.value.code, caught.value.argument) == ("not_deterministic", "train.deterministic")
        with pytest.raises(RuntimeError, match="another"), place.deterministic():
            raise RuntimeError("another error")
        assert torch.get_deterministic_debug_mode() == 1
    finally:
        torch.set_deterministic_debug_mode("default")
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_nothing_is_made_on_another_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = ComputeContext(META, "fp32", torch.Generator())
    monkeypatch.setattr("bertsmith.training.train_step._raise_diverged", lambda *_: None)
    encoder, objective, stream = pretraining(tmp_path)
    work = next(iterate_updates(stream, 8, 1, START, 0, objective.counts))
    for some in ((encoder, objective, work), classified()):
        for module in some[:2]:
            module.to(META)
        batch = next(iter(some[2].batches))
        there = Update(some[2].counts, 0, 0, [batch], START)
        watch = one(some[0], some[1], there, place)
        assert set(watch.waits) == {"_local_scalar_dense"}


def test_the_watch_sees_what_it_should() -> None:
    with pytest.raises(AssertionError, match="makes a tensor on cpu"), Watch(META):
        torch.zeros(3)
    with Watch() as watch:
        torch.ones(2)[0].item()
        torch.tensor([1, 0]).nonzero()
    assert watch.waits == {"_local_scalar_dense": 1, "nonzero": 1}


def test_first_weights_are_the_same_for_every_device() -> None:
    """Off the CPU they are drawn on the host, from the same seed."""
    here = ComputeContext.create("cpu", "fp32", seed=7)
    there = ComputeContext(META, "fp32", torch.Generator().manual_seed(7))
    weights = [Encoder(CONFIG, place.init_generator).state_dict() for place in (here, there)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert here.init_generator is here.generator
    assert there.init_generator is not there.generator


def test_dropout_draws_from_the_places_generator() -> None:
    encoder = Encoder(CONFIG, torch.Generator())
    place = ComputeContext.create("cpu", "fp32", seed=3)
    place.prepare_modules(encoder)
    assert encoder.generator is place.generator
    assert encoder.embeddings.dropout.generator is place.generator


@pytest.mark.parametrize("name", ["tpu", "cuda:x", "nothing at all"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(InputError) as caught:
        ComputeContext.create(name, "fp32")
    assert (caught.value.code, caught.value.argument) == ("unknown_device", "device")


def test_a_model_is_not_loaded_for_a_device_that_is_not_there(tmp_path: Path) -> None:
    tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "run", "train.max_steps=1")
    with pytest.raises(InputError) as caught:
        load(tmp_path / "run", "gpu")
    assert caught.value.code == "unknown_device"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_auto_is_the_cpu_and_cuda_is_refused(tmp_path: Path) -> None:
    assert ComputeContext.create("auto", "fp32").device.type == "cpu"
    with pytest.raises(InputError) as caught:
        tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "run", "train.device=cuda")
    assert caught.value.code == "unknown_device"
    assert not (tmp_path / "run").exists()
