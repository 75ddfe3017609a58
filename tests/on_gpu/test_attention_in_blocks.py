"""What Triton compiles, held equal to the operations it stands for, without a GPU by Triton's interpreter."""

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
from bertsmith.kernels.gpu.attention import AttentionConfig, attention
from bertsmith.kernels.gpu.loss import cross_entropy

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Triton's interpreter has no bf16 to compute with.
LOW, CLOSE = (torch.bfloat16, 2e-2) if HERE.type == "cuda" else (torch.float32, 1e-5)
WORDS = 2**32


def scrambled(bits: Any) -> Any:
    """lowbias32 (Wellons 2018), uint64 of 32 bits."""
    bits = (bits ^ bits >> 16) * 0x7FEB352D % WORDS
    bits = (bits ^ bits >> 15) * 0x846CA68B % WORDS
    return bits ^ bits >> 16


def kept(rows: Any, heads: int, length: int, seeds: Tensor, share: float) -> Tensor:
    """Which weights dropout keeps, [A, rows, length]; rows: their numbers in the batch."""
    first_seed, second_seed = (int(seed) % WORDS for seed in seeds)
    numbers = np.arange(heads, dtype=np.uint64)[:, None] + rows.astype(np.uint64) * heads
    first = scrambled(numbers ^ first_seed)
    slope = scrambled(first ^ 0x5BD1E995) | 1
    columns = (np.arange(length, dtype=np.uint64) ^ second_seed) * 0x7FEB352D % WORDS
    columns = columns ^ columns >> 15
    drawn = (first[:, :, None] + slope[:, :, None] * columns % WORDS) % WORDS
    return torch.from_numpy(drawn >= round(share * WORDS))


def expected_attention(
    qkv: Tensor, lengths: list[int], heads: int, causal: bool, share: float, seeds: Tensor
) -> Tensor:
    """As its definition has it, in fp32."""
    found, at, columns = [], 0, qkv.shape[1] // 3 // heads
    for length in lengths:
        q, k, v = qkv[at : at + length].float().view(length, 3, heads, columns).permute(1, 2, 0, 3)
        scores = q @ k.transpose(1, 2) * columns**-0.5
        if causal:
            ahead = torch.ones(length, length, dtype=torch.bool, device=qkv.device).triu(1)
            scores = scores.masked_fill(ahead, -torch.inf)
        weights = scores.softmax(-1)
        if share:
            mask = kept(np.arange(at, at + length), heads, length, seeds, share).to(qkv.device)
            weights = weights * mask / (1 - round(share * WORDS) / WORDS)
        found.append((weights @ v).transpose(0, 1).flatten(1))
        at += length
    return torch.cat(found)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.sampled_from([0, 1, 2, 31, 64, 65, 128, 129, 200]), min_size=1, max_size=3).filter(
        any
    ),
    heads=st.sampled_from([1, 3]),
    columns=st.sampled_from([8, 16, 24, 64]),
    causal=st.booleans(),
    share=st.sampled_from([0.0, 0.1, 0.5]),
    seed=st.integers(0, 2**31),
)
def test_attention_in_blocks_is_attention(
    lengths: list[int], heads: int, columns: int, causal: bool, share: float, seed: int
) -> None:
    """There and back; the mask of dropout is that of its definition, so that both ways drop the same."""
    numbers = torch.Generator().manual_seed(seed)
    qkv = torch.randn(sum(lengths), 3 * heads * columns, generator=numbers).to(HERE, LOW).requires_grad_()
    grad = torch.randn(sum(lengths), heads * columns, generator=numbers).to(HERE, LOW)
    seeds = torch.randint(-(2**31), 2**31, (2,), generator=numbers).int().to(HERE)
    starts = torch.tensor([0, *lengths], device=HERE).cumsum(0).int()
    longest = torch_flash_attention.round_up(max(lengths))
    found = attention(qkv, AttentionConfig(starts, longest, heads, causal, share or None, seeds))
    (slopes,) = torch.autograd.grad(found, qkv, grad)
    wanted = expected_attention(qkv, lengths, heads, causal, share, seeds)
    (slopes_wanted,) = torch.autograd.grad(wanted, qkv, grad.float())
    assert (found - wanted).norm() <= CLOSE * wanted.norm()
    for own, other in zip(slopes.float().chunk(3, 1), slopes_wanted.float().chunk(3, 1), strict=True):
        # queries and keys of a sequence of one token have none
        assert (own - other).norm() <= CLOSE * max(float(other.norm()), 0.1 * float(grad.norm()))
    again = attention(qkv, AttentionConfig(starts, longest, heads, causal, share or None, seeds))
    assert torch.autograd.grad(again, qkv, grad)[0].equal(slopes)


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")  # of what is behind the last token
@pytest.mark.parametrize("lengths", [[5, 70], [5, 200]])
@pytest.mark.parametrize("far", [-20.0, 20.0])
def test_scores_far_from_0(lengths: list[int], far: float) -> None:
    """Whose powers are no numbers: also those of tokens behind the last, of which a block has more."""
    numbers = torch.Generator().manual_seed(0)
    qkv = torch.randn(sum(lengths), 3 * 16, generator=numbers)
    qkv[:, :16] += 20
    qkv[:, 16:32] += far
    qkv = qkv.to(HERE, LOW).requires_grad_()
    starts = torch.tensor([0, *lengths], device=HERE).cumsum(0).int()
    seeds = torch.zeros(2, dtype=torch.int32, device=HERE)
    found = attention(
        qkv, AttentionConfig(starts, torch_flash_attention.round_up(max(lengths)), 1, False, None, seeds)
    )
    wanted = expected_attention(qkv, lengths, 1, False, 0.0, seeds)
    slopes, slopes_wanted = (torch.autograd.grad(mixed.float().sum(), qkv)[0] for mixed in (found, wanted))
    assert (found - wanted).norm() <= max(CLOSE, 1e-3) * wanted.norm()
    # in bf16 what cancels, 20 times a row's slopes of scores, leaves its rounding; what is no number is no bound
    close = 1e-3 if torch.float32 == LOW else 0.5
    assert (slopes.float() - slopes_wanted.float()).norm() <= close * slopes_wanted.float().norm()


def test_attention_in_blocks_drops_its_share() -> None:
    """Rows and columns have as many as by independent draws, and so do pairs of rows, of columns and of heads."""
    share, rows, length = 0.1, 400, 1000
    for seed in range(3):
        seeds = torch.randint(-(2**31), 2**31, (2,), generator=torch.Generator().manual_seed(seed)).int()
        mask = ~kept(np.arange(rows), 2, length, seeds, share).numpy()
        assert mask.mean() == pytest.approx(share, abs=2e-3)
        for side, count in ((1, rows), (2, length)):
            assert mask.mean(side).std() == pytest.approx((share * 0.9 / count) ** 0.5, rel=0.15)
        for one, other in (
            (mask[:, 1:], mask[:, :-1]),
            (mask[:, :, 1:], mask[:, :, :-1]),
            (mask[0], mask[1]),
        ):
            assert (one & other).mean() == pytest.approx(share**2, abs=1e-3)


@pytest.mark.parametrize(("rows", "words"), [(1, 50), (37, 50), (5, 4096), (3, 5000)])
def test_the_loss_over_a_vocabulary_of_words(rows: int, words: int) -> None:
    """Words whose bias is -inf never come; a row without a label counts for nothing."""
    numbers = torch.Generator().manual_seed(words)
    logits = torch.randn(rows, words, generator=numbers).to(HERE, LOW)
    bias = torch.randn(words, generator=numbers)
    bias[-3:] = -torch.inf
    labels = torch.randint(words - 3, (rows,), generator=numbers)
    labels[2::4] = -1
    whole = (logits.float().cpu() + bias).requires_grad_()
    wanted = F.cross_entropy(whole, labels, ignore_index=-1, reduction="sum")
    (slopes,) = torch.autograd.grad(wanted, whole)
    found, right = cross_entropy(logits, bias.to(HERE), labels.to(HERE))
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert right == (whole.argmax(1) == labels).sum()
    assert torch.allclose(logits.float().cpu(), slopes, atol=CLOSE / 4)
