"""Intervals of scores, and tests of two models on the same examples: bootstrap and approximate randomization.

The bootstrap draws examples with replacement and computes the distribution of a score, or of the difference of two
models' scores (Efron 1979); its 2.5th and 97.5th percentiles are the interval. Approximate randomization exchanges
the predictions of random examples and counts how often the difference is as large (Noreen 1989; Yeh 2000).

`scipy.stats.bootstrap` and `permutation_test` call the statistic on each resample. Here, if a score is a function
of sums, a thousand resamples are one matrix product that all scores share. Tests compare the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith import rng
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.inference.ensemble import check_same_task
from bertsmith.inference.model import Model, load
from bertsmith.io.sources import Source, name_of
from bertsmith.metrics.sufficient_statistics import SufficientStatistics
from bertsmith.notebook import Report
from bertsmith.tasks.base import TaskMetrics

CONFIDENCE_LEVEL = 0.95
MAX_P_VALUE = 0.05
"""The largest p-value at which two models differ by more than chance."""
_DRAWS_IN_MEMORY = 4_000_000
_TOLERANCE = 1e-12


class Difference(NamedTuple):
    """The difference of one score of two systems.

    Attributes:
        a: The score of the first system.
        b: The score of the second system.
        difference: b - a.
        low: The lower end of its 95 % interval.
        high: The upper end.
        p: The two-sided p-value.
        rounds: The number of resamples.
    """

    a: float
    b: float
    difference: float
    low: float
    high: float
    p: float
    rounds: int


def num_rounds(examples: int, *, is_slow: bool = False) -> int:
    """Return the number of resamples that take seconds: 10,000, down to 1,000 for more than 5,000 examples.

    Args:
        examples: The number of examples.
        is_slow: Each resample computes the score anew: 1,000, down to 200 for more than 1,000 examples.
    """
    if is_slow:
        return min(1_000, max(200, 1_000_000 // max(1, examples)))
    return min(10_000, max(1_000, 50_000_000 // max(1, examples)))


def score_intervals(
    statistics: SufficientStatistics, seed: int = 0, rounds: int | None = None
) -> dict[str, tuple[float, float]]:
    """Return the 95 % interval of each score of one system."""
    size = len(statistics.per_example)
    resamples = _resamples(size, rounds or num_rounds(size), seed)
    drawn = [statistics.scores_from_sums(counts @ statistics.per_example) for counts in resamples]
    return {name: _interval(np.concatenate([scores[name] for scores in drawn])) for name in drawn[0]}


def score_interval(
    metrics: TaskMetrics, predictions: Sequence[Any], examples: Sequence[Any], seed: int = 0
) -> tuple[float, float]:
    """Return the 95 % interval of the primary metric of one system, whatever the metric is computed from."""
    name, size = metrics.primary_metric, len(examples)
    statistics = metrics.sufficient_statistics(predictions, examples)
    intervals = {} if statistics is None else score_intervals(statistics, seed)
    if name in intervals:
        return intervals[name]
    drawn = []
    for counts in _resamples(size, num_rounds(size, is_slow=True), seed):
        for row in counts:
            indices = np.repeat(np.arange(size), row.astype(np.int64)).tolist()
            sample = [predictions[i] for i in indices], [examples[i] for i in indices]
            drawn.append(metrics.compute(*sample).values[name])
    return _interval(np.array(drawn))


def compare_statistics(
    a: SufficientStatistics, b: SufficientStatistics, seed: int, rounds: int | None = None
) -> dict[str, Difference]:
    """Return the difference of each score of two systems on the same examples, in the same order.

    Raises:
        ValueError: The numbers of examples differ.
    """
    if a.per_example.shape != b.per_example.shape:
        raise ValueError(
            f"statistics of {a.per_example.shape} and {b.per_example.shape} differ in their examples"
        )
    size = len(a.per_example)
    rounds = rounds or num_rounds(size)
    scores_a, scores_b = a.scores(), b.scores()
    drawn: dict[str, list[NDArray[np.float64]]] = {name: [] for name in scores_a}
    for counts in _resamples(size, rounds, seed):
        resampled_a = a.scores_from_sums(counts @ a.per_example)
        resampled_b = b.scores_from_sums(counts @ b.per_example)
        for name, differences in drawn.items():
            differences.append(resampled_b[name] - resampled_a[name])
    exceeding = dict.fromkeys(scores_a, 0)
    change, sums_a, sums_b = b.per_example - a.per_example, a.per_example.sum(0), b.per_example.sum(0)
    for swaps in _swaps(size, rounds, seed):
        moved = swaps @ change
        swapped_a, swapped_b = a.scores_from_sums(sums_a + moved), b.scores_from_sums(sums_b - moved)
        for name in exceeding:
            minimum = abs(scores_b[name] - scores_a[name]) - _TOLERANCE
            exceeding[name] += int((np.abs(swapped_b[name] - swapped_a[name]) >= minimum).sum())
    return {
        name: _difference(scores_a[name], scores_b[name], np.concatenate(drawn[name]), exceeding[name])
        for name in scores_a
    }


def compare_predictions(
    score: Callable[[Sequence[Any], Sequence[Any]], float],
    predictions: Sequence[Sequence[Any]],
    examples: Sequence[Any],
    seed: int,
    rounds: int | None = None,
) -> Difference:
    """Return the difference of any score, which is computed for each resample.

    Args:
        score: Scores predictions for examples.
        predictions: The predictions of both systems.
        examples: The examples.
        seed: The seed.
        rounds: The number of resamples.
    """
    size = len(examples)
    rounds = rounds or num_rounds(size, is_slow=True)
    a, b = (score(system, examples) for system in predictions)
    drawn = []
    for counts in _resamples(size, rounds, seed):
        for row in counts:
            indices = np.repeat(np.arange(size), row.astype(np.int64)).tolist()
            sample = [examples[i] for i in indices]
            sample_a, sample_b = (score([system[i] for i in indices], sample) for system in predictions)
            drawn.append(sample_b - sample_a)
    exceeding = 0
    for swaps in _swaps(size, rounds, seed):
        for row in swaps.astype(np.bool_).tolist():
            pairs = [(q, p) if swap else (p, q) for p, q, swap in zip(*predictions, row, strict=True)]
            swapped_a, swapped_b = (score(system, examples) for system in zip(*pairs, strict=True))
            exceeding += abs(swapped_b - swapped_a) >= abs(b - a) - _TOLERANCE
    return _difference(a, b, np.array(drawn), exceeding)


def _difference(a: float, b: float, drawn: NDArray[np.float64], exceeding: int) -> Difference:
    low, high = _interval(drawn)
    return Difference(a, b, b - a, low, high, (1 + exceeding) / (1 + len(drawn)), len(drawn))


def _interval(drawn: NDArray[np.float64]) -> tuple[float, float]:
    tail = (1 - CONFIDENCE_LEVEL) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail]).tolist()
    return low, high


def _resamples(examples: int, rounds: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Yield how often each example is in each of some resamples, float64 [rounds, examples]."""
    for indices in _round_chunks(examples, rounds):
        draws = rng.integers(seed, "bootstrap", examples, indices[:, None], np.arange(examples))
        cells = draws + examples * np.arange(len(indices))[:, None]
        counts = np.bincount(cells.ravel(), minlength=len(indices) * examples)
        yield counts.reshape(len(indices), examples).astype(np.float64)


def _swaps(examples: int, rounds: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Yield whether each example's predictions are exchanged, 0 or 1, float64 [rounds, examples]."""
    for indices in _round_chunks(examples, rounds):
        bits = rng.random_bits(seed, "randomization", indices[:, None], np.arange(examples))
        yield (bits >> np.uint64(63)).astype(np.float64)


def _round_chunks(examples: int, rounds: int) -> Iterator[NDArray[np.int64]]:
    """Yield the indices of all rounds, as many at a time as fit into memory."""
    size = max(1, _DRAWS_IN_MEMORY // max(1, examples))
    for start in range(0, rounds, size):
        yield np.arange(start, min(rounds, start + size))


def compare(
    a: str | Path | Model,
    b: str | Path | Model,
    data: Source,
    *,
    seed: int = 0,
    rounds: int | None = None,
    device: str = "auto",
    precision: str = "auto",
    **settings: Any,
) -> Report:
    """Test if two fine-tuned models of one task differ by more than chance.

    Args:
        a: The first run or model.
        b: The second run or model.
        data: Labeled examples: a file, or data in memory, as `Model.evaluate` takes it.
        seed: The seed of the resampling.
        rounds: The number of resamples; None: as many as take seconds, 10,000 for up to 5,000 examples, and 200 to
            1,000 for a score that is computed anew for each resample, such as a rank correlation.
        device: The device of models that are loaded here.
        precision: The precision of models that are loaded here.
        settings: Settings of the task for both models, such as text_column.

    Returns:
        {"scores": {name: {"a", "b", "difference", "low", "high", "p", "rounds"}}, "told_apart", …}: b - a with its
        95 % interval (paired bootstrap, percentiles) and the two-sided p-value (approximate randomization).

    Raises:
        InputError: The models are for different tasks or labels, or read different texts from the data.
    """
    if rounds is not None and rounds < 1:
        message, hint = f"{rounds} is less than 1", "use the number of resamples"
        raise InputError("rounds_too_small", message, argument="rounds", hint=hint)
    models = [load(model, device, precision=precision) for model in (a, b)]
    check_same_task(*models)
    task = models[0].task
    examples, predictions = _predict(models, data, settings)
    statistics = [task.metrics.sufficient_statistics(system, examples) for system in predictions]
    differences: dict[str, Difference] = {}
    if statistics[0] is not None and statistics[1] is not None:
        differences = compare_statistics(statistics[0], statistics[1], seed, rounds)
    primary = task.primary_metric
    if primary not in differences:

        def score(system: Sequence[Any], sample: Sequence[Any]) -> float:
            return task.metrics.compute(system, sample).values[primary]

        differences[primary] = compare_predictions(score, predictions, examples, seed, rounds)
    names = dict.fromkeys((primary, *task.metrics.logged_metrics))
    return Report(
        {
            "a": str(models[0].path),
            "b": str(models[1].path),
            "task": task.name,
            "examples": len(examples),
            "decided_by": primary,
            "scores": {name: differences[name]._asdict() for name in names if name in differences},
            "told_apart": differences[primary].p < MAX_P_VALUE,
            "seed": seed,
        },
        ("a", "b", "scores"),
    )


def comparison_message(report: dict[str, Any]) -> str:
    """Return the result of a comparison as a sentence."""
    name, examples = report["decided_by"], report["examples"]
    score = report["scores"][name]
    if score["difference"] == 0:
        return f"both have the same {name}, so on these {examples:,} examples they cannot be told apart"
    better = "b" if score["difference"] > 0 else "a"
    lead = f"{report[better]} has the higher {name} by {abs(score['difference']):.4f}"
    if report["told_apart"]:
        return f"{lead}, more than chance explains on these {examples:,} examples (p = {score['p']:.2g})"
    return (
        f"{lead}, but on these {examples:,} examples the two cannot be told apart: by chance alone a difference "
        f"as large arises {100 * score['p']:.0f} times in 100"
    )


def _predict(
    models: Sequence[Model], data: Source, settings: dict[str, Any]
) -> tuple[list[Any], list[list[Any]]]:
    """Return the examples, and the predictions of each model.

    Raises:
        InputError: The models read different examples from the data.
    """
    predictors = [model.predictor.with_settings(settings, "compare", data) for model in models]
    examples, examples_b = (predictor.read(data) for predictor in predictors)
    a, b = (model.path for model in models)
    pairs = zip(examples, examples_b, strict=False)
    different = next((second for first, second in pairs if first.group_key != second.group_key), None)
    if different is not None or len(examples) != len(examples_b):
        raise InputError(
            "examples_differ",
            f"{a} reads {pluralize(len(examples), 'example')} from this data, and {b} {len(examples_b):,}, which "
            "differ",
            location=name_of(data, "data") if different is None else different.location,
            hint="the models were trained on files of different formats: pass the settings that differ, such as "
            f"{option('text_column', 'text')} or {option('delimiter')}",
        )
    both = zip(predictors, (examples, examples_b), strict=True)
    evaluated = [predictor.evaluate_examples(its_examples) for predictor, its_examples in both]
    for *_, stats in evaluated:
        stats.log()
    return examples, [predictions for _, predictions, *_ in evaluated]
