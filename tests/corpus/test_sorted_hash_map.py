"""A sorted hash map gives the answers of a dictionary for any order of keys."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.corpus.sorted_hash_map import SortedHashMap

BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=30), max_size=8)


def filled_map(batches: list[list[tuple[int, int]]]) -> SortedHashMap:
    hash_map = SortedHashMap({"times": np.uint32, "location": np.int64}, summed=("times",))
    for batch in batches:
        keys = np.array([key << 58 for key, _ in batch], dtype=np.uint64)
        hash_map.add(
            keys, {"times": np.ones(len(batch)), "location": np.array([location for _, location in batch])}
        )
    return hash_map


@given(batches=BATCHES)
def test_sums_and_first_values_equal_those_of_a_dictionary(batches: list[list[tuple[int, int]]]) -> None:
    hash_map = filled_map(batches)
    pairs = [pair for batch in batches for pair in batch]
    times, first = Counter(key for key, _ in pairs), dict(reversed(pairs))
    keys = np.arange(42, dtype=np.uint64) << np.uint64(58)
    assert hash_map.lookup(keys, "times").tolist() == [times[key] for key in range(42)]
    assert hash_map.lookup(keys, "location", missing=-1).tolist() == [first.get(key, -1) for key in range(42)]
    merged = hash_map.merged()
    assert (merged.keys >> np.uint64(58)).tolist() == sorted(times)
    assert merged.columns["times"].tolist() == [times[key] for key in sorted(times)]
    assert merged.columns["location"].tolist() == [first[key] for key in sorted(times)]
    assert merged.columns["times"].dtype == np.uint32
    assert len(times) <= len(hash_map) <= len(pairs)


@given(batches=BATCHES, limit=st.integers(0, 41))
def test_keys_from_a_limit_are_dropped(batches: list[list[tuple[int, int]]], limit: int) -> None:
    hash_map = filled_map(batches)
    hash_map.drop_from(np.uint64(limit << 58))
    expected = sorted({key for batch in batches for key, _ in batch if key < limit})
    assert (hash_map.merged().keys >> np.uint64(58)).tolist() == expected


def test_few_runs_hold_many_keys() -> None:
    hash_map = filled_map([[(i % 41, 0)] for i in range(1000)])
    assert len(hash_map) <= 3 * 41
    assert len(hash_map._runs) <= 7
