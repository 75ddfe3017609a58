"""Which chunks change their second segments, so that a half of the pairs is NotNext and no text is lost.

Two chunks of different documents exchange B only if either B fits behind the other's A: nothing is cut. Where
one document is so large that the others' chunks do not suffice, chunks are used a second time, with a
borrowed B, instead of losing their own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bertsmith import draws
from bertsmith.instances.fragments import Chunks
from bertsmith.instances.plan import Ints

_ROUNDS = 40
_FEW = 256  # chunks for which all partners are looked at
_WINDOW = 8  # how many candidates in order of length a borrower chooses among


def matched(chunks: Chunks, free: Ints, pairs: int, room: int, seed: int, epoch: int) -> tuple[Ints, Ints]:
    """`pairs` disjoint pairs of the free chunks (fewer if there are not so many) that can exchange B.

    Chunks next to each other in order of B's length are tried, ties at random, in rounds; so partners are as
    alike in length as the epoch allows and A and B have the same lengths whatever the label.
    """
    order = free[draws.permutation(seed, "label", len(free), epoch)]
    pool, reserve = order[: 2 * pairs], order[2 * pairs :]
    used = np.zeros(len(chunks.start), dtype=np.bool_)
    left: list[Ints] = [pool[:0]]
    right: list[Ints] = [pool[:0]]
    have = 0
    for round_ in range(_ROUNDS):
        if have >= pairs or len(pool) + len(reserve) < 2:
            break
        if round_ >= 3:  # those whose length has no partner among the chosen look for one among the others
            more = max(64, 2 * len(pool))
            pool, reserve = np.concatenate([pool, reserve[:more]]), reserve[more:]
        few = not len(reserve) and len(pool) <= _FEW
        tie = draws.bits(seed, "tie", epoch, round_, pool)
        one, two = (_all_tried if few else _neighbours if round_ % 2 == 0 else _apart)(
            chunks, pool, tie, room
        )
        one, two = one[: pairs - have], two[: pairs - have]
        left.append(one)
        right.append(two)
        have += len(one)
        used[one] = used[two] = True
        pool = pool[~used[pool]]
        if few:
            break
    return np.concatenate(left), np.concatenate(right)


def _by_length(chunks: Chunks, pool: Ints, tie: NDArray[np.uint64]) -> Ints:
    length = chunks.b_length[pool].astype(np.uint64)
    found: Ints = pool[np.argsort((length << np.uint64(48)) | (tie >> np.uint64(16)))]
    return found


def _can_exchange(chunks: Chunks, one: Ints, two: Ints, room: int) -> NDArray[np.bool_]:
    a, b = chunks.split - chunks.start, chunks.end - chunks.split
    good: NDArray[np.bool_] = (
        (chunks.document[one] != chunks.document[two]) & (a[one] + b[two] <= room) & (a[two] + b[one] <= room)
    )
    return good


def _neighbours(chunks: Chunks, pool: Ints, tie: NDArray[np.uint64], room: int) -> tuple[Ints, Ints]:
    """Partners among neighbours in order of length: first of a kind with the second, then over the gaps."""
    row = _by_length(chunks, pool, tie)
    one, two = row[0 : len(row) - 1 : 2], row[1::2]
    good = _can_exchange(chunks, one, two, room)
    rest = np.ones(len(row), dtype=np.bool_)
    rest[0 : len(row) - 1 : 2] = rest[1::2] = ~good
    other = row[rest]
    three, four = other[1 : len(other) - 1 : 2], other[2::2]
    again = _can_exchange(chunks, three, four, room)
    return np.concatenate([one[good], three[again]]), np.concatenate([two[good], four[again]])


def _apart(chunks: Chunks, pool: Ints, tie: NDArray[np.uint64], room: int) -> tuple[Ints, Ints]:
    """Partners between the pool's largest document and all others, by rank of length."""
    documents, times = np.unique(chunks.document[pool], return_counts=True)
    own = chunks.document[pool] == documents[np.argmax(times)]
    if 3 * int(own.sum()) < len(pool):
        return _neighbours(chunks, pool, tie, room)
    n = min(int(own.sum()), int((~own).sum()))
    sides = []
    for side in (own, ~own):
        some = np.flatnonzero(side)[np.argsort(tie[side])[:n]]
        sides.append(_by_length(chunks, pool[some], tie[some]))
    good = _can_exchange(chunks, sides[0], sides[1], room)
    return sides[0][good], sides[1][good]


def _all_tried(chunks: Chunks, pool: Ints, tie: NDArray[np.uint64], room: int) -> tuple[Ints, Ints]:
    """Each chunk of a few with the nearest in length of those that it can exchange with."""
    row = pool[np.argsort(tie)]
    can = _can_exchange(chunks, row[:, None], row[None, :], room)
    length = chunks.b_length[row]
    pairs = []
    for i in np.argsort(can.sum(1), kind="stable"):  # who has the fewest partners chooses first
        partners = np.flatnonzero(can[i])
        if len(partners):
            j = partners[np.argmin(np.abs(length[partners] - length[i]))]
            can[[i, j], :] = can[:, [i, j]] = False
            pairs.append((int(i), int(j)))
    # Fewer may be wanted than are there: which ones is left to chance (`row` is in random order).
    both = row[np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)]
    return both[:, 0], both[:, 1]


def lenders(
    chunks: Chunks, single: Ints, paired: Ints, room: int, seed: int, epoch: int
) -> tuple[Ints, Ints]:
    """Which chunk of two fragments or more each document of one fragment borrows its B from: (borrowers, lenders).

    The lender is split behind its first fragment, which is as long as the borrower, or a little longer; no two
    borrow from one lender. Borrowers for whom none is left are missing from the result.
    """
    if not len(single):
        return single, single
    matched_ = single[draws.permutation(seed, "single", len(single), epoch)]
    first_length = chunks.first - chunks.start
    candidates = paired[np.lexsort((draws.bits(seed, "lender", epoch, paired), first_length[paired]))]
    bound = matched_[: len(candidates)]
    bound = bound[np.argsort(chunks.end[bound] - chunks.start[bound], kind="stable")]
    length = (chunks.end - chunks.start)[bound]
    step = np.arange(len(bound))
    at = np.searchsorted(first_length[candidates], length)
    at = np.maximum.accumulate(at - step) + step  # distinct and in order …
    at = np.minimum(at, len(candidates) - len(bound) + step)  # … and within the candidates
    lender = candidates[at]
    fits = length + (chunks.end - chunks.first)[lender] <= room
    fits &= chunks.document[bound] != chunks.document[lender]
    return bound[fits], lender[fits]


def borrowed(
    chunks: Chunks, takers: Ints, wish: Ints, a_length: Ints, everyone: Ints, room: int, seed: int, epoch: int
) -> Ints:
    """For each taker a chunk of another document whose B (or only fragment) fits behind its A; it may be lent to
    several. -1 where no other document has one; one that is too long only where every other is, too.

    wish: the length that B should have.
    """
    if not len(takers):
        return takers
    length, document = chunks.b_length, chunks.document
    tie = draws.bits(seed, "borrowed", epoch, everyone)
    ordered = everyone[np.lexsort((tie, length[everyone]))]
    limit = np.minimum(wish, room - a_length)
    top = np.searchsorted(length[ordered], limit, side="right") - 1
    found = np.full(len(takers), -1)
    for step in range(4 if len(ordered) else 0):
        at = top - draws.integers(seed, "window", _WINDOW, epoch, np.arange(len(takers)), step)
        candidate = ordered[np.maximum(at, 0)]
        good = (at >= 0) & (found < 0) & (document[candidate] != document[takers])
        found[good] = candidate[good]
    rest = np.flatnonzero(found < 0)
    for own in np.unique(document[takers[rest]]):
        others = ordered[document[ordered] != own]
        if len(others):
            mine = rest[document[takers[rest]] == own]
            top = np.searchsorted(length[others], limit[mine], side="right") - 1
            top -= draws.integers(seed, "window", _WINDOW, epoch, mine, 99)
            found[mine] = others[np.maximum(top, 0)]
    return found
