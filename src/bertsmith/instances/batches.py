"""Plan and masks → packed batches: any batch of any epoch from two integers, so that a run resumes anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertsmith import rng
from bertsmith.corpus.near_duplicates import kin_of
from bertsmith.corpus.tokenized_corpus import Corpus, Ints
from bertsmith.errors import InputError
from bertsmith.instances.corruption import Corruption, Framed
from bertsmith.instances.epoch_plan import Plan, ranges
from bertsmith.instances.length_buckets import Filling, bucketed, check_budget, filling
from bertsmith.instances.masking import Masker, WordStarts, unknown_id
from bertsmith.instances.segment_pairs import plan_pairs
from bertsmith.instances.settings import PAIRS, DataSettings
from bertsmith.instances.text_instances import plan_doc_sentences, plan_full_sentences, plan_single
from bertsmith.packed import Packed, Unmeasured, sent
from bertsmith.tokenizer.tokenizer import Tokenizer

NO_LABEL, NO_PAIR = -1, -100
"""The labels of a row, and of a pair, that count for nothing."""


class BatchSizes(NamedTuple):
    """Of a batch: its sequences, tokens, rows to predict, and the tokens of its longest sequence."""

    sequences: int
    tokens: int
    rows: int
    longest: int


class TokenShards(Corpus, Protocol):
    """What batches need of token shards beyond the plan's ends."""

    hashes: NDArray[np.uint64]  # [D]

    def take(self, positions: Ints) -> Ints:
        """The ids at token positions of the whole corpus."""
        ...

    def lay(self, starts: Ints, lengths: Ints, out: Ints, at: Ints) -> None:
        """Copy runs of ids, each within a document: run k becomes out[at[k] : at[k] + lengths[k]]."""
        ...


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the tokens that frame an instance, and bool [V] of every special one.

    separators: how many `sep` stand between A and B; uses_segments: whether B has segment 1, or 0 as all else.
    """

    cls: int
    sep: int
    mask: int
    special: NDArray[np.bool_]
    separators: int = 1
    uses_segments: bool = True


@dataclass(frozen=True)
class PairBatch:
    """Masked instances.

    rows: long [M], the rows of `packed` to predict; labels: long [M], what stood there; pair_labels: long [B],
    0 where B follows A (nsp; 1 where `data.is_next_label` is) or where both are in order (sop); [0] where nothing
    is asked of a pair (none).
    """

    packed: Packed
    rows: Tensor
    labels: Tensor
    pair_labels: Tensor
    epoch: int
    first: int
    task: str = "nsp"

    @property
    def counts(self) -> dict[str, int]:
        """What each part of the loss is a mean over."""
        return {"mlm": len(self.rows)} | ({} if self.task == "none" else {self.task: len(self.pair_labels)})

    @property
    def tokens(self) -> int:
        """Tokens in the batch, special ones included."""
        return len(self.packed.tokens)

    @property
    def unmasked(self) -> Packed:
        """The instances as they were before tokens were masked."""
        return replace(self.packed, tokens=self.packed.tokens.index_copy(0, self.rows, self.labels))

    @property
    def place(self) -> str:
        """Which instances these are, for messages."""
        return f"epoch {self.epoch}, instances {self.first} to {self.first + self.packed.sequences - 1}"

    @property
    def sizes(self) -> BatchSizes:
        """How large it is."""
        return BatchSizes(self.packed.sequences, self.tokens, len(self.rows), self.packed.longest)

    def filled(self, sizes: BatchSizes) -> PairBatch:
        """The same filled up to these sizes: behind its own there are sequences of the longest's length at most,
        the empty ones first, each token the first one; and rows and pairs whose labels (-1 and -100) count for
        nothing. ValueError where it is larger, there are too few sequences for the tokens, or none has any: the
        first row of an empty one is that of another."""
        packed, own = self.packed, self.sizes
        left, spare, rows, _ = (to - of for to, of in zip(sizes, own, strict=True))
        fits = min(left, spare, rows, sizes.longest - own.longest) >= 0 and spare <= left * sizes.longest
        if not fits or (left and not spare):
            raise ValueError(f"{self.place}: {own} cannot be filled to {sizes}")
        ends = spare - np.minimum(np.arange(left, -1, -1) * sizes.longest, spare)
        return replace(
            self,
            packed=Packed(
                F.pad(packed.tokens, (0, spare)),
                F.pad(packed.segments, (0, spare)),
                F.pad(packed.positions, (0, spare)),
                torch.cat([packed.starts, torch.from_numpy(ends[1:] + own.tokens).int()]),
                np.concatenate([packed.lengths, np.diff(ends)]),
            ),
            rows=F.pad(self.rows, (0, rows)),
            labels=F.pad(self.labels, (0, rows), value=NO_LABEL),
            pair_labels=F.pad(self.pair_labels, (0, left if len(self.pair_labels) else 0), value=NO_PAIR),
        )

    @property
    def tensors(self) -> list[Tensor]:
        """All of it that computing reads."""
        packed = self.packed
        return [
            *(packed.tokens, packed.segments, packed.positions, packed.starts),
            *(self.rows, self.labels, self.pair_labels),
        ]

    def unmeasured(self, longest: int) -> PairBatch:
        """The same without what the host knows of its lengths, but that none is longer than this."""
        return replace(self, packed=Unmeasured.of(self.packed, longest))

    def to(self, device: torch.device | str) -> PairBatch:
        """The same on another device; the host does not wait for the copy."""
        if torch.device(device) == self.rows.device:
            return self
        return PairBatch(
            self.packed.to(device),
            sent(self.rows, device),
            sent(self.labels, device),
            sent(self.pair_labels, device),
            self.epoch,
            self.first,
            self.task,
        )


@dataclass(frozen=True)
class _Epoch:
    """A plan in the order of training, and the bounds of its batches, if a budget of tokens sets them."""

    plan: Plan
    bounds: Ints | None


class PairStream:
    """Every epoch's instances of some documents: plans made once an epoch, masks an instance.

    word_starts: needed for masks of whole words and spans. batch_tokens: batches of similar lengths with at most
    so many tokens, in place of a number of instances. With static masks an epoch's instances are those of epoch
    (epoch mod duplicates), in an order of its own. kin: `twins.kin_of` the shards, if known: next-sentence
    pairs need it.
    """

    def __init__(
        self,
        shards: TokenShards,
        documents: Ints,
        ids: SpecialIds,
        settings: DataSettings,
        *,
        length: int,
        seed: int,
        word_starts: WordStarts | None = None,
        batch_tokens: int | None = None,
        kin: Ints | None = None,
    ) -> None:
        self._shards, self._documents, self._ids = shards, documents, ids
        self._settings, self._length, self._seed = settings, length, seed
        self._masker = Masker.of(settings, ids.mask, ids.special, (ids.cls, ids.sep), word_starts, seed)
        self._corruption = Corruption(settings, np.flatnonzero(~ids.special), seed, word_starts)
        self._budget, self._kin = batch_tokens, kin
        self._epochs: dict[int, _Epoch] = {}
        check_budget(batch_tokens, length)

    def drawn_epoch(self, epoch: int) -> int:
        """The epoch by which instances and masks are drawn."""
        return epoch % self._settings.duplicates if self._settings.masks == "static" else epoch

    def plan(self, epoch: int) -> Plan:
        """The epoch's plan, in the order of training."""
        return self._epoch(epoch).plan

    def _epoch(self, epoch: int) -> _Epoch:
        """The last two are kept, since workers stand on either side of an epoch's end."""
        known = self._epochs.get(epoch)
        if known is None:
            plan = self._planned(self.drawn_epoch(epoch))
            plan = plan.reordered(rng.permutation(self._seed, "order", len(plan), epoch))
            bounds = None
            if self._budget is not None and len(plan):
                order, bounds = bucketed(self._corruption.sizes(plan), self._budget, self._seed, epoch)
                plan = plan.reordered(order)
            known = _Epoch(plan, bounds)
            self._epochs = {k: v for k, v in self._epochs.items() if abs(k - epoch) <= 1} | {epoch: known}
        return known

    def _planned(self, epoch: int) -> Plan:
        chosen, length, seed = self._settings, self._corruption.planned(self._length), self._seed
        if chosen.instances == "full_sentences":
            return plan_full_sentences(self._shards, self._documents, length=length, seed=seed, epoch=epoch)
        if chosen.instances == "doc_sentences":
            return plan_doc_sentences(self._shards, self._documents, length=length)
        if chosen.instances == "single":
            return plan_single(self._shards, self._documents, length=length)
        if self._kin is None and chosen.lends:
            self._kin = kin_of(self._shards, chosen.twin_overlap)
        return plan_pairs(
            self._shards,
            self._documents,
            length=length,
            seed=seed,
            epoch=epoch,
            short_share=chosen.short_share,
            task=chosen.sentence_task,
            sentences=chosen.instances == "sentence_pair",
            separators=self._ids.separators,
            partner=chosen.partner,
            negatives=chosen.nsp_negatives,
            kin=self._kin,
        )

    def size(self, epoch: int) -> int:
        """Instances in the epoch."""
        return len(self.plan(epoch))

    def stop(self, epoch: int, start: int, size: int) -> int:
        """Behind which instance the batch ends that begins with `start`: `size` of them, or what the budget of
        tokens allows."""
        known = self._epoch(epoch)
        if known.bounds is None:
            return min(start + size, len(known.plan))
        return int(known.bounds[np.searchsorted(known.bounds, start, side="right")])

    def filling(self, epoch: int, size: int) -> Filling:
        """How full the epoch's batches are, of `size` instances or as the budget of tokens has them."""
        known = self._epoch(epoch)
        bounds = known.bounds
        if bounds is None:
            bounds = np.append(np.arange(0, len(known.plan), size), len(known.plan))
        return filling(self._corruption.sizes(known.plan), bounds, self._budget or size * self._length)

    def batch(self, epoch: int, start: int, stop: int) -> PairBatch:
        """Instances [start, stop) of the epoch, masked and packed; a pure function of its arguments."""
        plan = self.plan(epoch)
        rows = slice(start, min(stop, len(plan)))
        drawn, numbers = self.drawn_epoch(epoch), plan.number[rows]
        text = self._corruption.apply(framed(self._shards, plan, rows, self._ids), numbers, drawn)
        ids, lengths = text.ids, text.lengths
        positions = ranges(np.zeros_like(lengths), lengths)
        masked, predicted = self._masker.apply(
            ids, lengths, numbers, drawn, positions, barred=text.closed, begins=text.begins
        )
        starts = np.zeros(len(lengths) + 1, dtype=np.int32)
        np.cumsum(lengths, out=starts[1:])
        return PairBatch(
            Packed(
                torch.from_numpy(masked),
                torch.from_numpy(text.segments),
                torch.from_numpy(positions),
                torch.from_numpy(starts),
                lengths,
            ),
            torch.from_numpy(predicted),
            torch.from_numpy(ids[predicted]),
            torch.from_numpy(self._labels(plan, rows)),
            epoch,
            start,
            self._settings.sentence_task,
        )

    def _labels(self, plan: Plan, rows: slice) -> Ints:
        """What is asked of the pairs, as the settings number it: [B], or [0]."""
        if self._settings.sentence_task == "none":
            return plan.label[:0].copy()
        label = plan.label[rows]
        return 1 - label if self._settings.is_next_label else label.copy()


def framed(shards: TokenShards, plan: Plan, rows: slice, ids: SpecialIds) -> Framed:
    """[CLS] part [SEP] … part [SEP] for each instance of the rows, laid end to end; segments are 1 for a pair's B
    and its [SEP]."""
    first = plan.first[rows.start : rows.stop + 1]
    parts = slice(int(first[0]), int(first[-1]))
    sizes, number = plan.lengths[parts], np.diff(first)
    begins = np.zeros(len(sizes), dtype=np.int64)  # of an instance: [CLS] stands before these parts
    begins[first[:-1] - first[0]] = 1
    behind = np.where(np.append(begins[1:], 1) == 1, 1, plan.between)  # separators behind each part
    ends = np.cumsum(begins + sizes + behind)
    at = ends - behind - sizes
    total = int(ends[-1])
    tokens = np.full(total, ids.sep, dtype=np.int64)
    tokens[at[begins == 1] - 1] = ids.cls
    shards.lay(plan.starts[parts], sizes, tokens, at)
    segments = np.zeros(total, dtype=np.int64)
    if plan.pair and ids.uses_segments:
        second = (begins == 0).astype(np.int64)
        segments = np.repeat(second, begins + sizes + behind)
    lasts = np.cumsum(number) - 1
    return Framed(tokens, segments, np.diff(ends[lasts], prepend=0), at, sizes, number)


def token_counts(shards: TokenShards, documents: Ints, vocab_size: int) -> Ints:
    """How often each token occurs in these documents, [V]: the unigram model of the corpus.

    InputError where an id lies outside of the vocabulary.
    """
    counts = np.zeros(vocab_size, dtype=np.int64)
    before = np.concatenate([[0], shards.sentence_ends])
    bounds = before[shards.document_sentences]
    for some in np.array_split(documents, max(1, len(documents) // 1000)):
        starts, ends = bounds[some], bounds[some + 1]
        ids = shards.take(ranges(starts, ends - starts))
        if (largest := int(ids.max(initial=0))) >= vocab_size:
            raise unknown_id(largest, vocab_size)
        counts += np.bincount(ids, minlength=vocab_size)
    return counts


def check_segments(settings: DataSettings, uses_segments: bool, segments: int) -> None:
    """InputError where B of a pair has segment 1 (`uses_segments` of the tokenizer) and the model has 0 only."""
    if segments < 2 and uses_segments and settings.instances in PAIRS:
        raise InputError(
            f"model.type_vocab_size is {segments}, and the second segment of a pair needs a segment id of its own",
            "set model.type_vocab_size=2, or train on texts that are no pairs: "
            "data.instances=full_sentences and data.sentence_task=none",
        )


def special_ids(
    cls: int,
    sep: int,
    mask: int,
    specials: Sequence[int],
    vocab_size: int,
    separators: int = 1,
    uses_segments: bool = True,
) -> SpecialIds:
    """`SpecialIds` from a tokenizer's numbers."""
    special = np.zeros(vocab_size, dtype=bool)
    special[list(specials)] = True
    return SpecialIds(cls, sep, mask, special, separators, uses_segments)


def ids_of(tokenizer: Tokenizer) -> SpecialIds:
    """`SpecialIds` of a tokenizer; `InputError` where it lacks one that instances need."""
    t = tokenizer
    numbers = (t.cls_id, t.sep_id, t.mask_id)
    return special_ids(*numbers, sorted(t.special_ids), t.vocab_size, max(1, t.separators), t.uses_segments)
