"""Unigram pieces from counted words, the same in every process (Kudo 2018, with SentencePiece's particulars).

There are many pieces to begin with. In turns, probabilities are fitted to the text by expectation-maximisation,
and the quarter of the pieces that the text's likelihood needs least is dropped. The library's own trainer is not
used: its hash maps decide ties, so its vocabularies differ from process to process; and it looks for pieces among
what repeats within the distinct words, so it never tries a word such as `from`, however often it is there.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsmith.files.scripts import marks
from bertsmith.vocabulary.unigram_lattice import (
    LONGEST_PIECE,
    LONGEST_WORD,
    Floats,
    LatticeBlock,
    Longs,
    Stretches,
    best_counts,
    blocks_of,
    expected_counts,
    losses,
    renumbered,
)

_DIGITS = 6
_STEP = 1e-4  # between the characters that got no count
_LEAST = 0.5  # a piece expected less often goes
_KEPT = 0.75  # of the pieces, in a turn
_SPARE = 1.1  # times the size asked: where dropping by likelihood ends
_FITS = 2  # in a turn
_FLOOR = -20.0  # of a log probability
_SEEDS = 8  # pieces to begin with, for each one asked
_LEAST_SEEDS = 50_000
_WORDS = 200_000
_CELLS = 16_000_000  # places in words where a piece could be, four bytes each


def pieces_of(words: Mapping[str, int], size: int) -> list[tuple[str, float]]:
    """At most `size` pieces with their log probabilities, the best first; fewer only where the words have fewer
    stretches that stand there twice.

    All characters are pieces (where `size` allows, else the most frequent), those that the fit gave no count below
    all others. No piece holds letters and signs, or letters and digits, as SentencePiece has it (but ▁, which
    stands for the blank before). Fitted to the 200,000 most frequent words, fewer where they are long, and none
    longer than 32 characters: longer ones are cut.
    """
    parts = _parted(words)
    if not parts:
        return []
    seen: Counter[str] = Counter()
    for part, count in parts.items():
        for character in part:
            seen[character] += count
    pieces = _first_pieces(_fitted_words(parts), max(_SEEDS * size, _LEAST_SEEDS))
    target = math.ceil(_SPARE * size)
    while True:
        for _ in range(_FITS):
            pieces.fit(target)
        if len(pieces.names) - 1 <= max(target, pieces.single.sum()):
            return _finished(pieces, seen, size)
        pieces.prune(target)


def _parted(words: Mapping[str, int]) -> Counter[str]:
    """Words cut between letters, digits and signs; ▁ stays with what follows."""
    part = re.compile(rf"▁?(?:[^\W\d_](?:[^\W\d_]|[{marks()}])*|\d+|[^\w▁]+|_+)|▁|.", re.DOTALL)
    parts: Counter[str] = Counter()
    for word, count in words.items():
        for found in part.findall(word):
            for first in range(0, len(found), LONGEST_WORD):
                parts[found[first : first + LONGEST_WORD]] += count
    return parts


def _fitted_words(parts: Mapping[str, int]) -> dict[str, int]:
    """The most frequent words there is room for, ties by spelling; in the order of their spelling."""
    ordered = sorted(parts.items(), key=lambda item: (-item[1], item[0]))[:_WORDS]
    cells = np.cumsum([len(word) * min(len(word), LONGEST_PIECE) for word, _ in ordered])
    return dict(sorted(ordered[: max(1, int(np.searchsorted(cells, _CELLS, side="right")))]))


@dataclass
class _Pieces:
    """Pieces by number, in the order of their spelling; number 0 is none of them. Arrays are [pieces + 1]."""

    names: list[str]
    single: NDArray[np.bool_]  # is one character, and so never goes
    scores: Floats  # log probabilities
    counts: Floats  # expected in the text
    weights: Floats  # how often each word stands in the text, [words]
    words: list[LatticeBlock]
    own: list[LatticeBlock]  # the pieces of two characters and more, as words, to be cut into others

    def fit(self, target: int) -> None:
        """One step of expectation-maximisation; pieces that are hardly expected go, while `target` remain."""
        from scipy.special import digamma

        chances = np.exp(self.scores)
        self.counts = expected_counts(self.words, self.weights, chances)
        keep = self.single | (self.counts >= _LEAST)
        missing = target - int(keep.sum())
        if missing > 0:
            others = np.flatnonzero(~keep)[1:]
            keep[others[np.argsort(-self.counts[others], kind="stable")[:missing]]] = True
        self._keep(keep)
        counted = np.maximum(self.counts, 1e-3)
        fitted = digamma(counted) - digamma(self.counts.sum())
        self.scores = np.maximum(fitted, _FLOOR)
        self.scores[0] = -np.inf

    def prune(self, target: int) -> None:
        """Keep three quarters of the pieces, though at least `target`: those with the greatest losses, ties by
        spelling. One with none goes before its turn."""
        lost = losses(self.own, self.scores, best_counts(self.words, self.weights, self.scores))
        lost[self.single] = np.inf
        lost[0] = -np.inf
        room = max(target, int(_KEPT * (len(self.names) - 1)))
        room = max(target, min(room, int(np.isfinite(lost).sum() + self.single.sum())))
        order = np.lexsort((-self.scores, -lost))
        order = order[order > 0]
        keep = self.single.copy()
        keep[order[:room]] = True
        self._keep(keep)

    def _keep(self, keep: NDArray[np.bool_]) -> None:
        keep[0] = True
        if keep.all():
            return
        numbers = np.where(keep, np.cumsum(keep) - 1, 0).astype(np.int32)
        self.names = [name for name, kept in zip(self.names, keep.tolist(), strict=True) if kept]
        self.single, self.scores, self.counts = self.single[keep], self.scores[keep], self.counts[keep]
        for n, block in enumerate(self.words):
            self.words[n] = renumbered(block, numbers)
        for n, block in enumerate(self.own):
            stay = keep[block.rows]
            rows = numbers[block.rows[stay]].astype(np.int64)
            self.own[n] = renumbered(LatticeBlock(block.pieces[:, :, stay], rows), numbers)


@dataclass
class _Level:
    """Stretches of one length, by rank (order of spelling) among those that stand there often enough."""

    at: Longs  # places in the text
    ranks: Longs  # what stands there
    counts: Floats  # of each rank
    example: Longs  # a place of each rank
    always_longer: NDArray[np.bool_]  # whether each rank is always followed by the same character


def _levels(letters: Longs, ends: Longs, weights: Floats) -> list[_Level]:
    """All stretches of one character, and those of 2 to 16 that stand there twice. For each character of the text
    `letters` holds its number, `ends` where its word ends, `weights` how often the word counts."""
    many = int(letters.max()) + 1
    at, ranks = np.arange(len(letters)), letters
    levels: list[_Level] = []
    for size in range(1, LONGEST_PIECE + 1):
        if size > 1:
            inside = at + size <= ends[at]
            at, ranks = at[inside], ranks[inside]
            ranks = ranks * many + letters[at + size - 1]
        keys, example, ranks = np.unique(ranks, return_index=True, return_inverse=True)
        counts = np.bincount(ranks, weights[at], len(keys)).astype(np.float64)
        example = at[example]
        if size > 1:
            before = keys // many
            levels[-1].always_longer[before[counts == levels[-1].counts[before]]] = True
            often = counts >= 2
            stay = often[ranks]
            at, ranks = at[stay], (np.cumsum(often) - 1)[ranks[stay]]
            counts, example = counts[often], example[often]
        if not len(at):
            break
        levels.append(_Level(at, ranks, counts, example, np.zeros(len(counts), np.bool_)))
    return levels


def _first_pieces(words: Mapping[str, int], most: int) -> _Pieces:
    """All characters, and the longer stretches that cover most of the text (ties: the shorter first, then by
    spelling); those always followed by the same character only if there is room."""
    text = "".join(words)
    lengths = np.array([len(word) for word in words])
    starts = np.cumsum(lengths) - lengths
    weights = np.array(list(words.values()), np.float64)
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    letters = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    levels = _levels(letters, np.repeat(starts + lengths, lengths), np.repeat(weights, lengths))
    sizes = np.repeat(np.arange(1, len(levels) + 1), [len(level.counts) for level in levels])
    counts = np.concatenate([level.counts for level in levels])
    example = np.concatenate([level.example for level in levels])
    longer = np.concatenate([level.always_longer for level in levels])
    # Ranks ascend within a size, and a stable sort keeps them so.
    order = np.lexsort((sizes, -counts * sizes, longer, sizes > 1))
    order = order[: max(most, len(levels[0].counts))]
    names = [
        text[at : at + size] for at, size in zip(example[order].tolist(), sizes[order].tolist(), strict=True)
    ]
    spelled = np.array(sorted(range(len(names)), key=names.__getitem__))
    order = order[spelled]
    numbers = np.zeros(len(sizes), np.int32)
    numbers[order] = np.arange(1, len(order) + 1)
    found, first = [], 0
    for level in levels:
        chosen = numbers[first : first + len(level.counts)][level.ranks]
        found.append(Stretches(level.at[chosen > 0], chosen[chosen > 0]))
        first += len(level.counts)
    del levels, level  # some hundred megabytes, of a large text
    long = np.flatnonzero(sizes[order] > 1)
    own = blocks_of(example[order[long]], sizes[order[long]], found, len(text))
    for block in own:
        block.pieces[0, -1] = 0
        block.rows = long[block.rows] + 1
    chances = counts[order] * sizes[order]
    return _Pieces(
        names=["", *(names[n] for n in spelled.tolist())],
        single=np.concatenate([[False], sizes[order] == 1]),
        scores=np.concatenate([[-np.inf], np.maximum(np.log(chances / chances.sum()), _FLOOR)]),
        counts=np.zeros(len(order) + 1),
        weights=weights,
        words=blocks_of(starts, lengths, found, len(text)),
        own=own,
    )


def _finished(pieces: _Pieces, seen: Mapping[str, int], size: int) -> list[tuple[str, float]]:
    characters = sorted(seen, key=lambda character: (-seen[character], character))[:size]
    fitted = {
        name: score
        for name, score, count in zip(
            pieces.names, pieces.scores.tolist(), pieces.counts.tolist(), strict=True
        )
        if len(name) > 1 or (name and count >= _LEAST)
    }
    longer = sorted((name for name in fitted if len(name) > 1), key=lambda name: (-fitted[name], name))
    kept = {name: fitted[name] for name in [*characters, *longer[: size - len(characters)]] if name in fitted}
    lowest = min(kept.values(), default=_FLOOR)
    uncounted: Iterable[str] = (character for character in characters if character not in fitted)
    for n, character in enumerate(uncounted, start=1):
        kept[character] = lowest - _STEP * n
    rounded = [(name, round(score, _DIGITS)) for name, score in kept.items()]
    return sorted(rounded, key=lambda item: (-item[1], item[0]))
