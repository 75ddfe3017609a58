"""Which chunks exchange their second segments: the rule behind `data.partner=matched`.

The rule: half of the chunks exchange B in pairs, so that chunk i has its own A and the B of j, and j its own A and
the B of i. Two chunks may exchange if their documents are no kin and either B fits behind the other's A; so
nothing is cut, and every token still occurs once in the epoch. Of those that may, partners are as alike in the
length of B as the epoch allows; so |A| and |B| say nothing about the label.

How they are found: the chunks drawn for NotNext stand in a row by the length of their B, ties at random, and
neighbours exchange if they may. Who found nobody is asked again in the next round, with other ties. Three things
help the last ones: every other round sets the largest kin against all the others (else one huge document would
mostly have itself for a neighbour); from the fourth round on, chunks that were to stay IsNext are asked, too; and
a few hundred are tried each with each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bertsmith import rng
from bertsmith.corpus.tokenized_corpus import Ints
from bertsmith.instances.segments import Chunks

_ROUNDS = 40
_ALONE = 3  # rounds among the chunks drawn for NotNext
_FEW = 256  # chunks that are tried each with each


def matched(chunks: Chunks, free: Ints, pairs: int, room: int, seed: int, epoch: int) -> tuple[Ints, Ints]:
    """`pairs` disjoint pairs of the free chunks that exchange B; fewer where so many do not find each other.

    free: [F], the chunks that may take part, each with a B of its own; room: tokens that A and B may have.
    """
    order = free[rng.permutation(seed, "label", len(free), epoch)]
    pool, reserve = order[: 2 * pairs], order[2 * pairs :]
    found: list[tuple[Ints, Ints]] = []
    missing = pairs
    for round_ in range(_ROUNDS):
        if missing <= 0 or len(pool) + len(reserve) < 2:
            break
        if round_ >= _ALONE:
            more = max(64, 2 * len(pool))
            pool, reserve = np.concatenate([pool, reserve[:more]]), reserve[more:]
        tie = rng.bits(seed, "tie", epoch, round_, pool)
        last = not len(reserve) and len(pool) <= _FEW
        tried = _each_with_each if last else _neighbours if round_ % 2 == 0 else _largest_with_others
        one, two = (side[:missing] for side in tried(chunks, pool, tie, room))
        found.append((one, two))
        missing -= len(one)
        pool = pool[~np.isin(pool, np.concatenate([one, two]))]
        if last:
            break
    none = free[:0]
    return np.concatenate([none, *(one for one, _ in found)]), np.concatenate(
        [none, *(two for _, two in found)]
    )


def _by_length(chunks: Chunks, pool: Ints, tie: NDArray[np.uint64]) -> Ints:
    """The pool by the length of B, chunks of one length by their tie."""
    length = chunks.b_length[pool].astype(np.uint64)
    found: Ints = pool[np.argsort((length << np.uint64(48)) | (tie >> np.uint64(16)))]
    return found


def _may_exchange(chunks: Chunks, one: Ints, two: Ints, room: int) -> NDArray[np.bool_]:
    """Whether they are of different kin, and either B fits behind the other's A."""
    a, b = chunks.split - chunks.start, chunks.end - chunks.split
    good: NDArray[np.bool_] = (
        (chunks.kin[one] != chunks.kin[two]) & (a[one] + b[two] <= room) & (a[two] + b[one] <= room)
    )
    return good


def _neighbours(chunks: Chunks, pool: Ints, tie: NDArray[np.uint64], room: int) -> tuple[Ints, Ints]:
    """Neighbours in the row: the first with the second, the third with the fourth; of who is left, the second with
    the third, and so on."""
    row = _by_length(chunks, pool, tie)
    one, two = row[0 : len(row) - 1 : 2], row[1::2]
    good = _may_exchange(chunks, one, two, room)
    left = np.ones(len(row), dtype=np.bool_)
    left[0 : len(row) - 1 : 2] = left[1::2] = ~good
    rest = row[left]
    three, four = rest[1 : len(rest) - 1 : 2], rest[2::2]
    again = _may_exchange(chunks, three, four, room)
    return np.concatenate([one[good], three[again]]), np.concatenate([two[good], four[again]])


def _largest_with_others(chunks: Chunks, pool: Ints, tie: NDArray[np.uint64], room: int) -> tuple[Ints, Ints]:
    """Chunks of the pool's largest kin with as many of all others, either side in a row by length."""
    kin, times = np.unique(chunks.kin[pool], return_counts=True)
    own = chunks.kin[pool] == kin[np.argmax(times)]
    if 3 * int(own.sum()) < len(pool):
        return _neighbours(chunks, pool, tie, room)  # no kin is that large
    n = min(int(own.sum()), int((~own).sum()))
    sides = []
    for side in (own, ~own):
        some = np.flatnonzero(side)[np.argsort(tie[side])[:n]]
        sides.append(_by_length(chunks, pool[some], tie[some]))
    good = _may_exchange(chunks, sides[0], sides[1], room)
    return sides[0][good], sides[1][good]


def _each_with_each(chunks: Chunks, pool: Ints, tie: NDArray[np.uint64], room: int) -> tuple[Ints, Ints]:
    """Each chunk of a few with the nearest in length of those that it can exchange with."""
    row = pool[np.argsort(tie)]
    can = _may_exchange(chunks, row[:, None], row[None, :], room)
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
