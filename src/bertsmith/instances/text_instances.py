"""Instances of one text, without a question about pairs: full sentences, doc sentences, single texts.

Liu et al. 2019 (RoBERTa), section 4.2, for the first two. Full sentences: whole sentences in a row until the
length is reached, across the ends of documents, with a separator between two. Doc sentences: the same, but
an instance ends with its document, so some are short; a budget of tokens a batch makes up for it. Single: a
document is an instance, in equal parts where it is longer.
"""

from __future__ import annotations

import numpy as np

from bertsmith import rng
from bertsmith.corpus.tokenized_corpus import Corpus, Ints
from bertsmith.instances.epoch_plan import Plan, covered, ranges, tokens_of
from bertsmith.instances.segments import Fragments, followed, fragments_of


def plan_full_sentences(corpus: Corpus, documents: Ints, *, length: int, seed: int, epoch: int) -> Plan:
    """Instances filled across documents, whose order is drawn anew for each epoch."""
    room = length - 2
    fragments = fragments_of(corpus, documents, room)
    order = rng.permutation(seed, "documents", len(documents), epoch)
    # The fragments as read: document after document in the order drawn, without the borders that end them.
    number = np.diff(fragments.offsets) - 1
    node = ranges(fragments.offsets[:-1][order], number[order])
    size = fragments.borders[node + 1] - fragments.borders[node]
    opens = np.zeros(len(node), dtype=np.int64)  # a document's first fragment: a separator stands before it
    opens[(np.cumsum(number[order]) - number[order])[number[order] > 0]] = 1
    before = np.concatenate([[0], np.cumsum(size + opens)])
    stop = np.searchsorted(before, before[:-1] + opens + room, side="right") - 1
    first_fragment = followed(stop)
    opens[first_fragment] = 1  # a part begins with an instance or with a document
    part = np.flatnonzero(opens)
    starts = fragments.borders[node[part]]
    lengths = np.add.reduceat(size, part) if len(part) else part
    first = np.append(np.searchsorted(part, first_fragment), len(part))
    return _plan(corpus, fragments, starts, lengths, first, fragments.document_of(node[part]))


def plan_doc_sentences(corpus: Corpus, documents: Ints, *, length: int) -> Plan:
    """Whole sentences in a row up to the length, within a document."""
    fragments = fragments_of(corpus, documents, length - 2)
    borders, last = fragments.borders, fragments.last
    node = np.arange(len(borders))
    stop = np.minimum(np.searchsorted(borders, borders + length - 2, side="right") - 1, last)
    start = followed(np.where(node == last, node + 1, stop))
    start = start[start < last[start]]
    lengths = borders[stop[start]] - borders[start]
    return _plan(
        corpus, fragments, borders[start], lengths, np.arange(len(start) + 1), fragments.document_of(start)
    )


def plan_single(corpus: Corpus, documents: Ints, *, length: int) -> Plan:
    """Each document an instance; one that is longer in equal parts."""
    before = np.concatenate([[0], corpus.sentence_ends])[corpus.document_sentences]
    start, size = before[documents], (before[1:] - before[:-1])[documents]
    parts = -(-size // (length - 2))
    which = np.repeat(np.arange(len(documents)), parts)
    k = ranges(np.zeros_like(parts), parts)
    borders = [start[which] + size[which] * (k + j) // parts[which] for j in (0, 1)]
    fragments = Fragments(start, np.arange(len(documents) + 1), documents, 0)
    plan = _plan(
        corpus, fragments, borders[0], borders[1] - borders[0], np.arange(len(which) + 1), documents[which]
    )
    plan.counts["documents_parted"] = int((parts > 1).sum())
    return plan


def _plan(
    corpus: Corpus, fragments: Fragments, starts: Ints, lengths: Ints, first: Ints, documents: Ints
) -> Plan:
    n = len(first) - 1
    counts = {
        "instances": n,
        "documents": len(fragments.documents),
        "sentences": int(np.diff(corpus.document_sentences)[fragments.documents].sum()),
        "sentences_parted": fragments.parted,
        "tokens_cut": 0,
        "tokens_left_out": tokens_of(corpus, fragments.documents) - covered(starts, lengths),
    }
    return Plan(
        starts, lengths, documents, first, np.zeros(n, dtype=np.int64), np.arange(n), False, 1, counts
    )
