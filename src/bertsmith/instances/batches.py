"""Packed, masked batches of a corpus.

Any batch is a function of the seed, the epoch, and the index of its first instance, so a run can resume anywhere.

Shapes: D documents, I instances of an epoch, K batches of an epoch, B sequences of a batch with N tokens, M tokens
to predict, a vocabulary of V tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith import rng
from bertsmith.corpus.shards import IntArray, Shards
from bertsmith.errors import InputError, option
from bertsmith.instances import epoch_plan
from bertsmith.instances.corruption import Corruption, FramedInstances
from bertsmith.instances.epoch_plan import EpochPlan, FillStats
from bertsmith.instances.masking import Masker, SpecialTokenIds
from bertsmith.instances.segment_pairs import plan_pairs
from bertsmith.instances.segments import plan_doc_sentences, plan_full_sentences
from bertsmith.instances.settings import PAIRS, DataSettings
from bertsmith.instances.span_masking import word_start_function
from bertsmith.packed import DeviceLengthsPacked, Packed, copy_to_device
from bertsmith.tokenizer.tokenizer import Tokenizer

IGNORED_LABEL, IGNORED_PAIR_LABEL = -1, -100
"""Labels of tokens and of pairs that the loss ignores."""


class BatchSizes(NamedTuple):
    """Sizes of a batch."""

    num_sequences: int
    num_tokens: int
    num_rows: int  # tokens to predict
    max_seqlen: int  # tokens of the longest sequence


@dataclass(frozen=True)
class MaskedBatch:
    """Masked instances.

    Attributes:
        packed: B sequences with masked tokens.
        rows: long [M], the indices in `packed.tokens` of the tokens to predict, ascending.
        labels: long [M], their ids before masking.
        pair_labels: long [B], 0 if B follows A (nsp; 1 if `data.is_next_label` is 1) or both are in order (sop);
            [0] without a sentence task.
        epoch: The epoch.
        first_instance: The index of the first instance in the epoch.
        task: The sentence task: nsp, sop, or none.
    """

    packed: Packed
    rows: Tensor
    labels: Tensor
    pair_labels: Tensor
    epoch: int
    first_instance: int
    task: str = "nsp"

    @property
    def counts(self) -> dict[str, int]:
        """The number of labels of each part of the loss, by its name."""
        return {"mlm": len(self.rows)} | ({} if self.task == "none" else {self.task: len(self.pair_labels)})

    @property
    def tokens(self) -> int:
        """The number of tokens, special tokens included."""
        return len(self.packed.tokens)

    @property
    def unmasked(self) -> Packed:
        """The sequences before tokens were masked."""
        return replace(self.packed, tokens=self.packed.tokens.index_copy(0, self.rows, self.labels))

    @property
    def place(self) -> str:
        """The epoch and the indices of the instances, for messages."""
        last = self.first_instance + self.packed.num_sequences - 1
        return f"epoch {self.epoch}, instances {self.first_instance} to {last}"

    @property
    def sizes(self) -> BatchSizes:
        """The sizes of the batch."""
        return BatchSizes(self.packed.num_sequences, self.tokens, len(self.rows), self.packed.max_seqlen)

    def padded_to(self, sizes: BatchSizes) -> MaskedBatch:
        """Pad the batch to these sizes with sequences, tokens, and labels that the loss ignores.

        The new sequences are behind the others. They are filled from the last to the first with up to
        `sizes.max_seqlen` tokens each, so that the first ones may be empty. New tokens have id, segment id, and
        position 0; new `rows` are the batch's first token, with IGNORED_LABEL; new pairs have IGNORED_PAIR_LABEL.

        Raises:
            ValueError: The batch is larger than `sizes`, there are too few new sequences for the new tokens, or
                there are new sequences and no new token: an empty sequence at the end has no first token.
        """
        packed = self.packed
        num_sequences, num_tokens, num_rows, seqlen_growth = (
            target - size for target, size in zip(sizes, self.sizes, strict=True)
        )
        fits = min(num_sequences, num_tokens, num_rows, seqlen_growth) >= 0
        fits = fits and num_tokens <= num_sequences * sizes.max_seqlen
        if not fits or (num_sequences and not num_tokens):
            raise ValueError(f"{self.place}: {self.sizes} cannot be filled to {sizes}")
        # The new tokens before and behind each new sequence: the last sequence takes as many as it can, and so on.
        boundaries = num_tokens - np.minimum(np.arange(num_sequences, -1, -1) * sizes.max_seqlen, num_tokens)
        num_pairs = num_sequences if len(self.pair_labels) else 0
        return replace(
            self,
            packed=Packed(
                F.pad(packed.tokens, (0, num_tokens)),
                F.pad(packed.segments, (0, num_tokens)),
                F.pad(packed.positions, (0, num_tokens)),
                torch.cat([packed.cu_seqlens, torch.from_numpy(boundaries[1:] + self.tokens).int()]),
                np.concatenate([packed.lengths, np.diff(boundaries)]),
            ),
            rows=F.pad(self.rows, (0, num_rows)),
            labels=F.pad(self.labels, (0, num_rows), value=IGNORED_LABEL),
            pair_labels=F.pad(self.pair_labels, (0, num_pairs), value=IGNORED_PAIR_LABEL),
        )

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that the forward pass and the loss read."""
        packed = self.packed
        inputs = [packed.tokens, packed.segments, packed.positions, packed.cu_seqlens]
        return [*inputs, self.rows, self.labels, self.pair_labels]

    def unmeasured(self, max_seqlen_bound: int) -> MaskedBatch:
        """Return the batch without lengths on the host, only an upper bound of them, for CUDA graphs."""
        return replace(self, packed=DeviceLengthsPacked.from_packed(self.packed, max_seqlen_bound))

    def to(self, device: torch.device | str) -> MaskedBatch:
        """Copy the batch to another device; the host does not wait for the copy."""
        if torch.device(device) == self.rows.device:
            return self
        return replace(
            self,
            packed=self.packed.to(device),
            rows=copy_to_device(self.rows, device),
            labels=copy_to_device(self.labels, device),
            pair_labels=copy_to_device(self.pair_labels, device),
        )


class InstanceStream:
    """Batches of every epoch: a plan is made once per epoch, masks are drawn when a batch is made.

    If `data.dynamic_masking` is false, an epoch has the instances and masks of epoch (epoch mod dupe_factor), in
    another order.
    """

    def __init__(
        self,
        corpus: Shards,
        documents: IntArray,
        tokenizer: Tokenizer,
        settings: DataSettings,
        *,
        length: int,
        seed: int,
        batch_tokens: int | None = None,
    ) -> None:
        """Check the arguments; no plan is made yet.

        Args:
            corpus: The corpus.
            documents: The documents to use, int64 [D].
            tokenizer: The tokenizer of the corpus.
            settings: The settings.
            length: The maximum tokens of an instance, special tokens included.
            seed: The seed.
            batch_tokens: The token budget of a batch; None: batches have a fixed number of instances.

        Raises:
            InputError: The budget is smaller than `length`, or the tokenizer lacks a special token.
        """
        ids = SpecialTokenIds.from_tokenizer(tokenizer)
        self._corpus, self._documents, self._special_token_ids = corpus, documents, ids
        self._settings, self._length, self._seed = settings, length, seed
        self._word_starts = word_start_function(tokenizer, settings)
        self._masker = Masker(settings, ids, seed)
        self._corruption = Corruption(settings, np.flatnonzero(~ids.is_special), seed)
        self._batch_tokens = batch_tokens
        self._plans: dict[int, EpochPlan] = {}
        epoch_plan.check_batch_tokens(batch_tokens, length)

    def sampling_epoch(self, epoch: int) -> int:
        """Return the epoch whose random numbers determine the instances and masks of this epoch."""
        return epoch if self._settings.dynamic_masking else epoch % self._settings.dupe_factor

    def plan(self, epoch: int) -> EpochPlan:
        """Return the epoch's plan in the order of training, from a cache of two neighboring epochs.

        At the end of an epoch, data loader workers already make batches of the next one.
        """
        if epoch in self._plans:
            return self._plans[epoch]
        plan = self._make_plan(self.sampling_epoch(epoch))
        plan = plan.reordered(rng.permutation(self._seed, "order", len(plan), epoch))
        if self._batch_tokens is not None and len(plan):
            sizes = self._corruption.corrupted_sizes(plan)
            order, batch_offsets = epoch_plan.make_buckets(sizes, self._batch_tokens, self._seed, epoch)
            plan = replace(plan.reordered(order), batch_offsets=batch_offsets)
        self._plans = {k: v for k, v in self._plans.items() if abs(k - epoch) <= 1} | {epoch: plan}
        return plan

    def _make_plan(self, epoch: int) -> EpochPlan:
        corpus, documents, seed = self._corpus, self._documents, self._seed
        length = self._corruption.planned_length(self._length)
        if self._settings.instances == "full_sentences":
            return plan_full_sentences(corpus, documents, max_length=length, seed=seed, epoch=epoch)
        if self._settings.instances == "doc_sentences":
            return plan_doc_sentences(corpus, documents, max_length=length)
        separators = self._special_token_ids.num_separators
        options = {"max_length": length, "seed": seed, "epoch": epoch, "num_separators": separators}
        return plan_pairs(corpus, documents, self._settings, **options)

    def size(self, epoch: int) -> int:
        """Return the number of instances in the epoch."""
        return len(self.plan(epoch))

    def stop(self, epoch: int, start: int, size: int) -> int:
        """Return the end of the batch that starts at `start`: after `size` instances, or by the token budget."""
        plan = self.plan(epoch)
        if plan.batch_offsets is None:
            return min(start + size, len(plan))
        return int(plan.batch_offsets[np.searchsorted(plan.batch_offsets, start, side="right")])

    def fill_stats(self, epoch: int, size: int) -> FillStats:
        """Compute the fill ratios of the epoch's batches of `size` instances, or under the token budget."""
        plan = self.plan(epoch)
        offsets = plan.batch_offsets
        if offsets is None:
            offsets = np.append(np.arange(0, len(plan), size), len(plan))
        sizes = self._corruption.corrupted_sizes(plan)
        return epoch_plan.compute_fill_stats(sizes, offsets, self._batch_tokens or size * self._length)

    def batch(self, epoch: int, start: int, stop: int) -> MaskedBatch:
        """Return instances [start, stop) of the epoch, masked and packed; a pure function of its arguments."""
        plan, batch_slice = self.plan(epoch), slice(start, stop)
        sampling_epoch, instance_ids = self.sampling_epoch(epoch), plan.instance_ids[batch_slice]
        framed = frame_instances(self._corpus, plan, batch_slice, self._special_token_ids)
        if self._word_starts is not None:
            framed = replace(framed, word_starts=self._word_starts(framed.ids))
        framed = self._corruption.apply(framed, instance_ids, sampling_epoch)
        packed = Packed.from_arrays(framed.ids, framed.segment_ids, framed.lengths)
        is_excluded, word_starts, positions = framed.is_inserted, framed.word_starts, packed.positions.numpy()
        sequences = framed.ids, framed.lengths, instance_ids, sampling_epoch, positions
        masked_ids, rows = self._masker.apply(*sequences, is_excluded=is_excluded, word_starts=word_starts)
        return MaskedBatch(
            packed=replace(packed, tokens=torch.from_numpy(masked_ids)),
            rows=torch.from_numpy(rows),
            labels=torch.from_numpy(framed.ids[rows]),
            pair_labels=torch.from_numpy(self._pair_labels(plan, batch_slice)),
            epoch=epoch,
            first_instance=start,
            task=self._settings.sentence_task,
        )

    def _pair_labels(self, plan: EpochPlan, batch_slice: slice) -> IntArray:
        """Return the labels of the pairs, [B], or [0] without a sentence task."""
        labels = plan.labels[:0] if self._settings.sentence_task == "none" else plan.labels[batch_slice]
        return 1 - labels if self._settings.is_next_label else labels.copy()


def frame_instances(
    corpus: Shards, plan: EpochPlan, batch_slice: slice, special_token_ids: SpecialTokenIds
) -> FramedInstances:
    """Look up the ids of the plan's instances in a slice, and add special tokens: [CLS] part [SEP] … part [SEP].

    A pair's B and its [SEP] have segment id 1 if the tokenizer uses segments.
    """
    part_offsets = plan.part_offsets[batch_slice.start : batch_slice.stop + 1]
    parts = slice(int(part_offsets[0]), int(part_offsets[-1]))
    part_lengths, num_parts = plan.lengths[parts], np.diff(part_offsets)
    # 1 for each part that is the first of its instance: [CLS] is before it, and one [SEP] behind the part before
    # it.
    is_first = np.zeros(len(part_lengths), dtype=np.int64)
    is_first[part_offsets[:-1] - part_offsets[0]] = 1
    num_separators = np.where(np.append(is_first[1:], 1) == 1, 1, plan.num_separators)  # behind each part
    framed_lengths = is_first + part_lengths + num_separators
    ends = np.cumsum(framed_lengths)
    starts = ends - num_separators - part_lengths
    num_tokens = int(ends[-1])
    ids = np.full(num_tokens, special_token_ids.sep, dtype=np.int64)
    ids[starts[is_first == 1] - 1] = special_token_ids.cls
    corpus.copy_spans(plan.starts[parts], part_lengths, out=ids, target_starts=starts)
    segment_ids = np.zeros(num_tokens, dtype=np.int64)
    if plan.is_pair and special_token_ids.uses_segments:
        segment_ids = np.repeat(1 - is_first, framed_lengths)
    last_parts = np.cumsum(num_parts) - 1
    instance_lengths = np.diff(ends[last_parts], prepend=0)
    return FramedInstances(ids, segment_ids, instance_lengths, starts, part_lengths, num_parts)


def token_counts(corpus: Shards, documents: IntArray, vocab_size: int) -> IntArray:
    """Count each token in the documents: the unigram model of the corpus.

    Args:
        corpus: The corpus.
        documents: The documents to use, int64 [D].
        vocab_size: The size of the vocabulary, V.

    Returns:
        The number of occurrences of each token, int64 [V].
    """
    counts = np.zeros(vocab_size, dtype=np.int64)
    for ids, _ in epoch_plan.read_portions(corpus, documents):
        counts += np.bincount(ids, minlength=vocab_size)
    return counts


def check_type_vocab_size(settings: DataSettings, uses_segments: bool, type_vocab_size: int) -> None:
    """Raise InputError if the tokenizer gives B segment id 1 and the model has fewer than two segment ids."""
    if type_vocab_size < 2 and uses_segments and settings.instances in PAIRS:
        message = f"the second segment of a pair needs a segment id of its own, and this is {type_vocab_size}"
        hint = (
            f"use {option('model.type_vocab_size', '2')}, or train without pairs: "
            f"{option('data.instances', 'full_sentences')} and {option('data.sentence_task', 'none')}"
        )
        raise InputError("type_vocab_size_too_small", message, argument="model.type_vocab_size", hint=hint)


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
