"""Batches under a token budget: instances of similar length per batch, in random order.

The instances of an epoch, in random order, are divided into pools. Each pool is sorted by length and divided into
batches of nearly the same number of tokens, as far as the budget allows; then its batches are shuffled. Batches
have no padding; similar lengths balance the work of attention.

Shapes: I instances, K batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bertsmith import rng
from bertsmith.corpus.tokenized_corpus import IntArray
from bertsmith.errors import InputError, option

_BATCHES_PER_POOL = 100


@dataclass(frozen=True)
class FillStats:
    """Fill ratios of batches.

    Attributes:
        tokens: int64 [K], the tokens of each batch.
        max_tokens: The maximum tokens of a batch.
        padded_tokens: int64 [K], the tokens and padding of each batch if it were padded.
    """

    tokens: IntArray
    max_tokens: int
    padded_tokens: IntArray

    @property
    def report(self) -> dict[str, float | int]:
        """The statistics for the report."""
        fill = self.tokens / self.max_tokens
        return {
            "number": len(self.tokens),
            "tokens_mean": round(float(self.tokens.mean()), 1),
            "fill_mean": round(float(fill.mean()), 4),
            "fill_min": round(float(fill.min()), 4),
            "fill_max": round(float(fill.max()), 4),
            "padding": 0.0,  # batches are packed
            "padding_if_padded": round(1 - float(self.tokens.sum() / self.padded_tokens.sum()), 4),
        }


def compute_fill_stats(sizes: IntArray, bounds: IntArray, max_tokens: int) -> FillStats:
    """Compute the fill ratios of batches.

    Args:
        sizes: int64 [I], the tokens of the instances in order.
        bounds: int64 [K + 1]; batch k has the instances bounds[k] up to bounds[k + 1] - 1.
        max_tokens: The maximum tokens of a batch.
    """
    tokens = np.add.reduceat(sizes, bounds[:-1])
    max_lengths = np.maximum.reduceat(sizes, bounds[:-1])
    return FillStats(tokens, max_tokens, max_lengths * np.diff(bounds))


def check_batch_tokens(budget: int | None, length: int) -> None:
    """Raise InputError if a single instance may have more tokens than a batch."""
    if budget is not None and budget < length:
        message = f"{budget} tokens per batch are fewer than the {length} that an instance may have"
        hint = f"raise {option('train.batch_tokens')}, or lower {option('data.sequence_length')}"
        raise InputError("batch_tokens_too_small", message, argument="train.batch_tokens", hint=hint)


def make_buckets(sizes: IntArray, budget: int, seed: int, epoch: int) -> tuple[IntArray, IntArray]:
    """Return an order of the instances, int64 [I], and the bounds of batches in it, int64 [K + 1].

    Args:
        sizes: int64 [I], the tokens of the instances, each at most the budget.
        budget: The maximum tokens of a batch.
        seed: The seed.
        epoch: The epoch.
    """
    num_pools = max(1, round(int(sizes.sum()) / (_BATCHES_PER_POOL * budget)))
    orders: list[IntArray] = []
    batch_sizes: list[IntArray] = []
    for k, pool in enumerate(np.array_split(np.arange(len(sizes)), num_pools)):
        by_length = pool[np.argsort(sizes[pool], kind="stable")]
        bounds = _even_bounds(sizes[by_length], budget)
        shuffled = rng.permutation(seed, "batches", len(bounds) - 1, epoch, k)
        orders += [by_length[bounds[j] : bounds[j + 1]] for j in shuffled]
        batch_sizes.append(np.diff(bounds)[shuffled])
    return np.concatenate(orders), np.concatenate([[0], np.cumsum(np.concatenate(batch_sizes))])


def _even_bounds(sizes: IntArray, budget: int) -> IntArray:
    """Return the bounds of few batches with nearly the same number of tokens, at most `budget` each.

    Batch k of K ends at k/K of all tokens, for the smallest K with which all batches are within the budget. If the
    budget is near the length of an instance, there may be no such K; then each batch takes as many as fit.
    """
    cumulative = np.concatenate([[0], np.cumsum(sizes)])
    min_batches = -(-int(cumulative[-1]) // budget)
    for num_batches in range(min_batches, 2 * min_batches + 1):
        limits = cumulative[-1] * np.arange(num_batches + 1) // num_batches
        bounds = np.unique(np.searchsorted(cumulative, limits, side="right") - 1)
        if np.diff(cumulative[bounds]).max() <= budget:
            return bounds
    greedy = [0]
    while greedy[-1] < len(sizes):
        greedy.append(int(np.searchsorted(cumulative, cumulative[greedy[-1]] + budget, side="right")) - 1)
    return np.array(greedy, dtype=np.int64)
