"""Resampling: the bootstrap's interval and the randomization's p are SciPy's, for scores of any form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import bootstrap, pearsonr, permutation_test
from sklearn.metrics import f1_score, matthews_corrcoef

from bertsmith.inference.significance import compare_predictions, compare_statistics, num_rounds
from bertsmith.metrics.sufficient_statistics import (
    count_statistics,
    f1,
    matthews_from_sums,
    mean_statistics,
    one_hot,
    regression_statistics,
)

LABELS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40)


def of_classes(truth: list[int], guess: list[int]):  # type: ignore[no-untyped-def]
    gold, found = one_hot(truth, 3), one_hot(guess, 3)
    return count_statistics(
        gold * found,
        gold,
        found,
        np.empty((len(truth), 0)),
        lambda right, gold, found, _: {
            "macro_f1": f1(right, gold, found).mean(-1),
            "matthews": matthews_from_sums(right, gold, found),
        },
    )


@given(LABELS)
def test_scores_of_sums_are_those_of_the_library(pairs: list[tuple[int, int]]) -> None:
    truth, guess = map(list, zip(*pairs, strict=True))
    found = of_classes(truth, guess).scores()
    expected = f1_score(truth, guess, labels=[0, 1, 2], average="macro", zero_division=0)
    assert found["macro_f1"] == pytest.approx(expected)
    if len({*truth, *guess}) > 1:
        assert found["matthews"] == pytest.approx(matthews_corrcoef(truth, guess), abs=1e-9)
    else:
        assert found["matthews"] == 0


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=2, max_size=30))
def test_a_correlation_is_one_of_sums(pairs: list[tuple[int, int]]) -> None:
    truth, guess = (np.array(side) / 7 + 1000 for side in zip(*pairs, strict=True))
    found = regression_statistics(truth, guess).scores()
    assert found["mean_squared_error"] == pytest.approx(((truth - guess) ** 2).mean())
    if np.ptp(truth) and np.ptp(guess):
        assert found["pearson"] == pytest.approx(pearsonr(truth, guess)[0], abs=1e-6)
    else:
        assert found["pearson"] == 0


def test_numbers_that_hardly_vary_keep_their_correlation() -> None:
    """As those of a model that has learnt little yet."""
    draw = np.random.default_rng(0)
    truth = draw.integers(1, 50, 40) / 10
    for spread in (1, 1e-3, 1e-6):
        guess = 0.3 + spread * draw.random(40)
        assert regression_statistics(truth, guess).scores()["pearson"] == pytest.approx(
            pearsonr(truth, guess)[0], abs=1e-9
        )
    assert regression_statistics(truth, np.full(40, 0.1)).scores()["pearson"] == 0


@given(LABELS, st.integers(0, 99))
def test_a_system_beside_itself_differs_by_nothing(pairs: list[tuple[int, int]], seed: int) -> None:
    truth, guess = map(list, zip(*pairs, strict=True))
    for one in compare_statistics(of_classes(truth, guess), of_classes(truth, guess), seed, 50).values():
        assert (one.difference, one.low, one.high, one.p) == (0, 0, 0, 1)


def hits(number: int, share: float, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random(number) < share).astype(float)


def test_interval_and_p_are_scipy_s() -> None:
    a, b = hits(200, 0.7, 0), hits(200, 0.8, 1)
    found = compare_statistics(mean_statistics({"accuracy": a}), mean_statistics({"accuracy": b}), 0)[
        "accuracy"
    ]
    draw = np.random.default_rng(5)
    own = bootstrap((b - a,), np.mean, method="percentile", n_resamples=20_000, rng=draw).confidence_interval
    assert (found.low, found.high) == pytest.approx((own.low, own.high), abs=0.011)
    swapped = permutation_test(
        (b, a),
        lambda x, y, axis: (x - y).mean(axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=5_000,
        rng=draw,
    )
    assert found.p == pytest.approx(swapped.pvalue, abs=0.02)
    assert found.low < found.difference < found.high


def test_of_few_examples_p_is_the_share_of_all_exchanges() -> None:
    """SciPy looks at each of the 2^8 ways to exchange answers; ours draws them."""
    truth, one, other = [0, 1, 2, 0, 1, 2, 0, 1], [0, 1, 1, 1, 0, 2, 1, 0], [0, 1, 2, 0, 1, 2, 1, 1]
    found = compare_statistics(of_classes(truth, one), of_classes(truth, other), 3)["macro_f1"]
    labels = np.array(truth)

    def difference(x: np.ndarray, y: np.ndarray) -> float:
        left, right = (f1_score(labels, side, average="macro", labels=[0, 1, 2]) for side in (x, y))
        return float(left - right)

    exact = permutation_test((other, one), difference, permutation_type="samples", n_resamples=np.inf)
    assert found.difference == pytest.approx(exact.statistic)
    assert found.p == pytest.approx(
        np.mean(np.abs(exact.null_distribution) >= exact.statistic - 1e-9), abs=0.02
    )


def test_a_score_computed_anew_gives_what_sums_give() -> None:
    a, b = hits(60, 0.5, 0), hits(60, 0.8, 1)
    quick = compare_statistics(mean_statistics({"accuracy": a}), mean_statistics({"accuracy": b}), 7, 300)[
        "accuracy"
    ]
    slow = compare_predictions(
        lambda predictions, examples: float(np.mean(predictions)), (a.tolist(), b.tolist()), range(60), 7, 300
    )
    assert slow == pytest.approx(quick)


def test_the_seed_gives_the_figures_and_exchanged_systems_the_same_with_another_sign() -> None:
    a, b = (mean_statistics({"f1": hits(90, share, seed)}) for seed, share in enumerate((0.6, 0.7)))
    first, again, other = (compare_statistics(a, b, seed, 400)["f1"] for seed in (1, 1, 2))
    assert first == again != other
    turned = compare_statistics(b, a, 1, 400)["f1"]
    assert (turned.difference, turned.p) == (-first.difference, first.p)
    assert (turned.low, turned.high) == pytest.approx((-first.high, -first.low))


def test_what_is_not_of_the_same_examples_is_refused() -> None:
    with pytest.raises(ValueError, match="differ in their examples"):
        compare_statistics(mean_statistics({"f1": [1.0]}), mean_statistics({"f1": [1.0, 0.0]}), 0)


def test_rounds_take_seconds() -> None:
    assert [num_rounds(n) for n in (1, 5_000, 20_000, 10**7)] == [10_000, 10_000, 2_500, 1_000]
    assert [num_rounds(n, is_slow=True) for n in (1, 1_000, 2_000, 10**7)] == [1_000, 1_000, 500, 200]
