"""Which positions are predicted, and what stands in their place: drawn anew for every (seed, epoch, instance).

Devlin et al. 2019, section 3.1: a share of the tokens is chosen, exactly round(share · n) of the n that are no
special tokens and at least one; of those 80 % become [MASK], 10 % a random token, 10 % stay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsmith import draws

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Masker:
    """How masks are drawn.

    share: of the tokens to choose; split: shares of those that become [MASK], a random token, or stay;
    special: bool [V], tokens that are never chosen and never put in place of another.
    """

    share: float
    split: tuple[float, float, float]
    mask_id: int
    special: NDArray[np.bool_]
    seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ordinary", np.flatnonzero(~self.special))

    def apply(self, ids: Ints, lengths: Ints, instances: Ints, epoch: int) -> tuple[Ints, Ints]:
        """Mask sequences that lie end to end.

        ids: [N]; lengths: [B]; instances: [B], each sequence's number in its epoch. Returns the masked copy of
        ids and the rows to predict [M] in ascending order; their labels are ids[rows].
        """
        sequence = np.repeat(np.arange(len(lengths)), lengths)
        position = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        open_rows = np.flatnonzero(~self.special[ids])
        owner = sequence[open_rows]
        score = draws.bits(self.seed, "mask", epoch, instances[owner], position[open_rows])
        by_score = open_rows[np.lexsort((score, owner))]

        available = np.bincount(owner, minlength=len(lengths))
        wanted = np.minimum(np.maximum(np.rint(self.share * available), 1), available).astype(np.int64)
        rank = np.arange(len(open_rows)) - np.repeat(np.cumsum(available) - available, available)
        rows = np.sort(by_score[rank < np.repeat(wanted, available)])

        key = (epoch, instances[sequence[rows]], position[rows])
        kind = draws.uniform(self.seed, "mask kind", *key)
        ordinary: Ints = self._ordinary  # type: ignore[attr-defined]
        random = ordinary[draws.integers(self.seed, "mask token", len(ordinary), *key)]
        to_mask, to_random, _ = self.split
        masked = ids.copy()
        masked[rows] = np.where(
            kind < to_mask, self.mask_id, np.where(kind < to_mask + to_random, random, ids[rows])
        )
        return masked, rows
