"""The report of fine-tuning or of an evaluation: report.json, report.html with the same numbers, and its figures.

`StepTimer` measures the wall time of the steps that a report lists.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertsmith import hardware
from bertsmith.formatting import format_percent, pluralize
from bertsmith.io import atomic
from bertsmith.reports import plots
from bertsmith.reports.page import describe_lengths, render, score_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REPORT, PAGE, FIGURES = "report.json", "report.html", "figures"
_FIGURE_NAMES = ("loss", "scores", "learning_rate", "confusion", "reliability", "numbers")
_MAX_EVALUATIONS = 50  # rows
_MAX_LOCATIONS = 20  # of a finding
_CHANCE = "chance"  # key of the accuracy of random choices, which some tasks report
_MARKERS = ("o", "s", "^", "D")
_MAX_MARKED_POINTS = 40  # lines of more points have no markers
_MIN_DOT_AREA, _MAX_DOT_AREA = 12, 100  # square points, of the bins of a reliability diagram
_NOT_SCORES = ("step", "epoch", "loss", "best")  # keys of an evaluation


class StepTimer:
    """Measure the seconds of each step, in order of first start; a step within another pauses the outer one."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._stack: list[str] = []
        self._last_time = hardware.clock()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Return a context manager that adds the time of its block to a step."""
        self._seconds.setdefault(name, 0.0)
        self._add_elapsed()
        self._stack.append(name)
        try:
            yield
        finally:
            self._add_elapsed()
            self._stack.pop()

    def reattribute(self, name: str, to: str, seconds: float) -> None:
        """Move seconds from one step to another."""
        self._seconds[name] = self._seconds.get(name, 0.0) - seconds
        self._seconds[to] = self._seconds.get(to, 0.0) + seconds

    def total(self) -> float:
        """Return the seconds of all steps, including that of the current step so far."""
        self._add_elapsed()
        return sum(self._seconds.values())

    def to_list(self) -> list[dict[str, Any]]:
        """Return a dict for a report per step, with its name and seconds."""
        return [{"step": name, "seconds": round(value, 3)} for name, value in self._seconds.items()]

    def _add_elapsed(self) -> None:
        now = hardware.clock()
        if self._stack:
            self._seconds[self._stack[-1]] += now - self._last_time
        self._last_time = now


def write_figures(folder: Path, report: Mapping[str, Any]) -> list[ReportFigure]:
    """Write the figures of a report to FOLDER/figures/*.png, replacing earlier ones, and return them."""
    figures = list(report_figures(report))
    atomic.refuse_link(folder / FIGURES)
    with atomic.write_errors(folder / FIGURES):
        for path in (folder / FIGURES).glob("*.png"):
            if path.stem in _FIGURE_NAMES or path.stem.startswith("lengths_"):
                path.unlink()
        for figure in figures:
            atomic.write_bytes(folder / FIGURES / f"{figure.name}.png", plots.to_png(figure.figure))
    return figures


def write_report(folder: Path, report: Mapping[str, Any], figures: Sequence[ReportFigure]) -> None:
    """Write FOLDER/report.html and FOLDER/report.json with the same numbers.

    Args:
        folder: The folder of the run or of the evaluation.
        report: The report.
        figures: The figures that `write_figures` returned.
    """
    page = render_run_page(report, figures)
    with atomic.write_errors(folder / REPORT):
        atomic.write_text(folder / PAGE, page)
        atomic.write_text(folder / REPORT, json.dumps(report, indent=2, ensure_ascii=False) + "\n")


def render_run_page(report: Mapping[str, Any], figures: Sequence[ReportFigure] | None = None) -> str:
    """Return the HTML page of a report; text from files is escaped.

    Args:
        report: The report.
        figures: The figures of the report; None: they are drawn here.
    """
    page_figures = {
        figure.name: {
            "heading": figure.heading,
            "caption": figure.caption,
            "picture": plots.to_svg(figure.figure, figure.caption),
        }
        for figure in (report_figures(report) if figures is None else figures)
        if figure.in_page
    }
    finding_messages = {finding["said"] for finding in report.get("findings", [])}
    return render(
        "run.html",
        report=report,
        figures=page_figures,
        lengths=[figure for name, figure in page_figures.items() if name.startswith("lengths_")],
        scores=score_rows(report),
        warnings=[warning for warning in report.get("warnings", []) if warning not in finding_messages],
        evaluations=_evaluations(report.get("evaluations", [])),
        settings=_flatten(report.get("settings", {})),
        seconds=sum(step["seconds"] for step in report.get("wall_time", [])),
        matrix=_matrix(report.get("answers", {}).get("confusion")),
        max_locations=_MAX_LOCATIONS,
    )


def score_rows(
    report: Mapping[str, Any],
) -> list[tuple[str, float, tuple[float, float] | None, list[float | None]]]:
    """Return the name, value, 95 % interval, and baselines' values of each score, but chance and thresholds."""
    baselines, intervals = report.get("baselines", {}).values(), report.get("intervals", {})
    scores = report["validation"] if "validation" in report else report["scores"]
    excluded = {_CHANCE, *report.get("chosen_on_validation", {})}
    return [
        (score_name(name), value, intervals.get(name), [baseline.get(name) for baseline in baselines])
        for name, value in scores.items()
        if isinstance(value, float) and name not in excluded
    ]


def _evaluations(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the table of the last evaluations and the best one."""
    total = len(evaluations)
    rows = [row for i, row in enumerate(evaluations) if row["best"] or total - i <= _MAX_EVALUATIONS]
    first = evaluations[0] if evaluations else ()
    names = [name for name in first if name not in _NOT_SCORES]
    heads = ["update", "epoch", "loss", *(score_name(name) for name in names)]
    return {"heads": heads, "names": names, "rows": rows, "number": total}


def _matrix(confusion: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the rows of a confusion matrix, each cell with its count and its fraction of the row."""
    if not confusion or not confusion["counts"]:
        return []
    return [
        {"label": label, "cells": [(cell, cell / max(1, sum(row))) for cell in row]}
        for label, row in zip(confusion["labels"], confusion["counts"], strict=True)
    ]


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return settings and their values by dotted names."""
    rows: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            rows += _flatten(value, f"{prefix}{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            rows.append((f"{prefix}{name}", text))
    return rows


class ReportFigure(NamedTuple):
    """A figure of a report.

    Attributes:
        name: The name of its file, without ".png".
        heading: The heading in the page.
        figure: The Matplotlib figure.
        caption: A description of the figure.
        in_page: True if the page includes the figure; otherwise the page has a table of the same numbers.
    """

    name: str
    heading: str
    figure: Figure
    caption: str
    in_page: bool = True


def report_figures(report: Mapping[str, Any]) -> Iterator[ReportFigure]:
    """Draw the figures for which a report has numbers, in the order of the page."""
    yield from _training_curves(report)
    yield from _answer_figures(report.get("answers", {}))
    yield from _length_figures(report)


def _training_curves(report: Mapping[str, Any]) -> Iterator[ReportFigure]:
    points = report.get("curve", {}).get("points", [])
    steps = [point["step"] for point in points]
    if len(points) > 1:
        losses = [point["loss"] for point in points]
        caption = f"loss {losses[0]:.3f} at update {steps[0]:,} and {losses[-1]:.3f} at update {steps[-1]:,}"
        if (mean_of := report["curve"]["mean_of"]) > 1:
            caption += f"; each point is the mean of {mean_of} lines of the log"
        figure = _plot_lines(steps, {"loss": losses}, "loss", report.get("best_step"))
        yield ReportFigure("loss", "Training loss", figure, caption)
    evaluations = report.get("evaluations", [])
    if len(evaluations) > 1:
        names = [name for name in evaluations[0] if name not in _NOT_SCORES]
        scores = {score_name(name): [row[name] for row in evaluations] for name in names}
        best, metric = report["best_step"], report["decided_by"]
        value = next((row[metric] for row in evaluations if row["step"] == best), None)
        caption = f"{pluralize(len(evaluations), 'evaluation')} on the validation data"
        if value is not None:
            caption += f"; best {score_name(metric)} {value:.4f}, at update {best:,}, whose weights were kept"
        figure = _plot_lines([row["step"] for row in evaluations], scores, "score", best)
        yield ReportFigure("scores", "Scores on the validation data", figure, caption)
    if len(points) > 1:
        rates = [point["learning_rate"] for point in points]
        maximum = max(rates)
        caption = f"highest logged rate {_format_rate(maximum)}, at update {steps[rates.index(maximum)]:,}"
        figure = _plot_lines(steps, {"": [rate * 1e5 for rate in rates]}, "learning rate, in 1e-5")
        yield ReportFigure("learning_rate", "Learning rate", figure, caption)


def _format_rate(rate: float) -> str:
    """Format a small number with three digits and without a power of ten."""
    return f"{float(f'{rate:.3g}'):.12f}".rstrip("0").rstrip(".")


def _plot_lines(
    steps: Sequence[int], series: Mapping[str, Sequence[float]], y_label: str, best: int | None = None
) -> Figure:
    """Plot lines that differ in color, dash pattern, and marker.

    Args:
        steps: The updates on the x axis.
        series: The values of each line by name.
        y_label: The label of the y axis.
        best: The update to mark as that whose weights were kept.
    """
    styles = [(plots.BAR, "-"), (plots.ALERT, "--"), (plots.INK, ":"), (plots.INK, "-.")]

    def draw(axes: Axes) -> None:
        for i, (name, values) in enumerate(series.items()):
            color, dash = styles[i % len(styles)]
            marker = _MARKERS[i % len(_MARKERS)] if len(steps) <= _MAX_MARKED_POINTS else None
            axes.plot(steps, values, dash, color=color, marker=marker, markersize=4, label=name)
        if best is not None:
            axes.axvline(best, color=plots.INK, linewidth=0.8, linestyle=":", label="weights kept")
        if len(series) > 1:
            axes.legend(frameon=False, labelcolor=plots.INK, fontsize="small")
        plots.set_integer_ticks(axes.xaxis)
        axes.set_xlabel("update")
        axes.set_ylabel(y_label)

    return plots.figure(draw)


def _answer_figures(answers: Mapping[str, Any]) -> Iterator[ReportFigure]:
    if confusion := answers.get("confusion"):
        accuracy = format_percent(1 - confusion["wrong"] / max(1, confusion["number"]))
        if confusion["counts"]:
            figure = _plot_matrix(confusion["labels"], confusion["counts"])
            caption = f"{confusion['number']:,} {confusion['of']}: {accuracy} right"
            yield ReportFigure("confusion", "Confusion matrix", figure, caption, in_page=False)
    if reliability := answers.get("reliability"):
        caption = (
            f"{reliability['number']:,} {reliability['of']}; expected calibration error "
            f"{format_percent(reliability['error'])}"
        )
        yield ReportFigure("reliability", "Reliability", _plot_reliability(reliability["bins"]), caption)
    if numbers := answers.get("numbers"):
        num_shown = len(numbers["pairs"])
        examples = pluralize(num_shown, "example")
        if num_shown < numbers["number"]:
            examples = f"{num_shown:,} of {numbers['number']:,} examples"
        caption = f"{numbers['up']} by {numbers['across']}, {examples}"
        yield ReportFigure("numbers", "Predicted and true numbers", _plot_scatter(numbers), caption)


def _plot_reliability(bins: Sequence[Mapping[str, Any]]) -> Figure:
    """Plot accuracy by confidence; the area of a dot grows with the number of predictions in its bin."""

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], ":", color=plots.INK, linewidth=0.8)
        max_count = max(bin_["number"] for bin_ in bins)
        confidence, accuracy = [bin_["confidence"] for bin_ in bins], [bin_["right"] for bin_ in bins]
        area_range = _MAX_DOT_AREA - _MIN_DOT_AREA
        areas = [_MIN_DOT_AREA + area_range * bin_["number"] / max_count for bin_ in bins]
        axes.plot(confidence, accuracy, "-", color=plots.BAR, linewidth=1)
        axes.scatter(confidence, accuracy, areas, color=plots.BAR)
        axes.set_xlim(-0.03, 1.03)
        axes.set_ylim(-0.06, 1.06)
        ticks = [0, 0.25, 0.5, 0.75, 1]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xlabel("probability")
        axes.set_ylabel("accuracy")

    return plots.figure(draw)


def _plot_scatter(numbers: Mapping[str, Any]) -> Figure:
    def draw(axes: Axes) -> None:
        x, y = zip(*numbers["pairs"], strict=True)
        if numbers["across"] == "truth":  # both axes have the same scale
            ends = [min(*x, *y), max(*x, *y)]
            axes.plot(ends, ends, ":", color=plots.INK, linewidth=0.8)
        axes.scatter(x, y, 10, color=plots.BAR, alpha=0.6, linewidths=0)
        axes.set_xlabel(numbers["across"])
        axes.set_ylabel(numbers["up"])

    return plots.figure(draw)


def _plot_matrix(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> Figure:
    """Plot a confusion matrix with labels as rows and predictions as columns, shaded by fraction of the row."""
    shares = [[cell / max(1, sum(row)) for cell in row] for row in counts]

    def draw(axes: Axes) -> None:
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for i, row in enumerate(counts):
            for j, cell in enumerate(row):
                if cell:
                    color = "white" if shares[i][j] > 0.5 else plots.INK
                    axes.text(j, i, f"{cell:,}", ha="center", va="center", color=color, fontsize=8)
        ticks, names = range(len(labels)), plots.displayable_labels(labels)
        axes.set_xticks(ticks, names, rotation=90, parse_math=False)
        axes.set_yticks(ticks, names, parse_math=False)
        axes.set_xlabel("prediction")
        axes.set_ylabel("label")

    side = 2.2 + 0.42 * len(labels)
    return plots.figure(draw, (side, side))


def _length_figures(report: Mapping[str, Any]) -> Iterator[ReportFigure]:
    for part, summary in report.get("lengths", {}).items():
        if summary["number"] == 0 or summary["least"] == summary["most"]:
            continue
        truncation = report["truncation"][part]
        max_tokens = truncation["limit"] - truncation["special_tokens"]
        lengths = describe_lengths(summary, "text", "tokens")
        caption = f"{part}: {lengths}; the model reads {max_tokens:,} at a time"
        histogram = summary["histogram"]
        figure = plots.histogram(histogram["edges"], histogram["counts"], "tokens", "texts", max_tokens + 1)
        yield ReportFigure(f"lengths_{part}", f"Lengths ({part})", figure, caption)
