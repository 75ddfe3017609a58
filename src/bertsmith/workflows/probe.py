"""Batches of random text shaped like pre-training's: how long will an update take, before there are shards?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bertsmith import draws
from bertsmith.packed import Packed


@dataclass(frozen=True)
class RandomBatch:
    """Segment pairs as masked LM and next sentence take them.

    rows: long [M], the rows of `packed` to predict; labels: long [M]; pair_labels: long [B].
    """

    packed: Packed
    rows: Tensor
    labels: Tensor
    pair_labels: Tensor
    epoch: int = 0
    place: str = "random text"

    @property
    def counts(self) -> dict[str, int]:
        """What each part of the loss is a mean over."""
        return {"mlm": len(self.rows), "nsp": len(self.pair_labels)}

    @property
    def tokens(self) -> int:
        """Tokens in the batch."""
        return len(self.packed.tokens)

    def to(self, device: torch.device | str) -> RandomBatch:
        """The same on another device."""
        return RandomBatch(
            self.packed.to(device), self.rows.to(device), self.labels.to(device), self.pair_labels.to(device)
        )


class RandomPairs:
    """An endless stream of pairs of `length` tokens, `mask_share` of them predicted."""

    def __init__(self, vocab_size: int, length: int, mask_share: float) -> None:
        self._vocab_size, self._length, self._mask_share = vocab_size, length, mask_share

    def size(self, epoch: int) -> int:
        """Instances in the epoch."""
        return 1 << 20

    def batch(self, epoch: int, start: int, stop: int) -> RandomBatch:
        """Instances [start, stop), a pure function of its arguments."""
        number, length = stop - start, self._length
        ids = draws.integers(0, "probe", self._vocab_size, epoch, np.arange(start * length, stop * length))
        tokens = torch.from_numpy(ids)
        segments = (torch.arange(number * length) % length >= length // 2).long()
        every = max(1, round(1 / self._mask_share))
        rows = torch.arange(0, number * length, every)
        return RandomBatch(
            Packed.of_flat(tokens, segments, torch.full((number,), length)),
            rows,
            tokens[rows].clone(),
            torch.arange(number) % 2,
            epoch,
        )
