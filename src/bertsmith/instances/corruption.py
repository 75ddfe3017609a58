"""Random insertion or deletion of tokens before masking: `data.corruption`, off by default.

BERT only replaces tokens; this is for comparisons. In each part of an instance (the text between two special
tokens) a ratio of the tokens, rounded down, gets a random token in front, or is deleted; special tokens stay. An
inserted token has no original, so it is never predicted and is not part of a word. After a deletion the labels are
the remaining tokens. If whole words are masked, insertions are between words, and the remaining pieces of a word
are still one word. An instance with insertions is planned shorter by its growth, so that it never exceeds its
maximum length. Random numbers are functions of (seed, epoch, instance, position), as those of the masks.

Shapes: B instances with N tokens and P parts; R tokens to corrupt. An index of a token is its index in [N].
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bertsmith import rng
from bertsmith.corpus.shards import BoolArray, IntArray
from bertsmith.instances.epoch_plan import EpochPlan, concat_ranges
from bertsmith.instances.settings import DataSettings

_GROWTH = {"none": 0, "insertion": 1, "deletion": -1}  # tokens per corrupted token
_PURPOSES = {"insertion": "insert", "deletion": "delete"}  # of the random numbers


@dataclass(frozen=True)
class FramedInstances:
    """Concatenated instances with special tokens: B instances, N tokens, P parts between special tokens.

    Attributes:
        ids: int64 [N].
        segment_ids: int64 [N].
        lengths: int64 [B], the tokens of each instance.
        part_starts: int64 [P], the index of each part's first token, before corruption.
        part_lengths: int64 [P], the tokens of each part, before corruption.
        num_parts: int64 [B], the parts of each instance.
        is_inserted: bool [N], True for inserted tokens, which are never predicted; None: there are none.
        word_starts: bool [N], True for tokens that start a word; None if single tokens are masked.
    """

    ids: IntArray
    segment_ids: IntArray
    lengths: IntArray
    part_starts: IntArray
    part_lengths: IntArray
    num_parts: IntArray
    is_inserted: BoolArray | None = None
    word_starts: BoolArray | None = None


@dataclass(frozen=True)
class Corruption:
    """Corruption of the text of instances.

    Attributes:
        settings: The settings.
        insertable_ids: int64, the ids that may be inserted.
        seed: The seed.
    """

    settings: DataSettings
    insertable_ids: IntArray
    seed: int

    @property
    def _growth(self) -> int:
        """The tokens that an instance gains per corrupted token: 1, 0, or -1."""
        return _GROWTH[self.settings.corruption]

    def planned_length(self, length: int) -> int:
        """Return the maximum tokens of an instance before corruption, for at most `length` afterwards."""
        if self._growth < 1:
            return length
        # [CLS] and the last [SEP] are 2 tokens, before which nothing is inserted.
        return 2 + int((length - 2) / (1 + self.settings.corruption_ratio))

    def corrupted_sizes(self, plan: EpochPlan) -> IntArray:
        """Return the tokens of each of the plan's I instances after corruption, special tokens included, [I].

        These are upper bounds if whole words are masked: an instance may have too few words to insert tokens
        between.
        """
        return plan.sizes + self._growth * plan.sum_parts(self._count_corrupted(plan.lengths))

    def _count_corrupted(self, part_lengths: IntArray) -> IntArray:
        """Return how many tokens of each part are corrupted; never all."""
        num_corrupted: IntArray = np.floor(self.settings.corruption_ratio * part_lengths).astype(np.int64)
        return num_corrupted

    def apply(self, instances: FramedInstances, instance_ids: IntArray, epoch: int) -> FramedInstances:
        """Insert or delete tokens; `instance_ids` are the counters of each instance's random draws, [B]."""
        if not self._growth:
            return instances
        indices, bits = self._draw_indices(instances, instance_ids, epoch)
        instance = np.searchsorted(np.cumsum(instances.lengths), indices, side="right")
        num_corrupted = np.bincount(instance, minlength=len(instances.lengths))
        if self._growth < 0:
            corrupted = _delete_tokens(instances, indices)
        else:
            corrupted = self._insert_tokens(instances, indices, bits)
        return replace(corrupted, lengths=instances.lengths + self._growth * num_corrupted)

    def _draw_indices(
        self, instances: FramedInstances, instance_ids: IntArray, epoch: int
    ) -> tuple[IntArray, rng.Bits]:
        """Return the ascending indices of the tokens to corrupt, and 64 random bits for each, [R]."""
        part_lengths = instances.part_lengths
        # The tokens of all parts: their indices, parts, instances, and positions in the instance.
        indices = concat_ranges(instances.part_starts, part_lengths)
        part = np.repeat(np.arange(len(part_lengths)), part_lengths)
        instance = np.repeat(np.arange(len(instances.num_parts)), instances.num_parts)[part]
        position = indices - (np.cumsum(instances.lengths) - instances.lengths)[instance]
        keys = rng.random_bits(self.seed, _PURPOSES[self.settings.corruption], epoch, instance_ids)
        bits = rng.extend_bits(keys[instance], position)
        # Select from each part the tokens with the lowest bits, except those inside words for insertions.
        is_excluded = np.zeros(len(indices), dtype=np.bool_)
        if instances.word_starts is not None and self._growth > 0:
            is_excluded = ~instances.word_starts[indices]
        order = np.lexsort((bits, is_excluded, part))
        rank = np.arange(len(indices)) - np.repeat(np.cumsum(part_lengths) - part_lengths, part_lengths)
        is_selected = (rank < self._count_corrupted(part_lengths)[part]) & ~is_excluded[order]
        selected = np.sort(order[is_selected])
        return indices[selected], bits[selected]

    def _insert_tokens(
        self, instances: FramedInstances, indices: IntArray, bits: rng.Bits
    ) -> FramedInstances:
        """Insert a random token in front of each of these tokens, with the same value in `word_starts`."""
        repeats = np.ones(len(instances.ids), dtype=np.int64)
        repeats[indices] = 2
        source = np.repeat(np.arange(len(instances.ids)), repeats)
        inserted = indices + np.arange(len(indices))
        # The low 32 random bits, scaled to the number of ids that may be inserted.
        id_index = ((bits & np.uint64(2**32 - 1)) * np.uint64(len(self.insertable_ids))) >> np.uint64(32)
        ids, is_inserted = instances.ids[source], np.zeros(len(source), dtype=np.bool_)
        word_starts = instances.word_starts
        ids[inserted] = self.insertable_ids[id_index.view(np.int64)]
        is_inserted[inserted] = True
        return replace(
            instances,
            ids=ids,
            segment_ids=instances.segment_ids[source],
            is_inserted=is_inserted,
            word_starts=None if word_starts is None else word_starts[source],
        )


def _delete_tokens(instances: FramedInstances, indices: IntArray) -> FramedInstances:
    is_remaining = np.ones(len(instances.ids), dtype=np.bool_)
    is_remaining[indices] = False
    word_starts = instances.word_starts
    if word_starts is not None:  # the first remaining piece of a word starts it
        word = np.cumsum(word_starts)[is_remaining]
        word_starts = np.diff(word, prepend=-1) > 0
    return replace(
        instances,
        ids=instances.ids[is_remaining],
        segment_ids=instances.segment_ids[is_remaining],
        word_starts=word_starts,
    )
