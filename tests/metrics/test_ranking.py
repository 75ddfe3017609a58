"""Figures of rankings: cases reckoned by hand, and scikit-learn's gain where it has one."""

from __future__ import annotations

import math
import random

import pytest
from sklearn.metrics import ndcg_score

from bertsmith.metrics.ranking import gain, ranking_figures, recall, reciprocal_rank


def test_by_hand() -> None:
    ranked, relevant = list("abcde"), {"b", "d", "x"}
    assert recall(ranked, relevant, 2) == pytest.approx(1 / 3)
    assert recall(ranked, relevant, 4) == pytest.approx(2 / 3)
    assert reciprocal_rank(ranked, relevant, 10) == 0.5
    assert reciprocal_rank(ranked, relevant, 1) == 0
    best = 1 + 1 / math.log2(3) + 1 / math.log2(4)
    assert gain(ranked, relevant, 10) == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / best)


def test_a_cut_makes_the_best_there_could_be_smaller_too() -> None:
    assert gain(["a"], {"a", "b", "c"}, 1) == 1


def test_scikit_learn_has_the_same_gain() -> None:
    draw = random.Random(0)
    for _ in range(50):
        number = draw.randint(2, 30)
        ranked = draw.sample(range(number), number)
        relevant = set(draw.sample(range(number), draw.randint(1, number)))
        truth = [[int(i in relevant) for i in range(number)]]
        scores = [[float(-ranked.index(i)) for i in range(number)]]
        assert gain(ranked, relevant, 10) == pytest.approx(ndcg_score(truth, scores, k=10))


def test_means_are_over_queries_that_have_something_relevant() -> None:
    figures = ranking_figures([[1, 2], [2, 1], [1, 2]], [{1}, {1}, set()])
    assert figures["recall@1"] == 0.5
    assert figures["mrr@10"] == 0.75
    assert figures["recall@10"] == 1
    assert ranking_figures([[1]], [set()]) == {"ndcg@10": 0, "mrr@10": 0, "recall@1": 0, "recall@10": 0}
