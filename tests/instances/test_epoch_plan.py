"""Batches under a token budget: full, of similar lengths, each instance once, in random order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.errors import InputError
from bertsmith.instances.epoch_plan import check_batch_tokens, compute_fill_stats, make_buckets


@given(
    sizes=st.lists(st.integers(3, 64), min_size=1, max_size=200),
    budget=st.integers(64, 600),
    epoch=st.integers(0, 5),
)
def test_each_instance_once_and_no_batch_above_the_budget(sizes: list[int], budget: int, epoch: int) -> None:
    array = np.array(sizes)
    order, bounds = make_buckets(array, budget, 0, epoch)
    assert sorted(order.tolist()) == list(range(len(sizes)))
    assert bounds[0] == 0
    assert bounds[-1] == len(sizes)
    assert (np.diff(bounds) > 0).all()
    stats = compute_fill_stats(array[order], bounds, budget)
    assert (stats.tokens <= budget).all()
    assert stats.tokens.sum() == array.sum()


def test_batches_are_full_similar_and_in_random_order() -> None:
    sizes = np.random.default_rng(0).integers(8, 129, 30_000)
    order, bounds = make_buckets(sizes, 4096, 0, 0)
    stats = compute_fill_stats(sizes[order], bounds, 4096).report
    unsorted = compute_fill_stats(sizes, np.arange(0, 30_001, 60), 60 * 128).report
    assert stats["fill_min"] > 0.9
    assert stats["padding"] == 0
    assert stats["padding_if_padded"] < 0.02 < 0.4 < unsorted["padding_if_padded"]
    # The batches of a pool are shuffled.
    mean = np.add.reduceat(sizes[order], bounds[:-1]) / np.diff(bounds)
    assert abs(np.corrcoef(np.arange(len(mean)), mean)[0, 1]) < 5 / len(mean) ** 0.5
    again, _ = make_buckets(sizes, 4096, 0, 0)
    other, _ = make_buckets(sizes, 4096, 0, 1)
    assert (again == order).all()
    assert (other != order).mean() > 0.9


def test_a_budget_below_one_instance() -> None:
    check_batch_tokens(None, 128)
    check_batch_tokens(128, 128)
    with pytest.raises(InputError) as caught:
        check_batch_tokens(127, 128)
    assert caught.value.code == "batch_tokens_too_small"
    assert caught.value.argument == "train.batch_tokens"
