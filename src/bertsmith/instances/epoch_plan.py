"""Plan of an epoch: the token ranges and the label of each instance.

A plan is a table of a few integers per instance, made once per epoch by array operations. Ids are looked up and
masks are drawn when a batch is built. `segment_pairs.py` and `text_instances.py` make plans.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bertsmith.corpus.tokenized_corpus import IntArray, TokenizedCorpus

IS_NEXT, NOT_NEXT = 0, 1  # BERT's label ids: 0 = B follows A
IN_ORDER, SWAPPED = 0, 1  # ALBERT's


@dataclass(frozen=True)
class EpochPlan:
    """One epoch's instances, in the order of training.

    An instance has one or more parts: ranges of the corpus's tokens, each within a document.

    Attributes:
        starts: int64 [P], the first token of each part.
        lengths: int64 [P], the tokens of each part.
        documents: int64 [P], the document of each part.
        first: int64 [I + 1]; instance i has the parts first[i] to first[i + 1].
        label: int64 [I], the label of each pair.
        instance_ids: int64 [I], the counters of an instance's random draws; they do not depend on the order.
        pair: True if each instance is a segment A and a segment B.
        num_separators: Separator tokens between two parts.
        counts: Counts of instances and of parted, trimmed, and omitted text, for the report.
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

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def sizes(self) -> IntArray:
        """Return the tokens of each instance, special tokens included, [I]."""
        num_parts = np.diff(self.part_offsets)
        text_tokens = (
            np.add.reduceat(self.lengths, self.part_offsets[:-1]) if len(num_parts) else self.part_offsets[:0]
        )
        sizes: IntArray = text_tokens + 2 + (num_parts - 1) * self.num_separators
        return sizes

    @property
    def tokens(self) -> int:
        """Return the tokens of the epoch, special tokens included."""
        return int(self.sizes.sum())

    @property
    def a_start(self) -> IntArray:
        """Return the first token of each pair's A, [I]."""
        return self.starts[0::2]

    @property
    def a_length(self) -> IntArray:
        """Return the tokens of each pair's A, [I]."""
        return self.lengths[0::2]

    @property
    def b_start(self) -> IntArray:
        """Return the first token of each pair's B, [I]."""
        return self.starts[1::2]

    @property
    def b_length(self) -> IntArray:
        """Return the tokens of each pair's B, [I]."""
        return self.lengths[1::2]

    @property
    def a_document(self) -> IntArray:
        """Return the document of each pair's A, [I]."""
        return self.documents[0::2]

    @property
    def b_document(self) -> IntArray:
        """Return the document of each pair's B, [I]."""
        return self.documents[1::2]

    def reordered(self, order: IntArray) -> EpochPlan:
        """Return the same instances in another order: row k is the former row order[k]."""
        num_parts = np.diff(self.part_offsets)[order]
        if self.is_pair:
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
    a: tuple[IntArray, IntArray, IntArray],
    b: tuple[IntArray, IntArray, IntArray],
    labels: IntArray,
    num_separators: int,
    counts: dict[str, int],
) -> EpochPlan:
    """Make a plan of pairs; a and b are the starts, lengths, and documents of the segments, each [I]."""
    starts, lengths, documents = (np.stack(columns, 1).ravel() for columns in zip(a, b, strict=True))
    n = len(labels)
    part_offsets = 2 * np.arange(n + 1)
    return EpochPlan(
        starts, lengths, documents, part_offsets, labels, np.arange(n), True, num_separators, counts
    )


def count_document_tokens(corpus: TokenizedCorpus, documents: IntArray) -> int:
    """Return the number of tokens in these documents."""
    offsets = np.concatenate([[0], corpus.sentence_ends])[corpus.document_sentence_offsets]
    return int((offsets[documents + 1] - offsets[documents]).sum())


def count_covered_tokens(starts: IntArray, lengths: IntArray) -> int:
    """Return the number of tokens that are in one or more of these ranges."""
    order = np.argsort(starts, kind="stable")
    sorted_starts, ends = starts[order], (starts + lengths)[order]
    covered_until = np.concatenate([[0], np.maximum.accumulate(ends)[:-1]])
    return int(np.maximum(ends - np.maximum(sorted_starts, covered_until), 0).sum())


def concat_ranges(starts: IntArray, lengths: IntArray) -> IntArray:
    """Return the concatenated ranges s, s + 1, …, s + n - 1 of all starts s and lengths n."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    values: IntArray = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return values
