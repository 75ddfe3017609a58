"""Random insertion or deletion of tokens before masking: `data.corruption`, off by default.

BERT only replaces tokens; this is for comparisons. In each run of text of an instance a ratio of the tokens,
rounded down, gets a random token in front, or is deleted; [CLS] and [SEP] stay. An inserted token has no
original, so it is never predicted and is no part of a word. After a deletion the labels are the remaining
tokens. If masks are of words, insertions are between words, and the remaining pieces of a word are still one
word. An instance with insertions is planned shorter by its growth, so that it never exceeds its length. Draws
are functions of (seed, epoch, instance, position), as those of the masks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bertsmith import rng
from bertsmith.corpus.tokenized_corpus import IntArray
from bertsmith.instances.epoch_plan import EpochPlan, concat_ranges
from bertsmith.instances.settings import DataSettings

BoolArray = NDArray[np.bool_]
_GROWTH = {"none": 0, "insertion": 1, "deletion": -1}  # tokens per corrupted token
_PURPOSES = {"insertion": "insert", "deletion": "delete"}  # of the random numbers


@dataclass(frozen=True)
class FramedInstances:
    """B concatenated instances of N tokens: P runs of text between [CLS] and [SEP].

    Attributes:
        ids: int64 [N].
        segments: int64 [N].
        lengths: int64 [B], the tokens of each instance.
        run_starts: int64 [P], the first row of each run.
        run_lengths: int64 [P], the tokens of each run.
        num_runs: int64 [B], the runs of each instance.
        excluded: bool [N], the inserted rows, which are never predicted; None: no row.
        word_starts: bool [N], the rows that start a word, if the ids no longer tell; None: the ids tell.
    """

    ids: IntArray
    segments: IntArray
    lengths: IntArray
    run_starts: IntArray
    run_lengths: IntArray
    num_runs: IntArray
    excluded: BoolArray | None = None
    word_starts: BoolArray | None = None


@dataclass(frozen=True)
class Corruption:
    """Corruption of the text of instances.

    Attributes:
        settings: The settings.
        insertable_ids: int64 [K], the ids that may be inserted.
        seed: The seed.
        word_starts: Needed for masks of words: ids [N] → bool [N], the pieces that start a word.
    """

    settings: DataSettings
    insertable_ids: IntArray
    seed: int
    word_starts: Callable[[IntArray], BoolArray] | None = None

    @property
    def _growth(self) -> int:
        return _GROWTH[self.settings.corruption]

    def planned_length(self, length: int) -> int:
        """Return the maximum tokens of an instance before corruption; it has at most `length` afterwards."""
        if self._growth < 1:
            return length
        return 2 + int((length - 2) / (1 + self.settings.corruption_ratio))

    def corrupted_sizes(self, plan: EpochPlan) -> IntArray:
        """Return the tokens of each instance after corruption, special tokens included, [I].

        An instance has fewer if it has too few words to insert tokens between.
        """
        if not self._growth or not len(plan):
            return plan.sizes
        num_corrupted = np.add.reduceat(self._count_corrupted(plan.lengths), plan.part_offsets[:-1])
        sizes: IntArray = plan.sizes + self._growth * num_corrupted
        return sizes

    def _count_corrupted(self, run_lengths: IntArray) -> IntArray:
        """Return how many tokens of each run are corrupted; never all."""
        num_corrupted: IntArray = np.floor(self.settings.corruption_ratio * run_lengths).astype(np.int64)
        return num_corrupted

    def apply(self, instances: FramedInstances, instance_ids: IntArray, epoch: int) -> FramedInstances:
        """Insert or delete tokens; `instance_ids` are the counters of each instance's random draws, [B]."""
        if not self._growth:
            return instances
        word_starts = None if self.word_starts is None else self.word_starts(instances.ids)
        rows, bits = self._draw_rows(instances, word_starts, instance_ids, epoch)
        instance = np.searchsorted(np.cumsum(instances.lengths), rows, side="right")
        num_corrupted = np.bincount(instance, minlength=len(instances.lengths))
        if self._growth < 0:
            corrupted = _delete_tokens(instances, word_starts, rows)
        else:
            corrupted = self._insert_tokens(instances, word_starts, rows, bits)
        return replace(corrupted, lengths=instances.lengths + self._growth * num_corrupted)

    def _draw_rows(
        self, instances: FramedInstances, word_starts: BoolArray | None, instance_ids: IntArray, epoch: int
    ) -> tuple[IntArray, NDArray[np.uint64]]:
        """Return the rows to corrupt in ascending order, and random bits for each."""
        run_lengths = instances.run_lengths
        rows = concat_ranges(instances.run_starts, run_lengths)
        run = np.repeat(np.arange(len(run_lengths)), run_lengths)
        instance = np.repeat(np.arange(len(instances.num_runs)), instances.num_runs)[run]
        position = rows - (np.cumsum(instances.lengths) - instances.lengths)[instance]
        keys = rng.random_bits(self.seed, _PURPOSES[self.settings.corruption], epoch, instance_ids)
        bits = rng.extend_bits(keys[instance], position)
        is_excluded = np.zeros(len(rows), dtype=np.bool_)
        if word_starts is not None and self._growth > 0:
            is_excluded = ~word_starts[rows]
        order = np.lexsort((bits, is_excluded, run))
        rank = np.arange(len(rows)) - np.repeat(np.cumsum(run_lengths) - run_lengths, run_lengths)
        is_selected = (rank < self._count_corrupted(run_lengths)[run]) & ~is_excluded[order]
        selected = np.sort(order[is_selected])
        return rows[selected], bits[selected]

    def _insert_tokens(
        self,
        instances: FramedInstances,
        word_starts: BoolArray | None,
        rows: IntArray,
        bits: NDArray[np.uint64],
    ) -> FramedInstances:
        """Insert a random token in front of each of the rows."""
        repeats = np.ones(len(instances.ids), dtype=np.int64)
        repeats[rows] = 2
        source = np.repeat(np.arange(len(instances.ids)), repeats)
        inserted = rows + np.arange(len(rows))
        index = ((bits & np.uint64(2**32 - 1)) * np.uint64(len(self.insertable_ids))) >> np.uint64(32)
        ids, excluded = instances.ids[source], np.zeros(len(source), dtype=np.bool_)
        ids[inserted] = self.insertable_ids[index.view(np.int64)]
        excluded[inserted] = True
        return replace(
            instances,
            ids=ids,
            segments=instances.segments[source],
            excluded=excluded,
            word_starts=None if word_starts is None else word_starts[source],
        )


def _delete_tokens(
    instances: FramedInstances, word_starts: BoolArray | None, rows: IntArray
) -> FramedInstances:
    remaining = np.ones(len(instances.ids), dtype=np.bool_)
    remaining[rows] = False
    if word_starts is not None:  # the first remaining piece of a word starts it
        word = np.cumsum(word_starts)[remaining]
        word_starts = np.diff(word, prepend=-1) > 0
    return replace(
        instances,
        ids=instances.ids[remaining],
        segments=instances.segments[remaining],
        word_starts=word_starts,
    )
