"""Muon: its formula, torch's own class, matrices of one shape together, and the rest by AdamW."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, preset
from bertsmith.objectives.language_modeling import CausalLM, MaskedLM
from bertsmith.training.optimizer import (
    Muon,
    create_adamw,
    create_optimizer,
    orthogonalize,
    set_learning_rate,
    state_names,
)
from bertsmith.training.settings import TrainSettings
from bertsmith.training.train_step import TrainModule

SHAPES = [(8, 8), (8, 8), (8, 32), (32, 8), (5, 3), (24, 8)]


def matrices(seed: int = 0) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=draw)) for shape in SHAPES]


def gradients(number: int, seed: int = 1) -> list[list[Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    return [[torch.randn(shape, generator=draw) for shape in SHAPES] for _ in range(number)]


def moved(optimizer: torch.optim.Optimizer, params: list[nn.Parameter], steps: list[list[Tensor]]) -> None:
    for step in steps:
        for p, gradient in zip(params, step, strict=True):
            p.grad = gradient.clone()
        optimizer.step()


def by_formula(start: Tensor, steps: list[Tensor], rate: float, momentum: float, decay: float) -> Tensor:
    """Jordan et al. 2024 with the factor of Liu et al. 2025, one matrix, in float64."""
    w, m = start.double(), torch.zeros_like(start).double()
    for g in (step.double() for step in steps):
        m = momentum * m + (1 - momentum) * g
        x = (1 - momentum) * g + momentum * m
        x = x / x.norm()
        for _ in range(5):
            if x.shape[0] <= x.shape[1]:
                x = 3.4445 * x - 4.7750 * (x @ x.T) @ x + 2.0315 * (x @ x.T) @ (x @ x.T) @ x
            else:
                x = 3.4445 * x - 4.7750 * x @ (x.T @ x) + 2.0315 * x @ (x.T @ x) @ (x.T @ x)
        w = w - rate * decay * w - rate * 0.2 * max(w.shape) ** 0.5 * x
    return w


@pytest.mark.parametrize(("momentum", "decay"), [(0.9, 0.0), (0.95, 0.1)])
def test_thirty_updates_follow_the_formula(momentum: float, decay: float) -> None:
    params, steps = matrices(), gradients(30)
    start = [p.detach().clone() for p in params]
    moved(Muon(params, lr=0.01, momentum=momentum, weight_decay=decay), params, steps)
    for i, p in enumerate(params):
        expected = by_formula(start[i], [step[i] for step in steps], 0.01, momentum, decay)
        assert float((p.detach().double() - expected).abs().max()) < 1e-4, SHAPES[i]


@pytest.mark.parametrize("low", [False, True])
def test_torchs_own_class_goes_the_same_way(*, low: bool) -> None:
    """It computes in bf16, so a step agrees to its eight bits alone; half of the step would not do."""
    ours, theirs = matrices(), matrices()
    reference = torch.optim.Muon(
        theirs, lr=0.01, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    before = [p.detach().clone() for p in theirs]
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        moved(Muon(ours, lr=0.01, momentum=0.9, weight_decay=0.1), ours, gradients(2))
    moved(reference, theirs, gradients(2))
    for p, q, start in zip(ours, theirs, before, strict=True):
        assert p.dtype == torch.float32
        far = float((p - q).detach().norm() / (q - start).detach().norm())
        assert far < 0.05


def test_products_are_in_bf16_where_autocast_is_on() -> None:
    x = torch.randn(2, 16, 40, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        low = orthogonalize(x)
    assert low.dtype == torch.float32
    assert torch.equal(low, low.bfloat16().float())
    assert 1e-4 < float((low - orthogonalize(x)).abs().max()) < 0.05


@given(st.integers(1, 4), st.integers(1, 12), st.integers(0, 40), st.integers(0, 2**31))
def test_singular_values_come_near_one(number: int, rows: int, more: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    random = torch.randn(number, rows, rows + more, generator=draw, dtype=torch.float64)
    u, _, v = torch.linalg.svd(random, full_matrices=False)
    values = 10 ** -(2.0 * torch.rand(number, rows, generator=draw, dtype=torch.float64))
    found = orthogonalize(u @ torch.diag_embed(values) @ v)
    singular = torch.linalg.svdvals(found)
    assert float(singular.max()) < 1.25
    assert float(singular.min()) > 0.6
    # the same directions: what is left in u's and v's frame is a diagonal
    inner = u.mT @ found @ v.mT
    assert float((inner - torch.diag_embed(inner.diagonal(dim1=1, dim2=2))).abs().max()) < 1e-6


def test_a_matrix_of_zeros_stays() -> None:
    assert torch.equal(orthogonalize(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


def test_three_matrices_in_one_parameter_move_as_three_do() -> None:
    draw = torch.Generator().manual_seed(3)
    whole = nn.Parameter(torch.randn(12, 4, generator=draw))
    parts = [nn.Parameter(part.clone()) for part in whole.detach().chunk(3)]
    steps = [torch.randn(12, 4, generator=draw) for _ in range(4)]
    moved(
        Muon([whole], lr=0.1, momentum=0.9, weight_decay=0.1, num_joined=lambda _: 3),
        [whole],
        [[s] for s in steps],
    )
    moved(Muon(parts, lr=0.1, momentum=0.9, weight_decay=0.1), parts, [list(s.chunk(3)) for s in steps])
    assert torch.equal(whole.detach(), torch.cat([p.detach() for p in parts]))
    alone = nn.Parameter(torch.cat([p.detach() for p in parts]))
    before = alone.detach().clone()
    moved(Muon([alone], lr=0.1, momentum=0.9, weight_decay=0), [alone], [[steps[0]]])
    assert not torch.allclose(alone.detach() - before, whole.detach() - before)


def trained(seed: int = 0) -> TrainModule:
    config = ModelConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    draw = torch.Generator().manual_seed(seed)
    encoder = Encoder(config, draw)
    return TrainModule(encoder, MaskedLM(config, draw))


def test_the_gates_of_an_lstm_are_orthogonalized_one_by_one() -> None:
    config = preset("lstm-mini", vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1)
    draw = torch.Generator().manual_seed(0)
    module = TrainModule(build_encoder(config, draw), CausalLM(config, draw))
    cell = module.encoder.blocks[0].cells["left_to_right"]  # type: ignore[union-attr,index]
    start = cell.weight_hh_l0.detach().clone()
    for p in module.parameters():
        p.grad = torch.randn(p.shape, generator=draw)
    expected = [nn.Parameter(gate.clone()) for gate in start.chunk(4)]
    for gate, grad in zip(expected, cell.weight_hh_l0.grad.chunk(4), strict=True):
        gate.grad = grad.clone()
    optimizer = create_optimizer(
        module, TrainSettings(optim="muon", learning_rate=1e-3, muon_learning_rate=1e-2)
    )
    set_learning_rate(optimizer, 1e-3)
    optimizer.step()
    settings = TrainSettings()
    Muon(expected, lr=1e-2, momentum=settings.muon_momentum, weight_decay=settings.weight_decay).step()
    torch.testing.assert_close(cell.weight_hh_l0, torch.cat(expected), atol=1e-6, rtol=0)


@pytest.mark.parametrize("own", [None, 0.3, 0.0])
def test_muon_moves_the_layers_matrices_and_adamw_the_rest_each_at_its_rate(own: float | None) -> None:
    settings = TrainSettings(
        optim="muon", learning_rate=1e-3, muon_learning_rate=1e-2, muon_momentum=0.8, muon_weight_decay=own
    )
    whole = trained()
    optimizer = create_optimizer(whole, settings)
    named = dict(whole.named_parameters())
    kept = state_names(optimizer)
    assert kept.keys() == set(named.values())
    by_muon = {name for name, p in named.items() if kept[p] == {"momentum_buffer"}}
    assert by_muon == {
        f"encoder.blocks.{layer}.{name}.weight"
        for layer, name in itertools.product(
            range(2), ("attention.qkv", "attention.output", "feed_forward.inner", "feed_forward.output")
        )
    }
    start = {name: p.detach().clone() for name, p in named.items()}
    draw = torch.Generator().manual_seed(5)
    for p in named.values():
        p.grad = torch.randn(p.shape, generator=draw)
    set_learning_rate(optimizer, 5e-4)  # half of the peak
    optimizer.step()
    qkv = "encoder.blocks.0.attention.qkv.weight"
    expected = nn.Parameter(start[qkv].clone())
    expected.grad = named[qkv].grad
    decay = 0.01 if own is None else own
    Muon([expected], lr=5e-3, momentum=0.8, weight_decay=decay, num_joined=lambda _: 3).step()
    assert torch.allclose(named[qkv], expected, atol=1e-7)
    table = "encoder.embeddings.token.weight"
    others = {name: nn.Parameter(start[name].clone()) for name in (table, "objective.masked.bias")}
    adamw = create_adamw(others.items(), betas=(0.9, 0.999), epsilon=1e-6, weight_decay=0.01)
    for name, p in others.items():
        p.grad = named[name].grad
    set_learning_rate(adamw, 5e-4)
    adamw.step()
    for name, p in others.items():
        assert torch.equal(named[name].detach(), p.detach())


@pytest.mark.parametrize("corrected", [True, False])
def test_the_rest_is_adamws_also_without_bias_correction(corrected: bool) -> None:
    """Muon keeps no count of updates; AdamW's own must not be looked for there."""
    settings = TrainSettings(optim="muon", bias_correction=corrected)
    whole = trained()
    optimizer = create_optimizer(whole, settings)
    for p in whole.parameters():
        p.grad = torch.ones_like(p)
    for _ in range(2):
        set_learning_rate(optimizer, 1e-3)
        optimizer.step()
    assert all(torch.isfinite(p).all() for p in whole.parameters())
    assert {k for state in optimizer.state.values() for k in state} == {
        "momentum_buffer", "step", "exp_avg", "exp_avg_sq"
    }  # fmt: skip
    assert {frozenset(optimizer.state[p]) for p in state_names(optimizer)} == set(
        state_names(optimizer).values()
    )


def test_a_model_without_layers_is_adamws_alone() -> None:
    optimizer = create_optimizer(nn.Linear(3, 3), TrainSettings(optim="muon"))
    assert isinstance(optimizer, torch.optim.AdamW)
