"""Counts of n-grams in sorted arrays.

An n-gram is a pair of its context, an (n-1)-gram, and its last word. Its key is one integer of 64 bits: the index
of the context among the (n-1)-grams, and the id of the word in the lower bits. Sorted keys hold the n-grams of a
context in one range, and a binary search finds an n-gram. An index is a position in the sorted keys; that of a
unigram is its word's id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.shards import IntArray
from bertsmith.predecessors.ngram_text import SENTENCE_START, WordIds

ABSENT = -1  # the index of an n-gram that does not occur


@dataclass
class NgramCounts:
    """The n-grams of one order with their counts.

    Attributes:
        keys: int64 [G], ascending.
        counts: uint32 [G], the number of occurrences.
        suffixes: int32 [G], the index of each n-gram without its first word among the (n-1)-grams; [0] for
            unigrams.
    """

    keys: IntArray
    counts: NDArray[np.uint32]
    suffixes: NDArray[np.int32]


def word_bits(num_words: int) -> int:
    """Return the number of lower bits of a key that hold the id of a word."""
    return max(num_words - 1, 1).bit_length()


def join_keys(contexts: NDArray[Any], words: NDArray[Any], bits: int) -> IntArray:
    """Return the keys of n-grams from the indices of their contexts and the ids of their last words."""
    keys = contexts.astype(np.int64)
    keys <<= bits
    keys |= words
    return keys


def count_ngrams(ids: WordIds, num_words: int, order: int, *, boundaries: bool) -> list[NgramCounts]:
    """Count the n-grams within sentences of all orders up to `order`.

    Args:
        ids: int32 [T], sentences with `<s>` before each.
        num_words: The size of the vocabulary, special words included.
        order: The largest order.
        boundaries: Count `<s>` as the first word of n-grams of order 2 and more.

    Returns:
        The counts by order; the one of the unigram `<s>` is 0.
    """
    bits = word_bits(num_words)
    unigrams = np.bincount(ids, minlength=num_words).astype(np.uint32)
    unigrams[SENTENCE_START] = 0
    counts = [NgramCounts(np.arange(num_words), unigrams, np.empty(0, dtype=np.int32))]
    indices = ids  # at each position: the index of the n-gram that ends there
    for n in range(2, order + 1):
        is_end = ids[1:] != SENTENCE_START
        if n > 2:
            is_end &= indices[:-1] != ABSENT
        elif not boundaries:
            is_end &= ids[:-1] != SENTENCE_START
        keys = join_keys(indices[:-1][is_end], ids[1:][is_end], bits)
        suffixes = indices[1:][is_end]
        if n == order:
            del indices, is_end  # 150 MB of 30 million words
        positions = np.argsort(keys).astype(np.int32)
        keys = keys[positions]
        is_first = is_first_of_run(keys)
        suffixes = suffixes[positions[is_first]]
        keys = keys[is_first]
        first = np.flatnonzero(is_first).astype(np.int32)
        occurrences = np.diff(first, append=np.int32(len(positions))).astype(np.uint32)
        counts.append(NgramCounts(keys, occurrences, suffixes))
        del first
        if n < order:
            indices_of_ends = np.empty(len(positions), dtype=np.int32)
            indices_of_ends[positions] = np.cumsum(is_first, dtype=np.int32) - 1
            indices = np.full(len(ids), ABSENT, dtype=np.int32)
            indices[1:][is_end] = indices_of_ends
    return counts


def is_first_of_run(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where sorted values differ from their predecessor."""
    is_first = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=is_first[1:])
    return is_first


def find_keys(keys: IntArray, queries: IntArray) -> NDArray[np.int32]:
    """Return the index of each query in sorted keys, or `ABSENT`.

    Sorted queries read the keys in order, which is several times faster for many.
    """
    indices = np.full(len(queries), ABSENT, dtype=np.int32)
    if len(keys):
        order = np.argsort(queries)
        queries = queries[order]
        positions = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
        indices[order] = np.where(keys[positions] == queries, positions, ABSENT)
    return indices


def match_ngrams(tables: list[IntArray], ids: WordIds, num_words: int) -> list[NDArray[np.int32]]:
    """Return at each position of a text, for each order, the index of the n-gram that ends there, or `ABSENT`.

    Args:
        tables: The keys by order.
        ids: int32 [T], sentences with `<s>` before each, or part of one sentence.
        num_words: The size of the vocabulary.
    """
    bits = word_bits(num_words)
    matches: list[NDArray[np.int32]] = [ids]
    for keys in tables[1:]:
        contexts = matches[-1][:-1]
        indices = np.full(len(ids), ABSENT, dtype=np.int32)
        (ends,) = np.nonzero((contexts != ABSENT) & (ids[1:] != SENTENCE_START))
        indices[ends + 1] = find_keys(keys, join_keys(contexts[ends], ids[ends + 1], bits))
        matches.append(indices)
    return matches
