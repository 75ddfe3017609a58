"""Whole words and spans of them, chosen until a sequence has as many predicted tokens as it should.

Words: in random order, all pieces of a word together; a word that would pass the number is skipped and shorter
ones are still tried, as in the original's whole-word release. Spans: at words in random order, each of a random
number of words in a row, cut to the whole words that still fit (Joshi et al. 2020, SpanBERT, section 3.1). Where
not even one word fits, the first one drawn is taken that does not pass the user's cap, if there is one, so that a
sequence has something to predict. All sequences are served side by side, in a few rounds of array operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.tokenized_corpus import Ints

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class SpanLengths:
    """How many words a span has: n from 1 to `longest`, with p(n) ~ (1 - p)^(n - 1) or p(n) ~ 1/n (ALBERT)."""

    kind: Literal["geometric", "harmonic"] = "geometric"
    p: float = 0.2
    longest: int = 10

    @property
    def shares(self) -> NDArray[np.float64]:
        """p(1) … p(longest)."""
        n = np.arange(1, self.longest + 1)
        weight = (1 - self.p) ** (n - 1) if self.kind == "geometric" else 1.0 / n
        shares: NDArray[np.float64] = weight / weight.sum()
        return shares

    def of(self, uniform: NDArray[np.float64]) -> Ints:
        """Lengths from uniform numbers in [0, 1)."""
        found = np.searchsorted(np.cumsum(self.shares)[:-1], uniform, side="right") + 1
        return found.astype(np.int64)


@dataclass(frozen=True)
class WordRuns:
    """W words of sequences that lie end to end: first row, number of rows, sequence (int64 [W]); whether it stands
    right behind the word before, in one segment (bool [W]). B sequences."""

    first: Ints
    size: Ints
    owner: Ints
    joined: Flags
    sequences: int

    @classmethod
    def of(cls, starts_word: Flags, closed: Flags, positions: Ints, starts: Ints) -> WordRuns:
        """From where words start; special tokens (`closed`) are no words and end one. starts: [B] first rows."""
        border = starts_word | closed
        border[1:] |= closed[:-1]
        border |= positions == 0
        begin = np.flatnonzero(border)
        end = np.append(begin[1:], len(border))
        word = ~closed[begin]
        begin, end = begin[word], end[word]
        owner = np.searchsorted(starts, begin, side="right") - 1
        joined = np.zeros(len(begin), dtype=np.bool_)
        joined[1:] = (begin[1:] == end[:-1]) & (owner[1:] == owner[:-1])
        return cls(begin, end - begin, owner, joined, len(starts))


def choose_words(words: WordRuns, order: Ints, wanted: Ints, most: int | None = None) -> Ints:
    """Chosen words, ascending. order: all words by sequence, in each as drawn; wanted: [B] tokens to choose.

    Only the one word of a sequence where none fits has more tokens than wanted, and none has more than `most`.
    """
    size, owner = words.size[order], words.owner[order]
    remaining = wanted.copy()
    chosen = np.zeros(len(order), dtype=np.bool_)
    live = np.arange(len(order))
    while len(live := live[size[live] <= remaining[owner[live]]]):
        mine, sizes = owner[live], size[live]
        together = np.cumsum(sizes)
        begins = np.flatnonzero(np.diff(mine, prepend=-1))
        before = np.repeat(together[begins] - sizes[begins], np.diff(np.append(begins, len(live))))
        fits = together - before <= remaining[mine]
        chosen[live[fits]] = True
        remaining -= np.bincount(mine[fits], sizes[fits], minlength=words.sequences).astype(np.int64)
        over = np.flatnonzero(~fits)
        over = over[np.diff(mine[over], prepend=-1) != 0]  # the first that does not fit is passed over
        fits[over] = True
        live = live[~fits]
    chosen[_first_of_empty(owner, size, chosen, wanted, most)] = True
    return np.sort(order[chosen])


def choose_spans(
    words: WordRuns, order: Ints, wanted: Ints, lengths: Ints, longest: int, most: int | None = None
) -> tuple[Ints, Ints]:
    """Chosen words, ascending, and for each the first row of the span it was chosen with.

    order, wanted, most: as for `choose_words`; lengths: [W], the words of a span that begins at each word.
    """
    count = len(order)
    begin = np.searchsorted(words.owner, np.arange(words.sequences))
    end = np.searchsorted(words.owner, np.arange(words.sequences), side="right")
    next_, remaining = begin.copy(), wanted.copy()
    leader = np.full(count, -1)
    steps = np.arange(longest)
    active = np.flatnonzero((remaining > 0) & (next_ < end))
    while len(active):
        at = order[next_[active]]
        span = np.minimum(at[:, None] + steps, count - 1)
        good = (leader[span] < 0) & (steps < lengths[at][:, None]) & (at[:, None] + steps < count)
        good[:, 1:] &= words.joined[span[:, 1:]]
        good = np.logical_and.accumulate(good, axis=1)
        good &= np.cumsum(words.size[span], axis=1) <= remaining[active][:, None]
        leader[span[good]] = np.repeat(words.first[at], good.sum(1))
        remaining[active] -= (words.size[span] * good).sum(1)
        next_[active] += 1
        active = active[(remaining[active] > 0) & (next_[active] < end[active])]
    extra = order[_first_of_empty(words.owner[order], words.size[order], leader[order] >= 0, wanted, most)]
    leader[extra] = words.first[extra]
    chosen = np.flatnonzero(leader >= 0)
    return chosen, leader[chosen]


def _first_of_empty(owner: Ints, size: Ints, chosen: Flags, wanted: Ints, most: int | None) -> Ints:
    """Of each sequence that should have a prediction and has none, the index of its first word in order that has
    `most` tokens or fewer."""
    may = np.arange(len(owner)) if most is None else np.flatnonzero(size <= most)
    first = may[np.diff(owner[may], prepend=-1) != 0]
    empty = np.bincount(owner[chosen], minlength=len(wanted)) == 0
    found: Ints = first[empty[owner[first]] & (wanted[owner[first]] > 0)]
    return found
