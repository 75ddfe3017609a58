"""Next-sentence pairs as in the original BERT data preparation (`create_instances_from_document` of its release).

A document is read in chunks of whole sentences up to a target length. Each chunk is split at a random sentence
into A and the rest. With probability 0.5, or if the chunk is a single sentence, the pair is NotNext: B is not the
rest, but consecutive sentences from a random position of a random document, up to the target length; the rest is
read again in the next chunk. A pair that is too long is trimmed: one token at a time from the longer segment, at a
random end.

With `data.nsp_sampling=same_document` the random position is in A's own document.

Differences: near-duplicates of A's document are never drawn (the release draws up to ten times to avoid A's
document, and does not know near-duplicates). Random numbers are functions of the position in the text, so that all
chunks are made at once.

Shapes: D documents, N boundaries of sentences, I pairs, R NotNext pairs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bertsmith import rng
from bertsmith.corpus.tokenized_corpus import IntArray
from bertsmith.instances.epoch_plan import IS_NEXT, NOT_NEXT, Spans, concat_ranges
from bertsmith.instances.segments import Fragments, draw_target_lengths, follow_links
from bertsmith.instances.settings import DataSettings


def draw_nsp_pairs(
    sentences: Fragments,
    duplicate_groups: IntArray,
    settings: DataSettings,
    max_tokens: int,
    seed: int,
    epoch: int,
) -> tuple[Spans, Spans, IntArray, int]:
    """Draw the next-sentence pairs of an epoch.

    Args:
        sentences: Whole sentences of D documents.
        duplicate_groups: int64 [D]; documents of one group are near-duplicates. There are two groups or more,
            except with `nsp_sampling` same_document, where B is from A's own document, with a sentence or more
            between A and B. If there is none, B is the rest of the chunk, and a single sentence is omitted.
        settings: The settings. The instances sentence_pair are one sentence each, without a target length.
        max_tokens: The maximum tokens of A and B together.
        seed: The seed.
        epoch: The epoch.

    Returns:
        The segments A and B, the labels, int64 [I], and the number of tokens that were trimmed.
    """
    single_sentences = settings.instances == "sentence_pair"
    same_document = settings.nsp_sampling == "same_document"
    boundaries, last, offsets = sentences.boundaries, sentences.last_boundary, sentences.offsets
    # First for each boundary, as if a chunk started there: the boundaries where B starts and where the chunk ends.
    index = np.arange(len(boundaries))
    document = np.repeat(np.arange(len(sentences.documents)), np.diff(offsets))
    target = draw_target_lengths(len(sentences.documents), max_tokens, seed, epoch, settings.short_seq_prob)[
        document
    ]
    full = np.searchsorted(boundaries, boundaries + target, side="left")
    stop = index + 2 if single_sentences else full
    stop = np.minimum(np.maximum(stop, index + 1), last)
    split = index + 1 + rng.integers(seed, "split", np.maximum(stop - index - 1, 1), epoch, index)
    is_not_next = (stop - index == 1) | (rng.uniform(seed, "partner", epoch, index) < 0.5)
    # In the same document, a NotNext B can start at these numbers of boundaries before and behind A.
    num_before = np.maximum(index - 1 - offsets[document], 0)
    num_behind = np.maximum(last - split - 1, 0)
    if same_document:
        is_not_next &= num_before + num_behind > 0
    start = follow_links(np.where(index == last, index + 1, np.where(is_not_next, split, stop)))
    start = start[(start < last[start]) & (is_not_next | (stop - index > 1))[start]]
    split, stop, is_not_next, a_document = split[start], stop[start], is_not_next[start], document[start]

    # NotNext pairs: the boundaries where B starts and which it cannot exceed, and its document, [R] each.
    counter = start[is_not_next]  # of the random numbers
    if same_document:
        other_document, before = a_document[is_not_next], num_before[counter]
        position = rng.integers(seed, "place", before + num_behind[counter], epoch, counter)
        is_before = position < before
        first_behind = split[is_not_next] + 1
        other_start = np.where(
            is_before, offsets[other_document] + position, first_behind + position - before
        )
        limit = np.where(is_before, counter - 1, last[counter])
    else:
        uniform = rng.uniform(seed, "other", epoch, counter)
        other_document = _other_documents(sentences, duplicate_groups, a_document[is_not_next], uniform)
        document_start, limit = offsets[other_document], offsets[other_document + 1] - 1
        other_start = document_start + rng.integers(seed, "place", limit - document_start, epoch, counter)
    if single_sentences:
        other_stop = other_start + 1
    else:
        a_tokens = boundaries[split[is_not_next]] - boundaries[counter]
        b_target = np.maximum(target[counter] - a_tokens, 1)
        other_stop = np.searchsorted(boundaries, boundaries[other_start] + b_target, side="left")

    b_start, b_stop, b_document = split.copy(), stop.copy(), a_document.copy()
    b_start[is_not_next] = other_start
    b_stop[is_not_next] = np.minimum(other_stop, limit)
    b_document[is_not_next] = other_document

    a_length, b_length = boundaries[split] - boundaries[start], boundaries[b_stop] - boundaries[b_start]
    # Trimming one token at a time from the longer segment, or from B if both are equal, ends at these lengths.
    new_a_length = np.minimum(a_length, np.maximum((max_tokens + 1) // 2, max_tokens - b_length))
    new_b_length = np.minimum(b_length, np.maximum(max_tokens // 2, max_tokens - a_length))
    a_cut, b_cut = a_length - new_a_length, b_length - new_b_length
    a_front_cut = _draw_front_cuts(a_cut, seed, "front of A", epoch, start)
    b_front_cut = _draw_front_cuts(b_cut, seed, "front of B", epoch, start)
    return (
        Spans(boundaries[start] + a_front_cut, new_a_length, sentences.documents[a_document]),
        Spans(boundaries[b_start] + b_front_cut, new_b_length, sentences.documents[b_document]),
        np.where(is_not_next, NOT_NEXT, IS_NEXT),
        int((a_cut + b_cut).sum()),
    )


def _other_documents(
    sentences: Fragments, groups: IntArray, documents: IntArray, uniform: NDArray[np.float64]
) -> IntArray:
    """Return for each of R documents a random one with text of a different group, all with equal probability, [R].

    Args:
        sentences: The sentences of D documents.
        groups: int64 [D], the duplicate group of each document.
        documents: int64 [R].
        uniform: A random number in [0, 1) for each, [R].
    """
    with_text = np.flatnonzero(sentences.fragments_per_document > 0)
    by_group = with_text[np.argsort(groups[with_text], kind="stable")]
    # The document's own group is by_group[first:stop]: draw a rank among the others, and skip the group.
    first, stop = (
        np.searchsorted(groups[by_group], groups[documents], side=side) for side in ("left", "right")
    )
    group_size = stop - first
    rank = (uniform * (len(by_group) - group_size)).astype(np.int64)
    others: IntArray = by_group[np.where(rank < first, rank, rank + group_size)]
    return others


def _draw_front_cuts(num_cut: IntArray, seed: int, purpose: str, epoch: int, counter: IntArray) -> IntArray:
    """Return how many of the trimmed tokens of each segment are at its front: a coin is tossed for each token."""
    segment = np.repeat(np.arange(len(num_cut)), num_cut)
    token = concat_ranges(np.zeros_like(num_cut), num_cut)
    tosses = rng.uniform(seed, purpose, epoch, counter[segment], token)
    cuts: IntArray = np.bincount(segment[tosses < 0.5], minlength=len(num_cut)).astype(np.int64)
    return cuts
