"""The curve of a run's loss, from its log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from bertsmith.reports import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DECIDES = "#d1722e"


def loss_curve(log: Path) -> Markup | None:
    """The losses of a run's log.jsonl by update, those in training and those of evaluations, as a picture that
    stands in a page; None where the log has fewer than two."""
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
        rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    except (OSError, ValueError):
        return None
    held = next((name for row in rows for name in row if name in ("mlm_loss", "dev_loss")), "")
    part = held.removesuffix("_loss")
    of_part = any(part in row for row in rows if row.get("kind") == "train")
    name = part if of_part else "loss"  # the part of the loss that is also judged, or all of it
    trained = [(row["step"], row[name]) for row in rows if row.get("kind") == "train" and name in row]
    judged = [(row["step"], row[held]) for row in rows if held in row] if of_part else []
    if len(trained) < 2:
        return None

    def draw(axes: Axes) -> None:
        axes.plot(*zip(*trained, strict=True), label="training")
        if judged:
            axes.plot(*zip(*judged, strict=True), "o-", color=_DECIDES, label="held out")
            axes.legend(frameon=False, labelcolor=plots.INK)
        axes.set_xlabel("update")
        axes.set_ylabel(f"{part.upper()} loss" if of_part else "loss")

    (first, begin), (last, end) = trained[0], trained[-1]
    said = f"loss from {begin:.3f} at update {first:,} to {end:.3f} at update {last:,}"
    return plots.picture(plots.figure(draw), said)
