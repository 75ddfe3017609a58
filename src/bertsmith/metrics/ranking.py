"""Retrieval metrics with binary relevance: recall, reciprocal rank, and nDCG.

A query without relevant passages has no score. Of these metrics scikit-learn has only nDCG, and it needs a score
for each passage, while here only the best passages are ranked.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence

METRIC_NAMES = ("ndcg@10", "mrr@10", "recall@1", "recall@10")


def recall(ranked: Sequence[Hashable], relevant: Collection[Hashable], k: int) -> float:
    """Return the fraction of the relevant passages that are among the first k."""
    return sum(passage in relevant for passage in ranked[:k]) / len(relevant)


def reciprocal_rank(ranked: Sequence[Hashable], relevant: Collection[Hashable], k: int) -> float:
    """Return 1 / rank of the first relevant passage; 0 if none is among the first k."""
    return next((1 / rank for rank, passage in enumerate(ranked[:k], start=1) if passage in relevant), 0.0)


def ndcg(ranked: Sequence[Hashable], relevant: Collection[Hashable], k: int) -> float:
    """Return the normalized discounted cumulative gain at k (Järvelin and Kekäläinen 2002)."""
    hits = (rank for rank, passage in enumerate(ranked[:k], start=1) if passage in relevant)
    dcg = sum(1 / math.log2(rank + 1) for rank in hits)
    return dcg / sum(1 / math.log2(rank + 1) for rank in range(1, min(len(relevant), k) + 1))


def query_metrics(ranked: Sequence[Hashable], relevant: Collection[Hashable]) -> tuple[float, ...]:
    """Return the metrics named in `METRIC_NAMES` of a query with at least one relevant passage."""
    return (
        ndcg(ranked, relevant, 10),
        reciprocal_rank(ranked, relevant, 10),
        recall(ranked, relevant, 1),
        recall(ranked, relevant, 10),
    )


def ranking_metrics(
    rankings: Sequence[Sequence[Hashable]], relevant: Sequence[Collection[Hashable]]
) -> dict[str, float]:
    """Return the metrics named in `METRIC_NAMES` as means over the queries with relevant passages; 0 without any.

    Args:
        rankings: At least the ten best passages of each query (or all there are), without repetitions.
        relevant: The relevant passages of each query.
    """
    queries = zip(rankings, relevant, strict=True)
    rows = [query_metrics(ranked, passages) for ranked, passages in queries if passages]
    return {name: sum(row[i] for row in rows) / max(1, len(rows)) for i, name in enumerate(METRIC_NAMES)}
