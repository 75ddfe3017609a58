"""Plans of instances of one text, without pairs: full sentences and doc sentences.

The first two are those of Liu et al. 2019 (RoBERTa), section 4.2. Full sentences: consecutive whole sentences up
to the maximum length, across the ends of documents, with a separator token between documents. Doc sentences: the
same within a document, so that some instances are short; a token budget per batch makes up for it.

A sentence that is too long for an instance is split into fragments (`segments.py`).
"""

from __future__ import annotations

import numpy as np

from bertsmith import rng
from bertsmith.corpus.tokenized_corpus import IntArray, TokenizedCorpus
from bertsmith.instances.epoch_plan import EpochPlan, Spans, concat_ranges
from bertsmith.instances.segments import Fragments, count_text, follow_links, split_into_fragments

_NUM_SPECIAL_TOKENS = 2  # [CLS] and the last [SEP]


def plan_full_sentences(
    corpus: TokenizedCorpus, documents: IntArray, *, max_length: int, seed: int, epoch: int
) -> EpochPlan:
    """Plan instances that are filled across documents, whose order is drawn for each epoch."""
    max_tokens = max_length - _NUM_SPECIAL_TOKENS
    fragments = split_into_fragments(corpus, documents, max_tokens)
    order = rng.permutation(seed, "documents", len(documents), epoch)
    # The fragments in reading order, as indices of the boundaries where they start, and their tokens.
    num_fragments = fragments.fragments_per_document[order]
    fragment = concat_ranges(fragments.offsets[:-1][order], num_fragments)
    size = fragments.boundaries[fragment + 1] - fragments.boundaries[fragment]
    # 1 for each fragment that starts a document, else 0: the separator tokens before it.
    starts_part = np.zeros(len(fragment), dtype=np.int64)
    starts_part[(np.cumsum(num_fragments) - num_fragments)[num_fragments > 0]] = 1
    # For each fragment, the end of an instance that would start with it, without the separator before it.
    tokens_before = np.concatenate([[0], np.cumsum(size + starts_part)])
    stop = np.searchsorted(tokens_before, tokens_before[:-1] + starts_part + max_tokens, side="right") - 1
    first_of_instance = follow_links(stop)
    # A part starts with a document or with an instance.
    starts_part[first_of_instance] = 1
    first_of_part = np.flatnonzero(starts_part)
    part_starts = fragment[first_of_part]
    parts = Spans(
        fragments.boundaries[part_starts],
        np.add.reduceat(size, first_of_part) if len(first_of_part) else first_of_part,
        fragments.document_of(part_starts),
    )
    part_offsets = np.append(np.searchsorted(first_of_part, first_of_instance), len(first_of_part))
    return _make_plan(corpus, fragments, parts, part_offsets)


def plan_doc_sentences(corpus: TokenizedCorpus, documents: IntArray, *, max_length: int) -> EpochPlan:
    """Plan instances of consecutive whole sentences up to the maximum length, within a document."""
    max_tokens = max_length - _NUM_SPECIAL_TOKENS
    fragments = split_into_fragments(corpus, documents, max_tokens)
    boundaries, last = fragments.boundaries, fragments.last_boundary
    index = np.arange(len(boundaries))
    stop = np.minimum(np.searchsorted(boundaries, boundaries + max_tokens, side="right") - 1, last)
    start = follow_links(np.where(index == last, index + 1, stop))
    start = start[start < last[start]]
    lengths = boundaries[stop[start]] - boundaries[start]
    parts = Spans(boundaries[start], lengths, fragments.document_of(start))
    return _make_plan(corpus, fragments, parts, np.arange(len(start) + 1))


def _make_plan(
    corpus: TokenizedCorpus, fragments: Fragments, parts: Spans, part_offsets: IntArray
) -> EpochPlan:
    """Make a plan of instances that consist of these parts."""
    n = len(part_offsets) - 1
    counts = {"instances": n, **count_text(corpus, fragments, parts.starts, parts.lengths)}
    labels = np.zeros(n, dtype=np.int64)
    return EpochPlan(*parts, part_offsets, labels, np.arange(n), False, 1, counts)
