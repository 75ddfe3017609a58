"""Figures of a report of fine-tuning or of an evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bertsmith.formatting import format_percent, pluralize
from bertsmith.reports import plots
from bertsmith.reports.page import describe_lengths, score_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = ("o", "s", "^", "D")
_MAX_MARKED_POINTS = 40  # lines of more points have no markers
_MIN_DOT_AREA, _MAX_DOT_AREA = 12, 100  # square points, of the bins of a reliability diagram
_NOT_SCORES = ("step", "epoch", "loss", "best")  # keys of an evaluation


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
        caption = (
            f"loss from {losses[0]:.3f} at update {steps[0]:,} to {losses[-1]:.3f} at update {steps[-1]:,}"
        )
        if (mean_of := report["curve"]["mean_of"]) > 1:
            caption += f"; each point is the mean of {mean_of} lines of the log"
        figure = _plot_lines(steps, {"loss": losses}, "loss", report.get("best_step"))
        yield ReportFigure("loss", "Training loss", figure, caption)
    evaluations = report.get("evaluations", [])
    if len(evaluations) > 1:
        scores = {
            score_name(name): [row[name] for row in evaluations]
            for name in evaluations[0]
            if name not in _NOT_SCORES
        }
        best, metric = report["best_step"], report["decided_by"]
        value = next((row[metric] for row in evaluations if row["step"] == best), None)
        caption = f"{pluralize(len(evaluations), 'evaluation')} on the validation data"
        if value is not None:
            caption += (
                f"; the best {score_name(metric)}, {value:.4f}, at update {best:,}, whose weights were kept"
            )
        figure = _plot_lines([row["step"] for row in evaluations], scores, "score", best)
        yield ReportFigure("scores", "Scores on the validation data", figure, caption)
    if len(points) > 1:
        rates = [point["learning_rate"] for point in points]
        maximum = max(rates)
        caption = (
            f"the highest logged rate is {_format_rate(maximum)}, at update {steps[rates.index(maximum)]:,}"
        )
        figure = _plot_lines(steps, {"": [rate * 1e6 for rate in rates]}, "millionths")
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
            yield ReportFigure("confusion", "Confusion", figure, caption, in_page=False)
    if reliability := answers.get("reliability"):
        caption = (
            f"{reliability['number']:,} {reliability['of']}; expected calibration error "
            f"{format_percent(reliability['error'])}"
        )
        yield ReportFigure("reliability", "Reliability", _plot_reliability(reliability["bins"]), caption)
    if numbers := answers.get("numbers"):
        num_shown = len(numbers["pairs"])
        examples = (
            f"{num_shown:,} of {numbers['number']:,} examples"
            if num_shown < numbers["number"]
            else pluralize(num_shown, "example")
        )
        caption = f"{numbers['up']} by {numbers['across']}, {examples}"
        yield ReportFigure("numbers", "Predicted and true numbers", _plot_scatter(numbers), caption)


def _plot_reliability(bins: Sequence[Mapping[str, Any]]) -> Figure:
    """Plot accuracy by confidence; the area of a dot grows with the number of predictions in its bin."""

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], ":", color=plots.INK, linewidth=0.8)
        max_count = max(bin_["number"] for bin_ in bins)
        confidence, accuracy = [bin_["confidence"] for bin_ in bins], [bin_["right"] for bin_ in bins]
        areas = [
            _MIN_DOT_AREA + (_MAX_DOT_AREA - _MIN_DOT_AREA) * bin_["number"] / max_count for bin_ in bins
        ]
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
