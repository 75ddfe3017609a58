"""The picture and the page of a word's occurrences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bertsmith.explain.neighbors import Occurrence, WordNeighbors
from bertsmith.io import atomic
from bertsmith.reports import plots
from bertsmith.reports.page import check_suffix, render, write_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = ((plots.BAR, "o"), (plots.ALERT, "s"), (plots.INK, "^"), (plots.BAR, "D"), (plots.ALERT, "v"))
_COLUMNS = 4
_SIDE = 1.6  # inches: side of the square of a layer
_CONTEXT = 30  # characters on each side of a word
_CAPTION = (
    "The occurrences in each layer, on the first two principal components of their vectors. The static vector, "
    "the input embedding of the word, is the same in all of them."
)


def write_neighbors(neighbors: WordNeighbors, file: Path) -> Path:
    """Write a PNG or a page; InputError for other names."""
    if check_suffix(file) == ".html":
        write_page(file, render_neighbors(neighbors))
        return file
    with atomic.write_errors(file):
        atomic.write_bytes(file, plots.to_png(plot_layers(neighbors)))
    return file


def render_neighbors(neighbors: WordNeighbors) -> str:
    """Return the HTML page; texts are escaped."""
    occurrences = neighbors.occurrences
    rows = [
        (snippet(o), group, snippet(occurrences[o.nearest]), neighbors.groups[o.nearest], o.cosine)
        for o, group in zip(occurrences, neighbors.groups, strict=True)
    ]
    picture = plots.to_svg(plot_layers(neighbors), _CAPTION)
    return render("neighbors.html", neighbors=neighbors, rows=rows, picture=picture, caption=_CAPTION)


def snippet(occurrence: Occurrence, width: int = _CONTEXT) -> str:
    """Return the word with some characters on each side."""
    start, end = max(0, occurrence.start - width), occurrence.end + width
    prefix, suffix = "…" if start else "", "…" if end < len(occurrence.text) else ""
    return f"{prefix}{occurrence.text[start:end]}{suffix}"


def plot_layers(neighbors: WordNeighbors) -> Figure:
    """Plot the occurrences in a square for each layer, and one for the static vector."""
    names = [*(f"layer {index}" for index in range(len(neighbors.vectors))), "static"]
    points = [_project(states) for states in (*neighbors.vectors, neighbors.static_vectors)]
    groups = list(dict.fromkeys(neighbors.groups))
    labels = plots.displayable_labels(groups, "sense")
    members = np.array(neighbors.groups)
    num_rows = -(-len(points) // _COLUMNS)

    def draw(axes: Axes, row: int, column: int) -> None:
        index = row * _COLUMNS + column
        if index >= len(points):
            axes.axis("off")
            return
        axes.set_title(names[index], fontsize="small")
        for number, group in enumerate(groups):
            color, marker = _STYLES[number % len(_STYLES)]
            x, y = points[index][members == group].T
            axes.scatter(x, y, 14, color=color, marker=marker, alpha=0.7, label=labels[number])
        axes.margins(0.1)
        if index == len(points) - 1:
            axes.legend(loc="best", fontsize="x-small", frameon=False, labelcolor=plots.INK)

    return plots.square_grid(draw, num_rows, _COLUMNS, _SIDE)


def _project(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the first two principal components of n vectors, [n, 2]; 0 if all are equal."""
    centered = vectors.astype(np.float64) - vectors.mean(0)
    if np.abs(centered).max() < 1e-6:
        return np.zeros((len(vectors), 2))
    components, scales, _ = np.linalg.svd(centered, full_matrices=False)
    projected: NDArray[np.float64] = components[:, :2] * scales[:2]
    return projected
