"""A table of which an update gives few rows a gradient is trained as if all of them had one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bertsmith.device import ComputeContext
from bertsmith.instances.batches import SyntheticStream
from bertsmith.kernels import backend_selection
from bertsmith.kernels.reference import REFERENCE, KernelBackend
from bertsmith.loss import Loss
from bertsmith.models import encoder
from bertsmith.models.encoder import Embedding, Encoder
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.layers import Linear
from bertsmith.objectives.objective import Objective
from bertsmith.training.adamw import AdamW
from bertsmith.training.data_loader import START, iterate_updates
from bertsmith.training.optimizer import clip_grad_norm, create_adamw, load_optimizer_state, optimizer_state
from bertsmith.training.settings import TrainSettings
from bertsmith.training.train_step import GradientStrategy, TrainModule, train_step

ROWS, WIDTH = 90, 20


def every() -> list[KernelBackend]:
    return [
        REFERENCE,
        *([backend_selection.load_backend("numba")] if backend_selection.is_numba_available() else []),
    ]


@pytest.fixture(params=every(), ids=lambda kernels: kernels.name)
def kernels(request: pytest.FixtureRequest) -> KernelBackend:
    found: KernelBackend = request.param
    return found


def made(corrected: bool, kernels: KernelBackend = REFERENCE) -> tuple[nn.Parameter, AdamW]:
    table = nn.Parameter(torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0)))
    named = {"table": table}.items()
    return table, create_adamw(
        named, betas=(0.9, 0.98), epsilon=1e-6, weight_decay=0.1, bias_correction=corrected, kernels=kernels
    )


def gradient(step: int) -> Tensor:
    """Of a few of the first rows, some of them twice; of none in every fifth update."""
    draw = torch.Generator().manual_seed(step)
    count = 0 if step % 5 == 4 else 7
    rows = torch.randint(0, ROWS // 3, (1, count), generator=draw)
    values = torch.randn(count, WIDTH, generator=draw)
    return torch.sparse_coo_tensor(rows, values, (ROWS, WIDTH), check_invariants=True)


def moved(table: nn.Parameter, optimizer: AdamW, step: int, of: Callable[[Tensor], Tensor]) -> None:
    table.grad = of(gradient(step))
    norm = clip_grad_norm(optimizer, 3.0)
    torch.testing.assert_close(norm, gradient(step).to_dense().norm())
    optimizer.param_groups[0]["lr"] = 0.01 * (1 + step % 3)
    optimizer.step()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("corrected", [True, False])
def test_updates_are_those_of_the_whole_gradient(
    kernels: KernelBackend, corrected: bool, threads: int
) -> None:
    table, optimizer = made(corrected, kernels)
    wanted, usual = made(corrected)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for step in range(12):
            moved(table, optimizer, step, lambda g: g.clone())
            moved(wanted, usual, step, lambda g: g.to_dense())
            torch.testing.assert_close(table, wanted, atol=1e-6, rtol=1e-5)
    finally:
        torch.set_num_threads(before)
    found, expected = optimizer.state[table], usual.state[wanted]
    assert found.keys() == expected.keys()
    assert found["step"].dtype == expected["step"].dtype
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, atol=1e-7, rtol=1e-5, msg=lambda why, n=name: f"{n}: {why}"
        )


def test_whole_gradients_may_come_between(kernels: KernelBackend) -> None:
    """They reach rows that had none before."""
    table, optimizer = made(True, kernels)
    wanted, usual = made(True)
    for step in range(9):
        whole = step % 3 == 1
        other = torch.full((ROWS, WIDTH), 0.1)
        moved(table, optimizer, step, lambda g: g.to_dense() if whole else g.clone())  # noqa: B023
        moved(wanted, usual, step, lambda g: g.to_dense())
        if whole:
            for one, by in ((table, optimizer), (wanted, usual)):
                one.grad = other.clone()
                by.step()
        torch.testing.assert_close(table, wanted, atol=1e-6, rtol=1e-5)


def test_updates_go_on_to_the_bit_from_a_restored_state(kernels: KernelBackend) -> None:
    straight, whole = made(True, kernels)
    for step in range(9):
        moved(straight, whole, step, lambda g: g.clone())
    first, before = made(True, kernels)
    for step in range(4):
        moved(first, before, step, lambda g: g.clone())
    again, after = made(True, kernels)
    moved(again, after, 77, lambda g: g.clone())  # what it knew of rows is not true of the state put back
    with torch.no_grad():
        again.copy_(first)
    load_optimizer_state(after, {"table": again}, optimizer_state(before, {"table": first}))
    for step in range(4, 9):
        moved(again, after, step, lambda g: g.clone())
    assert torch.equal(again, straight)


class Sorts(Objective):
    """Sequences into two classes by their first token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = Linear(width, 2)
        nn.init.normal_(self.head.weight, 0, 0.1, generator=torch.Generator().manual_seed(3))
        nn.init.zeros_(self.head.bias)

    def counts(self, batch: object) -> dict[str, int]:
        return {"class": len(batch.packed.cu_seqlens) - 1}  # type: ignore[attr-defined]

    def loss(self, encoder: Encoder, batch: object) -> Loss:
        packed = batch.packed  # type: ignore[attr-defined]
        logits = self.head(encoder(packed)[packed.cu_seqlens[:-1]])
        wanted = packed.tokens[packed.cu_seqlens[:-1] + 1] % 2
        return Loss(
            {"class": nn.functional.cross_entropy(logits, wanted, reduction="sum")}, self.counts(batch)
        )


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_run_of_one_process_is_trained_by_rows(
    kernels: KernelBackend, accumulate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is the run that has whole gradients."""
    monkeypatch.setattr(encoder, "_MIN_SPARSE_ROWS", 600)
    config = preset(
        "bert-tiny-uncased", vocab_size=600, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    first = build_encoder(config, torch.Generator().manual_seed(0)), Sorts(config.hidden_size)
    ends = []
    for by_rows in (False, True):
        place = ComputeContext(torch.device("cpu"), "fp32", torch.Generator(), kernels)
        trained = TrainModule(*copy.deepcopy(first))
        objective: Any = trained.objective
        place.prepare_modules(trained)
        settings = TrainSettings(
            batch_size=4, gradient_accumulation_steps=accumulate, learning_rate=1e-3, weight_decay=0.1
        )
        strategy = GradientStrategy(trained, place, settings)
        if not by_rows:
            monkeypatch.setattr(Embedding, "benefits_from_sparse_grad", False)
        coming = iterate_updates(SyntheticStream(600, 24, 0.3), 4, accumulate, START, 0, objective.counts)
        told = [train_step(strategy, next(coming), 1e-3, step) for step in range(5)]
        coming.close()
        embeddings: Any = trained.get_submodule("encoder.embeddings")
        assert embeddings.token.weight.grad.is_sparse == (by_rows and kernels.sparse_embedding_updates)
        assert not embeddings.token.sparse_grad
        assert not embeddings.position.weight.grad.is_sparse
        ends.append((dict(trained.named_parameters()), told))
        monkeypatch.undo()
        monkeypatch.setattr(encoder, "_MIN_SPARSE_ROWS", 600)
    (plain, said), (rows, told) = ends
    for name, wanted in plain.items():
        torch.testing.assert_close(rows[name], wanted, atol=3e-6, rtol=1e-4)
    for one, other in zip(said, told, strict=True):
        torch.testing.assert_close(one["gradient_norm"], other["gradient_norm"], atol=0, rtol=1e-5)
    assert abs(float(told[0]["loss"])) > 0.1
