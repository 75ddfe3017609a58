"""The loss curve of a run, from its log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from bertsmith.reports import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_EVALUATION_COLOR = "#d1722e"


def plot_loss_curve(log: Path) -> Markup | None:
    """Plot the training and evaluation losses of a run by update.

    Args:
        log: The run's log.jsonl.

    Returns:
        Inline SVG; None if the log is unreadable or has fewer than two training losses.
    """
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
        rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    except (OSError, ValueError):
        return None
    evaluation_key = next((name for row in rows for name in row if name in ("mlm_loss", "dev_loss")), "")
    part = evaluation_key.removesuffix("_loss")
    has_part = any(part in row for row in rows if row.get("kind") == "train")
    # The curve is of the part of the loss that evaluations measure (such as mlm), or else of the total.
    name = part if has_part else "loss"
    training = [(row["step"], row[name]) for row in rows if row.get("kind") == "train" and name in row]
    evaluations = (
        [(row["step"], row[evaluation_key]) for row in rows if evaluation_key in row] if has_part else []
    )
    if len(training) < 2:
        return None

    def draw(axes: Axes) -> None:
        axes.plot(*zip(*training, strict=True), label="training")
        if evaluations:
            axes.plot(*zip(*evaluations, strict=True), "o-", color=_EVALUATION_COLOR, label="held out")
            axes.legend(frameon=False, labelcolor=plots.INK)
        axes.set_xlabel("update")
        axes.set_ylabel(f"{part.upper()} loss" if has_part else "loss")

    (first_step, first_loss), (last_step, last_loss) = training[0], training[-1]
    caption = (
        f"loss from {first_loss:.3f} at update {first_step:,} to {last_loss:.3f} at update {last_step:,}"
    )
    return plots.to_svg(plots.figure(draw), caption)
