"""Who borrows a second segment, and from whom: documents without a B, and pairs that are wanted a second time.

The rule: a document of one fragment has nothing to exchange. It becomes the A of a NotNext pair and borrows its B
from a lender of another kin: a chunk that is split behind its first fragment, one as long as the borrower or a
little longer, and that is IsNext itself. So for each length of A there is one instance of either label, with the
same B. Where lenders of that kind run out (or one document is so large that the exchange leaves NotNext pairs
missing), any B of another kin that fits is borrowed, as long as B should be or a little shorter.
"""

from __future__ import annotations

import numpy as np

from bertsmith import rng
from bertsmith.corpus.tokenized_corpus import Ints
from bertsmith.instances.segments import Chunks

_WINDOW = 8  # how many candidates in order of length a borrower chooses among


def lenders(
    chunks: Chunks, single: Ints, paired: Ints, room: int, seed: int, epoch: int
) -> tuple[Ints, Ints]:
    """Which chunk of two fragments or more each document of one fragment borrows its B from: (borrowers, lenders).

    single: chunks of one fragment; paired: all others. No two borrow from one lender. Borrowers for whom none is
    left are missing from the result.
    """
    if not len(single):
        return single, single
    matched_ = single[rng.permutation(seed, "single", len(single), epoch)]
    first_length = chunks.first - chunks.start
    candidates = paired[np.lexsort((rng.bits(seed, "lender", epoch, paired), first_length[paired]))]
    bound = matched_[: len(candidates)]
    bound = bound[np.argsort(chunks.end[bound] - chunks.start[bound], kind="stable")]
    length = (chunks.end - chunks.start)[bound]
    step = np.arange(len(bound))
    at = np.searchsorted(first_length[candidates], length)
    at = np.maximum.accumulate(at - step) + step  # distinct and in order …
    at = np.minimum(at, len(candidates) - len(bound) + step)  # … and within the candidates
    lender = candidates[at]
    fits = length + (chunks.end - chunks.first)[lender] <= room
    fits &= chunks.kin[bound] != chunks.kin[lender]
    return bound[fits], lender[fits]


def borrowed(
    chunks: Chunks, takers: Ints, wish: Ints, a_length: Ints, everyone: Ints, room: int, seed: int, epoch: int
) -> Ints:
    """For each taker a chunk of another kin whose B (or only fragment) fits behind its A; it may be lent to
    several. -1 where there is no other kin; one that is too long only where every other is, too.

    wish: the length that B should have.
    """
    if not len(takers):
        return takers
    length, kin = chunks.b_length, chunks.kin
    tie = rng.bits(seed, "borrowed", epoch, everyone)
    ordered = everyone[np.lexsort((tie, length[everyone]))]
    limit = np.minimum(wish, room - a_length)
    top = np.searchsorted(length[ordered], limit, side="right") - 1
    found = np.full(len(takers), -1)
    for step in range(4 if len(ordered) else 0):
        at = top - rng.integers(seed, "window", _WINDOW, epoch, np.arange(len(takers)), step)
        candidate = ordered[np.maximum(at, 0)]
        good = (at >= 0) & (found < 0) & (kin[candidate] != kin[takers])
        found[good] = candidate[good]
    rest = np.flatnonzero(found < 0)
    for own in np.unique(kin[takers[rest]]):
        others = ordered[kin[ordered] != own]
        if len(others):
            mine = rest[kin[takers[rest]] == own]
            top = np.searchsorted(length[others], limit[mine], side="right") - 1
            top -= rng.integers(seed, "window", _WINDOW, epoch, mine, 99)
            found[mine] = others[np.maximum(top, 0)]
    return found
