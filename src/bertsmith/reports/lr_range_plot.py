"""The plot of a range test: the loss by learning rate, a curve a seed, and the suggestion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bertsmith.reports import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROOM = 0.15  # of the first loss: room above it, behind which a loss has diverged


def rate_plot(
    rates: Sequence[float],
    curves: Mapping[int, tuple[Sequence[float], Sequence[float]]],
    suggested: float | None,
) -> bytes:
    """A PNG. curves: by seed, the losses (dots) and the smoothed losses (a line); those that ended before the last
    rate are shorter. suggested: a rate to mark, if any."""

    def draw(axes: Axes) -> None:
        first = max(smoothed[0] for _, smoothed in curves.values())
        low = min(min(losses) for losses, _ in curves.values())
        for seed, (losses, smoothed) in curves.items():
            (line,) = axes.plot(rates[: len(smoothed)], smoothed, linewidth=1.6, label=f"seed {seed}")
            axes.plot(rates[: len(losses)], losses, ".", color=line.get_color(), alpha=0.25, markersize=3)
        if suggested is not None:
            axes.axvline(suggested, color=plots.INK, linestyle="--", linewidth=1.2)
            axes.annotate(
                f"{suggested:g}",
                (suggested, 1),
                xycoords=("data", "axes fraction"),
                xytext=(3, -3),
                textcoords="offset points",
                va="top",
                color=plots.INK,
            )
        axes.set_xscale("log")
        axes.set_ylim(low - 0.05 * (first - low), first + max(_ROOM * first, 0.5 * (first - low)))
        axes.legend(frameon=False, labelcolor=plots.INK, loc="lower left", fontsize="small")
        axes.set_xlabel("learning rate")
        axes.set_ylabel("training loss")

    return plots.png(plots.figure(draw))
