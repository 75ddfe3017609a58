"""Plan of an epoch: the token ranges and the label of each instance, and batches under a token budget.

A plan is a table of a few integers per instance, made once per epoch by array operations. Token ids are looked up
and masks are drawn when a batch is built. `segment_pairs.py` and `segments.py` make plans.

With a token budget, a batch has instances of similar length: the instances of an epoch, in random order, are
divided into pools. Each pool is sorted by length and divided into batches of nearly the same number of tokens, as
far as the budget allows; then its batches are shuffled. Batches have no padding; similar lengths balance the work
of attention.

Shapes: I instances, P parts of instances, K batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from bertsmith import rng
from bertsmith.corpus.shards import IntArray, Shards
from bertsmith.errors import InputError, option

IS_NEXT, NOT_NEXT = 0, 1  # next sentence prediction, as in BERT's release: 0 if B follows A
IN_ORDER, SWAPPED = 0, 1  # sentence order prediction, as in ALBERT's release

_TOKENS_PER_PORTION = 500_000


class Spans(NamedTuple):
    """Spans of consecutive tokens of a corpus, each within a document; int64 [I] of I spans."""

    starts: IntArray  # offsets of the first tokens in the corpus
    lengths: IntArray
    documents: IntArray


@dataclass(frozen=True)
class EpochPlan:
    """One epoch's instances, in the order of training.

    An instance has one or more parts: ranges of the corpus's tokens, each within a document. The parts of a pair
    are the segments A and B.

    Attributes:
        starts: int64 [P], the offset of each part's first token in the corpus.
        lengths: int64 [P], the number of tokens of each part.
        documents: int64 [P], the document of each part.
        part_offsets: int64 [I + 1]; instance i has the parts part_offsets[i] up to part_offsets[i + 1] - 1.
        labels: int64 [I], IS_NEXT or NOT_NEXT, IN_ORDER or SWAPPED; 0 without a sentence task.
        instance_ids: int64 [I], the counters of each instance's random numbers, which do not depend on the order.
        is_pair: True if each instance is a pair.
        num_separators: The number of separator tokens between two parts.
        counts: Counts of instances and of split, trimmed, and omitted text, for the report.
        batch_offsets: int64 [K + 1]; batch k has the instances batch_offsets[k] up to batch_offsets[k + 1] - 1.
            None without a token budget.
    """

    starts: IntArray
    lengths: IntArray
    documents: IntArray
    part_offsets: IntArray
    labels: IntArray
    instance_ids: IntArray
    is_pair: bool
    num_separators: int
    counts: dict[str, int]
    batch_offsets: IntArray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def sizes(self) -> IntArray:
        """The number of tokens of each instance, special tokens included, [I]."""
        # [CLS] and the last separator are 2 tokens.
        num_special_tokens: IntArray = (np.diff(self.part_offsets) - 1) * self.num_separators + 2
        return self.sum_parts(self.lengths) + num_special_tokens

    def sum_parts(self, values: IntArray) -> IntArray:
        """Return the sum of values of parts, [P], over the parts of each instance, [I]."""
        return np.diff(np.append(0, np.cumsum(values))[self.part_offsets])

    @property
    def a(self) -> Spans:
        """The segments A of pairs, [I]."""
        return Spans(self.starts[0::2], self.lengths[0::2], self.documents[0::2])

    @property
    def b(self) -> Spans:
        """The segments B of pairs, [I]."""
        return Spans(self.starts[1::2], self.lengths[1::2], self.documents[1::2])

    def reordered(self, order: IntArray) -> EpochPlan:
        """Return the same instances in another order: instance k is the former instance order[k]."""
        num_parts = np.diff(self.part_offsets)[order]
        if self.is_pair:  # equal to the general case, and faster
            parts = np.repeat(2 * order, 2)
            parts[1::2] += 1
        else:
            parts = concat_ranges(self.part_offsets[order], num_parts)
        return replace(
            self,
            starts=self.starts[parts],
            lengths=self.lengths[parts],
            documents=self.documents[parts],
            part_offsets=np.concatenate([[0], np.cumsum(num_parts)]),
            labels=self.labels[order],
            instance_ids=self.instance_ids[order],
        )


def make_pair_plan(
    a: Spans, b: Spans, labels: IntArray, num_separators: int, counts: dict[str, int]
) -> EpochPlan:
    """Make a plan of pairs with the segments a and b."""
    n = len(labels)
    # a[0], b[0], a[1], b[1], …
    parts = Spans(*(np.stack(columns, 1).ravel() for columns in zip(a, b, strict=True)))
    return EpochPlan(*parts, 2 * np.arange(n + 1), labels, np.arange(n), True, num_separators, counts)


def read_portions(corpus: Shards, documents: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the ids of some documents at a time, concatenated, and the number of tokens of each of them."""
    offsets = document_token_offsets(corpus)
    num_portions = max(1, count_document_tokens(corpus, documents) // _TOKENS_PER_PORTION)
    for portion in np.array_split(documents, num_portions):
        lengths = offsets[portion + 1] - offsets[portion]
        ids = np.empty(lengths.sum(), dtype=np.int64)
        corpus.copy_spans(offsets[portion], lengths, out=ids, target_starts=np.cumsum(lengths) - lengths)
        yield ids, lengths


def count_document_tokens(corpus: Shards, documents: IntArray) -> int:
    """Return the number of tokens in these documents."""
    return int(np.diff(document_token_offsets(corpus))[documents].sum())


def document_token_offsets(corpus: Shards) -> IntArray:
    """Return the number of tokens before each document of a corpus, and the total, [D + 1]."""
    offsets: IntArray = np.concatenate([[0], corpus.sentence_ends])[corpus.document_sentence_offsets]
    return offsets


def count_covered_tokens(starts: IntArray, lengths: IntArray) -> int:
    """Return the number of tokens that are in one or more of these ranges."""
    order = np.argsort(starts, kind="stable")
    sorted_starts, ends = starts[order], (starts + lengths)[order]
    covered_until = np.concatenate([[0], np.maximum.accumulate(ends)[:-1]])
    return int(np.maximum(ends - np.maximum(sorted_starts, covered_until), 0).sum())


def concat_ranges(starts: IntArray, lengths: IntArray) -> IntArray:
    """Return the concatenated ranges s, s + 1, …, s + n - 1 of all starts s and lengths n."""
    shifts = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    values: IntArray = shifts + np.arange(len(shifts))
    return values


_BATCHES_PER_POOL = 100


@dataclass(frozen=True)
class FillStats:
    """Fill ratios of batches.

    Attributes:
        tokens: int64 [K], the tokens of each batch.
        max_tokens: The maximum tokens of a batch.
        padded_tokens: int64 [K], the tokens and padding of each batch if it were padded.
    """

    tokens: IntArray
    max_tokens: int
    padded_tokens: IntArray

    @property
    def report(self) -> dict[str, float | int]:
        """The statistics for the report."""
        fill = self.tokens / self.max_tokens
        return {
            "number": len(self.tokens),
            "tokens_mean": round(float(self.tokens.mean()), 1),
            "fill_mean": round(float(fill.mean()), 4),
            "fill_min": round(float(fill.min()), 4),
            "fill_max": round(float(fill.max()), 4),
            "padding": 0.0,  # batches are packed
            "padding_if_padded": round(1 - float(self.tokens.sum() / self.padded_tokens.sum()), 4),
        }


def compute_fill_stats(sizes: IntArray, bounds: IntArray, max_tokens: int) -> FillStats:
    """Compute the fill ratios of batches.

    Args:
        sizes: int64 [I], the tokens of the instances in order.
        bounds: int64 [K + 1]; batch k has the instances bounds[k] up to bounds[k + 1] - 1.
        max_tokens: The maximum tokens of a batch.
    """
    tokens = np.add.reduceat(sizes, bounds[:-1])
    max_lengths = np.maximum.reduceat(sizes, bounds[:-1])
    return FillStats(tokens, max_tokens, max_lengths * np.diff(bounds))


def check_batch_tokens(budget: int | None, length: int) -> None:
    """Raise InputError if a single instance may have more tokens than a batch."""
    if budget is not None and budget < length:
        message = f"{budget} tokens per batch are fewer than the {length} that an instance may have"
        hint = f"raise {option('train.batch_tokens')}, or lower {option('data.sequence_length')}"
        raise InputError("batch_tokens_too_small", message, argument="train.batch_tokens", hint=hint)


def make_buckets(sizes: IntArray, budget: int, seed: int, epoch: int) -> tuple[IntArray, IntArray]:
    """Return an order of the instances, int64 [I], and the bounds of batches in it, int64 [K + 1].

    Args:
        sizes: int64 [I], the tokens of the instances, each at most the budget.
        budget: The maximum tokens of a batch.
        seed: The seed.
        epoch: The epoch.
    """
    num_pools = max(1, round(int(sizes.sum()) / (_BATCHES_PER_POOL * budget)))
    orders: list[IntArray] = []
    batch_sizes: list[IntArray] = []
    for k, pool in enumerate(np.array_split(np.arange(len(sizes)), num_pools)):
        by_length = pool[np.argsort(sizes[pool], kind="stable")]
        bounds = _even_bounds(sizes[by_length], budget)
        shuffled = rng.permutation(seed, "batches", len(bounds) - 1, epoch, k)
        orders += [by_length[bounds[j] : bounds[j + 1]] for j in shuffled]
        batch_sizes.append(np.diff(bounds)[shuffled])
    return np.concatenate(orders), np.concatenate([[0], np.cumsum(np.concatenate(batch_sizes))])


def _even_bounds(sizes: IntArray, budget: int) -> IntArray:
    """Return the bounds of few batches with nearly the same number of tokens, at most `budget` each.

    Batch k of K ends at k/K of all tokens, for the smallest K with which all batches are within the budget. If the
    budget is near the length of an instance, there may be no such K; then each batch takes as many as fit.
    """
    cumulative = np.concatenate([[0], np.cumsum(sizes)])
    min_batches = -(-int(cumulative[-1]) // budget)
    for num_batches in range(min_batches, 2 * min_batches + 1):
        limits = cumulative[-1] * np.arange(num_batches + 1) // num_batches
        bounds = np.unique(np.searchsorted(cumulative, limits, side="right") - 1)
        if np.diff(cumulative[bounds]).max() <= budget:
            return bounds
    greedy = [0]
    while greedy[-1] < len(sizes):
        greedy.append(int(np.searchsorted(cumulative, cumulative[greedy[-1]] + budget, side="right")) - 1)
    return np.array(greedy, dtype=np.int64)
