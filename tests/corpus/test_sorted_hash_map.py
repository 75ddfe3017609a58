"""Sorted runs: what a dictionary would answer, however the keys come."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.corpus.sorted_hash_map import SortedRuns

BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=30), max_size=8)


def filled(batches: list[list[tuple[int, int]]]) -> SortedRuns:
    runs = SortedRuns({"times": np.uint32, "place": np.int64}, summed=("times",))
    for batch in batches:
        keys = np.array([key << 58 for key, _ in batch], dtype=np.uint64)
        runs.add(keys, {"times": np.ones(len(batch)), "place": np.array([place for _, place in batch])})
    return runs


@given(batches=BATCHES)
def test_sums_and_firsts_are_those_of_a_dictionary(batches: list[list[tuple[int, int]]]) -> None:
    runs = filled(batches)
    pairs = [pair for batch in batches for pair in batch]
    times, first = Counter(key for key, _ in pairs), dict(reversed(pairs))
    keys = np.arange(42, dtype=np.uint64) << np.uint64(58)
    assert runs.look_up(keys, "times").tolist() == [times[key] for key in range(42)]
    assert runs.look_up(keys, "place", missing=-1).tolist() == [first.get(key, -1) for key in range(42)]
    whole = runs.whole()
    assert (whole.keys >> np.uint64(58)).tolist() == sorted(times)
    assert whole.columns["times"].tolist() == [times[key] for key in sorted(times)]
    assert whole.columns["place"].tolist() == [first[key] for key in sorted(times)]
    assert whole.columns["times"].dtype == np.uint32
    assert len(times) <= len(runs) <= len(pairs)


@given(batches=BATCHES, limit=st.integers(0, 41))
def test_keys_from_a_limit_on_are_forgotten(batches: list[list[tuple[int, int]]], limit: int) -> None:
    runs = filled(batches)
    runs.keep_below(np.uint64(limit << 58))
    expected = sorted({key for batch in batches for key, _ in batch if key < limit})
    assert (runs.whole().keys >> np.uint64(58)).tolist() == expected


def test_few_runs_hold_many_keys() -> None:
    runs = filled([[(i % 41, 0)] for i in range(1000)])
    assert len(runs) <= 3 * 41
    assert len(runs._runs) <= 7
