"""The fast attention against the plain one, and both against worked examples."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.models.attention import attention_by_bucket, attention_by_sequence
from bertsmith.models.attention_layout import Layout
from bertsmith.models.config import Sees
from bertsmith.models.layers import Dropout
from bertsmith.packed import Packed


def packed_of(lengths: list[int]) -> Packed:
    ids = torch.zeros(sum(lengths), dtype=torch.long)
    return Packed.of_arrays(ids.numpy(), ids.numpy(), np.array(lengths, dtype=np.int64))


class Masked(Dropout):
    """Dropout with a mask of the test's."""

    def __init__(self, mask: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__(0.5, torch.Generator())
        self._made = mask

    def mask(self, x: torch.Tensor) -> torch.Tensor:
        return self._made(x)


def both(lengths: list[int], heads: int, size: int, drop: bool = False, sees: Sees = "all", seed: int = 0):
    """Outputs and gradients of the plain and the fast way."""
    g = torch.Generator().manual_seed(seed)
    packed = packed_of(lengths)
    x = torch.randn(sum(lengths), 3 * heads * size, generator=g)
    upstream = torch.randn(sum(lengths), heads * size, generator=g)
    results = []
    dropped = Masked(lambda w: torch.full_like(w, 0.5)) if drop else None
    for way in (
        lambda qkv: attention_by_sequence(qkv, packed, heads, dropped and dropped.mask, sees=sees),
        lambda qkv: attention_by_bucket(qkv, Layout(packed, sees=sees), heads, dropped),
    ):
        qkv = x.clone().requires_grad_()
        out = way(qkv)
        out.backward(upstream)
        results.append((out.detach(), qkv.grad))
    return results


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=9),
    heads=st.integers(1, 4),
    size=st.sampled_from([1, 3, 8]),
    drop=st.booleans(),
    sees=st.sampled_from(["all", "before", "behind"]),
)
def test_buckets_equal_one_sequence_at_a_time(
    lengths: list[int], heads: int, size: int, drop: bool, sees: Sees
) -> None:
    (plain, plain_grad), (fast, fast_grad) = both(lengths, heads, size, drop, sees)
    torch.testing.assert_close(fast, plain, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(fast_grad, plain_grad, atol=2e-6, rtol=1e-5)
    assert fast.isfinite().all()
    forward_only(lengths, heads, size, sees)


def forward_only(lengths: list[int], heads: int, size: int, sees: Sees) -> None:
    g = torch.Generator().manual_seed(0)
    packed = packed_of(lengths)
    qkv = torch.randn(sum(lengths), 3 * heads * size, generator=g)
    plain = attention_by_sequence(qkv, packed, heads, sees=sees)
    layout = Layout(packed, sees=sees)
    torch.testing.assert_close(attention_by_bucket(qkv, layout, heads), plain, atol=2e-6, rtol=1e-6)


def test_long_sequences_are_shared_out_over_several_buckets() -> None:
    lengths = [200, 195, 193, 130, 196]
    layout = Layout(packed_of(lengths))
    assert len(layout.buckets) == 5
    assert sum(b.sequences for b in layout.buckets) == 5
    (plain, plain_grad), (fast, fast_grad) = both(lengths, 2, 8, drop=True)
    torch.testing.assert_close(fast, plain, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(fast_grad, plain_grad, atol=2e-6, rtol=1e-5)
    forward_only(lengths, 2, 8, sees="all")
    equal = Layout(packed_of([100] * 13))
    assert [b.sequences for b in equal.buckets] == [5, 5, 3]
    assert equal.cells is not None


def test_no_sequence_and_only_empty_sequences() -> None:
    for lengths in ([], [0], [0, 0, 0]):
        packed = packed_of(lengths)
        out = attention_by_bucket(torch.zeros(0, 12), Layout(packed), 2)
        assert out.shape == attention_by_sequence(torch.zeros(0, 12), packed, 2).shape == (0, 4)


def test_worked_example_of_the_seeds() -> None:
    """Scores 112 and 96 at d = 64: 14 and 12, so .8808 and .1192 (S14)."""
    d = 64
    q, k1, k2 = torch.zeros(d), torch.zeros(d), torch.zeros(d)
    q[0], k1[0], k2[0] = 16.0, 7.0, 6.0
    value = torch.eye(2, d)
    qkv = torch.stack([torch.cat([q, k1, value[0]]), torch.cat([q, k2, value[1]])])
    for out in (
        attention_by_sequence(qkv, packed_of([2]), 1),
        attention_by_bucket(qkv, Layout(packed_of([2])), 1),
    ):
        weights = out[0, :2]
        assert weights.tolist() == pytest.approx([0.8808, 0.1192], abs=5e-5)


def test_scores_have_unit_variance_once_scaled() -> None:
    g = torch.Generator().manual_seed(3)
    q, k = torch.randn(2, 40_000, 64, generator=g)
    raw = (q * k).sum(-1)
    assert raw.var().item() == pytest.approx(64, rel=0.03)
    assert (raw / math.sqrt(64)).var().item() == pytest.approx(1, rel=0.03)


def test_a_double_loop_gives_the_same() -> None:
    """S13: the definition, written out for one head."""
    g = torch.Generator().manual_seed(5)
    t, d = 5, 4
    qkv = torch.randn(t, 3 * d, generator=g)
    q, k, v = qkv[:, :d], qkv[:, d : 2 * d], qkv[:, 2 * d :]
    out = attention_by_bucket(qkv, Layout(packed_of([t])), 1)
    for i in range(t):
        scores = [math.exp(float(q[i] @ k[j]) / math.sqrt(d)) for j in range(t)]
        row = sum(s / sum(scores) * v[j] for j, s in enumerate(scores))
        torch.testing.assert_close(out[i], row, atol=1e-5, rtol=0)


def test_dropout_on_weights_reaches_each_weight_once() -> None:
    """What is dropped is a weight of the softmax, of shape [b, heads, T, T]."""
    shapes = []

    def mask(weights: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(weights.shape))
        return torch.ones_like(weights)

    attention_by_bucket(torch.zeros(9, 12), Layout(packed_of([4, 5])), 2, Masked(mask))
    assert shapes == [(2, 2, 5, 5)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("grad", [False, True])
def test_weights_that_are_not_trained_take_any_layout(dtype: torch.dtype, *, grad: bool) -> None:
    """As those of frozen layers below trained ones: with padding, with one side hidden, with dropout."""
    qkv = torch.randn(9, 12, generator=torch.Generator().manual_seed(0))
    for sees in ("all", "before"):
        packed = packed_of([4, 5])
        exact = attention_by_sequence(qkv, packed, 2, sees=sees)
        for mask in (None, Masked(torch.ones_like)):
            for alike in (False, True):
                layout = Layout(packed, sees=sees, alike=alike)
                with torch.set_grad_enabled(grad):
                    found = attention_by_bucket(qkv.to(dtype), layout, 2, mask)
                torch.testing.assert_close(found.float(), exact, atol=0.05, rtol=0.05)


def test_bf16_inputs_stay_near_fp32() -> None:
    g = torch.Generator().manual_seed(1)
    qkv = torch.randn(30, 48, generator=g)
    exact = attention_by_bucket(qkv, Layout(packed_of([13, 17])), 4)
    half = attention_by_bucket(qkv.bfloat16(), Layout(packed_of([13, 17])), 4)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), exact, atol=0.05, rtol=0.05)


def test_of_the_scores_only_weights_and_their_mask_are_kept_for_the_way_back() -> None:
    kept = []
    qkv = torch.randn(40, 48, generator=torch.Generator().manual_seed(2)).bfloat16().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x), x)[1], lambda x: x):
        attention_by_bucket(qkv, Layout(packed_of([20, 20])), 4, Masked(torch.ones_like))
    scores = [x for x in kept if x.shape == (2, 4, 20, 20)]
    assert [x.dtype for x in scores] == [torch.bfloat16] * 2
    assert len(kept) == 5
