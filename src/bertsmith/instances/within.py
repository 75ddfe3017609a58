"""Which chunks of one document exchange their second segments: `data.partner=matched` for NotNext pairs whose B is
from A's own document (`data.nsp_negatives=same_document`).

As in `nsp_matching.py`, chunk i has then its own A and the B of j, and j the B of i: nothing is cut, every token
occurs once in the epoch. Partners are as alike in the length of B as a document allows, and between the two chunks
there is text of neither, so that no B stands beside the A that it comes to: a chunk's direct neighbours are never
its partners, and documents of one or two chunks have none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bertsmith import rng
from bertsmith.corpus.tokenized_corpus import Ints
from bertsmith.instances.segments import Chunks

_ROUNDS = 12


def matched_within(
    chunks: Chunks, paired: Ints, pairs: int, room: int, seed: int, epoch: int
) -> tuple[Ints, Ints]:
    """`pairs` disjoint pairs of these chunks that exchange B; fewer where documents have no more.

    paired: the chunks that have a B of their own; room: tokens that A and B may have together. In each document
    those alike in length stand side by side in one round, and in random order in the next, in which chunks find
    each other whose neighbours by length are their neighbours in the text.
    """
    pool, found = paired, paired[:0].reshape(0, 2)
    for round_ in range(_ROUNDS):
        if len(found) >= pairs or len(pool) < 2:
            break
        tie = rng.bits(seed, "within", epoch, round_, pool)
        length = chunks.b_length[pool] if round_ % 2 == 0 else np.zeros_like(pool)
        row = pool[np.lexsort((tie, length, chunks.document[pool]))]
        for begin in (0, 1):  # the first with the second …; of who is left, the second with the third …
            one, two = row[begin : len(row) - 1 : 2], row[begin + 1 :: 2]
            good = _may_exchange(chunks, one, two, room)
            found = np.concatenate([found, np.stack([one[good], two[good]], 1)])
            row = row[~np.isin(row, found)]
        pool = row
    found = found[rng.permutation(seed, "label", len(found), epoch)[:pairs]]
    return found[:, 0], found[:, 1]


def _may_exchange(chunks: Chunks, one: Ints, two: Ints, room: int) -> NDArray[np.bool_]:
    """Whether they are apart in one document, and either B fits behind the other's A."""
    apart = (chunks.end[one] < chunks.start[two]) | (chunks.end[two] < chunks.start[one])
    a, b = chunks.a_length, chunks.end - chunks.split
    good: NDArray[np.bool_] = (
        (chunks.document[one] == chunks.document[two])
        & apart
        & (a[one] + b[two] <= room)
        & (a[two] + b[one] <= room)
    )
    return good
