"""Batches of random tokens in the shape of pre-training batches, to measure speed without a corpus."""

from __future__ import annotations

import numpy as np
import torch

from bertsmith import rng
from bertsmith.instances.batches import MaskedBatch
from bertsmith.packed import Packed


class SyntheticStream:
    """Batches of random pairs of `length` tokens each, with the interface of `InstanceStream`.

    The ratio `mlm_probability` of the tokens is predicted; none is replaced by [MASK].
    """

    def __init__(self, vocab_size: int, length: int, mlm_probability: float, task: str = "nsp") -> None:
        self._vocab_size, self._length = vocab_size, length
        self._mlm_probability, self._task = mlm_probability, task

    def size(self, epoch: int) -> int:
        """Return the number of instances in the epoch."""
        return 1 << 20

    def batch(self, epoch: int, start: int, stop: int) -> MaskedBatch:
        """Return instances [start, stop), a pure function of its arguments."""
        num_instances, length = stop - start, self._length
        counters = np.arange(start * length, stop * length)
        ids = rng.integers(0, "probe", self._vocab_size, epoch, counters)
        segments = (np.arange(num_instances * length) % length >= length // 2).astype(np.int64)
        rows = np.arange(0, num_instances * length, max(1, round(1 / self._mlm_probability)))
        return MaskedBatch(
            packed=Packed.from_arrays(ids, segments, np.full(num_instances, length)),
            rows=torch.from_numpy(rows),
            labels=torch.from_numpy(ids[rows]),
            pair_labels=torch.arange(0 if self._task == "none" else num_instances) % 2,
            epoch=epoch,
            first_instance=start,
            task=self._task,
        )
