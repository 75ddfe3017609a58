"""Test ranking metrics on small cases and nDCG against scikit-learn."""

from __future__ import annotations

import math
import random

import pytest
from sklearn.metrics import ndcg_score

from bertsmith.metrics.ranking import ndcg, ranking_metrics, recall, reciprocal_rank


def test_small_case() -> None:
    ranked, relevant = list("abcde"), {"b", "d", "x"}
    assert recall(ranked, relevant, 2) == pytest.approx(1 / 3)
    assert recall(ranked, relevant, 4) == pytest.approx(2 / 3)
    assert reciprocal_rank(ranked, relevant, 10) == 0.5
    assert reciprocal_rank(ranked, relevant, 1) == 0
    best = 1 + 1 / math.log2(3) + 1 / math.log2(4)
    assert ndcg(ranked, relevant, 10) == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / best)


def test_ideal_gain_is_cut_at_k() -> None:
    assert ndcg(["a"], {"a", "b", "c"}, 1) == 1


def test_ndcg_equals_scikit_learns() -> None:
    rng = random.Random(0)
    for _ in range(50):
        size = rng.randint(2, 30)
        ranked = rng.sample(range(size), size)
        relevant = set(rng.sample(range(size), rng.randint(1, size)))
        labels = [[int(i in relevant) for i in range(size)]]
        scores = [[float(-ranked.index(i)) for i in range(size)]]
        assert ndcg(ranked, relevant, 10) == pytest.approx(ndcg_score(labels, scores, k=10))


def test_means_are_over_queries_with_relevant_passages() -> None:
    metrics = ranking_metrics([[1, 2], [2, 1], [1, 2]], [{1}, {1}, set()])
    assert metrics["recall@1"] == 0.5
    assert metrics["mrr@10"] == 0.75
    assert metrics["recall@10"] == 1
    assert ranking_metrics([[1]], [set()]) == {"ndcg@10": 0, "mrr@10": 0, "recall@1": 0, "recall@10": 0}
