"""Plans of instances of one text, without pairs: full sentences, doc sentences, single documents.

The first two are those of Liu et al. 2019 (RoBERTa), section 4.2. Full sentences: consecutive whole sentences up
to the length, across the ends of documents, with a separator in between. Doc sentences: the same within a
document, so that some instances are short; a token budget per batch makes up for it. Single: each document is an
instance, in equal parts if it is longer.
"""

from __future__ import annotations

import numpy as np

from bertsmith import rng
from bertsmith.corpus.tokenized_corpus import IntArray, TokenizedCorpus
from bertsmith.instances.epoch_plan import (
    EpochPlan,
    concat_ranges,
    count_covered_tokens,
    count_document_tokens,
)
from bertsmith.instances.segments import Fragments, follow_links, split_into_fragments


def plan_full_sentences(
    corpus: TokenizedCorpus, documents: IntArray, *, max_length: int, seed: int, epoch: int
) -> EpochPlan:
    """Plan instances that are filled across documents, whose order is drawn for each epoch."""
    max_tokens = max_length - 2
    fragments = split_into_fragments(corpus, documents, max_tokens)
    order = rng.permutation(seed, "documents", len(documents), epoch)
    # The fragments in reading order: document after document as drawn, without the boundaries that end them.
    num_fragments = np.diff(fragments.offsets) - 1
    node = concat_ranges(fragments.offsets[:-1][order], num_fragments[order])
    size = fragments.boundaries[node + 1] - fragments.boundaries[node]
    # A separator is before each document's first fragment.
    starts_part = np.zeros(len(node), dtype=np.int64)
    starts_part[(np.cumsum(num_fragments[order]) - num_fragments[order])[num_fragments[order] > 0]] = 1
    before = np.concatenate([[0], np.cumsum(size + starts_part)])
    stop = np.searchsorted(before, before[:-1] + starts_part + max_tokens, side="right") - 1
    first_fragment = follow_links(stop)
    starts_part[first_fragment] = 1  # a part starts with an instance or with a document
    part = np.flatnonzero(starts_part)
    starts = fragments.boundaries[node[part]]
    lengths = np.add.reduceat(size, part) if len(part) else part
    part_offsets = np.append(np.searchsorted(part, first_fragment), len(part))
    return _make_plan(corpus, fragments, starts, lengths, part_offsets, fragments.document_of(node[part]))


def plan_doc_sentences(corpus: TokenizedCorpus, documents: IntArray, *, max_length: int) -> EpochPlan:
    """Plan instances of consecutive whole sentences up to the length, within a document."""
    fragments = split_into_fragments(corpus, documents, max_length - 2)
    boundaries, last = fragments.boundaries, fragments.last
    node = np.arange(len(boundaries))
    stop = np.minimum(np.searchsorted(boundaries, boundaries + max_length - 2, side="right") - 1, last)
    start = follow_links(np.where(node == last, node + 1, stop))
    start = start[start < last[start]]
    lengths = boundaries[stop[start]] - boundaries[start]
    part_offsets = np.arange(len(start) + 1)
    return _make_plan(
        corpus, fragments, boundaries[start], lengths, part_offsets, fragments.document_of(start)
    )


def plan_single_documents(corpus: TokenizedCorpus, documents: IntArray, *, max_length: int) -> EpochPlan:
    """Plan one instance per document, or several in equal parts of a longer one."""
    offsets = np.concatenate([[0], corpus.sentence_ends])[corpus.document_sentence_offsets]
    start, size = offsets[documents], (offsets[1:] - offsets[:-1])[documents]
    num_parts = -(-size // (max_length - 2))
    document = np.repeat(np.arange(len(documents)), num_parts)
    k = concat_ranges(np.zeros_like(num_parts), num_parts)
    starts, ends = (start[document] + size[document] * (k + j) // num_parts[document] for j in (0, 1))
    fragments = Fragments(start, np.arange(len(documents) + 1), documents, 0)
    part_offsets = np.arange(len(document) + 1)
    plan = _make_plan(corpus, fragments, starts, ends - starts, part_offsets, documents[document])
    plan.counts["documents_parted"] = int((num_parts > 1).sum())
    return plan


def _make_plan(
    corpus: TokenizedCorpus,
    fragments: Fragments,
    starts: IntArray,
    lengths: IntArray,
    part_offsets: IntArray,
    documents: IntArray,
) -> EpochPlan:
    n = len(part_offsets) - 1
    counts = {
        "instances": n,
        "documents": len(fragments.documents),
        "sentences": int(np.diff(corpus.document_sentence_offsets)[fragments.documents].sum()),
        "sentences_parted": fragments.num_split_sentences,
        "tokens_cut": 0,
        "tokens_left_out": count_document_tokens(corpus, fragments.documents)
        - count_covered_tokens(starts, lengths),
    }
    labels = np.zeros(n, dtype=np.int64)
    return EpochPlan(starts, lengths, documents, part_offsets, labels, np.arange(n), False, 1, counts)
