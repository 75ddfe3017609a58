"""Bucketed attention against the reference, and both against worked examples."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.models.attention import AttentionLayout, KeyValueCache, attention_weights, bucket_attention
from bertsmith.models.config import AttentionDirection, ModelConfig
from bertsmith.models.layers import Dropout, TransformerLayer
from bertsmith.models.weight_init import init_weights
from bertsmith.packed import Packed
from reference_attention import reference_attention


def packed_of(lengths: list[int]) -> Packed:
    ids = torch.zeros(sum(lengths), dtype=torch.long)
    return Packed.from_arrays(ids.numpy(), ids.numpy(), np.array(lengths, dtype=np.int64))


class FixedDropout(Dropout):
    """Dropout with a given mask function."""

    def __init__(self, mask: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__(0.5, torch.Generator())
        self._mask_function = mask

    def draw_mask(self, x: torch.Tensor) -> torch.Tensor:
        return self._mask_function(x)


def run_both(
    lengths: list[int],
    heads: int,
    size: int,
    drop: bool = False,
    direction: AttentionDirection = "all",
    seed: int = 0,
):
    """Return outputs and gradients of reference and bucketed attention."""
    g = torch.Generator().manual_seed(seed)
    packed = packed_of(lengths)
    x = torch.randn(sum(lengths), 3 * heads * size, generator=g)
    upstream = torch.randn(sum(lengths), heads * size, generator=g)
    results = []
    dropout = FixedDropout(lambda w: torch.full_like(w, 0.5)) if drop else None
    for attend in (
        lambda qkv: reference_attention(
            qkv, packed, heads, dropout and dropout.draw_mask, direction=direction
        ),
        lambda qkv: bucket_attention(qkv, AttentionLayout(packed, direction=direction), heads, dropout),
    ):
        qkv = x.clone().requires_grad_()
        out = attend(qkv)
        out.backward(upstream)
        results.append((out.detach(), qkv.grad))
    return results


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=9),
    heads=st.integers(1, 4),
    size=st.sampled_from([1, 3, 8]),
    drop=st.booleans(),
    direction=st.sampled_from(["all", "before", "behind"]),
)
def test_buckets_equal_the_reference(
    lengths: list[int], heads: int, size: int, drop: bool, direction: AttentionDirection
) -> None:
    (expected, expected_grad), (output, output_grad) = run_both(lengths, heads, size, drop, direction)
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(output_grad, expected_grad, atol=2e-6, rtol=1e-5)
    assert output.isfinite().all()
    check_forward(lengths, heads, size, direction)


def check_forward(lengths: list[int], heads: int, size: int, direction: AttentionDirection) -> None:
    g = torch.Generator().manual_seed(0)
    packed = packed_of(lengths)
    qkv = torch.randn(sum(lengths), 3 * heads * size, generator=g)
    expected = reference_attention(qkv, packed, heads, direction=direction)
    layout = AttentionLayout(packed, direction=direction)
    torch.testing.assert_close(bucket_attention(qkv, layout, heads), expected, atol=2e-6, rtol=1e-6)


def test_long_sequences_are_split_into_several_buckets() -> None:
    lengths = [200, 195, 193, 130, 196]
    layout = AttentionLayout(packed_of(lengths))
    assert len(layout.buckets) == 5
    assert sum(b.sequences for b in layout.buckets) == 5
    (expected, expected_grad), (output, output_grad) = run_both(lengths, 2, 8, drop=True)
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(output_grad, expected_grad, atol=2e-6, rtol=1e-5)
    check_forward(lengths, 2, 8, direction="all")
    equal = AttentionLayout(packed_of([100] * 13))
    assert [b.sequences for b in equal.buckets] == [5, 5, 3]
    assert equal.row_of_cell is not None


def test_empty_batches_and_empty_sequences() -> None:
    for lengths in ([], [0], [0, 0, 0]):
        packed = packed_of(lengths)
        out = bucket_attention(torch.zeros(0, 12), AttentionLayout(packed), 2)
        assert out.shape == reference_attention(torch.zeros(0, 12), packed, 2).shape == (0, 4)


def test_worked_example() -> None:
    """Scores 112 and 96 at d = 64: 14 and 12, so .8808 and .1192 (S14)."""
    d = 64
    q, k1, k2 = torch.zeros(d), torch.zeros(d), torch.zeros(d)
    q[0], k1[0], k2[0] = 16.0, 7.0, 6.0
    value = torch.eye(2, d)
    qkv = torch.stack([torch.cat([q, k1, value[0]]), torch.cat([q, k2, value[1]])])
    for out in (
        reference_attention(qkv, packed_of([2]), 1),
        bucket_attention(qkv, AttentionLayout(packed_of([2])), 1),
    ):
        weights = out[0, :2]
        assert weights.tolist() == pytest.approx([0.8808, 0.1192], abs=5e-5)


def weights_by_definition(qkv: torch.Tensor, layout: AttentionLayout) -> torch.Tensor:
    return torch.cat([weights[0] for weights in attention_weights(qkv, layout.packed, 1)])


def weights_by_buckets(qkv: torch.Tensor, layout: AttentionLayout) -> torch.Tensor:
    return bucket_attention(qkv, layout, 1)


def weights_in_training(qkv: torch.Tensor, layout: AttentionLayout) -> torch.Tensor:
    return bucket_attention(qkv.requires_grad_(), layout, 1).detach()


def weights_with_dropout(qkv: torch.Tensor, layout: AttentionLayout) -> torch.Tensor:
    return bucket_attention(qkv, layout, 1, FixedDropout(torch.ones_like))


@pytest.mark.parametrize(
    "compute_weights", [weights_by_definition, weights_by_buckets, weights_in_training, weights_with_dropout]
)
def test_scaled_scores_have_unit_variance(
    compute_weights: Callable[[torch.Tensor, AttentionLayout], torch.Tensor],
) -> None:
    """S14: of queries and keys with variance 1, products have variance d, and the scores of attention 1.

    Outputs are the weights where values are one-hot vectors, and the logarithms of weights are the scores up to a
    constant of the query.
    """
    num_sequences, d = 40, 64
    q, k = torch.randn(2, num_sequences, d, d, generator=torch.Generator().manual_seed(3))
    values = torch.eye(d).expand(num_sequences, d, d)
    qkv = torch.cat([q, k, values], dim=-1).flatten(0, 1)
    scores = compute_weights(qkv, AttentionLayout(packed_of([d] * num_sequences))).log()
    products = (q @ k.transpose(1, 2)).flatten(0, 1)
    assert products.var(dim=1).mean().item() == pytest.approx(d, rel=0.03)
    assert scores.var(dim=1).mean().item() == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize("trained", [True, False])
def test_weights_grow_with_the_square_of_the_length(trained: bool) -> None:
    """Each head computes a weight of every token for every token, so the cost is quadratic, not exponential."""
    sizes = []

    def record(weights: torch.Tensor) -> torch.Tensor:
        sizes.append(weights.numel())
        return torch.ones_like(weights)

    lengths, heads = (25, 50, 100, 200), 2
    for length in lengths:
        qkv = torch.zeros(length, 3 * heads * 4, requires_grad=trained)
        bucket_attention(qkv, AttentionLayout(packed_of([length])), heads, FixedDropout(record))
    assert sizes == [heads * length**2 for length in lengths]


def test_a_double_loop_gives_the_same_result() -> None:
    """S13: the definition, written out for one head."""
    g = torch.Generator().manual_seed(5)
    t, d = 5, 4
    qkv = torch.randn(t, 3 * d, generator=g)
    q, k, v = qkv[:, :d], qkv[:, d : 2 * d], qkv[:, 2 * d :]
    out = bucket_attention(qkv, AttentionLayout(packed_of([t])), 1)
    for i in range(t):
        scores = [math.exp(float(q[i] @ k[j]) / math.sqrt(d)) for j in range(t)]
        row = sum(s / sum(scores) * v[j] for j, s in enumerate(scores))
        torch.testing.assert_close(out[i], row, atol=1e-5, rtol=0)


def test_dropout_is_applied_once_to_each_attention_weight() -> None:
    """The mask has the shape of the softmax, [b, heads, T, T]."""
    shapes = []

    def mask(weights: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(weights.shape))
        return torch.ones_like(weights)

    bucket_attention(torch.zeros(9, 12), AttentionLayout(packed_of([4, 5])), 2, FixedDropout(mask))
    assert shapes == [(2, 2, 5, 5)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("grad", [False, True])
def test_inputs_without_gradients_take_any_layout(dtype: torch.dtype, *, grad: bool) -> None:
    """Frozen layers below trained ones have such inputs: with padding, causal, and with dropout."""
    qkv = torch.randn(9, 12, generator=torch.Generator().manual_seed(0))
    for direction in ("all", "before"):
        packed = packed_of([4, 5])
        exact = reference_attention(qkv, packed, 2, direction=direction)
        for mask in (None, FixedDropout(torch.ones_like)):
            for alike in (False, True):
                layout = AttentionLayout(packed, direction=direction, equal_lengths_only=alike)
                with torch.set_grad_enabled(grad):
                    output = bucket_attention(qkv.to(dtype), layout, 2, mask)
                torch.testing.assert_close(output.float(), exact, atol=0.05, rtol=0.05)


def test_bf16_inputs_approximate_fp32() -> None:
    g = torch.Generator().manual_seed(1)
    qkv = torch.randn(30, 48, generator=g)
    exact = bucket_attention(qkv, AttentionLayout(packed_of([13, 17])), 4)
    output = bucket_attention(qkv.bfloat16(), AttentionLayout(packed_of([13, 17])), 4)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), exact, atol=0.05, rtol=0.05)


def test_only_weights_and_their_mask_are_saved_for_backward() -> None:
    saved = []
    qkv = torch.randn(40, 48, generator=torch.Generator().manual_seed(2)).bfloat16().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (saved.append(x), x)[1], lambda x: x):
        bucket_attention(qkv, AttentionLayout(packed_of([20, 20])), 4, FixedDropout(torch.ones_like))
    scores = [x for x in saved if x.shape == (2, 4, 20, 20)]
    assert [x.dtype for x in scores] == [torch.bfloat16] * 2
    assert len(saved) == 5


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_steps_with_a_cache_are_the_causal_layer(norm: str) -> None:
    """Token by token, with the keys and values of earlier tokens, also after the sequences change places."""
    config = ModelConfig(hidden_size=32, num_attention_heads=4, intermediate_size=48, norm=norm, causal=True)
    generator = torch.Generator().manual_seed(0)
    layer = TransformerLayer(config, generator).eval()
    init_weights(layer, 0.2, generator)
    x = torch.randn(3, 5, 32, generator=generator)
    with torch.no_grad():
        expected = layer(x.flatten(0, 1), AttentionLayout(packed_of([5] * 3), "before")).view_as(x)
        cache = KeyValueCache()
        states = [layer.step(x[:, 0], cache)]
        order = torch.tensor([2, 0, 0])
        cache.select(order)
        states += [layer.step(x[order, t], cache) for t in range(1, 5)]
    torch.testing.assert_close(states[0], expected[:, 0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(torch.stack(states[1:], 1), expected[order, 1:], atol=1e-6, rtol=1e-5)
