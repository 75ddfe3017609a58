"""All ways to cut words into pieces: how often each piece is expected to stand in them, and the best way.

Words of one length are worked on together, as a block of arrays; every sum has a fixed order, so the results are
the same in every process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LONGEST_PIECE = 16
LONGEST_WORD = 32  # the rarest way to cut one has a probability of exp(-32 * 20) then, which float64 can hold
_CELLS = 400_000  # of a block: its floats stay in the processor's cache

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass
class LatticeBlock:
    """Words of one length L: which piece covers which stretch of them.

    `pieces` [L, min(L, 16), words] holds the number of the piece that begins at a character and has 1, 2, …
    characters; 0 where there is none. `rows` [words] are the places of the words in the list they come from.
    """

    pieces: Ints
    rows: Longs


@dataclass(frozen=True)
class Stretches:
    """Where the pieces of one length stand in a text: their first characters `at`, ascending, their `numbers`."""

    at: Longs
    numbers: Ints


def blocks_of(
    starts: Longs, lengths: Longs, found: Sequence[Stretches], characters: int
) -> list[LatticeBlock]:
    """The words that begin at `starts` [words] of a text of so many `characters` and have `lengths` [words]; the
    pieces of 1, 2, … characters are `found` there."""
    blocks = []
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        width = min(length, LONGEST_PIECE)
        many = max(1, _CELLS // (length * width))
        for first in range(0, len(rows), many):
            some = rows[first : first + many]
            blocks.append(LatticeBlock(np.zeros((length, width, len(some)), np.int32), some))
    for size, stretches in enumerate(found, start=1):
        here = np.zeros(characters, np.int32)
        here[stretches.at] = stretches.numbers
        for block in blocks:
            last = len(block.pieces) - size
            if last >= 0:
                block.pieces[: last + 1, size - 1] = here[starts[block.rows] + np.arange(last + 1)[:, None]]
    return blocks


def renumbered(block: LatticeBlock, numbers: Ints) -> LatticeBlock:
    """The block with piece p called `numbers[p]`; 0 for a piece that is gone."""
    return LatticeBlock(numbers[block.pieces], block.rows)


def expected_counts(blocks: Sequence[LatticeBlock], weights: Floats, chances: Floats) -> Floats:
    """How often each piece is expected to stand in the words, [pieces], when each way to cut a word is as likely
    as the product of its pieces' `chances` [pieces] (0 for piece 0); word w counts `weights[w]` times."""
    total = np.zeros(len(chances))
    for block in blocks:
        length, width, words = block.pieces.shape
        chance = chances[block.pieces]
        before = np.zeros((length + width + 1, words))  # of all ways to cut what stands before a character
        before[0] = 1
        for start in range(length):
            before[start + 1 : start + 1 + width] += before[start] * chance[start]
        after = np.zeros((length + width + 1, words))
        after[length] = weights[block.rows] / before[length]
        for start in range(length - 1, -1, -1):
            chance[start] *= after[start + 1 : start + 1 + width]
            after[start] = chance[start].sum(axis=0)
            chance[start] *= before[start]
        total += np.bincount(block.pieces.ravel(), chance.ravel(), len(chances))
    total[0] = 0
    return total


def best_cuts(block: LatticeBlock, scores: Floats) -> tuple[Floats, Ints]:
    """The score of the best way to cut each word, [words]; and for it the length of the piece that ends before
    each character, [L + 1, words]. `scores` [pieces] are log probabilities, -inf for piece 0. Of equally good
    ways it is the one with the longest last piece."""
    length, width, words = block.pieces.shape
    best = np.full((length + width + 1, words), -np.inf)
    back = np.zeros((length + width + 1, words), np.int32)
    best[0] = 0
    sizes = np.arange(1, width + 1, dtype=np.int32)[:, None]
    for start in range(length):
        found = scores[block.pieces[start]] + best[start]
        there = slice(start + 1, start + 1 + width)
        better = found > best[there]
        best[there] = np.where(better, found, best[there])
        back[there] = np.where(better, sizes, back[there])
    return best[length], back[: length + 1]


def pieces_along(block: LatticeBlock, back: Ints) -> Iterator[tuple[Longs, Ints]]:
    """The pieces of the cuts that `best_cuts` found, from the last: columns of the block and their pieces."""
    columns = np.arange(block.pieces.shape[2])
    end = np.full(len(columns), len(block.pieces))
    while len(columns):
        size = back[end, columns]
        end = end - size
        yield columns, block.pieces[end, size - 1, columns]
        columns, end = columns[end > 0], end[end > 0]


def best_counts(blocks: Sequence[LatticeBlock], weights: Floats, scores: Floats) -> Floats:
    """How often each piece stands in the words, [pieces], when each is cut the best way."""
    total = np.zeros(len(scores))
    for block in blocks:
        _, back = best_cuts(block, scores)
        weight = weights[block.rows]
        for columns, pieces in pieces_along(block, back):
            total += np.bincount(pieces, weight[columns], len(scores))
    return total


def losses(blocks: Sequence[LatticeBlock], scores: Floats, counts: Floats) -> Floats:
    """What the text's mean log probability loses without each piece, [pieces], as SentencePiece reckons it.

    `blocks` hold the pieces themselves as words (row r is piece r), each without the piece that covers it whole;
    `counts` [pieces] is how often each stands in the text. Without a piece its counts go to those that cut it
    best. Infinite where a piece has no other cut; -inf for one that never stands in the text or that others cut
    at least as well.
    """
    total = counts.sum()
    lost = np.full(len(scores), np.inf)
    for block in blocks:
        own = counts[block.rows]
        score, back = best_cuts(block, scores)
        cut = np.isfinite(score)
        # One step of piece 0, where there is no cut: it gets no further, and is not looked at below.
        back[-1][~cut] = len(block.pieces)
        parts = np.zeros(len(own))
        logs = np.zeros(len(own))
        for columns, pieces in pieces_along(block, back):
            parts[columns] += 1
            logs[columns] += np.log(np.maximum(counts[pieces] + own[columns], 1e-300))
        with_it = np.log(np.maximum(own, 1e-300)) - np.log(total)
        without = logs - parts * np.log(total + own * (parts - 1))
        loss = own / total * (with_it - without)
        loss[(own == 0) | (score >= scores[block.rows])] = -np.inf
        lost[block.rows[cut]] = loss[cut]
    return lost
