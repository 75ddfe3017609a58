"""What Triton compiles of a layer beside attention, held equal to the operations it stands for, without a GPU by
Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertsmith.kernels.reference import gelu_tanh

pytest.importorskip("triton", reason="needs Triton, which the extra `dev` has on Linux")
from bertsmith.kernels.gpu import layer_norm as norm_
from bertsmith.kernels.gpu.activation import bias_activation, bias_activation_backward
from bertsmith.kernels.gpu.column_sums import column_sums, grouped_column_sums
from bertsmith.kernels.gpu.layer_norm import EmbeddingLookup, LayerNormParams, SeededDropout

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Triton's interpreter has no bf16 to compute with.
LOW, CLOSE = (torch.bfloat16, 2e-2) if HERE.type == "cuda" else (torch.float32, 2e-6)
SIZES = {"rows": st.integers(1, 40), "width": st.sampled_from([1, 8, 40, 64, 96]), "seed": st.integers(0, 99)}


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(HERE)


def mask_of(rows: int, width: int, share: float, seeds: Tensor) -> Tensor:
    """By lowbias32 (Wellons 2018), of an element's number: what an element is multiplied by."""
    first, second = seeds.cpu().numpy().view(np.uint32)
    bits = np.arange(rows * width, dtype=np.uint32) ^ first
    bits = (bits ^ bits >> 16) * np.uint32(0x7FEB352D) ^ second
    bits = (bits ^ bits >> 15) * np.uint32(0x846CA68B)
    dropped = round(share * 2**16)
    mask = torch.from_numpy(bits >> 16 >= dropped).view(rows, width)
    return mask.to(HERE) * (2**16 / (2**16 - dropped))


def drawn_of(share: float, seed: int) -> SeededDropout:
    seeds = torch.randint(-(2**31), 2**31, (2,), generator=torch.Generator().manual_seed(seed)).int()
    return SeededDropout(share or None, seeds.to(HERE))


def near(found: Tensor, wanted: Tensor, least: float = 1e-2) -> None:
    assert (found.float() - wanted).norm() <= CLOSE * max(float(wanted.norm()), least)


@settings(max_examples=25, deadline=None)
@given(**SIZES, share=st.sampled_from([0.0, 0.1, 0.5]))
def test_a_sum_with_dropout_normalised(rows: int, width: int, seed: int, share: float) -> None:
    residual, x, grad = (numbers(seed + i, rows, width).to(LOW) for i in range(3))
    bias, weight, norm_bias = (numbers(seed + i, width).requires_grad_() for i in range(3, 6))
    norm, drawn = LayerNormParams(weight.detach(), norm_bias.detach(), 1e-3), drawn_of(share, seed)
    exact = [one.float().requires_grad_() for one in (residual, x)]
    dropped = (exact[1] + bias) * (mask_of(rows, width, share, drawn.seeds) if share else 1)
    wanted = F.layer_norm(exact[0] + dropped, (width,), weight, norm_bias, 1e-3)
    slopes = torch.autograd.grad(wanted, (*exact, weight, norm_bias, bias), grad.float())
    made = norm_.add_layer_norm(residual, x, bias.detach(), norm, drawn)
    near(made.out, wanted.detach())
    found = norm_.added_norm_backward(grad, residual, x, bias.detach(), norm, drawn, made.row_stats)
    assert (found.x is found.sum_grad) == (not share)
    for own, other in zip((found.sum_grad, found.x, *found.weights), slopes, strict=True):
        # what is left of numbers that cancel: of a single column all of it
        near(own, other, 30 * float(grad.float().norm()) if width == 1 else float(grad.float().norm()))


@settings(max_examples=25, deadline=None)
@given(**SIZES, share=st.sampled_from([0.0, 0.1, 0.5]), tables=st.integers(0, 2))
def test_what_is_looked_up_normalised_and_dropped(
    rows: int, width: int, seed: int, share: float, tables: int
) -> None:
    x, grad = numbers(seed, rows, width).requires_grad_(), numbers(seed + 1, rows, width).to(LOW)
    weight, norm_bias = (numbers(seed + i, width).requires_grad_() for i in range(2, 4))
    draw = torch.Generator().manual_seed(seed)
    looked = [
        EmbeddingLookup(numbers(seed + 9 + i, 7, width), torch.randint(7, (rows,), generator=draw).to(HERE))
        for i in range(tables)
    ]
    drawn = drawn_of(share, seed)
    norm = LayerNormParams(weight.detach(), norm_bias.detach(), 1e-3)
    whole = x + sum(one.table[one.indices] for one in looked)
    wanted = F.layer_norm(whole, (width,), weight, norm_bias, 1e-3)
    wanted = wanted * (mask_of(rows, width, share, drawn.seeds) if share else 1)
    slopes = torch.autograd.grad(wanted, (x, weight, norm_bias), grad.float())
    made = norm_.embed_layer_norm(x.detach(), looked, norm, drawn, LOW)
    near(made.out, wanted.detach())
    if share:
        assert (made.out == 0).sum() >= (mask_of(rows, width, share, drawn.seeds) == 0).sum()
    found = norm_.dropped_norm_backward(grad, x.detach(), looked, norm, drawn, made.row_stats)
    for own, other in zip((found.sum_grad, *found.weights[:2]), slopes, strict=True):
        near(own, other, 30 * float(grad.float().norm()) if width == 1 else float(grad.float().norm()))


def test_dropout_drops_its_share() -> None:
    masks = []
    for seed in range(3):
        masks.append(mask_of(1000, 1000, 0.1, drawn_of(0.1, seed).seeds) == 0)
        assert masks[-1].float().mean() == pytest.approx(0.1, abs=2e-3)  # 6 standard deviations
        for side in (0, 1):  # rows and columns have as many as by independent draws
            spread = masks[-1].float().mean(side).std()
            assert spread == pytest.approx((0.1 * 0.9 / 1000) ** 0.5, rel=0.15)
        assert (masks[-1][:, 1:] & masks[-1][:, :-1]).float().mean() == pytest.approx(0.01, abs=1e-3)
    assert (masks[0] & masks[1]).float().mean() == pytest.approx(0.01, abs=1e-3)


@pytest.mark.parametrize("activation", [F.gelu, gelu_tanh, F.relu], ids=["gelu", "gelu_new", "relu"])
@settings(max_examples=10, deadline=None)
@given(**SIZES, wide=st.sampled_from([0.1, 1.0, 5.0, 1e3]))
def test_activations(activation: Any, rows: int, width: int, seed: int, wide: float) -> None:
    x, grad = (numbers(seed, rows, width) * wide).to(LOW), numbers(seed + 1, rows, width).to(LOW)
    bias = numbers(seed + 2, width)
    exact = x.float().requires_grad_()
    whole = exact + bias.requires_grad_()
    wanted = activation(whole)
    slopes = torch.autograd.grad(wanted, (exact, bias), grad.float())
    near(bias_activation(x, bias.detach(), activation), wanted.detach())
    for own, other in zip(bias_activation_backward(grad, x, bias.detach(), activation), slopes, strict=True):
        near(own, other, float(grad.float().norm()))


def test_activations_keep_what_is_not_a_number() -> None:
    """There and back, so that a run that diverges is noticed."""
    x, zero = torch.tensor([[torch.nan], [1.0]], device=HERE), torch.zeros(1, device=HERE)
    for activation in (F.gelu, gelu_tanh, F.relu):
        assert bias_activation(x, zero, activation).isnan().tolist() == [[True], [False]]
        exact = x.clone().requires_grad_()
        (wanted,) = torch.autograd.grad(activation(exact).sum(), exact)
        for grad in (torch.ones_like(x), x):
            slopes, of_bias = bias_activation_backward(grad, x, zero, activation)
            assert slopes.isnan().equal((wanted * grad).isnan())
            assert bool(of_bias.isnan()) == bool((wanted * grad).isnan().any())


@pytest.mark.filterwarnings("ignore:overflow")  # of squares
def test_gelu_is_exact_far_from_0() -> None:
    """To 2e-7, also where the polynomial ends, and what is infinite stays so."""
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([1e4, -1e4, 3e38, -3e38])])[:, None].to(HERE)
    found = bias_activation(x, torch.zeros(1, device=HERE), F.gelu)
    assert torch.allclose(found, F.gelu(x.double()).float(), atol=2e-7, rtol=1e-6)
    slopes, _ = bias_activation_backward(torch.ones_like(x), x, torch.zeros(1, device=HERE), F.gelu)
    wanted = x.double().requires_grad_()
    (wanted,) = torch.autograd.grad(F.gelu(wanted).sum(), wanted)
    assert torch.allclose(slopes, wanted.float(), atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(0, 200), width=st.sampled_from([1, 100, 300]), count=st.integers(1, 4))
def test_sums_of_columns(rows: int, width: int, count: int) -> None:
    x = numbers(rows, rows, width).to(LOW)
    which = torch.arange(rows, device=HERE) * 7 % count
    wanted = torch.stack([x[which == one].float().sum(0) for one in range(count)])
    assert torch.allclose(column_sums(x), x.float().sum(0), atol=1e-4)
    assert torch.allclose(grouped_column_sums(x, which, count), wanted, atol=1e-4)
