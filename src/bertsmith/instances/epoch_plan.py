"""An epoch's plan: which runs of the corpus make each instance, with which label.

A plan is a table of a few integers an instance, made once an epoch by array operations; ids and masks are
looked up and drawn when a batch is built. `segment_pairs.py` and `text_instances.py` make plans.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bertsmith.corpus.tokenized_corpus import Corpus, Ints

IS_NEXT, NOT_NEXT = 0, 1  # the reference's label ids: 0 = B follows A
IN_ORDER, SWAPPED = 0, 1  # those of ALBERT's sentence order


@dataclass(frozen=True)
class Plan:
    """One epoch's instances, in the order of training.

    An instance is one part or more: runs of the corpus's tokens, each within a document. Instance i has the
    parts first[i] to first[i + 1] (int64 [I + 1]); part p is tokens [starts[p], starts[p] + lengths[p]) of
    document documents[p] (all int64 [P]). label: [I], what is asked of a pair. number: [I], by which the draws of
    an instance go, whatever its place in the order. pair: each instance is a segment A and a segment B, with
    `between` separators between the two (elsewhere: between two parts). counts: what happened to the text, for
    people.
    """

    starts: Ints
    lengths: Ints
    documents: Ints
    first: Ints
    label: Ints
    number: Ints
    pair: bool
    between: int
    counts: dict[str, int]

    def __len__(self) -> int:
        return len(self.label)

    @property
    def sizes(self) -> Ints:
        """[I]: tokens of each instance, special ones included."""
        parts = np.diff(self.first)
        own = np.add.reduceat(self.lengths, self.first[:-1]) if len(parts) else self.first[:0]
        sizes: Ints = own + 2 + (parts - 1) * self.between
        return sizes

    @property
    def tokens(self) -> int:
        """Tokens of the whole epoch, special ones included."""
        return int(self.sizes.sum())

    @property
    def a_start(self) -> Ints:
        """Of pairs: where segment A begins, [I]. The five below likewise."""
        return self.starts[0::2]

    @property
    def a_length(self) -> Ints:
        """Tokens of A."""
        return self.lengths[0::2]

    @property
    def b_start(self) -> Ints:
        """Where B begins."""
        return self.starts[1::2]

    @property
    def b_length(self) -> Ints:
        """Tokens of B."""
        return self.lengths[1::2]

    @property
    def document(self) -> Ints:
        """The document of A."""
        return self.documents[0::2]

    @property
    def partner(self) -> Ints:
        """The document of B."""
        return self.documents[1::2]

    def reordered(self, order: Ints) -> Plan:
        """The same instances in another order: row k is the former row order[k]. Numbers stay with them."""
        parts = np.diff(self.first)[order]
        if self.pair:
            at = np.repeat(2 * order, 2)
            at[1::2] += 1
        else:
            at = ranges(self.first[order], parts)
        return replace(
            self,
            starts=self.starts[at],
            lengths=self.lengths[at],
            documents=self.documents[at],
            first=np.concatenate([[0], np.cumsum(parts)]),
            label=self.label[order],
            number=self.number[order],
        )


def pairs_plan(
    a: tuple[Ints, Ints, Ints], b: tuple[Ints, Ints, Ints], label: Ints, between: int, counts: dict[str, int]
) -> Plan:
    """A plan of pairs; a and b: start, length and document of each one's segments."""
    starts, lengths, documents = (np.stack(columns, 1).ravel() for columns in zip(a, b, strict=True))
    n = len(label)
    first = 2 * np.arange(n + 1)
    return Plan(starts, lengths, documents, first, label, np.arange(n), True, between, counts)


def tokens_of(corpus: Corpus, documents: Ints) -> int:
    """Tokens of these documents together."""
    before = np.concatenate([[0], corpus.sentence_ends])[corpus.document_sentences]
    return int((before[documents + 1] - before[documents]).sum())


def covered(starts: Ints, lengths: Ints) -> int:
    """How many tokens lie in one or more of these runs."""
    order = np.argsort(starts, kind="stable")
    begin, end = starts[order], (starts + lengths)[order]
    seen = np.concatenate([[0], np.maximum.accumulate(end)[:-1]])
    return int(np.maximum(end - np.maximum(begin, seen), 0).sum())


def ranges(starts: Ints, lengths: Ints) -> Ints:
    """[s, s + 1, …, s + n - 1] for each start s and length n, laid end to end."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    laid: Ints = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return laid
