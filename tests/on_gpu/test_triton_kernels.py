"""Triton kernels of a layer except attention equal PyTorch's operations. Without a GPU, Triton's interpreter runs
them."""

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
from bertsmith.kernels.gpu.activation import (
    bias_activation,
    bias_activation_backward,
    column_sums,
    grouped_column_sums,
)
from bertsmith.kernels.gpu.layer_norm import (
    EmbeddingLookup,
    LayerNormParams,
    NormInputs,
    SeededDropout,
    layer_norm_backward,
    layer_norm_forward,
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Triton's interpreter does not support bf16.
DTYPE, TOLERANCE = (torch.bfloat16, 2e-2) if DEVICE.type == "cuda" else (torch.float32, 2e-6)
SIZES = {
    "num_rows": st.integers(1, 40),
    "hidden_size": st.sampled_from([1, 8, 40, 64, 96]),
    "seed": st.integers(0, 99),
}


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def dropout_factors(num_rows: int, hidden_size: int, p: float, seeds: Tensor) -> Tensor:
    """Compute what dropout multiplies each element by, from lowbias32 (Wellons 2018) of its index."""
    first_seed, second_seed = seeds.cpu().numpy().view(np.uint32)
    bits = np.arange(num_rows * hidden_size, dtype=np.uint32) ^ first_seed
    bits = (bits ^ bits >> 16) * np.uint32(0x7FEB352D) ^ second_seed
    bits = (bits ^ bits >> 15) * np.uint32(0x846CA68B)
    threshold = round(p * 2**16)
    mask = torch.from_numpy(bits >> 16 >= threshold).view(num_rows, hidden_size)
    return mask.to(DEVICE) * (2**16 / (2**16 - threshold))


def seeded_dropout(p: float, seed: int) -> SeededDropout:
    seeds = torch.randint(-(2**31), 2**31, (2,), generator=torch.Generator().manual_seed(seed)).int()
    return SeededDropout(p or None, seeds.to(DEVICE))


def assert_close(actual: Tensor, expected: Tensor, min_norm: float = 1e-2) -> None:
    assert (actual.float() - expected).norm() <= TOLERANCE * max(float(expected.norm()), min_norm)


def min_grad_norm(grad: Tensor) -> float:
    """Return the norm that rounding errors are relative to: with a single column all gradients cancel."""
    return (30 if grad.shape[1] == 1 else 1) * float(grad.float().norm())


@settings(max_examples=25, deadline=None)
@given(**SIZES, p=st.sampled_from([0.0, 0.1, 0.5]))
def test_add_layer_norm(num_rows: int, hidden_size: int, seed: int, p: float) -> None:
    residual, x, grad = (randn(seed + i, num_rows, hidden_size).to(DTYPE) for i in range(3))
    bias, weight, norm_bias = (randn(seed + i, hidden_size).requires_grad_() for i in range(3, 6))
    norm = LayerNormParams(weight.detach(), norm_bias.detach(), 1e-3)
    dropout = seeded_dropout(p, seed)
    leaves = [tensor.float().requires_grad_() for tensor in (residual, x)]
    factors = dropout_factors(num_rows, hidden_size, p, dropout.seeds) if p else 1
    total = leaves[0] + (leaves[1] + bias) * factors
    expected = F.layer_norm(total, (hidden_size,), weight, norm_bias, 1e-3)
    expected_grads = torch.autograd.grad(expected, (*leaves, weight, norm_bias, bias), grad.float())
    inputs = NormInputs(x, residual, bias.detach())
    output = layer_norm_forward(inputs, norm, dropout, x.dtype)
    assert_close(output.out, expected.detach())
    grads = layer_norm_backward(grad, inputs, norm, dropout, output.row_stats)
    assert (grads.x_grad is grads.sum_grad) == (not p)
    actual_grads = (grads.sum_grad, grads.x_grad, *grads.param_grads)
    for actual, expected_grad in zip(actual_grads, expected_grads, strict=True):
        assert_close(actual, expected_grad, min_grad_norm(grad))


@settings(max_examples=25, deadline=None)
@given(**SIZES, p=st.sampled_from([0.0, 0.1, 0.5]), num_lookups=st.integers(0, 2))
def test_embed_layer_norm(num_rows: int, hidden_size: int, seed: int, p: float, num_lookups: int) -> None:
    x, grad = (
        randn(seed, num_rows, hidden_size).requires_grad_(),
        randn(seed + 1, num_rows, hidden_size).to(DTYPE),
    )
    weight, norm_bias = (randn(seed + i, hidden_size).requires_grad_() for i in range(2, 4))
    generator = torch.Generator().manual_seed(seed)
    lookups = [
        EmbeddingLookup(
            randn(seed + 9 + i, 7, hidden_size), torch.randint(7, (num_rows,), generator=generator).to(DEVICE)
        )
        for i in range(num_lookups)
    ]
    dropout = seeded_dropout(p, seed)
    norm = LayerNormParams(weight.detach(), norm_bias.detach(), 1e-3)
    total = x + sum(lookup.weight[lookup.indices] for lookup in lookups)
    expected = F.layer_norm(total, (hidden_size,), weight, norm_bias, 1e-3)
    expected = expected * (dropout_factors(num_rows, hidden_size, p, dropout.seeds) if p else 1)
    expected_grads = torch.autograd.grad(expected, (x, weight, norm_bias), grad.float())
    inputs = NormInputs(x.detach(), lookups=lookups)
    output = layer_norm_forward(inputs, norm, dropout, DTYPE)
    assert_close(output.out, expected.detach())
    if p:
        num_dropped = (dropout_factors(num_rows, hidden_size, p, dropout.seeds) == 0).sum()
        assert (output.out == 0).sum() >= num_dropped
    grads = layer_norm_backward(grad, inputs, norm, dropout, output.row_stats)
    for actual, expected_grad in zip((grads.sum_grad, *grads.param_grads[:2]), expected_grads, strict=True):
        assert_close(actual, expected_grad, min_grad_norm(grad))


def test_dropout_rate_and_independence() -> None:
    masks = []
    for seed in range(3):
        masks.append(dropout_factors(1000, 1000, 0.1, seeded_dropout(0.1, seed).seeds) == 0)
        assert masks[-1].float().mean() == pytest.approx(0.1, abs=2e-3)  # 6 standard deviations
        for axis in (0, 1):  # Rows and columns have as many drops as independent draws have.
            std = masks[-1].float().mean(axis).std()
            assert std == pytest.approx((0.1 * 0.9 / 1000) ** 0.5, rel=0.15)
        assert (masks[-1][:, 1:] & masks[-1][:, :-1]).float().mean() == pytest.approx(0.01, abs=1e-3)
    assert (masks[0] & masks[1]).float().mean() == pytest.approx(0.01, abs=1e-3)


@pytest.mark.parametrize("activation", [F.gelu, gelu_tanh, F.relu], ids=["gelu", "gelu_new", "relu"])
@settings(max_examples=10, deadline=None)
@given(**SIZES, scale=st.sampled_from([0.1, 1.0, 5.0, 1e3]))
def test_bias_activation(activation: Any, num_rows: int, hidden_size: int, seed: int, scale: float) -> None:
    x = (randn(seed, num_rows, hidden_size) * scale).to(DTYPE)
    grad = randn(seed + 1, num_rows, hidden_size).to(DTYPE)
    bias = randn(seed + 2, hidden_size)
    x_fp32 = x.float().requires_grad_()
    expected = activation(x_fp32 + bias.requires_grad_())
    expected_grads = torch.autograd.grad(expected, (x_fp32, bias), grad.float())
    # For negative inputs, GELU is a small difference of numbers of the size of the input.
    input_norm = float((x_fp32 + bias).detach().norm())
    assert_close(bias_activation(x, bias.detach(), activation), expected.detach(), input_norm)
    grads = bias_activation_backward(grad, x, bias.detach(), activation)
    for actual, expected_grad in zip(grads, expected_grads, strict=True):
        assert_close(actual, expected_grad, float(grad.float().norm()))


def test_activations_propagate_nan() -> None:
    """NaN in inputs or gradients stays NaN, so that a diverging run is noticed."""
    x, zero = torch.tensor([[torch.nan], [1.0]], device=DEVICE), torch.zeros(1, device=DEVICE)
    for activation in (F.gelu, gelu_tanh, F.relu):
        assert bias_activation(x, zero, activation).isnan().tolist() == [[True], [False]]
        leaf = x.clone().requires_grad_()
        (derivative,) = torch.autograd.grad(activation(leaf).sum(), leaf)
        for grad in (torch.ones_like(x), x):
            x_grad, bias_grad = bias_activation_backward(grad, x, zero, activation)
            assert x_grad.isnan().equal((derivative * grad).isnan())
            assert bool(bias_grad.isnan()) == bool((derivative * grad).isnan().any())


@pytest.mark.filterwarnings("ignore:overflow")  # of squares
def test_gelu_is_exact_far_from_0() -> None:
    """GELU is exact to 2e-7, also at the end of the polynomial's range; infinite results are equal as well."""
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([1e4, -1e4, 3e38, -3e38])])[:, None].to(DEVICE)
    zero = torch.zeros(1, device=DEVICE)
    out = bias_activation(x, zero, F.gelu)
    assert torch.allclose(out, F.gelu(x.double()).float(), atol=2e-7, rtol=1e-6)
    grad, _ = bias_activation_backward(torch.ones_like(x), x, zero, F.gelu)
    x_fp64 = x.double().requires_grad_()
    (expected_grad,) = torch.autograd.grad(F.gelu(x_fp64).sum(), x_fp64)
    assert torch.allclose(grad, expected_grad.float(), atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(num_rows=st.integers(0, 200), num_columns=st.sampled_from([1, 100, 300]), num_groups=st.integers(1, 4))
def test_column_sums(num_rows: int, num_columns: int, num_groups: int) -> None:
    x = randn(num_rows, num_rows, num_columns).to(DTYPE)
    groups = torch.arange(num_rows, device=DEVICE) * 7 % num_groups
    expected = torch.stack([x[groups == group].float().sum(0) for group in range(num_groups)])
    assert torch.allclose(column_sums(x), x.float().sum(0), atol=1e-4)
    assert torch.allclose(grouped_column_sums(x, groups, num_groups), expected, atol=1e-4)
