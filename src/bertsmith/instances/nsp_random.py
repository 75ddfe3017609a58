"""Next-sentence pairs as in the original BERT data preparation (`create_instances_from_document` of its release).

A document is read in chunks of whole sentences up to a target length. Each chunk is split at a random sentence
into A and the rest. With probability 0.5, or if the chunk is a single sentence, B is not the rest but a run of
sentences from a random position of a random document, up to the target length, and the rest is read again in the
next chunk. A pair that is too long is trimmed: one token at a time from the longer segment, at a random end.

With `data.nsp_negatives=same_document` the random position is in A's own document.

Differences: near-duplicates of A's document are never drawn (the release draws up to ten times to avoid A's
document, and does not know near-duplicates); draws are functions of the position in the text, so that all chunks
are made at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsmith import rng
from bertsmith.corpus.tokenized_corpus import IntArray
from bertsmith.instances.epoch_plan import IS_NEXT, NOT_NEXT, concat_ranges
from bertsmith.instances.segments import Fragments, follow_links


@dataclass(frozen=True)
class NspPairs:
    """Next-sentence pairs.

    Attributes:
        a: Start, length, and document of each A, int64 [I] each.
        b: Likewise of each B.
        labels: int64 [I].
        num_trimmed: Tokens that were trimmed.
    """

    a: tuple[IntArray, IntArray, IntArray]
    b: tuple[IntArray, IntArray, IntArray]
    labels: IntArray
    num_trimmed: int


def draw_nsp_pairs(
    sentences: Fragments,
    duplicate_groups: IntArray,
    max_tokens: int,
    seed: int,
    epoch: int,
    short_seq_prob: float,
    *,
    single_sentences: bool,
    same_document: bool = False,
) -> NspPairs:
    """Draw the next-sentence pairs of an epoch.

    Args:
        sentences: Whole sentences of D documents.
        duplicate_groups: int64 [D]; documents of one group are near-duplicates. There are two groups or more,
            except with `same_document`.
        max_tokens: The tokens of A and B together.
        seed: The seed.
        epoch: The epoch.
        short_seq_prob: The probability that a document has a random shorter target length.
        single_sentences: A and B are one sentence each, without a target length.
        same_document: A random B is from A's own document, with a sentence or more between A and B. If there is
            none, B is the rest of the chunk, and a single sentence is omitted.
    """
    boundaries, last = sentences.boundaries, sentences.last
    node = np.arange(len(boundaries))
    document = np.repeat(np.arange(len(sentences.documents)), np.diff(sentences.offsets))
    target = _draw_targets(len(sentences.documents), max_tokens, seed, epoch, short_seq_prob)[document]
    full = node + 2 if single_sentences else np.searchsorted(boundaries, boundaries + target, side="left")
    stop = np.minimum(np.maximum(full, node + 1), last)
    split = node + 1 + rng.integers(seed, "split", np.maximum(stop - node - 1, 1), epoch, node)
    is_random = (stop - node == 1) | (rng.uniform(seed, "partner", epoch, node) < 0.5)
    # The positions for a B of the same document, before A and behind it.
    num_before = np.maximum(node - 1 - sentences.offsets[document], 0)
    num_behind = np.maximum(last - split - 1, 0)
    if same_document:
        is_random &= num_before + num_behind > 0
    start = follow_links(np.where(node == last, node + 1, np.where(is_random, split, stop)))
    start = start[(start < last[start]) & (is_random | (stop - node > 1))[start]]
    split, stop, is_random, a_document = split[start], stop[start], is_random[start], document[start]

    b_first, b_stop, b_document = split.copy(), stop.copy(), a_document.copy()
    counter = start[is_random]  # of the random draws of a NotNext pair
    if same_document:
        other, before = a_document[is_random], num_before[counter]
        place = rng.integers(seed, "place", before + num_behind[counter], epoch, counter)
        is_before = place < before
        first = np.where(is_before, sentences.offsets[other] + place, split[is_random] + 1 + place - before)
        limit = np.where(is_before, counter - 1, last[counter])
    else:
        uniform = rng.uniform(seed, "other", epoch, counter)
        other = _other_documents(sentences, duplicate_groups, a_document[is_random], uniform)
        document_start, limit = sentences.offsets[other], sentences.offsets[other + 1] - 1
        first = document_start + rng.integers(seed, "place", limit - document_start, epoch, counter)
    b_target = np.maximum(target[counter] - (boundaries[split[is_random]] - boundaries[counter]), 1)
    end = (
        first + 1
        if single_sentences
        else np.searchsorted(boundaries, boundaries[first] + b_target, side="left")
    )
    b_first[is_random], b_stop[is_random], b_document[is_random] = first, np.minimum(end, limit), other

    a_start, a_length = boundaries[start], boundaries[split] - boundaries[start]
    b_start, b_length = boundaries[b_first], boundaries[b_stop] - boundaries[b_first]
    # Trimming one token at a time from the longer segment ends at these lengths.
    new_a_length = np.minimum(a_length, np.maximum((max_tokens + 1) // 2, max_tokens - b_length))
    new_b_length = np.minimum(b_length, np.maximum(max_tokens // 2, max_tokens - a_length))
    a_start = a_start + _draw_front_cuts(a_length - new_a_length, seed, "front of A", epoch, start)
    b_start = b_start + _draw_front_cuts(b_length - new_b_length, seed, "front of B", epoch, start)
    documents = sentences.documents
    return NspPairs(
        (a_start, new_a_length, documents[a_document]),
        (b_start, new_b_length, documents[b_document]),
        np.where(is_random, NOT_NEXT, IS_NEXT),
        int((a_length - new_a_length + b_length - new_b_length).sum()),
    )


def _draw_targets(
    num_documents: int, max_tokens: int, seed: int, epoch: int, short_seq_prob: float
) -> IntArray:
    """Return the target length of each document's chunks, [D]: the maximum, or a random shorter one."""
    document = np.arange(num_documents)
    is_short = rng.uniform(seed, "short", epoch, document) < short_seq_prob
    short = 2 + rng.integers(seed, "target", max_tokens - 1, epoch, document)
    return np.where(is_short, short, max_tokens)


def _other_documents(
    sentences: Fragments, groups: IntArray, documents: IntArray, uniform: NDArray[np.float64]
) -> IntArray:
    """Return for each document another one of a different group, all with equal probability."""
    with_text = np.flatnonzero(np.diff(sentences.offsets) > 1)
    by_group = with_text[np.argsort(groups[with_text], kind="stable")]
    first, stop = (
        np.searchsorted(groups[by_group], groups[documents], side=side) for side in ("left", "right")
    )
    rank = (uniform * (len(by_group) - (stop - first))).astype(np.int64)
    others: IntArray = by_group[np.where(rank < first, rank, rank + stop - first)]
    return others


def _draw_front_cuts(num_cut: IntArray, seed: int, purpose: str, epoch: int, counter: IntArray) -> IntArray:
    """Return how many of the tokens that each segment loses are at its front: a fair coin for each."""
    segment = np.repeat(np.arange(len(num_cut)), num_cut)
    tosses = rng.uniform(
        seed, purpose, epoch, counter[segment], concat_ranges(np.zeros_like(num_cut), num_cut)
    )
    cuts: IntArray = np.bincount(segment[tosses < 0.5], minlength=len(num_cut)).astype(np.int64)
    return cuts
