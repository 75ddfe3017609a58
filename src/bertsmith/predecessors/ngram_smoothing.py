"""Probabilities of n-grams from their counts.

Kneser–Ney and interpolation give each word of a context a part of the context's mass, and divide the rest like
the shorter context does: p(w | c) = (a(cw) - removed(cw)) / a(c) + backoff(c) p(w | c without its first word),
with the backoff that makes the sum 1. Below unigrams is the uniform distribution. They differ in what
is removed:

* Modified Kneser–Ney (Chen and Goodman 1998, TR-10-98, section 3.4): discounts by order for counts of 1, 2, and
  3 or more. Below the highest order, a count is the number of distinct preceding words, except after `<s>`.
* Interpolation (Jelinek and Mercer 1980): a part 1 - weight of each count, with one weight for each order.

Additive smoothing, and maximum likelihood with k = 0, gives every word of the vocabulary k further occurrences in
each context, and uses no shorter context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.shards import BoolArray, IntArray
from bertsmith.errors import InputError, option
from bertsmith.predecessors.ngram_counts import NgramCounts, is_first_of_run, join_keys, word_bits
from bertsmith.predecessors.ngram_text import SENTENCE_START

_ROWS = 1 << 20  # that are summed at a time
_EM_ITERATIONS = 30
_EM_NGRAMS = 1_000_000  # that determine the weights of interpolation
_MAX_WEIGHT = 0.999  # With the weight 1, unseen words would have the probability 0.

FloatArray = NDArray[np.float32]


@dataclass
class NgramTable:
    """The n-grams of one order with their probabilities.

    Attributes:
        keys: int64 [G], see `ngram_counts`.
        log_probs: float32 [G], log10 of the probability of the last word after the others.
        backoffs: float32 [G], for the n-gram as a context: log10 of the factor of the shorter context's
            probability of a word that did not follow, or, in additive smoothing, of the probability of each such
            word. Empty for the highest order.
    """

    keys: IntArray
    log_probs: FloatArray
    backoffs: FloatArray


class _Rows:
    """The n-grams of one order by context: a row has the n-grams of one context."""

    def __init__(self, keys: IntArray, order: int, bits: int) -> None:
        if order == 1:
            self.starts = self.contexts = np.zeros(1, dtype=np.int32)
        else:
            contexts = (keys >> bits).astype(np.int32)
            is_first = is_first_of_run(contexts)
            self.starts, self.contexts = np.flatnonzero(is_first).astype(np.int32), contexts[is_first]
        self._lengths = np.diff(self.starts, append=np.int32(len(keys)))

    def sum(self, values: NDArray[Any]) -> FloatArray:
        """Return the sum of each row, added in float64; of some rows at a time, since NumPy copies the values."""
        sums = np.empty(len(self.starts), dtype=np.float32)
        for first in range(0, len(sums), _ROWS):
            starts = self.starts[first : first + _ROWS]
            end = self.starts[first + _ROWS] if first + _ROWS < len(sums) else len(values)
            part = values[starts[0] : end]
            sums[first : first + _ROWS] = np.add.reduceat(part, starts - starts[0], dtype=np.float64)
        return sums

    def expand(self, values: FloatArray) -> FloatArray:
        """Return the value of each n-gram's row."""
        return np.repeat(values, self._lengths)


def kneser_ney_discounts(
    counts: NDArray[np.uint32], order: int, fallback: Sequence[float] | None
) -> tuple[float, float, float]:
    """Return the discounts of counts of 1, 2, and 3 or more of one order (Chen and Goodman 1998, equation 26).

    Raises:
        InputError: The closed form gives no discount between 0 and the count, and there is no fallback.
    """
    n1, n2, n3, n4 = (int(np.count_nonzero(counts == count)) for count in (1, 2, 3, 4))
    if min(n1, n2, n3) > 0:
        y = n1 / (n1 + 2 * n2)
        discounts = 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3
        if all(0 <= discount <= count for count, discount in enumerate(discounts, start=1)):
            return discounts
    if fallback is None:
        message = (
            f"the discounts of Kneser–Ney smoothing cannot be estimated: {n1}, {n2}, {n3}, and {n4} {order}-grams "
            "have a count of 1, 2, 3, and 4"
        )
        hint = f"use more text without duplicates, or {option('discount_fallback', (0.5, 1, 1.5))}"
        raise InputError("discounts_undefined", message, argument="discount_fallback", hint=hint)
    d1, d2, d3 = fallback
    return d1, d2, d3


def estimate_kneser_ney(
    counts: list[NgramCounts],
    is_possible: BoolArray,
    thresholds: Sequence[int],
    fallback: Sequence[float] | None,
) -> tuple[list[NgramTable], list[tuple[float, float, float]]]:
    """Return the tables of a modified Kneser–Ney model by order, and the discounts.

    Args:
        counts: The counts by order; the list is emptied to save memory.
        is_possible: bool [V], False for words that never occur, such as `<s>`.
        thresholds: The largest count of n-grams that are pruned, by order. As in KenLM, discounts and totals are
            those before pruning, and the mass of pruned n-grams is backed off.
        fallback: The discounts of an order whose discounts cannot be estimated.
    """
    discounts = []

    def remove(adjusted: NDArray[np.uint32], order: int) -> FloatArray:
        discounts.append(kneser_ney_discounts(adjusted, order, fallback))
        return np.array([0, *discounts[-1]], dtype=np.float32)[np.minimum(adjusted, 3)]

    estimator = _BackoffEstimator(is_possible, thresholds)
    while counts:
        level, above = counts.pop(0), counts[0] if counts else None
        adjusted = level.counts
        if above is not None:
            adjusted = np.bincount(above.suffixes, minlength=len(adjusted)).astype(np.uint32)
            # Nothing precedes an n-gram that begins with <s>.
            adjusted = np.where(adjusted == 0, level.counts, adjusted)
        estimator.add(level, adjusted, remove(adjusted, estimator.order + 1))
    return estimator.tables(), discounts


def estimate_interpolation(
    counts: list[NgramCounts],
    is_possible: BoolArray,
    thresholds: Sequence[int],
    weights: Sequence[float] | None,
) -> tuple[list[NgramTable], list[float]]:
    """Return the tables of an interpolated model by order, and its weights; see `estimate_kneser_ney`."""
    if weights is None:
        weights = interpolation_weights(counts, is_possible)
    estimator = _BackoffEstimator(is_possible, thresholds)
    for weight in weights:
        level = counts.pop(0)
        estimator.add(level, level.counts, (level.counts * (1 - weight)).astype(np.float32))
    return estimator.tables(), list(weights)


class _BackoffEstimator:
    """Compute the tables of a model with backoff, from the lowest order to the highest."""

    def __init__(self, is_possible: BoolArray, thresholds: Sequence[int]) -> None:
        self._bits = word_bits(len(is_possible))
        self._thresholds = thresholds
        self._is_kept: list[BoolArray] = []
        self._tables: list[NgramTable] = []
        self._is_possible = is_possible
        self._probs = (is_possible / is_possible.sum()).astype(np.float32)  # of the order below

    @property
    def order(self) -> int:
        """The number of orders that were added."""
        return len(self._tables)

    def add(self, level: NgramCounts, counts: NDArray[np.uint32], removed: FloatArray) -> None:
        """Add the next order.

        Args:
            level: Its n-grams, with the number of occurrences.
            counts: uint32 [G], their counts, adjusted if the smoothing does so.
            removed: float32 [G], the part of each count that the shorter context divides; overwritten.
        """
        is_kept = level.counts > self._thresholds[self.order] if any(self._thresholds) else None
        rows = _Rows(level.keys, self.order + 1, self._bits)
        if is_kept is not None:
            is_kept |= self.order == 0
            np.copyto(removed, counts, where=~is_kept, casting="unsafe")
        totals = rows.sum(counts)
        backoffs = rows.sum(removed) / totals
        probs = np.subtract(counts, removed, out=removed)  # in place, to save memory
        probs /= rows.expand(totals)
        lower = self._probs[level.suffixes] if self.order > 0 else self._probs
        lower *= rows.expand(backoffs)
        probs += lower
        if self.order == 0:
            probs[~self._is_possible], probs[SENTENCE_START] = 0, 1
        else:
            self._tables[-1].backoffs[rows.contexts] = _log10(backoffs)
            _log10(self._probs)
        if is_kept is not None:
            self._is_kept.append(is_kept)
        num_backoffs = len(level.keys) if self.order + 1 < len(self._thresholds) else 0
        self._tables.append(NgramTable(level.keys, probs, np.zeros(num_backoffs, dtype=np.float32)))
        self._probs = probs

    def tables(self) -> list[NgramTable]:
        """Return the tables of all orders without the n-grams that are pruned."""
        _log10(self._probs)
        if any(self._thresholds):
            _prune(self._tables, self._is_kept, self._bits)
        return self._tables


def estimate_additive(
    counts: list[NgramCounts], is_possible: BoolArray, thresholds: Sequence[int], k: float
) -> list[NgramTable]:
    """Return the tables of a model with additive smoothing by order; see `estimate_kneser_ney`."""
    bits, num_possible = word_bits(len(is_possible)), int(is_possible.sum())
    is_kept = [level.counts > threshold for level, threshold in zip(counts, thresholds, strict=True)]
    is_kept[0][:] = True
    tables: list[NgramTable] = []
    for order, mask in enumerate(is_kept, start=1):
        level = counts.pop(0)
        rows = _Rows(level.keys, order, bits)
        occurrences = np.where(mask, level.counts, np.uint32(0))
        totals = rows.sum(occurrences) + k * num_possible
        totals[totals == 0] = 1  # a context of pruned n-grams alone, whose words have the probability 0
        probs: FloatArray = np.add(occurrences, k, dtype=np.float32)
        probs /= rows.expand(totals)
        if order == 1:
            probs[~is_possible] = 0
        else:
            tables[-1].backoffs[rows.contexts] = _log10(k / totals)
        # A context without words has the distribution of no observation: uniform, or undefined, which is 0.
        unseen = np.full(len(probs), 1 / num_possible if k else 0, dtype=np.float32)
        tables.append(NgramTable(level.keys, _log10(probs), _log10(unseen)))
    tables[-1].backoffs = np.empty(0, dtype=np.float32)
    if any(thresholds):
        _prune(tables, is_kept, bits)
    return tables


def _log10(values: NDArray[Any]) -> NDArray[Any]:
    """Replace probabilities by their logarithms, which are at most 0, and return the array."""
    with np.errstate(divide="ignore"):
        np.log10(values, out=values)
    np.minimum(values, 0, out=values)
    return values


def _prune(tables: list[NgramTable], is_kept: list[BoolArray], bits: int) -> None:
    """Remove n-grams; those that remain must have remaining contexts."""
    for order in range(1, len(tables)):
        table, mask = tables[order], is_kept[order]
        new_indices = np.cumsum(is_kept[order - 1]) - 1
        keys = table.keys[mask]
        table.keys = join_keys(new_indices[keys >> bits], keys & ((1 << bits) - 1), bits)
        table.log_probs = table.log_probs[mask]
        if len(table.backoffs):
            table.backoffs = table.backoffs[mask]


def interpolation_weights(counts: list[NgramCounts], is_possible: BoolArray) -> list[float]:
    """Return the weight of each order that maximizes the likelihood of the text, each word left out in turn.

    Without the word itself, n-gram and context have one occurrence less (deleted estimation). Expectation
    maximization over evenly spaced n-grams of the highest order.
    """
    bits, top = word_bits(len(is_possible)), counts[-1].counts
    sample: NDArray[Any] = np.flatnonzero(top)
    sample = sample[:: len(sample) // _EM_NGRAMS + 1]
    sample_weights = top[sample].astype(np.float64)
    ratios: list[
        NDArray[np.float64]
    ] = []  # from the highest order: p(w | c) without the word, NaN if c is unseen
    for order in range(len(counts), 0, -1):
        level = counts[order - 1]
        rows = _Rows(level.keys, order, bits)
        totals = rows.sum(level.counts)[np.searchsorted(rows.starts, sample, side="right") - 1]
        remaining = np.where(totals > 1, totals - 1, np.nan)
        ratios.insert(0, (level.counts[sample] - 1.0) / remaining)
        if order > 1:
            sample = level.suffixes[sample]
    weights = [0.5] * len(counts)
    for _ in range(_EM_ITERATIONS if len(sample) else 0):
        probs = [np.full(len(sample), 1 / is_possible.sum())]
        for weight, ratio in zip(weights, ratios, strict=True):
            mixed = weight * ratio + (1 - weight) * probs[-1]
            probs.append(np.where(np.isnan(ratio), probs[-1], mixed))
        reached = sample_weights  # the expected number of words that an order or a lower one generates
        for order in range(len(counts) - 1, -1, -1):
            ratio = ratios[order]
            generated = np.where(np.isnan(ratio), 0, reached * weights[order] * ratio / probs[order + 1])
            total = float(reached[~np.isnan(ratio)].sum())
            if total:
                weights[order] = min(float(generated.sum()) / total, _MAX_WEIGHT)
            reached = reached - generated
    return weights
