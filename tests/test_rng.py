"""Random numbers are pure, uniform, and independent by purpose and counter, and the same on every machine."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertsmith import rng


def test_recorded_values_never_change() -> None:
    """Old runs can be resumed only if these numbers stay: they are part of the format."""
    assert [hex(int(n)) for n in rng.random_bits(0, "mask", 0, np.arange(2))] == [
        "0xef937ce98f416f59",
        "0xc1d17bd30adcdea0",
    ]
    assert rng.permutation(7, "order", 6, 3).tolist() == [4, 5, 1, 3, 0, 2]


@given(
    seed=st.integers(0, 2**63 - 1),
    counters=st.lists(st.integers(0, 2**40), min_size=1, max_size=8),
    split=st.integers(0, 8),
)
def test_a_number_does_not_depend_on_the_rest_of_its_array(
    seed: int, counters: list[int], split: int
) -> None:
    expected = rng.random_bits(seed, "purpose", 5, np.array(counters))
    parts = [
        rng.random_bits(seed, "purpose", 5, np.array(part, dtype=np.int64))
        for part in (counters[:split], counters[split:])
    ]
    assert np.concatenate(parts).tolist() == expected.tolist()
    assert int(rng.random_bits(seed, "purpose", 5, counters[0])) == int(expected[0])


def test_seed_purpose_and_each_counter_change_the_bits() -> None:
    base = rng.random_bits(1, "a", 2, np.arange(1000))
    for other in (
        rng.random_bits(2, "a", 2, np.arange(1000)),
        rng.random_bits(1, "b", 2, np.arange(1000)),
        rng.random_bits(1, "a", 3, np.arange(1000)),
        rng.random_bits(1, "a", np.arange(1000), 2),
        rng.random_bits(1, "a", np.arange(1000)),
        rng.random_bits(1, "a", 2, np.arange(1, 1001)),
    ):
        assert (base == other).sum() <= 1  # the counters (2, 2) occur in both orders
        agreement = np.unpackbits((base ^ other).view(np.uint8)).mean()
        assert abs(agreement - 0.5) < 5 * 0.5 / 64_000**0.5


def test_bits_and_numbers_are_uniform() -> None:
    n = 200_000
    bits = np.unpackbits(rng.random_bits(3, "even", np.arange(n)).view(np.uint8).reshape(n, 8), axis=1).mean(
        0
    )
    assert abs(bits - 0.5).max() < 5 * 0.5 / n**0.5
    u = rng.uniform(3, "even", np.arange(n))
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(np.bincount((u * 50).astype(int), minlength=50) - n / 50).max() < 5 * (n / 50) ** 0.5
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 5 / n**0.5
    integers = rng.integers(3, "whole", 7, np.arange(n))
    assert set(integers.tolist()) == set(range(7))
    assert abs(np.bincount(integers) - n / 7).max() < 5 * (n / 7) ** 0.5


@given(size=st.integers(0, 300), epoch=st.integers(0, 1000))
def test_a_permutation_contains_each_index_once(size: int, epoch: int) -> None:
    assert sorted(rng.permutation(0, "order", size, epoch).tolist()) == list(range(size))


def test_shapes_broadcast() -> None:
    assert rng.random_bits(0, "x", 1).shape == ()
    assert rng.random_bits(0, "x", np.arange(3)[:, None], np.arange(4)).shape == (3, 4)
    assert rng.integers(0, "x", np.array([1, 2, 3]), np.arange(3)).shape == (3,)
    assert 0 <= rng.generator_seed(0, "dropout") < 2**63


def test_a_further_counter_gives_the_bits_of_all_counters() -> None:
    state = rng.random_bits(3, "x", 5, np.arange(4))
    extended = rng.extend_bits(np.repeat(state, 3), np.tile(np.arange(3), 4))
    assert (
        extended.tolist() == rng.random_bits(3, "x", 5, np.arange(4)[:, None], np.arange(3)).ravel().tolist()
    )
    assert state.tolist() == rng.random_bits(3, "x", 5, np.arange(4)).tolist()  # unchanged
