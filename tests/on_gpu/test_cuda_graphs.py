"""Updates that are recorded and replayed on a GPU, and made without waiting for it: the same runs."""

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
from bertsmith.instances.batches import BatchSizes
from bertsmith.instances.synthetic_batches import SyntheticStream
from bertsmith.kernels.gpu.torch_flash_attention import FlashBackend
from bertsmith.kernels.reference import KernelBackend
from bertsmith.runs import run_folder as run_of_workflows
from bertsmith.training import cuda_graphs, trainer

pytest.importorskip("triton", reason="needs Triton, which the extra `dev` has on Linux")
from bertsmith.kernels.gpu.triton_backend import TritonBackend

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(),
    reason="Triton computes on the GPU here, and these tensors are on the processor",
)


class Again:
    """What stands in for a CUDA graph: it computes again, in other memory."""

    replayed = 0

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def replay(self) -> None:
        Again.replayed += 1
        self._work()

    def pool(self) -> None:
        return None


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, kernels: KernelBackend) -> None:
    """Runs compute with these kernels, draw from the default generator, do not wait for the device, and record
    their updates; a batch is filled up far enough that few shapes are met."""
    monkeypatch.setattr(ComputeContext, "capture_graph", lambda _, work, __: Again(work))
    monkeypatch.setattr(cuda_graphs, "_STEPS", 1)
    monkeypatch.setattr(cuda_graphs, "_ROW_STEPS", 1)
    monkeypatch.setattr(Again, "replayed", 0)
    monkeypatch.setattr("bertsmith.device._default_generator", lambda _: torch.default_generator)
    monkeypatch.setattr(ComputeContext, "is_async", property(lambda _: True))
    monkeypatch.setattr(run_of_workflows, "select_training_backend", lambda *_, **__: kernels)


FEW = (
    *("train.max_steps=9", "train.checkpoint_every=2", "train.evaluate_every=3", "train.precision=fp32"),
    "train.accumulate=1",  # else nothing is recorded
)


@pytest.mark.parametrize("kernels", [FlashBackend(), TritonBackend()], ids=lambda kernels: kernels.name)
def test_a_resumed_run_is_the_unbroken_one(
    exact: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: KernelBackend
) -> None:
    as_on_a_gpu(monkeypatch, kernels)
    shards = tiny_run.make_shards(tmp_path)
    straight = tiny_run.run(shards, tmp_path / "straight", *FEW)
    assert (Again.replayed > 2) == kernels.ignores_negative_labels
    assert f"kernels: {kernels.name}\n" in (straight.path / "settings.yaml").read_text(encoding="utf-8")
    update = trainer.update

    def killed(*given: Any) -> Any:
        if given[6] == 6:
            raise KeyboardInterrupt
        return update(*given)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "update", killed)
        with pytest.raises(KeyboardInterrupt):
            tiny_run.run(shards, tmp_path / "resumed", *FEW)
    torch.manual_seed(7)
    resumed = tiny_run.run(shards, tmp_path / "resumed", *FEW, resume=True)
    for file in ("log.jsonl", "model/model.safetensors"):
        assert (straight.path / file).read_bytes() == (resumed.path / file).read_bytes()


def test_a_recorded_run_is_the_one_that_is_not(
    exact: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for rounding: without dropout, which draws for what batches are filled up with, too."""
    as_on_a_gpu(monkeypatch, TritonBackend())
    shards = tiny_run.make_shards(tmp_path)
    still = ("model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0", "train.log_every=1")
    lines = []
    for graphs in ("true", "false"):
        monkeypatch.setattr(Again, "replayed", 0)
        run = tiny_run.run(shards, tmp_path / graphs, *FEW, *still, f"train.cuda_graphs={graphs}")
        assert (Again.replayed > 2) == (graphs == "true")
        lines.append([json.loads(line) for line in (run.path / "log.jsonl").read_text().splitlines()])
    for own, other in zip(*lines, strict=True):
        assert own.keys() == other.keys()
        assert own.get("loss", 0) == pytest.approx(other.get("loss", 0), rel=1e-2)
        assert own.get("tokens") == other.get("tokens")


def test_what_is_recorded_changes_no_digit(
    exact: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shapes beyond the most that are recorded are computed as usual, of batches filled up all the same."""
    as_on_a_gpu(monkeypatch, TritonBackend())
    shards = tiny_run.make_shards(tmp_path)
    logs = []
    for most in (16, 0):
        monkeypatch.setattr(Again, "replayed", 0)
        monkeypatch.setattr(cuda_graphs, "_MOST", most)
        run = tiny_run.run(shards, tmp_path / str(most), *FEW, "train.log_every=1")
        assert bool(Again.replayed) == bool(most)
        logs.append((run.path / "log.jsonl").read_bytes())
    assert logs[0] == logs[1]


def test_a_model_that_asks_for_lengths_is_not_recorded(
    exact: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose heads flash attention does not take; it is trained and resumed as usual."""
    as_on_a_gpu(monkeypatch, TritonBackend())
    shards = tiny_run.make_shards(tmp_path)
    odd = ("model.hidden_size=36", "model.num_attention_heads=3", "train.log_every=1")
    straight = tiny_run.run(shards, tmp_path / "straight", *FEW, *odd)
    assert not Again.replayed
    half = tiny_run.run(shards, tmp_path / "half", *FEW, *odd, "train.max_steps=4")
    assert half.report["steps"] == 4
    lines = [(run.path / "log.jsonl").read_text().splitlines()[0] for run in (straight, half)]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_an_update_that_is_not_finite_changes_nothing(
    exact: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    """The host learns of it while the next one is computed; the run ends before that is made."""
    as_on_a_gpu(monkeypatch, TritonBackend())
    shards = tiny_run.make_shards(tmp_path)
    update, states = trainer.update, {}

    def spoiled(trained: Any, optimizer: Any, work: Any, *given: Any) -> Any:
        step = given[3]
        states[step] = [p.detach().clone() for p in trained.parameters()], _moments(optimizer)
        if step == 5:
            with torch.no_grad():
                bias = trained.objective.masked.bias
                kept = bias.clone()
                bias.fill_(torch.nan)
        try:
            return update(trained, optimizer, work, *given)
        finally:
            if step == 5:
                with torch.no_grad():
                    bias.copy_(kept)

    monkeypatch.setattr(trainer, "update", spoiled)
    few = ("train.max_steps=9", "train.log_every=100", "train.checkpoint_every=100", "train.precision=bf16")
    with pytest.raises(Diverged, match=r"the loss is nan at step 5 \(epoch"):
        tiny_run.run(shards, tmp_path / "run", *few, f"train.optimizer={optimizer}")
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


def test_a_bad_update_before_a_checkpoint_is_not_saved(
    exact: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_on_a_gpu(monkeypatch, FlashBackend())
    shards = tiny_run.make_shards(tmp_path)
    update = trainer.update

    def spoiled(trained: Any, *given: Any) -> Any:
        if given[5] == 4:
            with torch.no_grad():
                trained.objective.masked.bias.fill_(torch.inf)
        return update(trained, *given)

    monkeypatch.setattr(trainer, "update", spoiled)
    few = ("train.max_steps=9", "train.log_every=100", "train.checkpoint_every=2", "train.precision=bf16")
    with pytest.raises(Diverged, match="step 4"):
        tiny_run.run(shards, tmp_path / "run", *few)
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir()) == ["step-2"]


@given(st.integers(1, 10**6), st.integers(0, 10**5), st.integers(1, 512))
def test_a_batch_is_filled_up_to_one_of_few_sizes(tokens: int, rows: int, longest: int) -> None:
    own = BatchSizes(-(-tokens // longest), tokens, rows, longest)
    found = cuda_graphs._filled_up(own)
    assert tokens < found.num_tokens <= 1.04 * tokens + 2
    assert rows <= found.num_rows <= 1.07 * rows + 1
    assert found.num_tokens - tokens <= (found.num_sequences - own.num_sequences) * longest
    assert found.max_seqlen == longest


def test_a_batch_is_filled_up_to_what_it_has_room_in() -> None:
    batch = SyntheticStream(50, 12, 0.3).batch(0, 0, 2)
    own = batch.sizes
    assert batch.padded_to(
        own._replace(num_sequences=own.num_sequences + 2, num_tokens=own.num_tokens + 20)
    ).sizes == (
        *(own.num_sequences + 2, own.num_tokens + 20),
        *own[2:],
    )
    for less in (
        own._replace(num_tokens=own.num_tokens - 1),
        own._replace(num_rows=own.num_rows - 1),
        own._replace(max_seqlen=own.max_seqlen - 1),
        own._replace(num_sequences=own.num_sequences + 1),
        own._replace(num_sequences=own.num_sequences + 1, num_tokens=own.num_tokens + own.max_seqlen + 1),
    ):
        with pytest.raises(ValueError, match="cannot be filled"):
            batch.padded_to(less)


def test_work_is_recorded_on_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on the one that torch is at, as with `train.device=cuda:1`; one stream has all graphs of a device."""
    second, at, seen = torch.device("cuda:1"), [torch.device("cuda:0")], []

    @contextmanager
    def moved(device: torch.device) -> Iterator[None]:
        at.append(device)
        yield
        at.pop()

    @contextmanager
    def graph(_: Any, pool: Any, stream: Any) -> Iterator[None]:
        seen.append((at[-1], stream))
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: ("stream", device, object()))
    monkeypatch.setattr(torch.cuda, "device", moved)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    device._capture_stream.cache_clear()
    asked = []
    for _ in range(2):
        ComputeContext(second, "bf16", torch.Generator()).capture_graph(lambda: asked.append(at[-1]), None)
    device._capture_stream.cache_clear()
    assert asked == [second] * 2
    assert seen[0] == seen[1]
    assert seen[0][0] == seen[0][1][1] == second
