"""The plots of a run of fine-tuning or of an evaluation, from the numbers of its report alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bertsmith.formatting import counted, percent
from bertsmith.reports import plots
from bertsmith.reports.page import score_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = ("o", "s", "^", "D")
_MOST_BARS = 40  # labels
_NAMED = ("step", "epoch", "loss", "best")  # of an evaluation; the others are scores


class Drawing(NamedTuple):
    """A plot: its name, which a file and its place in a page have, its heading, what it says.

    in_page: whether a page shows it; it has another form of it otherwise, which is read more easily there."""

    name: str
    heading: str
    figure: Figure
    told: str
    in_page: bool = True


def drawings(report: Mapping[str, Any]) -> list[Drawing]:
    """All plots that there are numbers for, in the order of the page."""
    return [*_curves(report), *_answers(report.get("answers", {})), *_lengths(report)]


def _curves(report: Mapping[str, Any]) -> Iterator[Drawing]:
    points = report.get("curve", {}).get("points", [])
    if len(points) > 1:
        steps = [point["step"] for point in points]
        losses = [point["loss"] for point in points]
        rates = [point["learning_rate"] for point in points]
        said = f"loss from {losses[0]:.3f} at update {steps[0]:,} to {losses[-1]:.3f} at update {steps[-1]:,}"
        if (mean := report["curve"]["mean_of"]) > 1:
            said += f"; each point is the mean of {mean} lines of the log"
        figure = _lines(steps, {"loss": losses}, "loss", report.get("best_step"))
        yield Drawing("loss", "Training loss", figure, said)
    evaluations = report.get("evaluations", [])
    if len(evaluations) > 1:
        steps = [row["step"] for row in evaluations]
        scores = {
            score_name(name): [row[name] for row in evaluations]
            for name in evaluations[0]
            if name not in _NAMED
        }
        best, decides = report["best_step"], report["decided_by"]
        value = next((row[decides] for row in evaluations if row["step"] == best), None)
        said = f"{counted(len(evaluations), 'evaluation')} on dev"
        if value is not None:
            said += (
                f"; the best {score_name(decides)}, {value:.4f}, at update {best:,}, whose weights were kept"
            )
        yield Drawing("scores", "Scores on dev", _lines(steps, scores, "score", best), said)
    if len(points) > 1:
        highest = max(rates)
        steps = [point["step"] for point in points]
        said = f"the highest that was logged is {_plain(highest)}, at update {steps[rates.index(highest)]:,}"
        figure = _lines(steps, {"": [rate * 1e6 for rate in rates]}, "millionths")
        yield Drawing("learning_rate", "Learning rate", figure, said)


def _plain(rate: float) -> str:
    """A small number, in three digits and without a power of ten."""
    return f"{float(f'{rate:.3g}'):.12f}".rstrip("0").rstrip(".")


def _lines(
    steps: Sequence[int], series: Mapping[str, Sequence[float]], up: str, best: int | None = None
) -> Figure:
    """Lines over updates, told apart by colour, dash and marker. best: an update to draw a line at."""
    looks = [(plots.BAR, "-"), (plots.LOST, "--"), (plots.INK, ":"), (plots.INK, "-.")]

    def draw(axes: Axes) -> None:
        for i, (name, values) in enumerate(series.items()):
            colour, dash = looks[i % len(looks)]
            marker = _MARKERS[i % len(_MARKERS)] if len(steps) <= _MOST_BARS else None
            axes.plot(steps, values, dash, color=colour, marker=marker, markersize=4, label=name)
        if best is not None:
            axes.axvline(best, color=plots.INK, linewidth=0.8, linestyle=":", label="weights kept")
        if len(series) > 1:
            axes.legend(frameon=False, labelcolor=plots.INK, fontsize="small")
        ticks = plots.whole_ticks(0, max(steps), 5)
        axes.set_xticks(ticks, [plots.tick_label(tick) for tick in ticks])
        axes.set_xlabel("update")
        axes.set_ylabel(up)

    return plots.figure(draw)


def _answers(answers: Mapping[str, Any]) -> Iterator[Drawing]:
    if found := answers.get("confusion"):
        right = percent(1 - found["wrong"] / max(1, found["number"]))
        said = f"{found['number']:,} {found['of']}: {right} right"
        if found["counts"]:
            yield Drawing(
                "confusion", "Confusion", _matrix(found["labels"], found["counts"]), said, in_page=False
            )
    for table in answers.get("tables", []):
        if table["columns"][1:] and "F1" in table["columns"] and len(table["rows"]) > 1:
            bars = _bars(table)
            yield Drawing("labels", "F1 by label", bars, "F1 of each label", in_page=False)
            break
    if found := answers.get("reliability"):
        said = f"{found['number']:,} {found['of']}; expected calibration error {percent(found['error'])}"
        yield Drawing("reliability", "Reliability", _reliability(found["bins"]), said)
    if found := answers.get("numbers"):
        shown = len(found["pairs"])
        said = f"{found['up']} beside {found['across']}"
        said += (
            f", {shown:,} of {found['number']:,} examples"
            if shown < found["number"]
            else f", {counted(shown, 'example')}"
        )
        yield Drawing("numbers", "Predicted and true numbers", _scatter(found), said)


def _reliability(bins: Sequence[Mapping[str, Any]]) -> Figure:
    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], ":", color=plots.INK, linewidth=0.8)
        most = max(one["number"] for one in bins)
        sure, right = [one["confidence"] for one in bins], [one["right"] for one in bins]
        axes.plot(sure, right, "-", color=plots.BAR, linewidth=1)
        axes.scatter(sure, right, [12 + 88 * one["number"] / most for one in bins], color=plots.BAR)
        axes.set_xlim(-0.03, 1.03)
        axes.set_ylim(-0.06, 1.06)
        ticks = [0, 0.25, 0.5, 0.75, 1]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xlabel("probability")
        axes.set_ylabel("share that is right")

    return plots.figure(draw)


def _scatter(found: Mapping[str, Any]) -> Figure:
    def draw(axes: Axes) -> None:
        truth, guess = zip(*found["pairs"], strict=True)
        if found["across"] == "truth":  # both are of one kind
            ends = [min(*truth, *guess), max(*truth, *guess)]
            axes.plot(ends, ends, ":", color=plots.INK, linewidth=0.8)
        axes.scatter(truth, guess, 10, color=plots.BAR, alpha=0.6, linewidths=0)
        axes.set_xlabel(found["across"])
        axes.set_ylabel(found["up"])

    return plots.figure(draw)


def _matrix(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> Figure:
    """Rows of truth, columns of predictions; the shade is the share of the row."""
    shares = [[cell / max(1, sum(row)) for cell in row] for row in counts]

    def draw(axes: Axes) -> None:
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for i, row in enumerate(counts):
            for j, cell in enumerate(row):
                if cell:
                    colour = "white" if shares[i][j] > 0.5 else plots.INK
                    axes.text(j, i, f"{cell:,}", ha="center", va="center", color=colour, fontsize=8)
        places, names = range(len(labels)), plots.drawable(labels)
        axes.set_xticks(places, names, rotation=90, parse_math=False)
        axes.set_yticks(places, names, parse_math=False)
        axes.set_xlabel("prediction")
        axes.set_ylabel("truth")

    side = 2.2 + 0.42 * len(labels)
    return plots.figure(draw, (side, side))


def _bars(table: Mapping[str, Any]) -> Figure:
    """F1 of each row; of very many the first and the last."""
    at, rows = table["columns"].index("F1"), table["rows"]
    shown = rows if len(rows) <= _MOST_BARS else [*rows[: _MOST_BARS // 2], *rows[-_MOST_BARS // 2 :]]

    def draw(axes: Axes) -> None:
        places = range(len(shown))
        axes.barh(places, [float(row[at]) for row in shown], color=plots.BAR)
        axes.set_yticks(places, plots.drawable([row[0] for row in shown]), parse_math=False)
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_xlim(0, 1)
        axes.set_xlabel("F1")

    return plots.figure(draw, (plots.WIDTH, 1 + 0.25 * len(shown)))


def _lengths(report: Mapping[str, Any]) -> Iterator[Drawing]:
    for part, found in report.get("lengths", {}).items():
        if found["number"] == 0 or found["least"] == found["most"]:
            continue
        account = report["truncation"][part]
        room = account["limit"] - account["special_tokens"]
        said = (
            f"{part}: {counted(found['number'], 'text')} of {found['least']:,} to {found['most']:,} tokens; "
            f"median {found['median']:,}, 95 % have up to {found['percentile_95']:,}; {room:,} are read at a time"
        )
        shape = found["histogram"]
        figure = plots.histogram(shape["edges"], shape["counts"], "tokens", "texts", room + 1)
        yield Drawing(f"lengths_{part}", f"Lengths ({part})", figure, said)
