"""How well rankings find what they should: recall, reciprocal rank and discounted gain, as in retrieval.

What is relevant is so or not; a query without anything relevant has no figure. scikit-learn has the gain alone,
and wants a score for each passage where here the best few are known.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence


def recall(ranked: Sequence[Hashable], relevant: Collection[Hashable], k: int) -> float:
    """The share of the relevant ones that are among the first k."""
    return sum(one in relevant for one in ranked[:k]) / len(relevant)


def reciprocal_rank(ranked: Sequence[Hashable], relevant: Collection[Hashable], k: int) -> float:
    """1 over the rank of the first relevant one, 0 where none is among the first k."""
    return next((1 / rank for rank, one in enumerate(ranked[:k], start=1) if one in relevant), 0.0)


def gain(ranked: Sequence[Hashable], relevant: Collection[Hashable], k: int) -> float:
    """nDCG at k: the relevant ones among the first k, each divided by log2(rank + 1), over the most there could
    be (Järvelin and Kekäläinen 2002)."""
    found = sum(1 / math.log2(rank + 1) for rank, one in enumerate(ranked[:k], start=1) if one in relevant)
    return found / sum(1 / math.log2(rank + 1) for rank in range(1, min(len(relevant), k) + 1))


FIGURES = ("ndcg@10", "mrr@10", "recall@1", "recall@10")


def figures_of(ranked: Sequence[Hashable], relevant: Collection[Hashable]) -> tuple[float, ...]:
    """The `FIGURES` of one query, which has something relevant."""
    return (
        gain(ranked, relevant, 10),
        reciprocal_rank(ranked, relevant, 10),
        recall(ranked, relevant, 1),
        recall(ranked, relevant, 10),
    )


def ranking_figures(
    rankings: Sequence[Sequence[Hashable]], relevant: Sequence[Collection[Hashable]]
) -> dict[str, float]:
    """Means over queries that have something relevant: ndcg@10, mrr@10, recall@1, recall@10; 0 without any.

    rankings: of each query the best ten at least (or all there are), each once."""
    found = [figures_of(ranked, wanted) for ranked, wanted in zip(rankings, relevant, strict=True) if wanted]
    return {name: sum(row[i] for row in found) / max(1, len(found)) for i, name in enumerate(FIGURES)}
