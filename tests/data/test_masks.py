"""Masks: exact counts, 80/10/10, no special token ever, a pure function of (seed, epoch, instance)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bertsmith.data.masks import Masker

Ints = NDArray[np.int64]
V, MASK = 500, 4
SPECIAL = np.zeros(V, dtype=bool)
SPECIAL[:5] = SPECIAL[499] = True


def masker(share: float = 0.15, split: tuple[float, float, float] = (0.8, 0.1, 0.1), seed: int = 0) -> Masker:
    return Masker(share, split, MASK, SPECIAL, seed)


def framed(lengths: Ints, seed: int = 0) -> Ints:
    """Random ordinary tokens, with a 2 in front and a 3 behind each sequence, as [CLS] and [SEP] stand."""
    ids = np.random.default_rng(seed).integers(5, 499, lengths.sum())
    ends = np.cumsum(lengths)
    ids[ends - lengths], ids[ends - 1] = 2, 3
    return ids


def bounds(n: int, p: float) -> float:
    """Five binomial deviations."""
    return 5 * (n * p * (1 - p)) ** 0.5


@given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=12),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 1000),
)
def test_the_count_is_exact_in_every_sequence(
    lengths: list[int], share: float, seed: int, epoch: int
) -> None:
    sizes = np.array(lengths)
    ids = framed(sizes, seed % 2**32)
    masked, rows = masker(share, seed=seed).apply(ids, sizes, np.arange(len(sizes)), epoch)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    open_ = np.bincount(owner, weights=~SPECIAL[ids]).astype(int)
    wanted = [min(n, max(1, round(share * n))) for n in open_]  # round: half to even, as numpy's
    assert np.bincount(owner[rows], minlength=len(sizes)).tolist() == wanted
    assert (np.diff(rows) > 0).all()
    assert not SPECIAL[ids[rows]].any()  # never a special token …
    changed = np.flatnonzero(masked != ids)
    assert np.isin(changed, rows).all()  # … and nothing else is touched
    put = masked[rows]
    assert ((put == MASK) | ~SPECIAL[put]).all()  # … nor put in place of another
    assert ids.base is None
    assert (masked[SPECIAL[ids]] == ids[SPECIAL[ids]]).all()


def test_shares_on_two_hundred_thousand_tokens() -> None:
    sizes = np.full(2000, 102)
    ids = framed(sizes)
    masked, rows = masker().apply(ids, sizes, np.arange(2000), 0)
    assert len(rows) == 2000 * 15
    put, stood = masked[rows], ids[rows]
    n = len(rows)
    assert abs((put == MASK).sum() - 0.8 * n) < bounds(n, 0.8)
    random_again = 0.1 / (V - SPECIAL.sum())  # a random token may be the one that stood there
    assert abs((put == stood).sum() - (0.1 + random_again) * n) < bounds(n, 0.1)
    assert abs(((put != stood) & (put != MASK)).sum() - (0.1 - random_again) * n) < bounds(n, 0.1)
    # Each position is as likely, and each ordinary token as likely to be put in.
    position = rows % 102
    times = np.bincount(position, minlength=102)[1:-1]
    assert abs(times - 300).max() < bounds(2000, 0.15)
    drawn = put[(put != stood) & (put != MASK)]
    expected = len(drawn) / (V - SPECIAL.sum())
    assert (np.bincount(drawn, minlength=V)[~SPECIAL] - expected).max() < 6 * expected**0.5
    # Kind and place are independent of each other, and of the token.
    early = put[position < 51] == MASK
    assert abs(early.sum() - 0.8 * len(early)) < bounds(len(early), 0.8)


@pytest.mark.parametrize(
    ("split", "kind"), [((1, 0, 0), "mask"), ((0, 1, 0), "random"), ((0, 0, 1), "stays")]
)
def test_extreme_splits(split: tuple[float, float, float], kind: str) -> None:
    sizes = np.full(100, 50)
    ids = framed(sizes)
    masked, rows = masker(split=split).apply(ids, sizes, np.arange(100), 0)
    put = masked[rows]
    assert {"mask": (put == MASK).all(), "random": (put != MASK).all(), "stays": (put == ids[rows]).all()}[
        kind
    ]
    assert (put == ids[rows]).mean() < 0.05 or kind == "stays"


def test_an_instance_has_its_masks_alone_and_in_any_company() -> None:
    sizes = np.array([9, 30, 5, 64, 17])
    ids = framed(sizes)
    instances = np.array([7, 3, 100, 8, 0])
    whole, rows = masker().apply(ids, sizes, instances, 2)
    starts = np.cumsum(sizes) - sizes
    for order in ([0], [3], [2, 1], [4, 0, 3], [4, 3, 2, 1, 0]):
        parts = [ids[starts[i] : starts[i] + sizes[i]] for i in order]
        masked, _ = masker().apply(np.concatenate(parts), sizes[order], instances[order], 2)
        expected = np.concatenate([whole[starts[i] : starts[i] + sizes[i]] for i in order])
        assert (masked == expected).all()
    assert len(rows)


def test_masks_are_drawn_anew_for_each_epoch_seed_and_instance() -> None:
    sizes = np.full(200, 102)
    ids = framed(sizes)

    def rows(seed: int = 0, epoch: int = 0, first: int = 0) -> set[int]:
        return set(masker(seed=seed).apply(ids, sizes, np.arange(first, first + 200), epoch)[1].tolist())

    here = rows()
    assert rows() == here
    n, p = 200 * 15, 0.15
    for other in (rows(epoch=1), rows(seed=1), rows(first=1), rows(epoch=2), rows(first=200)):
        assert abs(len(here & other) - p * n) < bounds(n, p)  # as independent draws overlap


def test_a_sequence_of_specials_only_has_nothing_to_predict() -> None:
    masked, rows = masker().apply(np.array([2, 3, 2, 9, 3]), np.array([2, 3]), np.array([0, 1]), 0)
    assert rows.tolist() == [3]
    assert masked.tolist()[:2] == [2, 3]
