"""AdamW against its formula with and without bias correction, who is exempt from decay, first steps, clipping."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bertsmith.kernels import backend_selection
from bertsmith.kernels.reference import REFERENCE, KernelBackend
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.objectives.language_modeling import MaskedLM
from bertsmith.training.optimizer import clip_grad_norm, create_adamw, load_optimizer_state, optimizer_state
from bertsmith.training.train_step import TrainModule

EVERY = [
    REFERENCE,
    *([backend_selection.load_backend("numba")] if backend_selection.is_numba_available() else []),
]
every_kernels = pytest.mark.parametrize("kernels", EVERY, ids=lambda kernels: kernels.name)


def parameters(seed: int = 0) -> dict[str, nn.Parameter]:
    draw = torch.Generator().manual_seed(seed)
    shapes = {"a.weight": (7, 5), "a.bias": (7,), "norm.weight": (5,), "norm.bias": (5,), "table": (11, 3)}
    return {name: nn.Parameter(torch.randn(*shape, generator=draw)) for name, shape in shapes.items()}


def by_formula(
    start: Tensor,
    gradients: list[Tensor],
    rates: list[float],
    decay: float,
    betas: tuple[float, float],
    eps: float,
    corrected: bool = True,
) -> Tensor:
    """Spec 2.7, in float64."""
    theta, m, v = start.double(), torch.zeros_like(start).double(), torch.zeros_like(start).double()
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        g = g.double()
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        c = (1 - betas[0] ** t, 1 - betas[1] ** t) if corrected else (1.0, 1.0)
        step = (m / c[0]) / ((v / c[1]).sqrt() + eps)
        theta = theta - rate * decay * theta - rate * step
    return theta


@every_kernels
@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.98)])
def test_fifty_updates_follow_the_formula_and_decay_spares_biases_and_norms(
    betas: tuple[float, float], corrected: bool, kernels: KernelBackend
) -> None:
    named = parameters()
    start = {name: p.detach().clone() for name, p in named.items()}
    optimizer = create_adamw(
        named.items(), betas=betas, epsilon=1e-6, weight_decay=0.1, bias_correction=corrected, kernels=kernels
    )
    draw = torch.Generator().manual_seed(1)
    gradients: dict[str, list[Tensor]] = {name: [] for name in named}
    rates = [0.01 * (1 + t % 7) for t in range(50)]
    for rate in rates:
        for name, p in named.items():
            p.grad = torch.randn(p.shape, generator=draw)
            gradients[name].append(p.grad.clone())
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    for name, p in named.items():
        decay = 0.0 if name in ("a.bias", "norm.weight", "norm.bias") else 0.1
        expected = by_formula(start[name], gradients[name], rates, decay, betas, 1e-6, corrected)
        assert float((p.detach().double() - expected).abs().max()) < 2e-5, name


@every_kernels
@pytest.mark.parametrize("sigma", [0.02, 1.0])
def test_a_hundred_updates_stay_within_rounding_of_the_formula(sigma: float, kernels: KernelBackend) -> None:
    """Within 1e-6 at BERT's initial weights and rate. An update rounds a weight by up to 2^-24 of it, so that for
    weights of 1 and more the bound is the sum of these."""
    named = parameters()
    with torch.no_grad():
        for p in named.values():
            p.mul_(sigma)
    start = {name: p.detach().clone() for name, p in named.items()}
    betas = (0.9, 0.999)
    optimizer = create_adamw(named.items(), betas=betas, epsilon=1e-6, weight_decay=0.01, kernels=kernels)
    draw = torch.Generator().manual_seed(2)
    gradients: dict[str, list[Tensor]] = {name: [] for name in named}
    rates = [1e-4 * t / 100 for t in range(1, 101)]
    for rate in rates:
        for name, p in named.items():
            p.grad = torch.randn(p.shape, generator=draw)
            gradients[name].append(p.grad.clone())
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    for name, p in named.items():
        decay = 0.01 if p.dim() > 1 else 0.0
        expected = by_formula(start[name], gradients[name], rates, decay, betas, 1e-6)
        bound = max(1e-6, 100 * 2.0**-24 * float(expected.abs().max())) if sigma == 1.0 else 1e-6
        assert float((p.detach().double() - expected).abs().max()) < bound, name


@pytest.mark.parametrize(("corrected", "rates"), [(True, 1.0), (False, 10**0.5)])
def test_the_first_step_is_as_long_as_the_rate_or_without_correction_the_releases(
    corrected: bool, rates: float
) -> None:
    """Spec S33: lr, and 3.1623 lr, as epsilon goes to 0."""
    named = {"w": nn.Parameter(torch.zeros(4, 4))}
    optimizer = create_adamw(
        named.items(), betas=(0.9, 0.999), epsilon=1e-12, weight_decay=0.01, bias_correction=corrected
    )
    named["w"].grad = torch.tensor([1e-3, -5.0, 2.0, 1e2]).repeat(4, 1)
    optimizer.param_groups[0]["lr"] = 3e-4
    optimizer.step()
    assert torch.allclose(named["w"].detach().abs(), torch.full((4, 4), 3e-4 * rates), rtol=1e-5)
    assert torch.equal(named["w"].detach().sign(), -named["w"].grad.sign())
    group = optimizer.param_groups[0]
    assert (group["lr"], group["eps"], group["weight_decay"]) == (3e-4, 1e-12, 0.01)  # as they were set


@pytest.mark.parametrize("corrected", [True, False])
def test_updates_go_on_from_a_restored_state(corrected: bool) -> None:
    def made() -> tuple[dict[str, nn.Parameter], torch.optim.AdamW]:
        named = parameters()
        return named, create_adamw(
            named.items(), betas=(0.9, 0.999), epsilon=1e-6, weight_decay=0.1, bias_correction=corrected
        )

    def updated(named: dict[str, nn.Parameter], optimizer: torch.optim.AdamW, updates: range) -> None:
        for t in updates:
            draw = torch.Generator().manual_seed(t)
            for p in named.values():
                p.grad = torch.randn(p.shape, generator=draw)
            for group in optimizer.param_groups:
                group["lr"] = 0.01
            optimizer.step()

    straight, whole = made()
    updated(straight, whole, range(9))
    first, before = made()
    updated(first, before, range(4))
    again, after = made()
    with torch.no_grad():
        for name, p in again.items():
            p.copy_(first[name])
    load_optimizer_state(after, again, optimizer_state(before, first))
    updated(again, after, range(4, 9))
    assert all(torch.equal(again[name], straight[name]) for name in straight)


def test_in_a_bert_exactly_biases_and_layer_norms_are_exempt() -> None:
    config = ModelConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    generator = torch.Generator().manual_seed(0)
    trained = TrainModule(Encoder(config, generator), MaskedLM(config, generator))
    optimizer = create_adamw(trained.named_parameters(), betas=(0.9, 0.999), epsilon=1e-6, weight_decay=0.01)
    names = {p: name for name, p in trained.named_parameters()}
    decay = {names[p]: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decay.keys() == set(names.values())
    norms = {
        f"{m}.{p}"
        for m, part in trained.named_modules()
        if isinstance(part, nn.LayerNorm)
        for p in ("weight", "bias")
    }
    exempt = norms | {name for name in decay if name.endswith("bias")}
    assert {name for name, value in decay.items() if value == 0} == exempt
    assert {value for name, value in decay.items() if name not in exempt} == {0.01}


def test_frozen_parameters_are_left_alone() -> None:
    named = parameters()
    named["table"].requires_grad_(False)
    optimizer = create_adamw(named.items(), betas=(0.9, 0.999), epsilon=1e-6, weight_decay=0.01)
    assert all(p is not named["table"] for group in optimizer.param_groups for p in group["params"])


def test_clipping_scales_all_gradients_together() -> None:
    a, b = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(4))
    a.grad, b.grad = torch.full((3,), 2.0), torch.full((4,), -1.0)
    optimizer = torch.optim.SGD([a, b])
    assert clip_grad_norm(optimizer, 1.0).item() == pytest.approx(4.0)
    assert torch.cat([a.grad, b.grad]).norm().item() == pytest.approx(1.0, rel=1e-5)
    assert (a.grad[0] / b.grad[0]).item() == pytest.approx(-2.0)
    before = a.grad.clone()
    clip_grad_norm(optimizer, 5.0)  # below the limit: untouched
    assert torch.equal(a.grad, before)


@every_kernels
@pytest.mark.parametrize("limit", [1.0, 50.0])
def test_an_update_is_made_with_clipped_gradients(kernels: KernelBackend, limit: float) -> None:
    """Whether they are scaled at once or on the way; what follows without clipping is not scaled again."""
    of = {"betas": (0.9, 0.99), "epsilon": 1e-6, "weight_decay": 0.1}
    named, wanted = parameters(), parameters()
    optimizer, usual = (
        create_adamw(some.items(), **of, kernels=by) for some, by in ((named, kernels), (wanted, REFERENCE))
    )
    for step in range(4):
        draw = torch.Generator().manual_seed(step)
        for one, other in zip(named.values(), wanted.values(), strict=True):
            one.grad = torch.randn(one.shape, generator=draw)
            other.grad = one.grad.clone()
        norm = nn.utils.get_total_norm([p.grad for p in wanted.values() if p.grad is not None])
        assert 1.0 < norm < 50.0
        if step != 2:
            torch.testing.assert_close(clip_grad_norm(optimizer, limit), norm)
            nn.utils.clip_grads_with_norm_(wanted.values(), limit, norm)
        for by in (optimizer, usual):
            for group in by.param_groups:
                group["lr"] = 0.01
            by.step()
    for name, p in named.items():
        torch.testing.assert_close(p, wanted[name], atol=1e-6, rtol=1e-5, msg=name)
        for kept in ("exp_avg", "exp_avg_sq", "step"):
            torch.testing.assert_close(
                optimizer.state[p][kept], usual.state[wanted[name]][kept], atol=1e-7, rtol=1e-5, msg=name
            )


@every_kernels
def test_gradients_that_a_closure_makes_are_used(kernels: KernelBackend) -> None:
    named = parameters()
    optimizer = create_adamw(
        named.items(), betas=(0.9, 0.99), epsilon=1e-6, weight_decay=0.0, kernels=kernels
    )
    optimizer.param_groups[0]["lr"] = 0.01
    before = named["table"].detach().clone()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = named["table"].square().sum()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    assert loss.item() == pytest.approx(before.square().sum().item(), rel=1e-6)
    torch.testing.assert_close(named["table"], before - 0.01 * before.sign(), atol=1e-5, rtol=0)
