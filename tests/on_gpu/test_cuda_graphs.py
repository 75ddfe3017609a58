"""Runs with CUDA graphs and asynchronous updates equal runs without them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import tiny_run
from bertsmith import device
from bertsmith.device import ComputeContext
from bertsmith.errors import Diverged
from bertsmith.instances.batches import BatchSizes, SyntheticStream
from bertsmith.kernels.gpu.torch_flash_attention import FlashBackend
from bertsmith.kernels.reference import KernelBackend
from bertsmith.training import cuda_graphs, trainer

pytest.importorskip("triton", reason="needs Triton, which the extra `dev` has on Linux")
from bertsmith.kernels.gpu.triton_backend import TritonBackend

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="Triton uses the GPU, and the tensors of these tests are on the CPU"
)


class FakeGraph:
    """A replacement of a CUDA graph that computes again, in other memory."""

    num_replays = 0

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def replay(self) -> None:
        FakeGraph.num_replays += 1
        self._work()

    def pool(self) -> None:
        return None


def imitate_gpu(monkeypatch: pytest.MonkeyPatch, kernels: KernelBackend) -> None:
    """Let runs use these kernels, the default generator, asynchronous updates, and fake graphs.

    Batches are padded so far that few shapes occur.
    """
    monkeypatch.setattr(ComputeContext, "capture_graph", lambda _, work, __: FakeGraph(work))
    monkeypatch.setattr(cuda_graphs, "_TOKEN_STEPS", 1)
    monkeypatch.setattr(cuda_graphs, "_ROW_STEPS", 1)
    monkeypatch.setattr(FakeGraph, "num_replays", 0)
    monkeypatch.setattr("bertsmith.device._default_generator", lambda _: torch.default_generator)
    monkeypatch.setattr(ComputeContext, "is_async", property(lambda _: True))
    monkeypatch.setattr(device, "select_training_backend", lambda *_, **__: kernels)


SETTINGS = (
    *("train.max_steps=6", "train.save_steps=2", "train.eval_steps=3", "train.precision=fp32"),
    "train.gradient_accumulation_steps=1",  # CUDA graphs need it.
    *("model.num_hidden_layers=1", "model.num_attention_heads=1", "train.batch_size=2"),
)


@pytest.mark.parametrize("kernels", [FlashBackend(), TritonBackend()], ids=lambda kernels: kernels.name)
def test_resumed_run_equals_uninterrupted_run(
    fp32_attention: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: KernelBackend
) -> None:
    imitate_gpu(monkeypatch, kernels)
    shards = tiny_run.make_shards(tmp_path)
    uninterrupted = tiny_run.run(shards, tmp_path / "uninterrupted", *SETTINGS)
    assert (FakeGraph.num_replays > 2) == kernels.ignores_negative_labels
    assert f"kernels: {kernels.name}\n" in (uninterrupted.path / "settings.yaml").read_text(encoding="utf-8")
    update = trainer.train_step

    def interrupted_update(*args: Any) -> Any:
        if args[3] == 4:
            raise KeyboardInterrupt
        return update(*args)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "train_step", interrupted_update)
        with pytest.raises(KeyboardInterrupt):
            tiny_run.run(shards, tmp_path / "resumed", *SETTINGS)
    torch.manual_seed(7)
    resumed = tiny_run.run(shards, tmp_path / "resumed", *SETTINGS, resume=True)
    for file in ("log.jsonl", "model/model.safetensors"):
        assert (uninterrupted.path / file).read_bytes() == (resumed.path / file).read_bytes()


def test_run_with_graphs_equals_run_without(
    fp32_attention: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs are equal except for rounding. Dropout is off, since it also draws numbers for padding."""
    imitate_gpu(monkeypatch, TritonBackend())
    shards = tiny_run.make_shards(tmp_path)
    no_dropout = (
        "model.hidden_dropout_prob=0",
        "model.attention_probs_dropout_prob=0",
        "train.logging_steps=1",
    )
    logs = []
    for graphs in ("true", "false"):
        monkeypatch.setattr(FakeGraph, "num_replays", 0)
        run = tiny_run.run(shards, tmp_path / graphs, *SETTINGS, *no_dropout, f"train.cuda_graphs={graphs}")
        assert (FakeGraph.num_replays > 2) == (graphs == "true")
        logs.append([json.loads(line) for line in (run.path / "log.jsonl").read_text().splitlines()])
    for line, expected in zip(*logs, strict=True):
        assert line.keys() == expected.keys()
        assert line.get("loss", 0) == pytest.approx(expected.get("loss", 0), rel=1e-2)
        assert line.get("tokens") == expected.get("tokens")


def test_graphs_change_no_bit(fp32_attention: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes beyond the maximum number of graphs are computed without one, from equally padded batches."""
    imitate_gpu(monkeypatch, TritonBackend())
    shards = tiny_run.make_shards(tmp_path)
    logs = []
    for max_graphs in (16, 0):
        monkeypatch.setattr(FakeGraph, "num_replays", 0)
        monkeypatch.setattr(cuda_graphs, "_MAX_GRAPHS", max_graphs)
        run = tiny_run.run(shards, tmp_path / str(max_graphs), *SETTINGS, "train.logging_steps=1")
        assert bool(FakeGraph.num_replays) == bool(max_graphs)
        logs.append((run.path / "log.jsonl").read_bytes())
    assert logs[0] == logs[1]


def test_models_without_flash_attention_use_no_graphs(
    fp32_attention: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model with an unsupported head size is trained without graphs."""
    imitate_gpu(monkeypatch, TritonBackend())
    shards = tiny_run.make_shards(tmp_path)
    head_size_12 = ("model.hidden_size=36", "model.num_attention_heads=3", "train.logging_steps=1")
    uninterrupted = tiny_run.run(shards, tmp_path / "uninterrupted", *SETTINGS, *head_size_12)
    assert not FakeGraph.num_replays
    shorter = tiny_run.run(shards, tmp_path / "shorter", *SETTINGS, *head_size_12, "train.max_steps=4")
    assert shorter.report["steps"] == 4
    lines = [(run.path / "log.jsonl").read_text().splitlines()[0] for run in (uninterrupted, shorter)]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_update_that_is_not_finite_changes_nothing(
    fp32_attention: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    """The host detects it during the next step, and the run ends before that step's update."""
    imitate_gpu(monkeypatch, TritonBackend())
    shards = tiny_run.make_shards(tmp_path)
    update, states = trainer.train_step, {}

    def update_with_nan(strategy: Any, work: Any, *args: Any) -> Any:
        module, optimizer, step = strategy.module, strategy.optimizer, args[1]
        states[step] = [p.detach().clone() for p in module.parameters()], _moments(optimizer)
        if step == 5:
            with torch.no_grad():
                bias = module.objective.masked.bias
                original = bias.clone()
                bias.fill_(torch.nan)
        try:
            return update(strategy, work, *args)
        finally:
            if step == 5:
                with torch.no_grad():
                    bias.copy_(original)

    monkeypatch.setattr(trainer, "train_step", update_with_nan)
    settings = (
        "train.max_steps=9",
        "train.logging_steps=100",
        "train.save_steps=100",
        "train.precision=bf16",
    )
    with pytest.raises(Diverged) as caught:
        tiny_run.run(shards, tmp_path / "run", *settings, f"train.optim={optimizer}")
    assert caught.value.code == "loss_not_finite"
    assert "at step 5" in caught.value.message
    assert max(states) == 6
    for before, after in zip(*(states[step][0] + states[step][1] for step in (5, 6)), strict=True):
        assert before.equal(after)
    assert not states[4][0][0].equal(states[5][0][0])


def _moments(optimizer: Any) -> list[Tensor]:
    return [
        state[name].clone()
        for state in optimizer.state.values()
        for name in ("step", "exp_avg", "exp_avg_sq", "momentum_buffer")
        if name in state
    ]


def test_checkpoint_waits_for_the_finite_check(
    fp32_attention: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imitate_gpu(monkeypatch, FlashBackend())
    shards = tiny_run.make_shards(tmp_path)
    update = trainer.train_step

    def update_with_inf(strategy: Any, *args: Any) -> Any:
        if args[2] == 4:
            with torch.no_grad():
                strategy.module.objective.masked.bias.fill_(torch.inf)
        return update(strategy, *args)

    monkeypatch.setattr(trainer, "train_step", update_with_inf)
    settings = ("train.max_steps=9", "train.logging_steps=100", "train.save_steps=2", "train.precision=bf16")
    with pytest.raises(Diverged) as caught:
        tiny_run.run(shards, tmp_path / "run", *settings)
    assert caught.value.code == "loss_not_finite"
    assert "step 4" in caught.value.message
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir()) == ["step-2"]


@given(st.integers(1, 10**6), st.integers(0, 10**5), st.integers(1, 512))
def test_padded_sizes(num_tokens: int, num_rows: int, max_seqlen: int) -> None:
    """Batches are padded by at most 4 % of their tokens and 7 % of their rows."""
    sizes = BatchSizes(-(-num_tokens // max_seqlen), num_tokens, num_rows, max_seqlen)
    padded = cuda_graphs._padded_sizes(sizes)
    assert num_tokens < padded.num_tokens <= 1.04 * num_tokens + 2
    assert num_rows <= padded.num_rows <= 1.07 * num_rows + 1
    assert padded.num_tokens - num_tokens <= (padded.num_sequences - sizes.num_sequences) * max_seqlen
    assert padded.max_seqlen == max_seqlen


def test_batch_padding() -> None:
    batch = SyntheticStream(50, 12, 0.3).batch(0, 0, 2)
    sizes = batch.sizes
    num_sequences, num_tokens = sizes.num_sequences, sizes.num_tokens
    larger = sizes._replace(num_sequences=num_sequences + 2, num_tokens=num_tokens + 20)
    assert batch.padded_to(larger).sizes == (num_sequences + 2, num_tokens + 20, *sizes[2:])
    for impossible in (
        sizes._replace(num_tokens=num_tokens - 1),
        sizes._replace(num_rows=sizes.num_rows - 1),
        sizes._replace(max_seqlen=sizes.max_seqlen - 1),
        sizes._replace(num_sequences=num_sequences + 1),
        sizes._replace(num_sequences=num_sequences + 1, num_tokens=num_tokens + sizes.max_seqlen + 1),
    ):
        with pytest.raises(ValueError, match="cannot be filled"):
            batch.padded_to(impossible)


def test_graphs_are_captured_on_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs use the run's device, not PyTorch's current one, and one stream per device."""
    second, current, captures = torch.device("cuda:1"), [torch.device("cuda:0")], []

    @contextmanager
    def set_device(device: torch.device) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    @contextmanager
    def graph(_: Any, pool: Any, stream: Any) -> Iterator[None]:
        captures.append((current[-1], stream))
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: ("stream", device, object()))
    monkeypatch.setattr(torch.cuda, "device", set_device)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    device._capture_stream.cache_clear()
    devices = []
    for _ in range(2):
        ComputeContext(second, "bf16", torch.Generator()).capture_graph(
            lambda: devices.append(current[-1]), None
        )
    device._capture_stream.cache_clear()
    assert devices == [second] * 2
    assert captures[0] == captures[1]
    assert captures[0][0] == captures[0][1][1] == second
