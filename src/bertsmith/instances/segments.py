"""Fragments of sentences, chunks of fragments that fit in an instance, and plans of instances without pairs.

A sentence that is longer than an instance can hold is split into fragments of equal length, so that nothing has to
be trimmed. Chunks are made by array operations on all documents: first the end of a chunk is computed for every
fragment at which one could start; then `follow_links` visits the chunks one after another, each of which starts
where the one before ended. One huge document is therefore as fast as a million small ones.

Instances without pairs are those of Liu et al. 2019 (RoBERTa), section 4.2. Full sentences: consecutive whole
sentences up to the maximum length, across the ends of documents, with a separator token between documents. Doc
sentences: the same within a document, so that some instances are short; a token budget per batch makes up for it.

Shapes: D documents, N boundaries of fragments, C chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bertsmith import rng
from bertsmith.corpus.shards import IntArray, Shards
from bertsmith.instances import epoch_plan
from bertsmith.instances.epoch_plan import EpochPlan, Spans, concat_ranges


@dataclass(frozen=True)
class Fragments:
    """Fragments of D documents as concatenated boundaries: a document of k fragments has k + 1 boundaries.

    Attributes:
        boundaries: int64 [N], token offsets in the corpus; fragment i of a document is between its boundaries i
            and i + 1.
        offsets: int64 [D + 1], the number of boundaries before each document.
        documents: int64 [D], the index of each document in the corpus.
        num_split_sentences: The number of sentences that were split since they were too long.
    """

    boundaries: IntArray
    offsets: IntArray
    documents: IntArray
    num_split_sentences: int

    @property
    def fragments_per_document(self) -> IntArray:
        """The number of fragments of each document, [D]."""
        return np.diff(self.offsets) - 1

    @property
    def last_boundary(self) -> IntArray:
        """For each boundary the index of the last boundary of its document, [N]."""
        return np.repeat(self.offsets[1:] - 1, np.diff(self.offsets))

    def position_of(self, boundary_index: IntArray) -> IntArray:
        """Return the index in `documents` of the document to which each of these boundaries belongs."""
        return np.searchsorted(self.offsets, boundary_index, side="right") - 1

    def document_of(self, boundary_index: IntArray) -> IntArray:
        """Return the documents to which boundaries belong."""
        documents: IntArray = self.documents[self.position_of(boundary_index)]
        return documents


def split_into_fragments(
    corpus: Shards,
    documents: IntArray,
    max_tokens: int | None = None,
    *,
    split_single_fragments: bool = False,
) -> Fragments:
    """Split sentences into fragments.

    Args:
        corpus: The corpus.
        documents: The documents to use, int64 [D].
        max_tokens: The maximum tokens of a fragment; None: each sentence is a fragment.
        split_single_fragments: Split the fragment of a document that has only one into two.
    """
    first, last = corpus.document_sentence_offsets[documents], corpus.document_sentence_offsets[documents + 1]
    sentences = concat_ranges(first, last - first)
    ends = corpus.sentence_ends[sentences]
    starts = np.where(sentences > 0, corpus.sentence_ends[sentences - 1], 0)
    sizes = ends - starts
    num_fragments = (sizes > 0).astype(np.int64) if max_tokens is None else -(-sizes // max_tokens)
    num_split_sentences = int((num_fragments > 1).sum())
    document = np.repeat(np.arange(len(documents)), last - first)
    if split_single_fragments:
        fragments_of_document = np.bincount(document, num_fragments, minlength=len(documents))
        num_fragments[(fragments_of_document[document] == 1) & (num_fragments == 1) & (sizes > 1)] = 2
    sentence = np.repeat(np.arange(len(sentences)), num_fragments)
    # Fragment k of n ends after k/n of the sentence. This is rounded down in every other sentence, which makes the
    # last fragment the longest, and up in the others, which makes it the shortest: lengths must not tell the
    # order.
    k, n = concat_ranges(np.zeros_like(num_fragments), num_fragments) + 1, num_fragments[sentence]
    rounding = (sentences % 2)[sentence] * (n - 1)
    fragment_ends = starts[sentence] + (sizes[sentence] * k + rounding) // n

    document = document[sentence]
    counts = np.bincount(document, minlength=len(documents))
    offsets = np.concatenate([[0], np.cumsum(counts + 1)])
    boundaries = np.empty(offsets[-1], dtype=np.int64)
    boundaries[offsets[:-1]] = np.where(first > 0, corpus.sentence_ends[first - 1], 0)
    boundaries[np.arange(len(document)) + document + 1] = fragment_ends
    return Fragments(boundaries, offsets, documents, num_split_sentences)


def count_text(
    corpus: Shards, fragments: Fragments, starts: IntArray, lengths: IntArray, num_trimmed: int = 0
) -> dict[str, int]:
    """Count the text that there is, and the tokens that were trimmed or are in none of these ranges."""
    num_tokens = epoch_plan.count_document_tokens(corpus, fragments.documents)
    return {
        "documents": len(fragments.documents),
        "sentences": int(np.diff(corpus.document_sentence_offsets)[fragments.documents].sum()),
        "sentences_parted": fragments.num_split_sentences,
        "tokens_cut": num_trimmed,
        "tokens_left_out": num_tokens - epoch_plan.count_covered_tokens(starts, lengths),
    }


def draw_target_lengths(size: int, max_tokens: int, seed: int, epoch: int, short_seq_prob: float) -> IntArray:
    """Return target lengths of chunks, [size]: the maximum, or with some probability a random shorter one."""
    targets = np.full(size, max_tokens)
    short = np.flatnonzero(rng.uniform(seed, "short", epoch, np.arange(size)) < short_seq_prob)
    targets[short] = 2 + rng.integers(seed, "target", max(1, max_tokens - 1), epoch, short)
    return targets


def follow_links(links: IntArray) -> IntArray:
    """Return the path 0, links[0], links[links[0]], … up to the end of `links`; each links[i] must be above i."""
    targets, index, end = links.tolist(), 0, len(links)
    path = []
    while index < end:
        path.append(index)
        index = targets[index]
    return np.array(path, dtype=np.int64)


@dataclass(frozen=True)
class Chunks:
    """C chunks of a corpus, each divided into A and B.

    A chunk of one fragment has no B: then `b_start` equals `end`.

    Attributes:
        a_start: int64 [C], the token offset of A.
        b_start: int64 [C], the token offset of B, where A ends.
        end: int64 [C], the token offset behind B.
        document: int64 [C], the index of the document in the corpus.
    """

    a_start: IntArray
    b_start: IntArray
    end: IntArray
    document: IntArray


def make_segment_chunks(
    fragments: Fragments, max_tokens: int, seed: int, epoch: int, short_seq_prob: float
) -> Chunks:
    """Divide each document into chunks of at most `max_tokens` tokens, each split at a random fragment.

    Fragments must have at most max_tokens / 2 tokens, so that any two fit. With probability `short_seq_prob` a
    chunk has a random shorter target length. A fragment that remains at the end of a document joins the last chunk
    if it fits. Otherwise it forms a chunk with the fragment before it, which the last chunk gives up if it has
    three or more, and else shares. So only documents of one fragment have no B.
    """
    boundaries, last = fragments.boundaries, fragments.last_boundary
    # `stop` is, for each boundary, the boundary at which a chunk that starts there ends.
    index = np.arange(len(boundaries))
    target = draw_target_lengths(len(boundaries), max_tokens, seed, epoch, short_seq_prob)
    stop = np.searchsorted(boundaries, boundaries + target, side="right") - 1
    stop = np.minimum(np.maximum(stop, index + 2), last)
    leaves_one = last - stop == 1
    fits = boundaries[last] - boundaries <= max_tokens
    stop = np.where(leaves_one & fits, last, np.where(leaves_one & (stop - index >= 3), stop - 1, stop))
    start = follow_links(np.where(index == last, index + 1, stop))
    start = start[start < last[start]]
    stop = stop[start]
    # A chunk of one fragment is at the end of a document, and takes the fragment before it, if there is one.
    has_predecessor = start > fragments.offsets[fragments.position_of(start)]
    start = np.where((stop - start == 1) & has_predecessor, start - 1, start)
    split = start + 1 + rng.integers(seed, "split", np.maximum(stop - start - 1, 1), epoch, start)
    return _make_chunks(fragments, start, np.minimum(split, stop), stop)


def make_chunks_from_either_end(
    fragments: Fragments, max_tokens: int, seed: int, epoch: int, short_seq_prob: float
) -> Chunks:
    """Make segment chunks, from the start of each document or from its end, at random.

    Chunks that are made from the start tend to have a short last fragment, since only a short one still fitted;
    the length of a segment would tell that it is the second one. In chunks that are made from the end the first
    fragment tends to be short. The text itself is not reversed.
    """
    first = fragments.boundaries[fragments.offsets[:-1]]
    last = fragments.boundaries[fragments.offsets[1:] - 1]
    index = np.arange(len(first))
    is_from_end = rng.uniform(seed, "backwards", epoch, index) < 0.5
    # Mirror these documents around their middle: the token offset x becomes first + last - x.
    mirror_sum = first + last
    document = np.repeat(index, np.diff(fragments.offsets))
    mirrored = (fragments.offsets[:-1] + fragments.offsets[1:] - 1)[document] - np.arange(len(document))
    boundaries = np.where(
        is_from_end[document], mirror_sum[document] - fragments.boundaries[mirrored], fragments.boundaries
    )
    mirrored_fragments = replace(fragments, boundaries=boundaries)
    chunks = make_segment_chunks(mirrored_fragments, max_tokens, seed, epoch, short_seq_prob)
    # Mirror their chunks back.
    position = np.searchsorted(fragments.documents, chunks.document)
    is_mirrored, total = is_from_end[position], mirror_sum[position]
    a_start = np.where(is_mirrored, total - chunks.end, chunks.a_start)
    b_start = np.where(is_mirrored, total - chunks.b_start, chunks.b_start)
    end = np.where(is_mirrored, total - chunks.a_start, chunks.end)
    has_no_b = chunks.b_start == chunks.end
    return replace(chunks, a_start=a_start, b_start=np.where(has_no_b, end, b_start), end=end)


def make_sentence_chunks(fragments: Fragments, seed: int, epoch: int) -> Chunks:
    """Divide each document into pairs of fragments.

    If their number is odd, the first or the last pair, at random, shares a fragment with its neighbor.
    """
    offsets, num_fragments = fragments.offsets, fragments.fragments_per_document
    num_pairs = (num_fragments + 1) // 2
    k = concat_ranges(np.zeros_like(num_pairs), num_pairs)  # pair k of its document
    document = np.repeat(np.arange(len(num_fragments)), num_pairs)
    shares_first = rng.uniform(seed, "odd pair", epoch, np.arange(len(num_fragments))) < 0.5
    is_odd = (num_fragments % 2 == 1) & (num_fragments > 1)
    shift = is_odd[document] & np.where(shares_first[document], k > 0, k == num_pairs[document] - 1)
    start = offsets[document] + 2 * k - shift
    stop = np.minimum(start + 2, offsets[document + 1] - 1)
    return _make_chunks(fragments, start, start + 1, stop)


def _make_chunks(fragments: Fragments, start: IntArray, split: IntArray, stop: IntArray) -> Chunks:
    """Make chunks from the indices of the boundaries where A starts, B starts, and B ends."""
    boundaries = fragments.boundaries
    return Chunks(boundaries[start], boundaries[split], boundaries[stop], fragments.document_of(start))


_NUM_SPECIAL_TOKENS = 2  # [CLS] and the last [SEP]


def plan_full_sentences(
    corpus: Shards, documents: IntArray, *, max_length: int, seed: int, epoch: int
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


def plan_doc_sentences(corpus: Shards, documents: IntArray, *, max_length: int) -> EpochPlan:
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


def _make_plan(corpus: Shards, fragments: Fragments, parts: Spans, part_offsets: IntArray) -> EpochPlan:
    """Make a plan of instances that consist of these parts."""
    n = len(part_offsets) - 1
    counts = {"instances": n, **count_text(corpus, fragments, parts.starts, parts.lengths)}
    labels = np.zeros(n, dtype=np.int64)
    return EpochPlan(*parts, part_offsets, labels, np.arange(n), False, 1, counts)
