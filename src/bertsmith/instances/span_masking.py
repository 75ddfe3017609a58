"""Selection of whole words and of spans of words to predict.

Words: in random order, all pieces of a word together. A word that would exceed the number of predictions is
skipped, and shorter ones are still tried, as in the original whole-word release. Spans: at words in random
order, each with a random number of consecutive words, cut to the whole words that still fit (Joshi et al. 2020,
SpanBERT, section 3.1). If not a single word fits, the first one drawn is selected that does not exceed the
user's limit, so that a sequence has something to predict. All sequences are processed at once, in a few rounds
of array operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.tokenized_corpus import IntArray

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class SpanLengthDistribution:
    """Words per span: n from 1 to max_length with p(n) ~ (1 - p)^(n - 1), or p(n) ~ 1/n (ALBERT)."""

    name: Literal["geometric", "harmonic"] = "geometric"
    p: float = 0.2
    max_length: int = 10

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Return p(1) … p(max_length)."""
        n = np.arange(1, self.max_length + 1)
        weights = (1 - self.p) ** (n - 1) if self.name == "geometric" else 1.0 / n
        probabilities: NDArray[np.float64] = weights / weights.sum()
        return probabilities

    def lengths(self, uniform: NDArray[np.float64]) -> IntArray:
        """Return lengths for uniform random numbers in [0, 1)."""
        lengths = np.searchsorted(np.cumsum(self.probabilities)[:-1], uniform, side="right") + 1
        return lengths.astype(np.int64)


@dataclass(frozen=True)
class Words:
    """W words of B concatenated sequences.

    Attributes:
        first: int64 [W], the first row of each word.
        size: int64 [W], the rows of each word.
        sequence: int64 [W], the sequence of each word.
        is_adjacent: bool [W], True if a word is directly behind the word before, in one sequence.
        num_sequences: B.
    """

    first: IntArray
    size: IntArray
    sequence: IntArray
    is_adjacent: BoolArray
    num_sequences: int

    @classmethod
    def from_starts(
        cls, word_starts: BoolArray, unmaskable: BoolArray, positions: IntArray, sequence_starts: IntArray
    ) -> Words:
        """Find the words; unmaskable rows are no words and end one.

        Args:
            word_starts: bool [N].
            unmaskable: bool [N].
            positions: int64 [N], each row's position in its sequence.
            sequence_starts: int64 [B], the first row of each sequence.
        """
        is_boundary = word_starts | unmaskable
        is_boundary[1:] |= unmaskable[:-1]
        is_boundary |= positions == 0
        starts = np.flatnonzero(is_boundary)
        ends = np.append(starts[1:], len(is_boundary))
        is_word = ~unmaskable[starts]
        starts, ends = starts[is_word], ends[is_word]
        sequence = np.searchsorted(sequence_starts, starts, side="right") - 1
        is_adjacent = np.zeros(len(starts), dtype=np.bool_)
        is_adjacent[1:] = (starts[1:] == ends[:-1]) & (sequence[1:] == sequence[:-1])
        return cls(starts, ends - starts, sequence, is_adjacent, len(sequence_starts))


def select_words(
    words: Words, order: IntArray, num_predictions: IntArray, max_predictions: int | None = None
) -> IntArray:
    """Select words to predict, in ascending order.

    If no word of a sequence fits, one that has more tokens than `num_predictions` is selected.

    Args:
        words: The words.
        order: int64 [W], all words by sequence, in random order within each.
        num_predictions: int64 [B], the tokens to select in each sequence.
        max_predictions: The limit that no selected word exceeds.
    """
    size, sequence = words.size[order], words.sequence[order]
    remaining = num_predictions.copy()
    selected = np.zeros(len(order), dtype=np.bool_)
    candidates = np.arange(len(order))
    while len(candidates := candidates[size[candidates] <= remaining[sequence[candidates]]]):
        owners, sizes = sequence[candidates], size[candidates]
        cumulative = np.cumsum(sizes)
        starts = np.flatnonzero(np.diff(owners, prepend=-1))
        before = np.repeat(cumulative[starts] - sizes[starts], np.diff(np.append(starts, len(candidates))))
        is_settled = cumulative - before <= remaining[owners]
        selected[candidates[is_settled]] = True
        remaining -= np.bincount(owners[is_settled], sizes[is_settled], minlength=words.num_sequences).astype(
            np.int64
        )
        too_long = np.flatnonzero(~is_settled)
        too_long = too_long[np.diff(owners[too_long], prepend=-1) != 0]  # the first is skipped
        is_settled[too_long] = True
        candidates = candidates[~is_settled]
    selected[_first_words_of_empty(sequence, size, selected, num_predictions, max_predictions)] = True
    return np.sort(order[selected])


def select_spans(
    words: Words,
    order: IntArray,
    num_predictions: IntArray,
    span_lengths: IntArray,
    max_span_length: int,
    max_predictions: int | None = None,
) -> tuple[IntArray, IntArray]:
    """Select words to predict in spans; return them in ascending order, and the first row of each one's span.

    Args:
        words: The words.
        order: As in `select_words`.
        num_predictions: As in `select_words`.
        span_lengths: int64 [W], the words of a span that starts at each word.
        max_span_length: The words of the longest span.
        max_predictions: As in `select_words`.
    """
    num_words = len(order)
    next_ = np.searchsorted(words.sequence, np.arange(words.num_sequences))
    end = np.searchsorted(words.sequence, np.arange(words.num_sequences), side="right")
    remaining = num_predictions.copy()
    span_start = np.full(num_words, -1)
    steps = np.arange(max_span_length)
    active = np.flatnonzero((remaining > 0) & (next_ < end))
    while len(active):
        first = order[next_[active]]
        span = np.minimum(first[:, None] + steps, num_words - 1)
        fits = (
            (span_start[span] < 0)
            & (steps < span_lengths[first][:, None])
            & (first[:, None] + steps < num_words)
        )
        fits[:, 1:] &= words.is_adjacent[span[:, 1:]]
        fits = np.logical_and.accumulate(fits, axis=1)
        fits &= np.cumsum(words.size[span], axis=1) <= remaining[active][:, None]
        span_start[span[fits]] = np.repeat(words.first[first], fits.sum(1))
        remaining[active] -= (words.size[span] * fits).sum(1)
        next_[active] += 1
        active = active[(remaining[active] > 0) & (next_[active] < end[active])]
    extra = order[
        _first_words_of_empty(
            words.sequence[order],
            words.size[order],
            span_start[order] >= 0,
            num_predictions,
            max_predictions,
        )
    ]
    span_start[extra] = words.first[extra]
    selected = np.flatnonzero(span_start >= 0)
    return selected, span_start[selected]


def _first_words_of_empty(
    sequence: IntArray,
    size: IntArray,
    selected: BoolArray,
    num_predictions: IntArray,
    max_predictions: int | None,
) -> IntArray:
    """Return, for each sequence without a prediction that should have one, its first word within the limit."""
    candidates = np.arange(len(sequence))
    if max_predictions is not None:
        candidates = candidates[size <= max_predictions]
    first = candidates[np.diff(sequence[candidates], prepend=-1) != 0]
    is_empty = np.bincount(sequence[selected], minlength=len(num_predictions)) == 0
    words: IntArray = first[is_empty[sequence[first]] & (num_predictions[sequence[first]] > 0)]
    return words
