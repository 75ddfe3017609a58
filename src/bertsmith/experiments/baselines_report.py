"""The report of a comparison of language models: one table, claims, and a page with plots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from scipy.stats import t as student_t

from bertsmith.experiments.ablation_report import (
    Ordering,
    is_lower_better,
    judge_orderings,
    paired_difference,
    points_factor,
)
from bertsmith.experiments.baseline_measures import Measurement
from bertsmith.experiments.baselines_recipe import BaselinesRecipe
from bertsmith.formatting import format_seconds
from bertsmith.notebook import Result
from bertsmith.reports import plots
from bertsmith.reports.page import render, write_page
from bertsmith.reports.result_plots import seeds_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CONFIDENCE = 0.95
_MISSING = "–"
_BUDGETS = {"train.max_minutes": "minutes", "train.max_tokens": "tokens"}


@dataclass(frozen=True)
class ModelMetric(Result):
    """A metric of a model, or a point of a curve.

    Attributes:
        mean: The mean over seeds.
        margin: Half of the 95 % interval of the mean by Student's t; None with one seed.
        values: The values by seed.
    """

    mean: float
    margin: float | None
    values: list[float]


@dataclass(frozen=True)
class TrainedModel(Result):
    """A model of the comparison, with the first seed's sizes and times.

    Attributes:
        kind: The kind of model, as in recipes.
        source: The paper.
        parameters: The number of trained numbers.
        units: "pieces" or "words".
        tokens: The tokens of the training; None without one.
        seconds: The time of the training.
    """

    kind: str
    source: str
    parameters: int
    units: str
    tokens: int | None
    seconds: float


@dataclass(frozen=True)
class JudgedClaim(Ordering):
    """A claim and its verdict.

    Attributes:
        source: The origin of the claim.
        seconds: The time of training of the better model, minus that of the worse.
        margin: Half of the 95 % interval of the gain by Student's t; None with one seed.
    """

    source: str
    seconds: float
    margin: float | None


class ResultTable(NamedTuple):
    """A table of the report, of texts; `num_numbers` columns after the first have numbers."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    num_numbers: int = 0


@dataclass(frozen=True)
class BaselinesReport(Result):
    """The results of a comparison. Scores of tasks are fractions of 1.

    Attributes:
        title: The title of the recipe.
        description: Its description.
        budget: The budget of each pre-trained model.
        seeds: The number of seeds that all models have.
        models: The models.
        metrics: The results by metric and model, or cheap method.
        curves: The results by curve, model, and position.
        samples: The continuations of prompts, of the first seed, by prompt and model.
        claims: The claims of the recipe that could be compared.
        published: The published scores of the recipe.
    """

    display_fields: ClassVar = ("title", "metrics", "claims")

    title: str
    description: str
    budget: dict[str, Any]
    seeds: int
    models: dict[str, TrainedModel]
    metrics: dict[str, dict[str, ModelMetric]]
    curves: dict[str, dict[str, dict[str, ModelMetric]]]
    samples: dict[str, dict[str, str]]
    claims: list[JudgedClaim]
    published: list[dict[str, Any]]

    def tables(self, max_columns: int = 4) -> list[ResultTable]:
        """Return the tables of models, of metrics with at most `max_columns` columns, of curves, and of claims."""
        rows = [
            [
                name,
                f"{model.parameters:,}",
                _MISSING if model.tokens is None else f"{model.tokens:,} {model.units}",
                format_seconds(model.seconds),
                model.source,
            ]
            for name, model in self.models.items()
        ]
        tables = [ResultTable("Models", ["model", "parameters", "read", "training", "source"], rows, 3)]
        names = list(self.metrics)
        models = dict.fromkeys([*self.models, *(m for column in self.metrics.values() for m in column)])
        for start in range(0, len(names), max_columns):
            group = names[start : start + max_columns]
            cells = {name: _format_column(name, self.metrics[name]) for name in group}
            rows = [
                [model, *(cells[name].get(model, _MISSING) for name in group)]
                for model in models
                if any(model in cells[name] for name in group)
            ]
            tables.append(ResultTable("", ["model", *group], rows, len(group)))
        tables += [_curve_table(name, by_model) for name, by_model in self.curves.items()]
        if self.published:
            heads = ["model", "value", "metric", "source"]
            rows = [[str(score[head]) for head in heads] for score in self.published]
            tables.append(ResultTable("Published", heads, rows, 1))
        if self.claims:
            heads = ["better", "worse", "metric", "gain", "training", "verdict", "source"]
            tables.append(ResultTable("Claims", heads, list(map(_claim_row, self.claims))))
        return tables


def _curve_table(name: str, by_model: Mapping[str, Mapping[str, ModelMetric]]) -> ResultTable:
    """Return a table with a row per model, and a column per position."""
    positions = list(dict.fromkeys(position for points in by_model.values() for position in points))
    factor = _curve_factor(name, by_model)
    rows = [
        [model, *(_format_metric(points[p], factor) if p in points else _MISSING for p in positions)]
        for model, points in by_model.items()
    ]
    return ResultTable(name, ["model", *positions], rows, len(positions))


def _curve_factor(name: str, by_model: Mapping[str, Mapping[str, ModelMetric]]) -> float:
    return points_factor(name, [metric.mean for points in by_model.values() for metric in points.values()])


def _claim_row(claim: JudgedClaim) -> list[str]:
    factor = points_factor(claim.metric, [claim.gain])
    margin = "" if claim.margin is None else f" ± {factor * claim.margin:,.1f}"
    return [
        claim.better,
        claim.worse,
        claim.metric,
        f"{factor * claim.gain:+,.1f}{margin}",
        f"{claim.seconds:+,.0f} s",
        claim.verdict.removeprefix("is "),
        claim.source,
    ]


def make_report(
    recipe: BaselinesRecipe, measurements: Mapping[str, Mapping[int, Measurement]], budget: Mapping[str, Any]
) -> BaselinesReport:
    """Return the report of the models and seeds that are finished."""
    finished = {name: by_seed for name, by_seed in measurements.items() if by_seed}
    metrics: dict[str, dict[str, ModelMetric]] = {}
    curves: dict[str, dict[str, dict[str, list[float]]]] = {}
    samples: dict[str, dict[str, str]] = {}
    cheap: dict[str, dict[str, float]] = {}
    models = {}
    for name, by_seed in finished.items():
        results = [by_seed[seed] for seed in sorted(by_seed)]
        first, model = results[0], recipe.models[name]
        models[name] = TrainedModel(
            model.kind, model.source, first.parameters, first.units, first.tokens, first.seconds
        )
        for metric in first.metrics:
            values = [result.metrics[metric] for result in results if metric in result.metrics]
            metrics.setdefault(metric, {})[name] = _model_metric(values)
        for metric, methods in first.cheap_methods.items():
            cheap.setdefault(metric, {}).update(methods)
        for result in results:
            for curve, points in result.curves.items():
                by_position = curves.setdefault(curve, {}).setdefault(name, {})
                for position, value in points.items():
                    by_position.setdefault(position, []).append(value)
        for prompt, sample in first.samples.items():
            samples.setdefault(prompt, {})[name] = sample
    for metric, methods in cheap.items():
        metrics[metric] |= {method: _model_metric([score]) for method, score in methods.items()}
    return BaselinesReport(
        title=recipe.title,
        description=recipe.description,
        budget={_BUDGETS.get(name, name): value for name, value in budget.items()},
        seeds=min((len(by_seed) for by_seed in finished.values()), default=0),
        models=models,
        metrics={metric: metrics[metric] for metric in sorted(metrics, key=_metric_order)},
        curves={
            curve: {
                name: {position: _model_metric(values) for position, values in points.items()}
                for name, points in by_model.items()
            }
            for curve, by_model in curves.items()
        },
        samples=samples,
        claims=_judge_claims(recipe, finished, models),
        published=[score.model_dump() for score in recipe.published],
    )


def _metric_order(metric: str) -> tuple[bool, bool, str]:
    """Sort perplexities first, then minimal pairs, then all others by name."""
    return "perplexity" not in metric, "minimal pairs" not in metric, metric


def _model_metric(values: Sequence[float]) -> ModelMetric:
    margin = None
    if len(values) > 1:
        error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
        margin = error * float(student_t.ppf((1 + _CONFIDENCE) / 2, len(values) - 1))
    return ModelMetric(float(np.mean(values)), margin, list(values))


def _judge_claims(
    recipe: BaselinesRecipe,
    measurements: Mapping[str, Mapping[int, Measurement]],
    models: Mapping[str, TrainedModel],
) -> list[JudgedClaim]:
    """Compare the two models of each claim by paired t-tests over seeds."""
    values = {
        name: {seed: result.metrics for seed, result in by_seed.items()}
        for name, by_seed in measurements.items()
    }
    comparisons, claims, margins = [], [], []
    for claim in recipe.claims:
        rows = [values.get(name, {}) for name in (claim.better, claim.worse)]
        if all(row and all(claim.metric in metrics for metrics in row.values()) for row in rows):
            difference, p = paired_difference(values, claim.metric, claim.better, claim.worse)
            if difference is not None:
                gain = -difference if is_lower_better(claim.metric) else difference
                comparisons.append((claim.better, claim.worse, claim.metric, gain, p))
                claims.append(claim)
                better, worse = rows
                differences = [
                    better[seed][claim.metric] - worse[seed][claim.metric]
                    for seed in better.keys() & worse.keys()
                ]
                margins.append(_model_metric(differences).margin)
    return [
        JudgedClaim(
            **vars(ordering),
            source=claim.source,
            seconds=models[claim.better].seconds - models[claim.worse].seconds,
            margin=margin,
        )
        for ordering, claim, margin in zip(judge_orderings(comparisons), claims, margins, strict=True)
    ]


def _format_column(name: str, metrics: Mapping[str, ModelMetric]) -> dict[str, str]:
    """Return the cells of a metric by model: points of 100, or perplexities."""
    finite = [metric.mean for metric in metrics.values() if math.isfinite(metric.mean)]
    factor = points_factor(name, finite)
    return {model: _format_metric(metric, factor) for model, metric in metrics.items()}


def _format_metric(metric: ModelMetric, factor: float) -> str:
    margin = "" if metric.margin is None else f" ± {factor * metric.margin:,.1f}"
    return f"{factor * metric.mean:,.1f}{margin}" if math.isfinite(metric.mean) else "infinite"


def write_report_page(file: Path, report: BaselinesReport) -> None:
    """Write the page with the tables, the claims, and a plot of each metric and each curve."""
    figures = []
    for name, by_model in report.metrics.items():
        factor = points_factor(name, [metric.mean for metric in by_model.values()])
        rows = {
            model: {
                "values": [factor * value for value in metric.values],
                "mean": factor * metric.mean,
                "deviation": factor * (metric.margin or 0.0),
            }
            for model, metric in by_model.items()
            if math.isfinite(metric.mean)
        }
        if rows and not name.endswith(" coverage"):
            fig = seeds_figure(name, rows, is_logarithmic=factor == 1 and "perplexity" in name)
            figures.append((name, plots.to_svg(fig, f"{name}: {', '.join(rows)}")))
    figures += [
        (
            name,
            plots.to_svg(
                plots.figure(partial(_draw_curve, name, by_model)), f"{name}: {', '.join(by_model)}"
            ),
        )
        for name, by_model in report.curves.items()
    ]
    tables = report.tables(max_columns=len(report.metrics) or 1)
    write_page(file, render("baselines.html", report=report, tables=tables, figures=figures))


def _draw_curve(name: str, by_model: Mapping[str, Mapping[str, ModelMetric]], axes: Axes) -> None:
    """Draw a line per model; positions that are no numbers, such as "static", are left out."""
    factor = _curve_factor(name, by_model)
    for index, (model, points) in enumerate(by_model.items()):
        keys = sorted(filter(str.isdigit, points), key=int)
        axes.errorbar(
            list(map(int, keys)),
            [factor * points[key].mean for key in keys],
            [factor * (points[key].margin or 0.0) for key in keys],
            linestyle=("-", "--", ":", "-.")[index % 4],
            elinewidth=0.8,
            marker="o",
            markersize=3,
            label=model,
        )
    positions = sorted({int(key) for points in by_model.values() for key in points if key.isdigit()})
    if name.rpartition(" by ")[2] != "layer":
        axes.set_xscale("log")
    axes.set_xticks(positions, [f"{position:,}" for position in positions])
    axes.minorticks_off()
    if name.startswith("microseconds"):
        axes.set_yscale("log")
    axes.figure.legend(loc="outside right upper", frameon=False, labelcolor=plots.INK, fontsize="small")
    axes.set_xlabel(name.rpartition(" by ")[2])
    axes.set_ylabel(name.rpartition(" by ")[0] + (" in points" if factor > 1 else ""))
