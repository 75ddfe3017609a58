"""The plot of a learning rate range test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bertsmith.reports import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DIVERGENCE_MARGIN = 0.15  # the plot ends at least this fraction above the first loss; larger losses diverge


def plot_lr_range_test(
    rates: Sequence[float],
    curves: Mapping[int, tuple[Sequence[float], Sequence[float]]],
    suggested: float | None,
) -> bytes:
    """Plot the loss by learning rate.

    Args:
        rates: The learning rates.
        curves: The losses (dots) and smoothed losses (a line) by seed; they may end before the last rate.
        suggested: The learning rate to mark; None marks none.

    Returns:
        A PNG.
    """

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
        high = first + max(_DIVERGENCE_MARGIN * first, 0.5 * (first - low))
        axes.set_ylim(low - 0.05 * (first - low), high)
        axes.legend(frameon=False, labelcolor=plots.INK, loc="lower left", fontsize="small")
        axes.set_xlabel("learning rate")
        axes.set_ylabel("training loss")

    return plots.to_png(plots.figure(draw))
