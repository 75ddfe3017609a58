"""Batches of random text shaped like pre-training's: how long will an update take, before there are shards?"""

from __future__ import annotations

import numpy as np
import torch

from bertsmith import rng
from bertsmith.instances.batches import PairBatch
from bertsmith.packed import Packed


class RandomPairs:
    """An endless stream of pairs of `length` tokens, `mask_share` of them predicted."""

    def __init__(self, vocab_size: int, length: int, mask_share: float, task: str = "nsp") -> None:
        self._vocab_size, self._length, self._mask_share, self._task = vocab_size, length, mask_share, task

    def size(self, epoch: int) -> int:
        """Instances in the epoch."""
        return 1 << 20

    def batch(self, epoch: int, start: int, stop: int) -> PairBatch:
        """Instances [start, stop), a pure function of its arguments."""
        number, length = stop - start, self._length
        at = np.arange(start * length, stop * length)
        ids = rng.integers(0, "probe", self._vocab_size, epoch, at)
        segments = (np.arange(number * length) % length >= length // 2).astype(np.int64)
        rows = np.arange(0, number * length, max(1, round(1 / self._mask_share)))
        return PairBatch(
            Packed.of_arrays(ids, segments, np.full(number, length)),
            torch.from_numpy(rows),
            torch.from_numpy(ids[rows]),
            torch.arange(0 if self._task == "none" else number) % 2,
            epoch,
            start,
            self._task,
        )
