"""Plan of an epoch: the token ranges and the label of each instance.

A plan is a table of a few integers per instance, made once per epoch by array operations. Token ids are looked up
and masks are drawn when a batch is built. `segment_pairs.py` and `text_instances.py` make plans.

Shapes: I instances, P parts of instances, K batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from bertsmith.corpus.tokenized_corpus import IntArray, TokenizedCorpus

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
    def tokens(self) -> int:
        """The number of tokens in the epoch, special tokens included."""
        return int(self.sizes.sum())

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


def read_portions(corpus: TokenizedCorpus, documents: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the ids of some documents at a time, concatenated, and the number of tokens of each of them."""
    offsets = _document_token_offsets(corpus)
    num_portions = max(1, count_document_tokens(corpus, documents) // _TOKENS_PER_PORTION)
    for portion in np.array_split(documents, num_portions):
        lengths = offsets[portion + 1] - offsets[portion]
        yield corpus.take(concat_ranges(offsets[portion], lengths)), lengths


def count_document_tokens(corpus: TokenizedCorpus, documents: IntArray) -> int:
    """Return the number of tokens in these documents."""
    return int(np.diff(_document_token_offsets(corpus))[documents].sum())


def _document_token_offsets(corpus: TokenizedCorpus) -> IntArray:
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
