"""Batches under a budget of tokens: instances of similar length together, the order still random.

Instances come in the epoch's random order; pools of them are sorted by length and cut into batches as even as
the budget allows, and the pool's batches are shuffled. Nothing is padded; similar lengths make the work of
attention even, and a padded batch of them would waste little.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bertsmith import rng
from bertsmith.corpus.tokenized_corpus import Ints
from bertsmith.errors import InputError

_POOL = 100  # batches' worth of instances that are sorted together


@dataclass(frozen=True)
class Filling:
    """How full some batches are. `fill`: each batch's share of the tokens it may have. Padding is the share of a
    rectangle's cells that hold no token: of the batches as they are, and if they were padded."""

    tokens: Ints
    room: int
    padded: Ints

    @property
    def report(self) -> dict[str, float | int]:
        """The figures for people."""
        fill = self.tokens / self.room
        return {
            "number": len(self.tokens),
            "tokens_mean": round(float(self.tokens.mean()), 1),
            "fill_mean": round(float(fill.mean()), 4),
            "fill_min": round(float(fill.min()), 4),
            "fill_max": round(float(fill.max()), 4),
            "padding": 0.0,  # in the linear layers: batches are packed
            "padding_if_padded": round(1 - float(self.tokens.sum() / self.padded.sum()), 4),
        }


def filling(sizes: Ints, bounds: Ints, room: int) -> Filling:
    """sizes: [I] tokens of instances in order; bounds: [K + 1] around the batches; room: tokens in one at most."""
    tokens = np.add.reduceat(sizes, bounds[:-1])
    longest = np.maximum.reduceat(sizes, bounds[:-1])
    return Filling(tokens, room, longest * np.diff(bounds))


def check_budget(budget: int | None, length: int) -> None:
    """InputError where an instance alone may have more tokens than a batch."""
    if budget is not None and budget < length:
        raise InputError(
            f"train.batch_tokens is {budget}, and an instance alone may have {length} tokens",
            "raise train.batch_tokens, or lower the sequence length",
        )


def bucketed(sizes: Ints, budget: int, seed: int, epoch: int) -> tuple[Ints, Ints]:
    """An order of instances [I] and the bounds [K + 1] of batches in it, each of at most `budget` tokens.

    sizes: [I] tokens of the instances, none above the budget.
    """
    pools = max(1, round(int(sizes.sum()) / (_POOL * budget)))
    orders: list[Ints] = []
    widths: list[Ints] = []
    for number, pool in enumerate(np.array_split(np.arange(len(sizes)), pools)):
        here = pool[np.argsort(sizes[pool], kind="stable")]
        cut = _even_cut(sizes[here], budget)
        shuffled = rng.permutation(seed, "batches", len(cut) - 1, epoch, number)
        orders += [here[cut[k] : cut[k + 1]] for k in shuffled]
        widths.append(np.diff(cut)[shuffled])
    return np.concatenate(orders), np.concatenate([[0], np.cumsum(np.concatenate(widths))])


def _even_cut(sizes: Ints, budget: int) -> Ints:
    """Bounds of few batches that are as full as each other, none above the budget.

    Every batch ends where its share of all tokens does; one batch more is tried until all hold. A budget near the
    length of an instance leaves no such play: then each batch takes what fits.
    """
    together = np.concatenate([[0], np.cumsum(sizes)])
    least = -(-int(together[-1]) // budget)
    for number in range(least, 2 * least + 1):
        ends = np.searchsorted(together, together[-1] * np.arange(number + 1) // number, side="right") - 1
        cut = np.unique(ends)
        if np.diff(together[cut]).max() <= budget:
            return cut
    bounds = [0]
    while bounds[-1] < len(sizes):
        bounds.append(int(np.searchsorted(together, together[bounds[-1]] + budget, side="right")) - 1)
    return np.array(bounds, dtype=np.int64)
