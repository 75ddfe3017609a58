"""The report of an ablation: metrics paired by seed, and which of the paper's orderings hold here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.stats import false_discovery_control, ttest_rel

from bertsmith.experiments.ablation_recipe import AblationRecipe
from bertsmith.formatting import pluralize
from bertsmith.notebook import Result

Measurements = Mapping[str, Mapping[int, Mapping[str, float]]]
"""Metrics by row, seed, and name."""

Verdict = Literal["holds", "is reversed", "is undecided"]
_MAX_P = 0.05  # the largest adjusted p at which an ordering counts as measured


@dataclass(frozen=True)
class RowMetric(Result):
    """A metric of a row.

    Attributes:
        mean: The mean over seeds.
        deviation: The standard deviation over seeds (n - 1); None with one seed.
        values: The values by seed.
        difference: The mean difference from the first row's, paired by seed; None without a common seed.
        p: The two-sided p of a paired t-test of the difference; None with fewer than two different pairs.
    """

    mean: float
    deviation: float | None
    values: list[float]
    difference: float | None
    p: float | None


@dataclass(frozen=True)
class Ordering(Result):
    """Two rows that the paper orders, and their difference here.

    Attributes:
        better: The row that is better in the paper.
        worse: The row that is worse in the paper.
        metric: The metric that is compared here.
        gain: The mean gain of the better row, paired by seed; positive means better also here.
        p: The two-sided p of a paired t-test; None with fewer than two different pairs.
        adjusted_p: p adjusted for the number of comparisons (Benjamini and Hochberg 1995).
        verdict: The decision by adjusted_p and gain.
    """

    better: str
    worse: str
    metric: str
    gain: float
    p: float | None
    adjusted_p: float | None
    verdict: Verdict


@dataclass(frozen=True)
class RowSetup(Result):
    """The pre-training of a row.

    Attributes:
        parameters: The parameters of the encoder.
        optimizer: The optimizer.
        learning_rate: The peak learning rate of AdamW.
        muon_learning_rate: The peak learning rate of Muon; None without Muon.
        updates: The number of updates.
        tokens: The number of tokens that were read, special tokens included.
        sequence_length: The maximum tokens of an instance.
        corpus: The documents and tokens of the corpus.
        differences: Settings, besides sizes and budget, that differ from those of BERT's paper.
    """

    parameters: int
    optimizer: str
    learning_rate: float
    muon_learning_rate: float | None
    updates: int
    tokens: int
    sequence_length: int
    corpus: dict[str, int]
    differences: dict[str, Any]


@dataclass(frozen=True)
class AblationReport(Result):
    """The results of an ablation.

    Metrics of tasks are fractions of 1; the paper's results are in points, as it prints them.

    Attributes:
        title: The title of the recipe.
        source: The paper and its table.
        baseline: The first row.
        seeds: The number of seeds that all rows have.
        metrics: The results by metric and row.
        paper: The paper's results by metric and row.
        paper_names: The paper's name of each metric that it has, too.
        orderings: The pairs of rows that the paper orders.
        quoted: The paper's results of further rows by metric and row, which were not run.
        departures: What differs from the paper in the recipe, by subject.
        changes: What differs from the recipe in this run: settings, and the number of seeds.
        setups: The pre-training of each row.
    """

    display_fields: ClassVar = ("title", "metrics", "orderings")

    title: str
    source: str
    baseline: str
    seeds: int
    metrics: dict[str, dict[str, RowMetric]]
    paper: dict[str, dict[str, float]]
    paper_names: dict[str, str]
    orderings: list[Ordering]
    quoted: dict[str, dict[str, float]] = field(default_factory=dict)
    departures: dict[str, str] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    setups: dict[str, RowSetup] = field(default_factory=dict)

    def describe_orderings(self) -> str:
        """Return a sentence on how many of the paper's orderings hold here."""
        if not self.orderings:
            return "no ordering of the paper is checked: its results order none of these rows, or disagree"
        counts = Counter(ordering.verdict for ordering in self.orderings)
        pairs = {(ordering.better, ordering.worse) for ordering in self.orderings}
        return (
            f"{pluralize(len(pairs), 'pair')} of rows that the paper orders, "
            f"{pluralize(len(self.orderings), 'comparison')} with {pluralize(self.seeds, 'seed')}: "
            f"{counts['holds']} held, {counts['is reversed']} reversed, {counts['is undecided']} undecided "
            f"(paired t-tests, p < {_MAX_P} when adjusted for their number)"
        )


def make_report(
    recipe: AblationRecipe,
    measurements: Measurements,
    setups: Mapping[str, RowSetup] | None = None,
    changes: Mapping[str, Any] | None = None,
) -> AblationReport:
    """Return the report of the seeds that are finished, of which the first row has at least one."""
    rows = [row for row in measurements if measurements[row]]
    first = rows[0]
    names = dict.fromkeys(n for row in rows for metrics in measurements[row].values() for n in metrics)
    rows_with = {
        name: [row for row in rows if all(name in metrics for metrics in measurements[row].values())]
        for name in names
    }
    return AblationReport(
        title=recipe.title,
        source=recipe.source,
        baseline=first,
        seeds=min(len(measurements[row]) for row in rows),
        metrics={
            name: {row: _row_metric(measurements, name, row, first) for row in rows_with[name]}
            for name in names
            if rows_with[name]
        },
        paper={
            name: {row: values[row] for row in rows if row in values} for name, values in recipe.paper.items()
        },
        paper_names={name: paper_name for name in names if (paper_name := _paper_name(recipe.paper, name))},
        orderings=judge_orderings(list(_compare_rows(recipe, rows_with, measurements))),
        quoted=recipe.quoted,
        departures=recipe.departures,
        changes=dict(changes or {}),
        setups=dict(setups or {}),
    )


def is_lower_better(name: str) -> bool:
    """Return True if a lower value of a metric is better."""
    return name.endswith(("loss", "perplexity"))


def points_factor(name: str, values: Iterable[float]) -> float:
    """Return 100 for a metric whose values are fractions of 1, which papers print in points, and 1 for others."""
    return 1.0 if is_lower_better(name) or any(abs(value) > 1 for value in values) else 100.0


def _row_metric(measurements: Measurements, name: str, row: str, first: str) -> RowMetric:
    values = [metrics[name] for _, metrics in sorted(measurements[row].items())]
    difference, p = None, None
    if all(name in metrics for metrics in measurements[first].values()):
        difference, p = paired_difference(measurements, name, row, first)
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return RowMetric(float(np.mean(values)), deviation, values, difference, p)


def paired_difference(
    measurements: Measurements, name: str, a: str, b: str
) -> tuple[float | None, float | None]:
    """Return the mean difference a - b over the common seeds, and the p of a paired t-test."""
    seeds = sorted(measurements[a].keys() & measurements[b].keys())
    values = np.array([[measurements[row][seed][name] for seed in seeds] for row in (a, b)])
    differences = values[0] - values[1]
    if not seeds:
        return None, None
    if differences.min() == differences.max():
        return float(differences.mean()), None
    return float(differences.mean()), float(ttest_rel(*values).pvalue)


def _compare_rows(
    recipe: AblationRecipe, rows_with: Mapping[str, list[str]], measurements: Measurements
) -> Iterator[tuple[str, str, str, float, float | None]]:
    """Yield the better and the worse row of the paper, the metric, the gain here, and its p."""
    for a, b in combinations([row for row in measurements if measurements[row]], 2):
        for name in [name for name, rows in rows_with.items() if a in rows and b in rows]:
            order = _paper_order(recipe, name, a, b)
            better, worse = (a, b) if order > 0 else (b, a)
            difference, p = paired_difference(measurements, name, better, worse)
            if order and difference is not None:
                yield better, worse, name, -difference if is_lower_better(name) else difference, p


def _paper_order(recipe: AblationRecipe, name: str, a: str, b: str) -> int:
    """Return 1 if row a is better than row b in the paper, -1 if worse, and 0 if it has no order.

    The paper's metric of the same name decides; for a loss those of the same head, such as "MLM accuracy" for
    mlm_loss; else all metrics of tasks. Several must agree.
    """
    own_name = _paper_name(recipe.paper, name)
    same_head = [other for other in recipe.paper if name in recipe.losses and _head(other) == _head(name)]
    tasks = [other for other in recipe.paper if _paper_name(recipe.losses, other) is None]
    signs = set()
    for paper_name in [own_name] if own_name is not None else same_head or tasks:
        values = recipe.paper[paper_name]
        if a in values and b in values:
            sign = int(np.sign(values[a] - values[b]))
            signs.add(-sign if is_lower_better(paper_name) else sign)
    return signs.pop() if len(signs) == 1 else 0


def _paper_name(paper: Iterable[str], name: str) -> str | None:
    """Return the paper's name of a metric, which may differ in case and punctuation (sst2, SST-2)."""
    return next((other for other in paper if _letters(other) == _letters(name)), None)


def _head(name: str) -> str:
    """Return the first word of a metric's name: mlm of mlm_loss and of MLM accuracy."""
    return name.casefold().replace(" ", "_").partition("_")[0]


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold()))


def judge_orderings(comparisons: Sequence[tuple[str, str, str, float, float | None]]) -> list[Ordering]:
    """Adjust p for the number of comparisons, of which some are small by chance, and decide."""
    p_values = [p for *_, p in comparisons if p is not None]
    adjusted_values = iter(false_discovery_control(p_values).tolist() if p_values else [])
    orderings = []
    for better, worse, name, gain, p in comparisons:
        adjusted_p = None if p is None else next(adjusted_values)
        is_decided = adjusted_p is not None and adjusted_p < _MAX_P
        verdict: Verdict = "is undecided" if not is_decided else "holds" if gain > 0 else "is reversed"
        orderings.append(Ordering(better, worse, name, gain, p, adjusted_p, verdict))
    return orderings
