"""Batches under a budget of tokens: full, of like lengths, each instance once, in an order that is random."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.errors import InputError
from bertsmith.instances.length_buckets import bucketed, check_budget, filling


@given(
    sizes=st.lists(st.integers(3, 64), min_size=1, max_size=200),
    budget=st.integers(64, 600),
    epoch=st.integers(0, 5),
)
def test_each_instance_once_and_no_batch_above_the_budget(sizes: list[int], budget: int, epoch: int) -> None:
    array = np.array(sizes)
    order, bounds = bucketed(array, budget, 0, epoch)
    assert sorted(order.tolist()) == list(range(len(sizes)))
    assert bounds[0] == 0
    assert bounds[-1] == len(sizes)
    assert (np.diff(bounds) > 0).all()
    found = filling(array[order], bounds, budget)
    assert (found.tokens <= budget).all()
    assert found.tokens.sum() == array.sum()


def test_batches_are_full_alike_and_in_random_order() -> None:
    sizes = np.random.default_rng(0).integers(8, 129, 30_000)
    order, bounds = bucketed(sizes, 4096, 0, 0)
    found = filling(sizes[order], bounds, 4096).report
    random = filling(sizes, np.arange(0, 30_001, 60), 60 * 128).report
    assert found["fill_min"] > 0.9
    assert found["padding"] == 0
    assert found["padding_if_padded"] < 0.02 < 0.4 < random["padding_if_padded"]
    # Neither the lengths nor the instances come in order: the batches of a pool are shuffled.
    mean = np.add.reduceat(sizes[order], bounds[:-1]) / np.diff(bounds)
    assert abs(np.corrcoef(np.arange(len(mean)), mean)[0, 1]) < 5 / len(mean) ** 0.5
    again, _ = bucketed(sizes, 4096, 0, 0)
    other, _ = bucketed(sizes, 4096, 0, 1)
    assert (again == order).all()
    assert (other != order).mean() > 0.9


def test_a_budget_below_one_instance_is_refused() -> None:
    check_budget(None, 128)
    check_budget(128, 128)
    with pytest.raises(InputError, match="batch_tokens is 127, and an instance alone may have 128"):
        check_budget(127, 128)
