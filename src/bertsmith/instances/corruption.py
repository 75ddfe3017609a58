"""Tokens that are inserted into a text or deleted from it before masks are drawn: `data.corrupt`, off by default.

BERT substitutes tokens and nothing else; this is for who wants to compare. Of each run of text in an instance a
share of the tokens, rounded down, gets a random token in front, or is deleted; the frame ([CLS], [SEP]) stays. An
inserted token has no original, so it is never chosen for prediction and is no part of a word; after a deletion the
labels are the tokens that are left. Where masks are of words, insertions stand between words, and the pieces that
are left of a word are still one. An instance with insertions is planned shorter by what it will grow, so that it
never exceeds its length. Draws are functions of (seed, epoch, instance, position), as those of the masks are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bertsmith import rng
from bertsmith.corpus.tokenized_corpus import Ints
from bertsmith.instances.epoch_plan import Plan, ranges
from bertsmith.instances.settings import DataSettings

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Framed:
    """B instances that lie end to end, N tokens, made of P runs of text between special tokens.

    ids, segments: [N]; lengths: [B]; at, sizes: [P], the first row of each run and its tokens; runs: [B], of each
    instance. closed: bool [N], inserted rows, which no mask may choose; None: none. begins: bool [N], which rows
    begin a word, where that is no longer to be seen from the ids; None: where it is.
    """

    ids: Ints
    segments: Ints
    lengths: Ints
    at: Ints
    sizes: Ints
    runs: Ints
    closed: Flags | None = None
    begins: Flags | None = None


@dataclass(frozen=True)
class Corruption:
    """What becomes of the text of instances. ordinary: tokens that may be inserted, [.]; word_starts: where words
    begin, needed for masks of words, ids [N] → bool [N]."""

    settings: DataSettings
    ordinary: Ints
    seed: int
    word_starts: Callable[[Ints], Flags] | None = None

    @property
    def _grows(self) -> int:
        return {"none": 0, "insert": 1, "delete": -1}[self.settings.corrupt]

    def planned(self, length: int) -> int:
        """Tokens that an instance is planned with, so that it has `length` at most in the end."""
        if self._grows < 1:
            return length
        return 2 + int((length - 2) / (1 + self.settings.corrupt_share))

    def sizes(self, plan: Plan) -> Ints:
        """[I]: tokens of each instance in the end, special ones included; it has fewer where there are not so many
        words to insert tokens between."""
        if not self._grows or not len(plan):
            return plan.sizes
        sizes: Ints = plan.sizes + self._grows * np.add.reduceat(self._number(plan.lengths), plan.first[:-1])
        return sizes

    def _number(self, sizes: Ints) -> Ints:
        """How many tokens of each run are touched: never all."""
        number: Ints = np.floor(self.settings.corrupt_share * sizes).astype(np.int64)
        return number

    def apply(self, text: Framed, numbers: Ints, epoch: int) -> Framed:
        """The instances with their tokens inserted or deleted. numbers: [B], by which the draws of each go."""
        if not self._grows:
            return text
        begins = None if self.word_starts is None else self.word_starts(text.ids)
        rows, bits = self._chosen(text, begins, numbers, epoch)
        owner = np.searchsorted(np.cumsum(text.lengths), rows, side="right")
        lengths = text.lengths + self._grows * np.bincount(owner, minlength=len(text.lengths))
        changed = self._deleted if self._grows < 0 else self._inserted
        return replace(changed(text, begins, rows, bits), lengths=lengths)

    def _chosen(
        self, text: Framed, begins: Flags | None, numbers: Ints, epoch: int
    ) -> tuple[Ints, NDArray[np.uint64]]:
        """Rows that are touched, ascending, and random bits for each."""
        rows = ranges(text.at, text.sizes)
        run = np.repeat(np.arange(len(text.at)), text.sizes)
        instance = np.repeat(np.arange(len(text.runs)), text.runs)[run]
        position = rows - (np.cumsum(text.lengths) - text.lengths)[instance]
        keys = rng.bits(self.seed, self.settings.corrupt, epoch, numbers)
        bits = rng.further(keys[instance], position)
        barred = np.zeros(len(rows), dtype=np.bool_)
        if begins is not None and self._grows > 0:
            barred = ~begins[rows]
        order = np.lexsort((bits, barred, run))
        rank = np.arange(len(rows)) - np.repeat(np.cumsum(text.sizes) - text.sizes, text.sizes)
        chosen = np.sort(order[(rank < self._number(text.sizes)[run]) & ~barred[order]])
        return rows[chosen], bits[chosen]

    def _deleted(self, text: Framed, begins: Flags | None, rows: Ints, _: NDArray[np.uint64]) -> Framed:
        kept = np.ones(len(text.ids), dtype=np.bool_)
        kept[rows] = False
        if begins is not None:  # what is left of a word begins with its first piece that is left
            word = np.cumsum(begins)[kept]
            begins = np.diff(word, prepend=-1) > 0
        return replace(text, ids=text.ids[kept], segments=text.segments[kept], begins=begins)

    def _inserted(self, text: Framed, begins: Flags | None, rows: Ints, bits: NDArray[np.uint64]) -> Framed:
        times = np.ones(len(text.ids), dtype=np.int64)
        times[rows] = 2
        source = np.repeat(np.arange(len(text.ids)), times)
        new = rows + np.arange(len(rows))
        token = ((bits & np.uint64(2**32 - 1)) * np.uint64(len(self.ordinary))) >> np.uint64(32)
        ids, closed = text.ids[source], np.zeros(len(source), dtype=np.bool_)
        ids[new] = self.ordinary[token.view(np.int64)]
        closed[new] = True
        return replace(
            text,
            ids=ids,
            segments=text.segments[source],
            closed=closed,
            begins=None if begins is None else begins[source],
        )
