"""Fragments of sentences, and chunks: runs of fragments that fit in an instance.

A sentence longer than an instance can hold is split into equal fragments, so nothing has to be trimmed. To read
the fragments in chunks, the end of a chunk that starts at each fragment is computed for all fragments at once;
then these links are followed from the first fragment. One huge document is therefore as fast as a million small
ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bertsmith import rng
from bertsmith.corpus.tokenized_corpus import IntArray, TokenizedCorpus
from bertsmith.instances.epoch_plan import concat_ranges


@dataclass(frozen=True)
class Fragments:
    """Fragments of documents as concatenated boundaries: a document of k fragments has k + 1.

    Attributes:
        boundaries: int64 [N], ascending token offsets.
        offsets: int64 [D + 1], the boundaries before each document.
        documents: int64 [D].
        num_split_sentences: Sentences that were split into several fragments.
    """

    boundaries: IntArray
    offsets: IntArray
    documents: IntArray
    num_split_sentences: int

    @property
    def last(self) -> IntArray:
        """Return the index of the last boundary of each boundary's document, [N]."""
        return np.repeat(self.offsets[1:] - 1, np.diff(self.offsets))

    @property
    def num_documents_with_text(self) -> int:
        """Return the number of documents with one or more fragments."""
        return int((np.diff(self.offsets) > 1).sum())

    def document_of(self, boundary: IntArray) -> IntArray:
        """Return the documents of boundaries, given by index."""
        documents: IntArray = self.documents[np.searchsorted(self.offsets, boundary, side="right") - 1]
        return documents


def split_into_fragments(
    corpus: TokenizedCorpus, documents: IntArray, max_tokens: int | None = None, *, halve_single: bool = False
) -> Fragments:
    """Split sentences into fragments.

    Args:
        corpus: The corpus.
        documents: The documents to use, int64 [D].
        max_tokens: The tokens of a fragment; None: each sentence is a fragment.
        halve_single: Split the fragment of a document with only one into two.
    """
    first, last = corpus.document_sentence_offsets[documents], corpus.document_sentence_offsets[documents + 1]
    sentences = concat_ranges(first, last - first)
    ends = corpus.sentence_ends[sentences]
    starts = np.where(sentences > 0, corpus.sentence_ends[sentences - 1], 0)
    sizes = ends - starts
    num_parts = (sizes > 0).astype(np.int64) if max_tokens is None else -(-sizes // max_tokens)
    num_split_sentences = int((num_parts > 1).sum())
    document = np.repeat(np.arange(len(documents)), last - first)
    if halve_single:
        num_fragments = np.bincount(document, num_parts, minlength=len(documents))
        num_parts[(num_fragments[document] == 1) & (num_parts == 1) & (sizes > 1)] = 2
    sentence = np.repeat(np.arange(len(sentences)), num_parts)
    k = concat_ranges(np.zeros_like(num_parts), num_parts) + 1
    # A remainder makes the early parts longer in every other sentence, so that lengths do not tell the order.
    round_up = (sentences % 2)[sentence] * (num_parts[sentence] - 1)
    fragment_ends = starts[sentence] + (sizes[sentence] * k + round_up) // num_parts[sentence]

    document = document[sentence]
    counts = np.bincount(document, minlength=len(documents))
    offsets = np.concatenate([[0], np.cumsum(counts + 1)])
    boundaries = np.empty(offsets[-1], dtype=np.int64)
    boundaries[offsets[:-1]] = np.where(first > 0, corpus.sentence_ends[first - 1], 0)
    boundaries[np.arange(len(document)) + document + 1] = fragment_ends
    return Fragments(boundaries, offsets, documents, num_split_sentences)


def follow_links(links: IntArray) -> IntArray:
    """Return 0, links[0], links[links[0]], … as far as these are indices of `links`; links[i] > i."""
    targets, node, end = links.tolist(), 0, len(links)
    nodes = []
    while node < end:
        nodes.append(node)
        node = targets[node]
    return np.array(nodes, dtype=np.int64)


@dataclass(frozen=True)
class Chunks:
    """Runs of fragments, each divided into A and B; a chunk of one fragment has no B, and split = end.

    Attributes:
        start: int64 [C], the token offset of A.
        split: int64 [C], the token offset of B.
        end: int64 [C], the token offset behind B.
        document: int64 [C].
    """

    start: IntArray
    split: IntArray
    end: IntArray
    document: IntArray


def make_segment_chunks(
    fragments: Fragments, max_tokens: int, seed: int, epoch: int, short_seq_prob: float
) -> Chunks:
    """Divide each document into chunks of at most `max_tokens` tokens, each split at a random fragment.

    With probability `short_seq_prob` a chunk has a random shorter target length. A fragment that remains at the
    end of a document joins the last chunk if it fits. Otherwise it takes over the last fragment of the chunk
    before, or is read together with that fragment a second time. So only documents of one fragment have no B.
    """
    boundaries, last = fragments.boundaries, fragments.last
    node = np.arange(len(boundaries))
    target = np.full(len(boundaries), max_tokens)
    short = np.flatnonzero(rng.random_bits(seed, "short", epoch, node) < _threshold(short_seq_prob))
    if short_seq_prob >= 1:
        short = node
    target[short] = 2 + rng.integers(seed, "target", max(1, max_tokens - 1), epoch, short)
    stop = np.searchsorted(boundaries, boundaries + target, side="right") - 1
    stop = np.minimum(np.maximum(stop, node + 2), last)
    leaves_one = last - stop == 1
    fits = boundaries[last] - boundaries <= max_tokens
    stop = np.where(leaves_one & fits, last, np.where(leaves_one & (stop - node >= 3), stop - 1, stop))
    start = follow_links(np.where(node == last, node + 1, stop))
    start = start[start < last[start]]
    stop = stop[start]
    document_start = fragments.offsets[np.searchsorted(fragments.offsets, start, side="right") - 1]
    start = np.where((stop - start == 1) & (start > document_start), start - 1, start)
    split = start + 1 + rng.integers(seed, "split", np.maximum(stop - start - 1, 1), epoch, start)
    return _make_chunks(fragments, start, np.minimum(split, stop), stop)


def make_bidirectional_chunks(
    fragments: Fragments, max_tokens: int, seed: int, epoch: int, short_seq_prob: float
) -> Chunks:
    """Make `make_segment_chunks`, but of a random half of the documents from their end.

    The last fragment of a chunk is one that still fitted, so it is short. With both directions neither segment
    is the shorter one, and lengths do not tell the order.
    """
    first, last = (
        fragments.boundaries[fragments.offsets[:-1]],
        fragments.boundaries[fragments.offsets[1:] - 1],
    )
    index = np.arange(len(first))
    backwards = rng.random_bits(seed, "backwards", epoch, index) < _threshold(0.5)
    document = np.repeat(index, np.diff(fragments.offsets))
    mirrored = (fragments.offsets[:-1] + fragments.offsets[1:] - 1)[document] - np.arange(len(document))
    mirror_sum = first + last
    boundaries = np.where(
        backwards[document],
        mirror_sum[document] - fragments.boundaries[mirrored],
        fragments.boundaries,
    )
    chunks = make_segment_chunks(
        replace(fragments, boundaries=boundaries), max_tokens, seed, epoch, short_seq_prob
    )
    owner = np.searchsorted(fragments.documents, chunks.document)
    is_backwards, total = backwards[owner], mirror_sum[owner]
    start, end = (
        np.where(is_backwards, total - y, x)
        for x, y in ((chunks.start, chunks.end), (chunks.end, chunks.start))
    )
    split = np.where(is_backwards, total - chunks.split, chunks.split)
    has_no_b = chunks.split == chunks.end
    return replace(chunks, start=start, split=np.where(has_no_b, end, split), end=end)


def make_sentence_chunks(fragments: Fragments, seed: int, epoch: int) -> Chunks:
    """Divide each document into pairs of fragments.

    If their number is odd, the first or the last pair, at random, shares a fragment with its neighbor.
    """
    offsets = fragments.offsets
    num_fragments = np.diff(offsets) - 1
    num_pairs = (num_fragments + 1) // 2
    k = concat_ranges(np.zeros_like(num_pairs), num_pairs)
    document = np.repeat(np.arange(len(num_fragments)), num_pairs)
    shares_first = rng.random_bits(seed, "odd pair", epoch, np.arange(len(num_fragments))) < _threshold(0.5)
    is_odd = (num_fragments % 2 == 1) & (num_fragments > 1)
    shift = is_odd[document] & np.where(shares_first[document], k > 0, k == num_pairs[document] - 1)
    start = offsets[document] + 2 * k - shift
    stop = np.minimum(start + 2, offsets[document + 1] - 1)
    return _make_chunks(fragments, start, start + 1, stop)


def _make_chunks(fragments: Fragments, start: IntArray, split: IntArray, stop: IntArray) -> Chunks:
    boundaries = fragments.boundaries
    return Chunks(boundaries[start], boundaries[split], boundaries[stop], fragments.document_of(start))


def _threshold(probability: float) -> np.uint64:
    """Return the bound below which 64 random bits are with this probability, below 1."""
    return np.uint64(min(int(probability * 2.0**64), 2**64 - 1))
