"""Word starts in sequences of token ids, and selection of whole words and of spans of words to predict.

Words are as the tokenizer marks them. A Chinese BERT has a token for each character. To mask whole words there
(`data.word_segmenter=jieba`), consecutive Chinese characters are segmented with jieba's dictionary when masks are
drawn. This depends only on the ids, so the same ids have the same words in every epoch, batch, and process.

Whole words: words are taken in random order, each with all of its pieces. A word that would exceed the number of
predictions is skipped, and shorter ones are still tried, as in the whole-word masking of BERT's release. Spans:
they start at words in random order, have a random number of consecutive words, and are shortened to the whole
words that still fit (Joshi et al. 2020, SpanBERT, section 3.1). If not even one word fits, the first one in the
random order that does not exceed `max_predictions` is selected, so that a sequence has something to predict.

All sequences are processed at once, in a few rounds of array operations.

Shapes: B sequences with N tokens and W words. The index of a token is its index in [N].
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.shards import BoolArray, IntArray
from bertsmith.errors import InputError, option
from bertsmith.instances.settings import DataSettings
from bertsmith.io.unicode_scripts import IDEOGRAPHS
from bertsmith.tokenizer.tokenizer import Tokenizer


def word_start_function(
    tokenizer: Tokenizer, settings: DataSettings
) -> Callable[[IntArray], BoolArray] | None:
    """Return a function from ids [N] to bool [N], the tokens that start a word; None for token masks."""
    if settings.masking == "token":
        return None
    return ChineseWordStarts(tokenizer) if settings.word_segmenter == "jieba" else tokenizer.word_starts


class ChineseWordStarts:
    """Compute word starts as `tokenizer.word_starts`, but join consecutive Chinese characters into words."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Load the segmenter.

        Raises:
            InputError: The segmenter is not installed, or the vocabulary has no Chinese characters.
        """
        try:
            import rjieba
        except ImportError:
            message = "the word segmenter jieba needs a package that is not installed"
            hint = f"run pip install 'bertsmith[zh]', or use {option('data.word_segmenter', 'none')}"
            raise InputError("jieba_missing", message, argument="data.word_segmenter", hint=hint) from None
        self._segment: Callable[[str], list[str]] = rjieba.cut
        self._word_starts = tokenizer.word_starts
        self._characters = [_chinese_character(token) for token in tokenizer.tokens]
        self._is_chinese = np.array([character != "" for character in self._characters], dtype=np.bool_)
        if not self._is_chinese.any():
            message = "jieba joins Chinese characters, and this vocabulary has none"
            hint = f"use {option('data.word_segmenter', 'none')}"
            raise InputError("no_chinese_characters", message, argument="data.word_segmenter", hint=hint)

    def __call__(self, ids: IntArray) -> BoolArray:
        """Return True for tokens that start a word: ids [N] → bool [N]."""
        word_starts = self._word_starts(ids).copy()
        is_chinese = self._is_chinese[ids]
        edges = np.flatnonzero(np.diff(is_chinese, prepend=False, append=False))
        run_starts, run_ends = edges[0::2], edges[1::2]
        for start, end in zip(run_starts.tolist(), run_ends.tolist(), strict=True):
            text = "".join(self._characters[i] for i in ids[start:end].tolist())
            offsets = itertools.accumulate(map(len, self._segment(text)), initial=start)
            word_starts[start:end] = False
            word_starts[list(offsets)[:-1]] = True
        # The token behind a run is not part of its last word.
        word_starts[run_ends[run_ends < len(ids)]] = True
        return word_starts


def _chinese_character(token: str) -> str:
    """Return the character of a token that is a single Chinese character, or an empty string."""
    text = token.removeprefix("##")
    if len(text) == 1 and any(ord(text) in block for block in IDEOGRAPHS):
        return text
    return ""


def span_length_probabilities(settings: DataSettings) -> NDArray[np.float64]:
    """Return the probabilities P(1), …, P(max_span_length) of the number n of words per span.

    P(n) is proportional to (1 - p)^(n - 1) for "geometric" (SpanBERT), and to 1/n for "harmonic" (ALBERT).
    """
    n = np.arange(1, settings.max_span_length + 1)
    is_geometric = settings.span_length_distribution == "geometric"
    weights = (1 - settings.span_geometric_p) ** (n - 1) if is_geometric else 1.0 / n
    probabilities: NDArray[np.float64] = weights / weights.sum()
    return probabilities


@dataclass(frozen=True)
class Words:
    """W words of B concatenated sequences.

    Attributes:
        first: int64 [W], the index of each word's first token.
        size: int64 [W], the number of tokens of each word.
        sequence: int64 [W], the sequence of each word.
        is_adjacent: bool [W], True if a word directly follows the word before it, in the same sequence.
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
        """Find the words; an unmaskable token is not part of a word, and ends the word before it.

        Args:
            word_starts: bool [N], True for tokens that start a word.
            unmaskable: bool [N], True for tokens that are never predicted.
            positions: int64 [N], each token's position in its sequence.
            sequence_starts: int64 [B], the index of each sequence's first token.
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
        max_predictions: The maximum predictions per sequence; None: no limit.
    """
    # In each round, the words that still fit are tried in order, up to the first of each sequence that does not
    # fit any more. That one is skipped, and the next round continues behind it.
    size, sequence = words.size[order], words.sequence[order]
    remaining = num_predictions.copy()
    selected = np.zeros(len(order), dtype=np.bool_)
    candidates = np.arange(len(order))
    while len(candidates := candidates[size[candidates] <= remaining[sequence[candidates]]]):
        sequences, sizes = sequence[candidates], size[candidates]
        cumulative = np.cumsum(sizes)
        starts = np.flatnonzero(np.diff(sequences, prepend=-1))
        before = np.repeat(cumulative[starts] - sizes[starts], np.diff(np.append(starts, len(candidates))))
        fits = cumulative - before <= remaining[sequences]
        selected[candidates[fits]] = True
        num_selected = np.bincount(sequences[fits], sizes[fits], minlength=words.num_sequences)
        remaining -= num_selected.astype(np.int64)
        is_next_round = ~fits
        too_long = np.flatnonzero(~fits)
        is_next_round[too_long[np.diff(sequences[too_long], prepend=-1) != 0]] = False  # skip the first
        candidates = candidates[is_next_round]
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
    """Select words to predict in spans.

    Args:
        words: The words.
        order: As in `select_words`.
        num_predictions: As in `select_words`.
        span_lengths: int64 [W], the words of a span that starts at each word.
        max_span_length: The words of the longest span.
        max_predictions: As in `select_words`.

    Returns:
        The selected words in ascending order, and for each the index of the first token of its span.
    """
    # In each round, the next word in random order of each sequence that has predictions left starts a span.
    num_words = len(order)
    next_in_order = np.searchsorted(words.sequence, np.arange(words.num_sequences))
    end = np.searchsorted(words.sequence, np.arange(words.num_sequences), side="right")
    remaining = num_predictions.copy()
    span_start = np.full(num_words, -1)  # of each word's span; -1 if the word is not selected
    offsets = np.arange(max_span_length)
    active = np.flatnonzero((remaining > 0) & (next_in_order < end))  # sequences
    while len(active):
        first = order[next_in_order[active]]
        span = first[:, None] + offsets  # the words of each span if it had the maximum length
        is_word = span < num_words
        span = np.minimum(span, num_words - 1)
        # A span ends before a selected word, after its random length, and before a word that is not adjacent or
        # exceeds the predictions that are left.
        fits = is_word & (span_start[span] < 0) & (offsets < span_lengths[first][:, None])
        fits[:, 1:] &= words.is_adjacent[span[:, 1:]]
        fits = np.logical_and.accumulate(fits, axis=1)
        fits &= np.cumsum(words.size[span], axis=1) <= remaining[active][:, None]
        span_start[span[fits]] = np.repeat(words.first[first], fits.sum(1))
        remaining[active] -= (words.size[span] * fits).sum(1)
        next_in_order[active] += 1
        active = active[(remaining[active] > 0) & (next_in_order[active] < end[active])]
    sequence, size, is_selected = words.sequence[order], words.size[order], span_start[order] >= 0
    extra = order[_first_words_of_empty(sequence, size, is_selected, num_predictions, max_predictions)]
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
    """Return a word of each sequence that has none selected and should: its first word within the limit.

    Args:
        sequence: int64 [W], the sequence of each word, ascending; words are in random order within it.
        size: int64 [W], the number of tokens of each word.
        selected: bool [W], True for selected words.
        num_predictions: int64 [B], the tokens to select in each sequence.
        max_predictions: The maximum predictions per sequence; None: no limit.
    """
    candidates = np.arange(len(sequence))
    if max_predictions is not None:
        candidates = candidates[size <= max_predictions]
    first = candidates[np.diff(sequence[candidates], prepend=-1) != 0]
    is_empty = np.bincount(sequence[selected], minlength=len(num_predictions)) == 0
    words: IntArray = first[is_empty[sequence[first]] & (num_predictions[sequence[first]] > 0)]
    return words
