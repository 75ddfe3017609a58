"""Triton's attention and loss equal their definitions. Without a GPU, Triton's interpreter runs them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertsmith.kernels.gpu import torch_flash_attention

pytest.importorskip("triton", reason="needs Triton, which the extra `dev` has on Linux")
from bertsmith.kernels.gpu.attention import TritonAttentionConfig, attention
from bertsmith.kernels.gpu.loss import cross_entropy

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Triton's interpreter does not support bf16.
DTYPE, TOLERANCE = (torch.bfloat16, 2e-2) if DEVICE.type == "cuda" else (torch.float32, 1e-5)
UINT32_RANGE = 2**32


def lowbias32(bits: Any) -> Any:
    """Hash 32-bit numbers in uint64 (Wellons 2018)."""
    bits = (bits ^ bits >> 16) * 0x7FEB352D % UINT32_RANGE
    bits = (bits ^ bits >> 15) * 0x846CA68B % UINT32_RANGE
    return bits ^ bits >> 16


def dropout_mask(rows: Any, num_heads: int, length: int, seeds: Tensor, p: float) -> Tensor:
    """Return which attention weights dropout keeps, [A, rows, length]; rows are indices in the batch."""
    row_seed, column_seed = (int(seed) % UINT32_RANGE for seed in seeds)
    indices = np.arange(num_heads, dtype=np.uint64)[:, None] + rows.astype(np.uint64) * num_heads
    a = lowbias32(indices ^ row_seed)
    b = lowbias32(a ^ 0x5BD1E995) | 1
    columns = (np.arange(length, dtype=np.uint64) ^ column_seed) * 0x7FEB352D % UINT32_RANGE
    columns = columns ^ columns >> 15
    bits = (a[:, :, None] + b[:, :, None] * columns % UINT32_RANGE) % UINT32_RANGE
    return torch.from_numpy(bits >= round(p * UINT32_RANGE))


def expected_attention(
    qkv: Tensor, lengths: list[int], num_heads: int, causal: bool, p: float, seeds: Tensor
) -> Tensor:
    """Compute attention by its definition in fp32."""
    outputs, start, head_size = [], 0, qkv.shape[1] // 3 // num_heads
    for length in lengths:
        sequence = qkv[start : start + length].float()
        q, k, v = sequence.view(length, 3, num_heads, head_size).permute(1, 2, 0, 3)
        scores = q @ k.transpose(1, 2) * head_size**-0.5
        if causal:
            is_later = torch.ones(length, length, dtype=torch.bool, device=qkv.device).triu(1)
            scores = scores.masked_fill(is_later, -torch.inf)
        weights = scores.softmax(-1)
        if p:
            mask = dropout_mask(np.arange(start, start + length), num_heads, length, seeds, p)
            weights = weights * mask.to(qkv.device) / (1 - round(p * UINT32_RANGE) / UINT32_RANGE)
        outputs.append((weights @ v).transpose(0, 1).flatten(1))
        start += length
    return torch.cat(outputs)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.sampled_from([0, 1, 2, 31, 64, 65, 128, 129]), min_size=1, max_size=3).filter(any),
    num_heads=st.integers(1, 2),
    head_size=st.sampled_from([8, 16, 24, 64]),
    causal=st.booleans(),
    p=st.sampled_from([0.0, 0.1, 0.5]),
    seed=st.integers(0, 2**31),
)
def test_attention_equals_its_definition(
    lengths: list[int], num_heads: int, head_size: int, causal: bool, p: float, seed: int
) -> None:
    """Outputs and gradients are equal, with equal dropout masks, and repeated gradients are identical."""
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(sum(lengths), 3 * num_heads * head_size, generator=generator)
    qkv = qkv.to(DEVICE, DTYPE).requires_grad_()
    grad = torch.randn(sum(lengths), num_heads * head_size, generator=generator).to(DEVICE, DTYPE)
    seeds = torch.randint(-(2**31), 2**31, (2,), generator=generator).int().to(DEVICE)
    cu_seqlens = torch.tensor([0, *lengths], device=DEVICE).cumsum(0).int()
    max_seqlen = torch_flash_attention.round_up_seqlen(max(lengths))
    config = TritonAttentionConfig(cu_seqlens, max_seqlen, num_heads, causal, p or None, seeds)
    out = attention(qkv, config)
    (qkv_grad,) = torch.autograd.grad(out, qkv, grad)
    expected = expected_attention(qkv, lengths, num_heads, causal, p, seeds)
    (expected_grad,) = torch.autograd.grad(expected, qkv, grad.float())
    assert (out - expected).norm() <= TOLERANCE * expected.norm()
    for part, expected_part in zip(
        qkv_grad.float().chunk(3, 1), expected_grad.float().chunk(3, 1), strict=True
    ):
        # Queries and keys of a sequence of one token have no gradients.
        scale = max(float(expected_part.norm()), 0.1 * float(grad.norm()))
        assert (part - expected_part).norm() <= TOLERANCE * scale
    repeated = attention(qkv, config)
    assert torch.autograd.grad(repeated, qkv, grad)[0].equal(qkv_grad)


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")  # in rows behind the last token
@pytest.mark.parametrize("lengths", [[5, 70], [5, 200]])
@pytest.mark.parametrize("key_shift", [-20.0, 20.0])
def test_scores_far_from_0(lengths: list[int], key_shift: float) -> None:
    """Scores whose exponentials overflow are handled, also in blocks with rows behind the last token."""
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(sum(lengths), 3 * 16, generator=generator)
    qkv[:, :16] += 20
    qkv[:, 16:32] += key_shift
    qkv = qkv.to(DEVICE, DTYPE).requires_grad_()
    cu_seqlens = torch.tensor([0, *lengths], device=DEVICE).cumsum(0).int()
    seeds = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    max_seqlen = torch_flash_attention.round_up_seqlen(max(lengths))
    out = attention(qkv, TritonAttentionConfig(cu_seqlens, max_seqlen, 1, False, None, seeds))
    expected = expected_attention(qkv, lengths, 1, False, 0.0, seeds)
    grad, expected_grad = (torch.autograd.grad(x.float().sum(), qkv)[0] for x in (out, expected))
    assert (out - expected).norm() <= max(TOLERANCE, 1e-3) * expected.norm()
    # In bf16, score gradients that cancel leave rounding errors 20 times as large. NaN fails with any tolerance.
    tolerance = 1e-3 if torch.float32 == DTYPE else 0.5
    assert (grad.float() - expected_grad.float()).norm() <= tolerance * expected_grad.float().norm()


def test_dropout_rate_and_independence() -> None:
    """Rows and columns, and pairs of rows, columns, and heads, have as many drops as independent draws have."""
    p, num_rows, length = 0.1, 400, 1000
    for seed in range(3):
        seeds = torch.randint(-(2**31), 2**31, (2,), generator=torch.Generator().manual_seed(seed)).int()
        mask = ~dropout_mask(np.arange(num_rows), 2, length, seeds, p).numpy()
        assert mask.mean() == pytest.approx(p, abs=2e-3)
        for axis, count in ((1, num_rows), (2, length)):
            assert mask.mean(axis).std() == pytest.approx((p * 0.9 / count) ** 0.5, rel=0.15)
        for first, second in (
            (mask[:, 1:], mask[:, :-1]),
            (mask[:, :, 1:], mask[:, :, :-1]),
            (mask[0], mask[1]),
        ):
            assert (first & second).mean() == pytest.approx(p**2, abs=1e-3)


@pytest.mark.parametrize(("num_rows", "vocab_size"), [(1, 50), (37, 50), (5, 4096), (3, 5000)])
def test_cross_entropy_equals_its_definition(num_rows: int, vocab_size: int) -> None:
    """Tokens with a bias of -inf are never predicted, and rows without a label are ignored."""
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(num_rows, vocab_size, generator=generator).to(DEVICE, DTYPE)
    bias = torch.randn(vocab_size, generator=generator)
    bias[-3:] = -torch.inf
    labels = torch.randint(vocab_size - 3, (num_rows,), generator=generator)
    labels[2::4] = -1
    biased_logits = (logits.float().cpu() + bias).requires_grad_()
    expected = F.cross_entropy(biased_logits, labels, ignore_index=-1, reduction="sum")
    (expected_grad,) = torch.autograd.grad(expected, biased_logits)
    loss, num_correct = cross_entropy(logits, bias.to(DEVICE), labels.to(DEVICE))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert num_correct == (biased_logits.argmax(1) == labels).sum()
    assert torch.allclose(logits.float().cpu(), expected_grad, atol=TOLERANCE / 4)
