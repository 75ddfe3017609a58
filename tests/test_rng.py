"""Draws: pure, even, independent by name and counter, the same on every machine."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertsmith import rng


def test_known_values_never_change() -> None:
    """A run of last year is resumed today: these numbers are part of the format."""
    assert [hex(int(n)) for n in rng.bits(0, "mask", 0, np.arange(2))] == [
        "0xef937ce98f416f59",
        "0xc1d17bd30adcdea0",
    ]
    assert rng.permutation(7, "order", 6, 3).tolist() == [4, 5, 1, 3, 0, 2]


@given(
    seed=st.integers(0, 2**63 - 1),
    counters=st.lists(st.integers(0, 2**40), min_size=1, max_size=8),
    cut=st.integers(0, 8),
)
def test_a_draw_does_not_depend_on_its_company(seed: int, counters: list[int], cut: int) -> None:
    whole = rng.bits(seed, "purpose", 5, np.array(counters))
    parts = [
        rng.bits(seed, "purpose", 5, np.array(some, dtype=np.int64))
        for some in (counters[:cut], counters[cut:])
    ]
    assert np.concatenate(parts).tolist() == whole.tolist()
    assert int(rng.bits(seed, "purpose", 5, counters[0])) == int(whole[0])


def test_names_seeds_and_each_counter_count() -> None:
    base = rng.bits(1, "a", 2, np.arange(1000))
    for other in (
        rng.bits(2, "a", 2, np.arange(1000)),
        rng.bits(1, "b", 2, np.arange(1000)),
        rng.bits(1, "a", 3, np.arange(1000)),
        rng.bits(1, "a", np.arange(1000), 2),
        rng.bits(1, "a", np.arange(1000)),
        rng.bits(1, "a", 2, np.arange(1, 1001)),
    ):
        assert (base == other).sum() <= 1  # (2, 2) is (2, 2) turned round
        agreeing = np.unpackbits((base ^ other).view(np.uint8)).mean()
        assert abs(agreeing - 0.5) < 5 * 0.5 / 64_000**0.5


def test_bits_and_numbers_are_even() -> None:
    n = 200_000
    bits = np.unpackbits(rng.bits(3, "even", np.arange(n)).view(np.uint8).reshape(n, 8), axis=1).mean(0)
    assert abs(bits - 0.5).max() < 5 * 0.5 / n**0.5
    u = rng.uniform(3, "even", np.arange(n))
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(np.bincount((u * 50).astype(int), minlength=50) - n / 50).max() < 5 * (n / 50) ** 0.5
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 5 / n**0.5
    whole = rng.integers(3, "whole", 7, np.arange(n))
    assert set(whole.tolist()) == set(range(7))
    assert abs(np.bincount(whole) - n / 7).max() < 5 * (n / 7) ** 0.5


@given(size=st.integers(0, 300), epoch=st.integers(0, 1000))
def test_a_permutation_holds_each_once(size: int, epoch: int) -> None:
    assert sorted(rng.permutation(0, "order", size, epoch).tolist()) == list(range(size))


def test_shapes_broadcast() -> None:
    assert rng.bits(0, "x", 1).shape == ()
    assert rng.bits(0, "x", np.arange(3)[:, None], np.arange(4)).shape == (3, 4)
    assert rng.integers(0, "x", np.array([1, 2, 3]), np.arange(3)).shape == (3,)
    assert 0 <= rng.generator_seed(0, "dropout") < 2**63


def test_a_counter_more_is_the_same_draw() -> None:
    first = rng.bits(3, "x", 5, np.arange(4))
    again = rng.further(np.repeat(first, 3), np.tile(np.arange(3), 4))
    assert again.tolist() == rng.bits(3, "x", 5, np.arange(4)[:, None], np.arange(3)).ravel().tolist()
    assert first.tolist() == rng.bits(3, "x", 5, np.arange(4)).tolist()  # nothing was changed in place
